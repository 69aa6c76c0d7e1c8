package snapshottest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Mounted are the two stacks of a feature, usable through paths that only this process has.
type Mounted struct {
	Workspace, Home string

	fds []int
}

// Close lets go of the mounts. Who still has a file open keeps its own alive.
func (m *Mounted) Close() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// Mount mounts stacks with the engine's options. The mounts are attached nowhere: no namespace is needed, and nothing is
// left when the process dies. Without privileges a child in a user namespace makes them.
func Mount(t testing.TB, stacks []snapshot.Stack) *Mounted {
	t.Helper()
	m := &Mounted{}
	for _, s := range stacks {
		path := s.Upper
		if path == "" && len(s.Lower) == 1 {
			path = s.Lower[0].Path // read-only, which the suite keeps to
		} else if len(s.Lower) > 0 {
			fd, err := mountStack(s)
			if err != nil {
				m.Close()
				t.Fatalf("mount %s: %v", s.Target, err)
			}
			m.fds = append(m.fds, fd)
			path = fmt.Sprintf("/proc/self/fd/%d", fd)
		}
		if s.Target == snapshot.HomeTarget {
			m.Home = path
		} else {
			m.Workspace = path
		}
	}
	return m
}

func mountStack(s snapshot.Stack) (int, error) {
	if os.Geteuid() == 0 {
		return overlay(s, false)
	}
	server, err := startMounter()
	if err != nil {
		return -1, err
	}
	return server.mount(s)
}

// mountable tells why overlays cannot be mounted here.
var mountable = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "caisson-overlay")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"l", "u", "w"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			return err
		}
	}
	fd, err := mountStack(snapshot.Stack{Lower: []snapshot.Layer{{Path: dir + "/l"}}, Upper: dir + "/u", Work: dir + "/w"})
	if err == nil {
		unix.Close(fd)
	}
	return err
})

// overlay makes an unattached overlay mount.
func overlay(s snapshot.Stack, userXattr bool) (int, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	// By descriptor: an option is at most 255 bytes, and a path may hold a comma or a colon.
	dirs, err := openDirs(s)
	if err != nil {
		return -1, err
	}
	defer closeAll(dirs)
	options := overlayOptions(s, userXattr, dirs)
	for _, o := range options {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return -1, fmt.Errorf("overlay option %s=%s: %w", o[0], o[1], err)
		}
	}
	err = unix.FsconfigCreate(fs)
	if errors.Is(err, unix.EINVAL) && len(s.Lower) > 10 {
		return oldOverlay(s, userXattr, dirs)
	}
	if err != nil {
		return -1, fmt.Errorf("overlay of %d layers: %w", len(s.Lower), err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

// oldOverlay is for kernels before 6.5, which know no lowerdir+: the options of mount(2) have 4,096 bytes, and what it
// mounts is attached for a moment.
func oldOverlay(s snapshot.Stack, userXattr bool, dirs []int) (int, error) {
	at, err := os.MkdirTemp("", "caisson-overlay")
	if err != nil {
		return -1, err
	}
	defer os.Remove(at)
	var options, lower []string
	for _, o := range overlayOptions(s, userXattr, dirs) {
		switch {
		case o[0] == "lowerdir+":
			lower = append(lower, o[1])
		case o[1] == "":
			options = append(options, o[0])
		default:
			options = append(options, o[0]+"="+o[1])
		}
	}
	options = append(options, "lowerdir="+strings.Join(lower, ":"))
	if err := unix.Mount("overlay", at, "overlay", 0, strings.Join(options, ",")); err != nil {
		return -1, fmt.Errorf("overlay of %d layers: %w", len(lower), err)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return fd, errors.Join(err, unix.Unmount(at, unix.MNT_DETACH))
}

// overlayOptions are names and values; dirs are the lower directories, the upper and the work directory.
func overlayOptions(s snapshot.Stack, userXattr bool, dirs []int) [][2]string {
	options := [][2]string{{"index", "off"}, {"metacopy", "off"}, {"xino", "auto"}}
	paths := make([]string, len(dirs))
	for i, fd := range dirs {
		paths[i] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	lower := paths[:len(s.Lower)]
	if len(lower) <= 10 {
		options = append(options, [2]string{"lowerdir", strings.Join(lower, ":")})
	} else {
		for _, path := range lower {
			options = append(options, [2]string{"lowerdir+", path})
		}
	}
	if userXattr {
		options = append(options, [2]string{"userxattr", ""})
	} else {
		options = append(options, [2]string{"redirect_dir", "on"})
	}
	if s.Upper != "" {
		options = append(options, [2]string{"volatile", ""},
			[2]string{"upperdir", paths[len(lower)]}, [2]string{"workdir", paths[len(lower)+1]})
	}
	return options
}

func openDirs(s snapshot.Stack) ([]int, error) {
	var paths []string
	for _, l := range s.Lower {
		paths = append(paths, l.Path)
	}
	if s.Upper != "" {
		paths = append(paths, s.Upper, s.Work)
	}
	var fds []int
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(fds)
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// mounter is a child that is root in a user namespace and hands mounts over.
type mounter struct {
	mu   sync.Mutex
	conn *net.UnixConn
}

const mounterVariable = "CAISSON_SNAPSHOTTEST_MOUNTER"

// startMounter starts the child; it ends when this process does, because its socket closes.
var startMounter = sync.OnceValues(func() (*mounter, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "mounter"), os.NewFile(uintptr(pair[1]), "mounter")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), mounterVariable+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	return &mounter{conn: unixConn}, nil
})

func (m *mounter) mount(s snapshot.Stack) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	request, err := json.Marshal(s)
	if err != nil {
		return -1, err
	}
	if _, err := m.conn.Write(request); err != nil {
		return -1, err
	}
	reply, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := m.conn.ReadMsgUnix(reply, rights)
	if err != nil {
		return -1, err
	}
	if oobn == 0 {
		return -1, fmt.Errorf("in a user namespace: %s", reply[:n])
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// serveMounts is the child.
func serveMounts() error {
	conn, err := net.FileConn(os.NewFile(3, "mounter"))
	if err != nil {
		return err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	buf := make([]byte, 256<<10)
	for {
		n, err := socket.Read(buf)
		if n == 0 || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		var s snapshot.Stack
		if err := json.Unmarshal(buf[:n], &s); err != nil {
			return err
		}
		fd, err := overlay(s, true)
		if err != nil {
			if _, err := socket.Write([]byte(err.Error())); err != nil {
				return err
			}
			continue
		}
		_, _, err = socket.WriteMsgUnix([]byte("ok"), unix.UnixRights(fd), nil)
		unix.Close(fd)
		if errors.Is(err, unix.EPIPE) { // who asked was killed
			return nil
		}
		if err != nil {
			return err
		}
	}
}
