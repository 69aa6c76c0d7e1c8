package native

import (
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/caisson-dev/caisson/isolation/native/internal/netns"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// caller makes system calls now (immediate) or records them for the child (*plan). As root the supervisor makes
// the mounts itself, detached, and the child only moves them in; unprivileged the child makes them, because
// only its user namespace may. The code that says which calls is the same.
type caller interface {
	call(name string, nr uintptr, args ...any) (any, error)
}

// immediate executes calls in the supervisor and remembers the descriptors that they return.
type immediate struct{ fds []int }

func (m *immediate) call(name string, nr uintptr, args ...any) (any, error) {
	var r [6]uintptr
	keep := make([]any, len(args))
	for i, a := range args {
		r[i], keep[i] = register(a)
	}
	ret, _, errno := unix.Syscall6(nr, r[0], r[1], r[2], r[3], r[4], r[5])
	runtime.KeepAlive(keep) // the kernel has read what the registers pointed to
	if errno != 0 {
		return nil, &StepError{Step: name, Errno: errno}
	}
	switch nr {
	case unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPENAT2:
		m.fds = append(m.fds, int(ret))
		return hostFD{name, int(ret)}, nil
	}
	return int(ret), nil
}

// last is the descriptor that the latest call returned.
func (m *immediate) last() int { return m.fds[len(m.fds)-1] }

func (m *immediate) close() {
	for _, fd := range m.fds {
		_ = unix.Close(fd) // O_PATH-like descriptors: nothing to lose
	}
	m.fds = nil
}

// fdPath is a directory that the supervisor holds open, as a path: /proc/self/fd/N. It has a bounded length
// (fsconfig takes 255 bytes) and cannot be exchanged.
type fdPath struct {
	name string
	fd   int
}

func (p fdPath) String() string { return fmt.Sprintf("/proc/self/fd/%d", p.fd) }

// cloneTree makes a detached copy of the mounts at source with the given attributes, sub-mounts too.
// Attributes can only be added: those of the host stay.
func cloneTree(c caller, source string, name string, attrs uint64) (any, error) {
	tree, err := openTree(c, source, name, unix.AT_RECURSIVE)
	if err != nil {
		return nil, err
	}
	return tree, setattr(c, tree, name, &unix.MountAttr{Attr_set: attrs})
}

// openTree clones the mount at a path. No part of the path may be a link: it was resolved when the task was admitted, and
// whoever can write one of its directories may have put a link there since. A path may begin at a descriptor of ours.
func openTree(c caller, source, name string, flags int) (any, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	dir, at := any(unix.AT_FDCWD), source
	if fd, rest, ok := ownDescriptor(source); ok {
		dir, at = hostFD{name + " from", fd}, rest
		how.Resolve |= unix.RESOLVE_BENEATH
	}
	found, err := c.call("find "+name, unix.SYS_OPENAT2, dir, at, how, unsafe.Sizeof(*how))
	if err != nil {
		return nil, err
	}
	return c.call("open_tree "+name, unix.SYS_OPEN_TREE, found, "",
		unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags)
}

// ownDescriptor takes /proc/self/fd/N/rest apart.
func ownDescriptor(source string) (fd int, rest string, ok bool) {
	s, ok := strings.CutPrefix(source, "/proc/self/fd/")
	if !ok {
		return 0, "", false
	}
	number, rest, _ := strings.Cut(s, "/")
	fd, err := strconv.Atoi(number)
	return fd, path.Join(".", rest), err == nil
}

func setattr(c caller, tree any, name string, a *unix.MountAttr) error {
	_, err := c.call("mount_setattr "+name, unix.SYS_MOUNT_SETATTR, tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		a, unsafe.Sizeof(*a))
	return err
}

// attach moves a detached mount to a path below the working directory, the new root. No part of the path may be
// a link: the workspace is the task's, and so are its links.
func (p *plan) attach(tree any, target string) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	to := p.add("find "+target, unix.SYS_OPENAT2, unix.AT_FDCWD, relative(target), how, unsafe.Sizeof(*how))
	p.add("attach "+target, unix.SYS_MOVE_MOUNT, tree, "", to, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

func relative(target string) string { return strings.TrimPrefix(target, "/") }

// mountFlags are the OCI mount options that are flags of mount(2); the others are the filesystem's own.
var mountFlags = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "ro": unix.MS_RDONLY,
}

// mountNew mounts a filesystem of its own (proc, tmpfs, devpts, mqueue) in the child.
func (p *plan) mountNew(m specs.Mount) {
	flags, data := uintptr(0), []string{}
	for _, o := range m.Options {
		if f, ok := mountFlags[o]; ok {
			flags |= f
		} else {
			data = append(data, o)
		}
	}
	p.add("mount "+m.Destination, unix.SYS_MOUNT, m.Source, relative(m.Destination), m.Type, flags, strings.Join(data, ","))
}

// devLinks are the links that programs expect in /dev.
var devLinks = [][2]string{
	{"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"},
	{"/proc/self/fd/2", "dev/stderr"}, {"pts/ptmx", "dev/ptmx"},
}

// populateDev binds the host's nodes (mknod is not allowed in a user namespace) and makes the rest.
func (p *plan) populateDev(nodes []specs.LinuxDevice) {
	for _, d := range nodes {
		at := relative(d.Path)
		f := p.add("create "+d.Path, unix.SYS_OPENAT, unix.AT_FDCWD, at, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o666)
		p.add("close", unix.SYS_CLOSE, f)
		p.add("bind "+d.Path, unix.SYS_MOUNT, d.Path, at, nil, unix.MS_BIND, nil)
	}
	for _, dir := range []string{"dev/pts", "dev/shm", "dev/mqueue"} {
		p.add("mkdir "+dir, unix.SYS_MKDIRAT, unix.AT_FDCWD, dir, 0o755)
	}
	for _, l := range devLinks {
		p.add("link "+l[1], unix.SYS_SYMLINKAT, l[0], unix.AT_FDCWD, l[1])
	}
	ro := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	p.add("protect /dev", unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, "dev", 0, ro, unsafe.Sizeof(*ro))
}

// mask hides a file behind /dev/null and a directory behind an empty read-only tmpfs.
func (p *plan) mask(target string, dir bool) {
	if dir {
		p.add("mask "+target, unix.SYS_MOUNT, "tmpfs", relative(target), "tmpfs",
			unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=2")
		return
	}
	p.add("mask "+target, unix.SYS_MOUNT, "dev/null", relative(target), nil, unix.MS_BIND, nil)
}

// protect makes a part of the tree read-only.
func (p *plan) protect(target string) {
	at := relative(target)
	p.add("bind "+target, unix.SYS_MOUNT, at, at, nil, unix.MS_BIND|unix.MS_REC, nil)
	ro := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	p.add("protect "+target, unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, at, unix.AT_RECURSIVE, ro, unsafe.Sizeof(*ro))
}

func below(target, dir string) bool { return strings.HasPrefix(target, path.Clean(dir)+"/") }

// capHeader and capData are what capset(2) takes: version 3, the calling thread; two words per set.
type capHeader struct {
	version uint32
	pid     int32
}

type capData [2]struct{ effective, permitted, inheritable uint32 }

// sharedPID is where the kernel writes a pid that both processes see.
type sharedPID struct{ pid int32 }

const capVersion3 = 0x20080522

// securebits: uid 0 has no privilege by itself, a change of uid gives none, capabilities are not kept; all locked.
const secureNoRoot = 0x2f

// lastCap is the highest capability that this kernel knows.
func lastCap() int {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return unix.CAP_LAST_CAP
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return unix.CAP_LAST_CAP
	}
	return n
}

// dropBounding empties the bounding set and locks what root means, while that is still allowed.
func (p *plan) dropBounding(last int) {
	for c := 0; c <= last; c++ {
		p.add("drop capability "+strconv.Itoa(c), unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	p.add("securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureNoRoot, 0, 0, 0)
}

// become takes uid and gid and no group beside it. A sandbox with a single id has nothing to take: its only ids
// are the supervisor's, and groups cannot be dropped without privilege (SECURITY.md says what follows).
func (p *plan) become(uid, gid uint32, single bool) {
	if single {
		return
	}
	p.add("drop groups", unix.SYS_SETGROUPS, 0, nil)
	p.add("take gid", unix.SYS_SETRESGID, gid, gid, gid)
	p.add("take uid", unix.SYS_SETRESUID, uid, uid, uid)
}

// defaultSignals takes back that signals are ignored, which is inherited.
func (p *plan) defaultSignals(ignored []unix.Signal) {
	for _, sig := range ignored {
		p.add("default "+unix.SignalName(sig), unix.SYS_RT_SIGACTION, sig, make([]byte, 32), nil, 8)
	}
}

// ignoredSignals are those that this process ignores: SIGHUP, when nohup started it, or what its program asked for.
func ignoredSignals() (list []unix.Signal) {
	for sig := unix.Signal(1); sig <= 64; sig++ {
		var action [4]uint64 // struct kernel_sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		if errno == 0 && action[0] == 1 { // SIG_IGN
			list = append(list, sig)
		}
	}
	return list
}

// seal gives up what is left: capabilities, the way back to any, and system calls. Only execve follows.
func (p *plan) seal(filter *unix.SockFprog) {
	// The changes of credentials before have set this to fs.suid_dumpable, which may be 1; the memory may be ours.
	p.add("undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	p.add("drop capabilities", unix.SYS_CAPSET, &capHeader{version: capVersion3}, &capData{})
	p.add("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	p.add("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, filter)
	p.add("unblock signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, make([]byte, 8), nil, 8)
}

var rlimitNumbers = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE,
}

// setRlimits sets limits, never above what the supervisor itself may have: raising needs a privilege.
func (p *plan) setRlimits(limits []specs.POSIXRlimit) {
	for _, l := range limits {
		n, ok := rlimitNumbers[l.Type]
		if !ok {
			continue // Start has refused unknown names
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(n, &own); err != nil {
			own = unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		}
		r := &unix.Rlimit{Max: min(l.Hard, own.Max)}
		r.Cur = min(l.Soft, r.Max)
		p.add("limit "+l.Type, unix.SYS_PRLIMIT64, 0, n, r, nil)
	}
}

// raiseLoopback raises lo in a child that made its own network namespace.
func (p *plan) raiseLoopback() {
	s := p.add("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	p.add("raise lo", unix.SYS_IOCTL, s, uintptr(unix.SIOCSIFFLAGS), netns.LoopbackUp())
}

// fewBlocks and fewInodes are what an overlay's own directories can need: it has not got them where less is left.
const (
	fewBlocks = 8
	fewInodes = 8
)

// writable refuses an overlay that the kernel made read-only because its work directory could not be made: on a full file
// system above all. That is known of those which the supervisor makes.
func writable(tree any, name string) error {
	fd, made := tree.(hostFD)
	if !made {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd.fd, &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		return err
	}
	errno := unix.EROFS
	if st.Bavail < fewBlocks || st.Ffree < fewInodes { // of the upper layer's file system
		errno = unix.ENOSPC
	}
	return fmt.Errorf("overlay at %s: its work directory: %w", name, errno)
}
