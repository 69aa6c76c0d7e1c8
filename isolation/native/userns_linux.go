package native

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// formatMap writes mappings as /proc/PID/uid_map reads them.
func formatMap(m []specs.LinuxIDMapping) string {
	var b strings.Builder
	for _, x := range m {
		fmt.Fprintf(&b, "%d %d %d\n", x.ContainerID, x.HostID, x.Size)
	}
	return b.String()
}

// writeMaps gives a child that waits in its fresh user namespace its ids. An unprivileged writer must give up
// setgroups first.
func writeMaps(pid int, uid, gid []specs.LinuxIDMapping, single bool) error {
	proc := "/proc/" + strconv.Itoa(pid) + "/"
	if single {
		if err := writeFile(proc+"setgroups", "deny"); err != nil {
			return err
		}
	}
	if err := writeFile(proc+"uid_map", formatMap(uid)); err != nil {
		return err
	}
	return writeFile(proc+"gid_map", formatMap(gid))
}

func writeFile(name, data string) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	_, err = unix.Write(fd, []byte(data))
	_ = unix.Close(fd) // written or not is known already
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// mapKeeper holds the user namespaces that idmapped mounts refer to, one per pair of maps.
type mapKeeper struct {
	mu sync.Mutex
	ns map[string]int
}

// userns returns a namespace with these maps, made by a child that only waits until it may end.
func (e *Engine) mountUserns(uid, gid []specs.LinuxIDMapping) (int, error) {
	key := formatMap(uid) + "/" + formatMap(gid)
	e.maps.mu.Lock()
	defer e.maps.mu.Unlock()
	if fd, ok := e.maps.ns[key]; ok {
		return fd, nil
	}
	var line [2]int
	if err := unix.Pipe2(line[:], unix.O_CLOEXEC); err != nil {
		return -1, fmt.Errorf("pipe: %w", err)
	}
	defer func() { _ = unix.Close(line[0]) }()
	p := &plan{}
	p.add("close lifeline", unix.SYS_CLOSE, hostFD{"lifeline", line[1]})
	p.soft("wait", unix.SYS_READ, hostFD{"lifeline", line[0]}, make([]byte, 1), 1)
	s, err := p.compile()
	if err != nil {
		_ = unix.Close(line[1])
		return -1, err
	}
	defer s.free()
	pid, pidfd, err := e.spawn(s, spawnOptions{flags: unix.CLONE_VM | unix.CLONE_NEWUSER, netns: -1, pidns: -1, cgroup: -1})
	if err != nil {
		_ = unix.Close(line[1])
		return -1, fmt.Errorf("user namespace for an idmapped mount: %w", err)
	}
	fd := -1
	if err = writeMaps(pid, uid, gid, false); err == nil {
		fd, err = unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	_ = unix.Close(line[1]) // end of file: the child leaves
	_, werr := reap(pidfd)
	_ = unix.Close(pidfd)
	if err == nil {
		err = werr
	}
	if err != nil {
		return -1, fmt.Errorf("user namespace for an idmapped mount: %w", err)
	}
	e.maps.ns[key] = fd
	return fd, nil
}

func (k *mapKeeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, fd := range k.ns {
		_ = unix.Close(fd)
		delete(k.ns, key)
	}
}

// idmap applies maps to a detached tree.
func (e *Engine) idmap(tree any, name string, uid, gid []specs.LinuxIDMapping) error {
	ns, err := e.mountUserns(uid, gid)
	if err != nil {
		return err
	}
	return setattr(&immediate{}, tree, name, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)})
}
