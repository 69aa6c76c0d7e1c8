package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

// sandbox is a live sandbox: PID 1 and what was executed in it.
type sandbox struct {
	e     *Engine
	id    string
	spec  *isolation.Spec
	pid   int
	pidfd int
	line  int // the lifeline; closing it ends PID 1

	exchanging sync.Mutex // one Exchange at a time; taken before mu

	mu       sync.Mutex // held by Exec and Exchange, so that Close comes before or after
	closed   bool
	frozen   bool          // by Freeze
	holds    int           // how many Holds are not released
	released chan struct{} // closed when the last one is, or by Close
	still    bool          // the processes are stopped
	pipe     [2]int        // of the Exec in progress, unprivileged
	running  sync.WaitGroup
}

func newSandbox(e *Engine, s *isolation.Spec, pid, pidfd, lifeline int) (*sandbox, error) {
	b := &sandbox{e: e, id: s.ID, spec: s, pid: pid, pidfd: pidfd, line: lifeline}
	e.live.Add(1)
	return b, nil
}

func (b *sandbox) PID() int { return b.pid }

// Close kills everything inside and waits until it is gone. When PID 1 has been reaped the kernel has ended the
// pid namespace, and the mounts go with the last process.
func (b *sandbox) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close(ctx)
}

// close is Close with b.mu held.
func (b *sandbox) close(ctx context.Context) error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.holds > 0 {
		close(b.released) // who waits to execute need not wait any longer
	}
	defer b.e.live.Done()
	err := unix.PidfdSendSignal(b.pidfd, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		err = nil // it had ended already
	}
	if b.spec.Cgroup != nil {
		// A process that is frozen by cgroup v1 does not die before it is thawed: the group knows how.
		if kerr := b.spec.Cgroup.Kill(ctx); kerr != nil {
			err = errors.Join(err, kerr)
		}
	}
	gone := make(chan error, 1)
	go func() {
		b.running.Wait() // PID 1 stays until its namespace is empty, and we are the parents who empty it
		_, err := reap(b.pidfd)
		_ = unix.Close(b.pidfd)
		_ = unix.Close(b.line)
		gone <- err
	}()
	select {
	case rerr := <-gone:
		err = errors.Join(err, rerr)
	case <-ctx.Done(): // something inside waits in the kernel, for a dead disk perhaps
		err = errors.Join(err, fmt.Errorf("PID 1 (%d) has been killed and is not gone: %w", b.pid, context.Cause(ctx)))
	}
	if err != nil {
		return fmt.Errorf("close sandbox %s: %w", b.id, err)
	}
	return nil
}

// enterBriefly runs a plan that enters the sandbox and executes nothing, in a child outside of its pid namespace and
// cgroup. It returns the steps' results when the plan is done or has failed; the child may take longer to end. b.mu is held.
func (b *sandbox) enterBriefly(p *plan) ([]uintptr, error) {
	_, release, err := b.rendezvous()
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := p.compile()
	if err != nil {
		return nil, err
	}
	const undone = 1 << 62 // no result of a system call
	// The last step may close the pipe, and say so before its result is stored.
	before := &s.ops[len(s.ops)-2].ret
	*before = undone
	o := spawnOptions{netns: -1, pidns: -1, cgroup: -1}
	if b.e.root {
		o.flags = unix.CLONE_VM | unix.CLONE_VFORK
	}
	pid, pidfd, err := b.e.spawn(s, o)
	if err != nil {
		s.free()
		return nil, err
	}
	if !b.e.root {
		_ = unix.Close(b.pipe[1])
		b.pipe[1] = -1
		if !b.e.waitEOF(b.pipe[0]) {
			_ = unix.Kill(pid, unix.SIGKILL) // our own child, not yet reaped
		}
	}
	if err = s.err(); err == nil && *before == undone {
		err = errors.New("the child was killed half way")
	}
	results := make([]uintptr, len(s.ops))
	for i := range s.ops {
		results[i] = s.ops[i].ret
	}
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		_, _ = reap(pidfd) // what it had to say it has said
		_ = unix.Close(pidfd)
		s.free()
	}()
	return results, err
}

// stdio gives the sources of fds 0, 1 and 2: the caller's files, a new terminal, or nil for /dev/null.
// The returned file is the terminal's other side, to be closed once the child has it.
func (b *sandbox) stdio(p *isolation.Process, x *execution) ([3]any, *os.File, error) {
	var out [3]any
	if !p.Terminal {
		for i, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr} {
			if f != nil && f.Fd() < 3 {
				return out, nil, fmt.Errorf("stdio %d is descriptor %d of the supervisor itself", i, f.Fd())
			}
			if f != nil {
				out[i] = hostFD{"stdio " + strconv.Itoa(i), int(f.Fd())}
			}
		}
		return out, nil, nil
	}
	master, slave, err := b.terminal(p.UID, p.GID)
	if err != nil {
		return out, nil, fmt.Errorf("terminal: %w", err)
	}
	x.terminal = master
	if p.Rows > 0 && p.Cols > 0 {
		size := &unix.Winsize{Row: p.Rows, Col: p.Cols}
		if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, size); err != nil {
			return out, slave, fmt.Errorf("size of the terminal: %w", err)
		}
	}
	for i := range out {
		out[i] = hostFD{"terminal", int(slave.Fd())}
	}
	return out, slave, nil
}

// terminal allocates a pair in the sandbox's own devpts, so that its name means something inside. /dev is ours: the
// task cannot have exchanged ptmx.
func (b *sandbox) terminal(uid, gid uint32) (master, slave *os.File, err error) {
	name := fmt.Sprintf("/proc/%d/root/dev/pts/ptmx", b.pid)
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unlock: %w", err), master.Close())
	}
	sfd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errors.Join(fmt.Errorf("open the other side: %w", errno), master.Close())
	}
	slave = os.NewFile(sfd, "pts")
	if b.e.root { // otherwise it is ours, and so the command's
		hostUID, hostGID := b.spec.IDs.Host(uid, gid)
		if err := unix.Fchown(int(sfd), int(hostUID), int(hostGID)); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("owner: %w", err), slave.Close(), master.Close())
		}
	}
	return master, slave, nil
}

// candidates are the paths that execvp would try, in the sandbox's root.
func candidates(name string, env []string) []string {
	if strings.ContainsRune(name, '/') {
		return []string{name}
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(path, ":") {
		if strings.HasPrefix(dir, "/") { // an empty or relative entry would mean the workspace
			out = append(out, strings.TrimSuffix(dir, "/")+"/"+name)
		}
	}
	if len(out) == 0 {
		return []string{"/nonexistent/" + name}
	}
	return out
}

// tunClone is the host's device that TUN devices are made with.
const tunClone = "/dev/net/tun"

const stepTUN = "open " + tunClone

// Network has a child open the descriptors in the sandbox's network namespace and hand them over. An unprivileged
// supervisor cannot enter it: that needs rights in its own user namespace, too. What is made with them it may make.
func (b *sandbox) Network(ctx context.Context) (*isolation.Network, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("network of sandbox %s: %w", b.id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, os.ErrClosed
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer func() {
		for _, fd := range pair {
			_ = unix.Close(fd)
		}
	}()
	_, err = b.enterBriefly(b.networkPlan(pair[1]))
	var step *StepError
	if errors.As(err, &step) && step.Step == stepTUN {
		return nil, tunUnsupported(step.Errno)
	}
	if err != nil {
		return nil, fmt.Errorf("network of sandbox %s: %w", b.id, err)
	}
	return receive(pair[0])
}

// networkPlan opens the two descriptors under numbers of their own, and sends them.
func (b *sandbox) networkPlan(to int) *plan {
	p := &plan{}
	p.dieWithSupervisor()
	if !b.e.root {
		p.add("undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		p.add("enter user namespace", unix.SYS_SETNS, hostFD{"PID 1", b.pidfd}, unix.CLONE_NEWUSER)
	}
	p.add("enter network namespace", unix.SYS_SETNS, hostFD{"PID 1", b.pidfd}, unix.CLONE_NEWNET)
	p.dieWithSupervisor() // a change of credentials clears it
	first := childFDs()
	tun := p.add(stepTUN, unix.SYS_OPENAT, unix.AT_FDCWD, tunClone, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	p.add("keep the device", unix.SYS_DUP3, tun, first, unix.O_CLOEXEC)
	netlink := p.add("open netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	p.add("keep netlink", unix.SYS_DUP3, netlink, first+1, unix.O_CLOEXEC)
	p.add("hand both over", unix.SYS_SENDMSG, hostFD{"socket", to}, message(unix.UnixRights(first, first+1)), unix.MSG_NOSIGNAL)
	p.add("close descriptors", unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), 0)
	return p
}

// message is a struct msghdr of one byte with control data.
func message(control []byte) *unix.Msghdr {
	iov := &unix.Iovec{Base: &[]byte{1}[0]}
	iov.SetLen(1)
	h := &unix.Msghdr{Iov: iov, Iovlen: 1, Control: unsafe.SliceData(control)}
	h.SetControllen(len(control))
	return h
}

// receive takes what networkPlan sends.
func receive(from int) (*isolation.Network, error) {
	control := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := unix.Recvmsg(from, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("descriptors of the network: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("descriptors of the network: none came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		return nil, errors.Join(fmt.Errorf("descriptors of the network: %d came", len(fds)), err)
	}
	return &isolation.Network{TUN: os.NewFile(uintptr(fds[0]), tunClone), Netlink: os.NewFile(uintptr(fds[1]), "netlink")}, nil
}

func tunUnsupported(why error) error {
	return &isolation.UnsupportedError{Control: isolation.ControlNetworkRules, Reason: tunClone + ": " + why.Error(),
		Remedy: remedies[isolation.ControlNetworkRules]}
}

// tryNetwork tries a device of the kernel's naming in the probing child's own network namespace.
func (p *prober) tryNetwork() {
	request := make([]byte, 40) // struct ifreq
	binary.NativeEndian.PutUint16(request[unix.IFNAMSIZ:], unix.IFF_TUN|unix.IFF_NO_PI)
	p.on(isolation.ControlNetworkRules, "TUN device, gateway in the supervisor")
	tun := p.try(stepTUN, unix.SYS_OPENAT, unix.AT_FDCWD, tunClone, unix.O_RDWR|unix.O_CLOEXEC, 0)
	p.try("make a TUN device", unix.SYS_IOCTL, tun, uintptr(unix.TUNSETIFF), request)
	p.soft("close", unix.SYS_CLOSE, tun)
}
