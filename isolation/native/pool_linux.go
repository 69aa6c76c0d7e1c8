package native

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// netnsPool keeps network namespaces that hold nothing but lo, made ahead in the background: making one costs as
// much as the rest of the start. They belong to the host's user namespace, so nobody inside has a right over them.
type netnsPool struct {
	ready chan netns
	stop  chan struct{}
	done  chan struct{}
}

type netns struct {
	fd  int
	err error
}

func newNetnsPool(size int) *netnsPool {
	p := &netnsPool{ready: make(chan netns, max(size-1, 0)), stop: make(chan struct{}), done: make(chan struct{})}
	go p.fill()
	return p
}

// fill runs on a thread that is never given back: it is left in the last namespace that it made.
func (p *netnsPool) fill() {
	runtime.LockOSThread()
	defer close(p.done)
	for {
		n := makeNetns()
		select {
		case p.ready <- n:
		case <-p.stop:
			_ = n.close()
			return
		}
	}
}

// get returns a namespace, which the caller closes.
func (p *netnsPool) get() (int, error) {
	n := <-p.ready
	return n.fd, n.err
}

func (p *netnsPool) close() {
	close(p.stop)
	<-p.done
	for {
		select {
		case n := <-p.ready:
			_ = n.close()
		default:
			return
		}
	}
}

func (n netns) close() error {
	if n.err != nil {
		return nil
	}
	return unix.Close(n.fd)
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
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil && !os.IsNotExist(err) {
		return netns{-1, fmt.Errorf("ports of the network namespace: %w", err)}
	}
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
