package native

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
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

// netnsPool keeps network namespaces that hold nothing but lo, made ahead in the background: making one costs as
// much as the rest of the start. They belong to the host's user namespace, so nobody inside has a right over them.
type netnsPool struct {
	keep int // how many stay ready once there has been a use for one
	done chan struct{}

	mu      sync.Mutex
	change  *sync.Cond // of what follows
	ready   []netns
	waiting int
	spare   int // how many are to be ready beside those that somebody waits for
	closed  bool
}

type netns struct {
	fd  int
	err error
}

// newNetnsPool makes one at once, and keeps some ready from the first use on.
func newNetnsPool(keep int) *netnsPool {
	p := &netnsPool{keep: keep, spare: 1, done: make(chan struct{})}
	p.change = sync.NewCond(&p.mu)
	go p.fill()
	return p
}

// fill runs on a thread that is never given back: it is left in the last namespace that it made.
func (p *netnsPool) fill() {
	runtime.LockOSThread()
	defer close(p.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !p.closed && len(p.ready) >= p.waiting+p.spare {
			p.change.Wait()
		}
		if p.closed {
			return
		}
		p.mu.Unlock()
		n := makeNetns()
		p.mu.Lock()
		p.ready = append(p.ready, n)
		p.change.Broadcast()
	}
}

// get returns a namespace, which the caller closes.
func (p *netnsPool) get() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
	p.spare = p.keep
	p.change.Broadcast()
	for len(p.ready) == 0 {
		p.change.Wait()
	}
	n := p.ready[0]
	p.ready = p.ready[1:]
	p.waiting--
	p.change.Broadcast()
	return n.fd, n.err
}

// close frees what nobody took. Nobody may be waiting.
func (p *netnsPool) close() {
	p.mu.Lock()
	p.closed = true
	p.change.Broadcast()
	p.mu.Unlock()
	<-p.done
	for _, n := range p.ready {
		n.close()
	}
}

func (n netns) close() {
	if n.err == nil {
		_ = unix.Close(n.fd) // a namespace nobody has entered
	}
}

// makeNetns moves this thread into a new network namespace and returns a descriptor of it.
func makeNetns() netns {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return netns{-1, fmt.Errorf("new network namespace: %w", err)}
	}
	if err := raiseLoopback(); err != nil {
		return netns{-1, err}
	}
	// Nobody inside has CAP_NET_BIND_SERVICE here; ports below 1024 of a private lo need none.
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0) // a convenience; /proc/sys may be read-only
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return netns{-1, fmt.Errorf("open network namespace: %w", err)}
	}
	return netns{fd, nil}
}

// loopbackUp is a struct ifreq that raises lo.
func loopbackUp() []byte {
	ifr := make([]byte, 40)
	copy(ifr, "lo")
	binary.NativeEndian.PutUint16(ifr[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	return ifr
}

func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer func() { _ = unix.Close(s) }()
	r, keep := register(loopbackUp())
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFFLAGS, r)
	runtime.KeepAlive(keep)
	if errno != 0 {
		return fmt.Errorf("raise lo: %w", errno)
	}
	return nil
}

// raiseLoopback does the same in a child that made its own namespace.
func (p *plan) raiseLoopback() {
	s := p.add("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	p.add("raise lo", unix.SYS_IOCTL, s, uintptr(unix.SIOCSIFFLAGS), loopbackUp())
}
