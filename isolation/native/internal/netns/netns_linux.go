// Package netns keeps network namespaces ready that hold nothing but lo. They belong to the host's user namespace, so
// nobody inside has a right over them.
package netns

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pool makes namespaces ahead in the background: making one costs as much as the rest of a sandbox's start.
type Pool struct {
	keep int // how many stay ready once there has been a use for one
	done chan struct{}

	mu      sync.Mutex
	change  *sync.Cond // of what follows
	ready   []made
	waiting int
	spare   int // how many are to be ready beside those that somebody waits for
	closed  bool
}

type made struct {
	fd  int
	err error
}

// NewPool makes one namespace at once, and keeps some ready from the first use on. It occupies a thread until Close.
func NewPool(keep int) *Pool {
	p := &Pool{keep: keep, spare: 1, done: make(chan struct{})}
	p.change = sync.NewCond(&p.mu)
	go p.fill()
	return p
}

// fill runs on a thread that is never given back: it is left in the last namespace that it made.
func (p *Pool) fill() {
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
		n := create()
		p.mu.Lock()
		p.ready = append(p.ready, n)
		p.change.Broadcast()
	}
}

// Get returns the descriptor of a namespace, which the caller closes.
func (p *Pool) Get() (int, error) {
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

// Close frees what nobody took. Nobody may be waiting.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.change.Broadcast()
	p.mu.Unlock()
	<-p.done
	for _, n := range p.ready {
		if n.err == nil {
			_ = unix.Close(n.fd) // a namespace nobody has entered
		}
	}
}

// create moves this thread into a new network namespace and returns a descriptor of it.
func create() made {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return made{-1, fmt.Errorf("new network namespace: %w", err)}
	}
	if err := raiseLoopback(); err != nil {
		return made{-1, err}
	}
	// Nobody inside has CAP_NET_BIND_SERVICE here; ports below 1024 of a private lo need none.
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0) // a convenience; /proc/sys may be read-only
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return made{-1, fmt.Errorf("open network namespace: %w", err)}
	}
	return made{fd, nil}
}

// LoopbackUp is a struct ifreq that raises lo.
func LoopbackUp() []byte {
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
	ifr := LoopbackUp()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&ifr[0])))
	if errno != 0 {
		return fmt.Errorf("raise lo: %w", errno)
	}
	return nil
}
