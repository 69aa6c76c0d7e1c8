package native

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// cloneArgs is struct clone_args of clone3(2), up to cgroup (version 2, 88 bytes).
type cloneArgs struct {
	flags, pidFD uint64
	_, _         uint64 // child_tid, parent_tid
	exitSignal   uint64
	_, _, _      uint64 // stack: none of its own; stack_size, tls
	_, _         uint64 // set_tid, set_tid_size
	cgroup       uint64
}

const cloneIntoCgroup = 0x200000000 // CLONE_INTO_CGROUP, kernel 5.7

//go:noescape
func cloneRun(args *cloneArgs, size uintptr, ops *op, n uintptr, res *result) (r uintptr)

// spawner forks from threads that never exit: PR_SET_PDEATHSIG follows the thread that forked, and only a
// thread of its own may stand in another network or pid namespace for a moment.
type spawner struct{ jobs chan func() }

// newSpawner starts n threads. close ends them, and with them (PDEATHSIG) every sandbox still alive.
func newSpawner(n int) *spawner {
	s := &spawner{jobs: make(chan func())}
	for range n {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			for job := range s.jobs {
				job()
			}
		}()
	}
	return s
}

func (s *spawner) close() { close(s.jobs) }

// do runs f on one of the threads and waits for it.
func (s *spawner) do(f func() error) error {
	done := make(chan error, 1)
	s.jobs <- func() { done <- f() }
	return <-done
}

// spawnOptions say how a script's child is made.
type spawnOptions struct {
	flags  uintptr // CLONE_NEW*, CLONE_VM, CLONE_VFORK
	netns  int     // the child starts in this network namespace; -1: ours
	pidns  int     // a pidfd in whose pid namespace the child is made; -1: ours
	cgroup int     // a cgroup v2 directory; -1: none
}

// spawn makes the child on a spawner thread. It returns its pid (of our pid namespace) and pidfd; the child
// may still be running its script when the pid is returned, except with CLONE_VFORK.
func (e *Engine) spawn(s *script, o spawnOptions) (pid, pidfd int, err error) {
	err = e.spawner.do(func() error {
		if o.netns >= 0 {
			if err := unix.Setns(o.netns, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace: %w", err)
			}
			defer e.leave(e.ownNet, unix.CLONE_NEWNET)
		}
		if o.pidns >= 0 {
			if err := unix.Setns(o.pidns, unix.CLONE_NEWPID); err != nil {
				return fmt.Errorf("enter pid namespace: %w", err)
			}
			defer e.leave(e.ownPID, unix.CLONE_NEWPID)
		}
		pid, pidfd, err = clone(s, o, e.patience)
		return err
	})
	return pid, pidfd, err
}

// leave returns the spawner thread to our own namespace. A thread that cannot would fork the next sandbox into
// the wrong one, so there is no going on.
func (e *Engine) leave(fd, kind int) {
	if err := unix.Setns(fd, kind); err != nil {
		panic(fmt.Sprintf("native: cannot return from a sandbox's namespace: %v", err))
	}
}

// clone calls the assembly with every signal blocked: a Go signal handler must never run in the child.
func clone(s *script, o spawnOptions, patience time.Duration) (pid, pidfd int, err error) {
	fd := int32(-1)
	args := &cloneArgs{
		flags:      uint64(o.flags) | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND,
		pidFD:      uint64(uintptr(unsafe.Pointer(&fd))),
		exitSignal: uint64(unix.SIGCHLD),
	}
	if o.cgroup >= 0 {
		args.flags |= cloneIntoCgroup
		args.cgroup = uint64(o.cgroup)
	}
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, -1, fmt.Errorf("block signals: %w", err)
	}
	if o.flags&unix.CLONE_VFORK != 0 {
		defer watch(&fd, patience)()
	}
	r := cloneWaiting(args, s)
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	runtime.KeepAlive(s.plan)
	runtime.KeepAlive(&fd)
	if r > ^uintptr(4095) {
		return 0, -1, fmt.Errorf("clone3: %w", syscall.Errno(-r))
	}
	if err != nil {
		return int(r), int(fd), fmt.Errorf("unblock signals: %w", err)
	}
	return int(r), int(fd), nil
}

// watch ends a vfork child that somebody inside has stopped, so that we go on. The kernel writes the pidfd before the
// child runs. After the returned function the pidfd is the caller's alone.
func watch(pidfd *int32, patience time.Duration) (stop func()) {
	var mu sync.Mutex
	stopped := false
	timer := time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if fd := atomic.LoadInt32(pidfd); fd >= 0 && !stopped {
			_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) // ended meanwhile: as well
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}
}

// cloneWaiting tells the scheduler that this thread may wait in the kernel (CLONE_VFORK): without that, garbage
// collection would wait with it, and a child stopped from inside would stop the whole supervisor.
//
//go:nosplit
//go:norace
func cloneWaiting(args *cloneArgs, s *script) uintptr {
	ops, n, res := &s.ops[0], uintptr(len(s.ops)), s.res
	entersyscall()
	r := cloneRun(args, unsafe.Sizeof(*args), ops, n, res)
	exitsyscall()
	return r
}

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

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

// mapKeeper holds the user namespaces that idmapped mounts refer to, one per pair of maps: the last keptMaps of them, because
// every feature has its own. A mount keeps what it refers to by itself.
type mapKeeper struct {
	mu   sync.Mutex
	ns   map[string]int
	keys []string // oldest first
}

const keptMaps = 32

// keep takes a namespace over.
func (k *mapKeeper) keep(key string, fd int) {
	if len(k.keys) == keptMaps {
		_ = unix.Close(k.ns[k.keys[0]])
		delete(k.ns, k.keys[0])
		k.keys = slices.Delete(k.keys, 0, 1)
	}
	k.ns[key], k.keys = fd, append(k.keys, key)
}

// mountUserns returns a namespace with these maps, made by a child that only waits until it may end. It is good while the
// caller holds the keeper's lock.
func (e *Engine) mountUserns(uid, gid []specs.LinuxIDMapping) (int, error) {
	key := formatMap(uid) + "/" + formatMap(gid)
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
	e.maps.keep(key, fd)
	return fd, nil
}

func (k *mapKeeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, fd := range k.ns {
		_ = unix.Close(fd)
		delete(k.ns, key)
	}
	k.keys = nil
}

// idmap applies maps to a detached tree.
func (e *Engine) idmap(tree any, name string, uid, gid []specs.LinuxIDMapping) error {
	e.maps.mu.Lock()
	defer e.maps.mu.Unlock()
	ns, err := e.mountUserns(uid, gid)
	if err != nil {
		return err
	}
	return setattr(&immediate{}, tree, name, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)})
}
