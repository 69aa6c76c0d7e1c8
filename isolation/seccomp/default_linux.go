package seccomp

import (
	"runtime"
	"slices"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// denied are calls that no sandbox gets, wherever Docker's list stands on them: kernel surface with a long
// record of exploits (io_uring, userfaultfd, bpf, perf, modify_ldt), the keyrings, which no namespace
// separates, and every way into another namespace.
var denied = []string{
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	"keyctl", "add_key", "request_key",
	"userfaultfd", "bpf", "perf_event_open", "modify_ldt",
	"unshare", "setns",
}

// cloneNamespaces are the flags of clone(2) that make a namespace. The kernel takes 0x80 (CLONE_NEWTIME)
// from clone3 alone, so here it costs nothing and completes the list.
const cloneNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME

// From linux/personality.h.
const (
	perLinux32 = 0x0008
	uname26    = 0x0020000
)

// Rules of ours replace Docker's for these calls. All parameters are 32 bits wide in the kernel.
var (
	// personalities are those of Docker's list: Linux and the 32-bit one, each also as kernel 2.6, and the query.
	personalities = []uint32{0, perLinux32, uname26, uname26 | perLinux32, 0xffffffff}
	// families that socket(2) refuses: AF_ALG is attack surface, AF_VSOCK reaches the hypervisor and past
	// every network namespace. Families beyond 63 do not exist.
	families = []uint32{unix.AF_ALG, unix.AF_VSOCK}
	// terminalInput are the ioctls that type into a terminal.
	terminalInput = []uint32{unix.TIOCSTI, unix.TIOCLINUX}
)

// Default returns the profile of a process without capabilities on this architecture: Docker's list, less
// what it grants to capabilities, less denied, with argument rules for clone, ioctl, personality and socket,
// and ENOSYS for clone3, whose flags lie in memory that a filter cannot see. The caller owns the value.
func Default() *specs.LinuxSeccomp { return profile(runtime.GOARCH) }

// profile is Default for a GOARCH. An architecture that Docker's list does not know gets no call at all.
func profile(arch string) *specs.LinuxSeccomp {
	src := moby.DefaultProfile()
	p := &specs.LinuxSeccomp{DefaultAction: src.DefaultAction, DefaultErrnoRet: src.DefaultErrnoRet}
	if a, ok := ociArch[arch]; ok {
		p.Architectures = []specs.Arch{a} // no sub-architectures: 32-bit calls would need rules of their own
	}
	own := ownRules()
	replaced := slices.Clone(denied)
	for _, r := range own {
		replaced = append(replaced, r.Names...)
	}
	for _, s := range src.Syscalls {
		if !granted(s, arch) {
			continue
		}
		r := s.LinuxSyscall
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(replaced, n) })
		if len(r.Names) > 0 {
			p.Syscalls = append(p.Syscalls, r)
		}
	}
	p.Syscalls = append(p.Syscalls, own...)
	return p
}

var ociArch = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

// granted says whether a rule of Docker's list holds for a process without capabilities. Its kernel versions
// are all older than the oldest kernel that caisson runs on.
func granted(s *moby.Syscall, arch string) bool {
	if in := s.Includes; in != nil {
		if len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, arch) {
			return false
		}
	}
	return s.Excludes == nil || !slices.Contains(s.Excludes.Arches, arch)
}

func ownRules() []specs.LinuxSyscall {
	nosys := uint(unix.ENOSYS)
	rules := []specs.LinuxSyscall{
		{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &nosys},
		allow("clone", specs.LinuxSeccompArg{Index: 0, Value: cloneNamespaces, ValueTwo: 0, Op: specs.OpMaskedEqual}),
	}
	for _, v := range personalities {
		rules = append(rules, allow("personality", low32(0, ^uint32(0), v)))
	}
	for _, a := range except(0, 63, families) {
		rules = append(rules, allow("socket", low32(0, a.mask, a.value)))
	}
	for _, a := range except(0, ^uint32(0), terminalInput) {
		rules = append(rules, allow("ioctl", low32(1, a.mask, a.value)))
	}
	return rules
}

func allow(name string, arg specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}}
}

// low32 compares the bits of mask in an argument's low half; the high half, which the kernel drops, is not
// looked at.
func low32(index uint, mask, value uint32) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: uint64(mask), ValueTwo: uint64(value), Op: specs.OpMaskedEqual}
}

// block is the numbers whose bits under mask are value; mask is a run of leading ones, as of an IP network.
type block struct{ mask, value uint32 }

// except returns blocks that cover the numbers from first to last (a block themselves) without those in holes.
// A halved block without a hole is kept whole, so a hole costs at most one block per bit.
func except(first, last uint32, holes []uint32) []block {
	inside := func(h uint32) bool { return first <= h && h <= last }
	if !slices.ContainsFunc(holes, inside) {
		return []block{{mask: ^(last - first), value: first}}
	}
	if first == last {
		return nil
	}
	middle := first + (last-first)/2
	return append(except(first, middle, holes), except(middle+1, last, holes)...)
}
