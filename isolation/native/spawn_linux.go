package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

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

// The pause program is PID 1 of every sandbox: it makes itself undumpable (the command may have its uid), then
// reads its standard input, the lifeline whose only writer is the supervisor, and exits at its end; the kernel then
// ends the whole pid namespace. Children are reaped by the kernel, because SIGCHLD is ignored when it starts.
//
//	prctl(PR_SET_DUMPABLE, 0)
//	for { n = read(0, sp-16, 1); if n == 0 || n < 0 && n != -EINTR { exit(0) } }
var pauseCode = map[string][]byte{
	"amd64": {
		0xb8, 0x9d, 0, 0, 0, //       mov  eax, 157        prctl
		0xbf, 0x04, 0, 0, 0, //       mov  edi, 4          PR_SET_DUMPABLE
		0x31, 0xf6, //                xor  esi, esi
		0x0f, 0x05, //                syscall
		0x31, 0xc0, //          loop: xor  eax, eax        read
		0x31, 0xff, //                xor  edi, edi
		0x48, 0x8d, 0x74, 0x24, 0xf0, // lea rsi, [rsp-16]
		0xba, 0x01, 0, 0, 0, //       mov  edx, 1
		0x0f, 0x05, //                syscall
		0x83, 0xf8, 0xfc, //          cmp  eax, -4         EINTR
		0x74, 0xeb, //                je   loop            (-21)
		0x85, 0xc0, //                test eax, eax
		0x7f, 0xe7, //                jg   loop            (-25)
		0xb8, 0xe7, 0, 0, 0, //       mov  eax, 231        exit_group
		0x31, 0xff, //                xor  edi, edi
		0x0f, 0x05, //                syscall
	},
	"arm64": words(
		0xd28014e8, //       mov  x8, #167         prctl
		0xd2800080, //       mov  x0, #4           PR_SET_DUMPABLE
		0xd2800001, //       mov  x1, #0
		0xd4000001, //       svc  #0
		0xd28007e8, // loop: mov  x8, #63          read
		0xd2800000, //       mov  x0, #0
		0xd10043e1, //       sub  x1, sp, #16
		0xd2800022, //       mov  x2, #1
		0xd4000001, //       svc  #0
		0xb100101f, //       cmn  x0, #4           EINTR
		0x54ffff40, //       b.eq loop             (-6 instructions)
		0xf100001f, //       cmp  x0, #0
		0x54ffff0c, //       b.gt loop             (-8 instructions)
		0xd2800bc8, //       mov  x8, #94          exit_group
		0xd2800000, //       mov  x0, #0
		0xd4000001, //       svc  #0
	),
}

func words(w ...uint32) []byte {
	var b []byte
	for _, x := range w {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// pauseELF wraps the code into the smallest static executable: an ELF header and one loadable segment.
func pauseELF(arch string) ([]byte, error) {
	code, ok := pauseCode[arch]
	if !ok {
		return nil, fmt.Errorf("no pause program for %s", arch)
	}
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[arch] // EM_X86_64, EM_AARCH64
	const base, ehsize, phsize = 0x400000, 64, 56
	size := uint64(ehsize + phsize + len(code))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + ehsize + phsize), // ET_EXEC, machine, version, entry
		uint64(ehsize), uint64(0), uint32(0), // program headers, section headers, flags
		uint16(ehsize), uint16(phsize), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x10000), // PT_LOAD, R+X
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			return nil, fmt.Errorf("pause program: %w", err)
		}
	}
	b.Write(code)
	return b.Bytes(), nil
}

// pauseMemfd returns the program in a sealed memfd, for execveat.
func pauseMemfd() (*os.File, error) {
	elf, err := pauseELF(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("caisson-pause", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before kernel 6.3 every memfd can be executed
		fd, err = unix.MemfdCreate("caisson-pause", flags)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("memfd for the pause program: %w (sysctl vm.memfd_noexec is 2; 1 is enough)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd for the pause program: %w", err)
	}
	f := os.NewFile(uintptr(fd), "caisson-pause")
	if _, err = f.Write(elf); err == nil {
		// Executed without being readable it is undumpable from its first instruction: in an unprivileged sandbox the
		// task has its uid.
		err = f.Chmod(0o111)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the pause program: %w", err)
	}
	return f, nil
}
