package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Stack is an overlay to mount.
type Stack struct {
	Lower       []string // newest first
	Upper, Work string   // "": read-only
	UserXattr   bool
}

// InNamespace runs f on a thread with a mount namespace of its own, which dies with it.
func InNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Show mounts a stack where only f sees it, and unmounts it.
func Show(at string, s Stack, f func() error) error {
	return InNamespace(func() error {
		if err := Mount(at, s); err != nil {
			return err
		}
		return errors.Join(f(), unix.Unmount(at, unix.MNT_DETACH))
	})
}

// Mount mounts a stack with the engine's options.
func Mount(at string, s Stack) error {
	if len(s.Lower) == 1 && s.Upper == "" {
		return errors.New("overlayfs shows no single layer")
	}
	options := [][2]string{{"index", "off"}, {"metacopy", "off"}, {"xino", "auto"}}
	if s.UserXattr {
		options = append(options, [2]string{"userxattr"})
	} else {
		options = append(options, [2]string{"redirect_dir", "on"})
	}
	if s.Upper != "" {
		options = append(options, [2]string{"volatile"})
	}
	l, err := open(s)
	defer l.close()
	if err != nil {
		return err
	}
	if Before(6, 8) { // then lowerdir+ is not known, and one option holds no more than 255 bytes
		return l.classic(at, options)
	}
	return l.mount(at, options)
}

// layers are a stack's directories, open.
type layers struct {
	lower       []string
	upper, work string
	fds         []int
}

// open names the layers by descriptor, as the engine does.
func open(s Stack) (l *layers, err error) {
	l = &layers{}
	name := func(path string) string {
		fd, e := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if e != nil {
			err = errors.Join(err, &os.PathError{Op: "open", Path: path, Err: e})
			return "/"
		}
		l.fds = append(l.fds, fd)
		return fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	for _, path := range s.Lower {
		l.lower = append(l.lower, name(path))
	}
	if s.Upper != "" {
		l.upper, l.work = name(s.Upper), name(s.Work)
	}
	return l, err
}

func (l *layers) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
}

func (l *layers) mount(at string, options [][2]string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	for _, path := range l.lower {
		options = append(options, [2]string{"lowerdir+", path})
	}
	if l.upper != "" {
		options = append(options, [2]string{"upperdir", l.upper}, [2]string{"workdir", l.work})
	}
	for _, o := range options {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fd, o[0])
		} else {
			err = unix.FsconfigSetString(fd, o[0], o[1])
		}
		if err != nil {
			return fmt.Errorf("overlay option %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// classic is mount(2), whose options fit into a page.
func (l *layers) classic(at string, options [][2]string) error {
	data := "lowerdir=" + strings.Join(l.lower, ":")
	if l.upper != "" {
		data += ",upperdir=" + l.upper + ",workdir=" + l.work
	}
	for _, o := range options {
		if data += "," + o[0]; o[1] != "" {
			data += "=" + o[1]
		}
	}
	return unix.Mount("overlay", at, "overlay", 0, data)
}

// Before reports a kernel that is older than a version.
func Before(major, minor int) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}
