package seccomp

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var arches = []string{"amd64", "arm64"}

func TestDefaultExhaustively(t *testing.T) {
	for _, a := range arches {
		n := compare(t, profile(a), a)
		t.Logf("%s: %d calls", a, n)
	}
}

// The 32-bit parameters of Default, tried with every value up to 15 bits and with high bits: what the kernel
// would read is what decides.
func TestDefaultReadsWhatTheKernelReads(t *testing.T) {
	cases := []struct {
		name  string
		index int
		allow func(v uint32) bool
	}{
		{"ioctl", 1, func(v uint32) bool { return v != 0x5412 && v != 0x541c }},
		{"socket", 0, func(v uint32) bool { return v < 64 && v != 38 && v != 40 }},
		{"personality", 0, func(v uint32) bool {
			return slices.Contains([]uint32{0, 8, 0x20000, 0x20008, 0xffffffff}, v)
		}},
		{"clone", 0, func(v uint32) bool { return v&0x7e020080 == 0 }},
	}
	for _, a := range arches {
		code, err := Compile(profile(a), a)
		if err != nil {
			t.Fatal(err)
		}
		m, table := newMachine(t, code), mustLookup(t, a)
		for _, c := range cases {
			for v := range uint32(1 << 15) {
				for _, x := range []uint64{uint64(v), uint64(v) << 17, uint64(v) | 1<<32, uint64(v) | 0xffffffff<<32} {
					in := call{arch: auditArch[a], nr: table.numbers[c.name]}
					in.args[c.index] = x
					if got, want := m.run(t, in) == unix.SECCOMP_RET_ALLOW, c.allow(uint32(x)); got != want {
						t.Fatalf("%s: %s(%#x): allowed %v, want %v", a, c.name, x, got, want)
					}
				}
			}
		}
	}
}

func TestDefaultDenies(t *testing.T) {
	more := []string{
		"mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "mount_setattr", "chroot",
		"open_by_handle_at", "init_module", "finit_module", "kexec_load", "reboot", "swapon", "acct", "syslog",
		"pidfd_getfd", "process_madvise", "kcmp", "settimeofday", "quotactl", "fanotify_init", "sethostname",
		"lookup_dcookie", "vhangup", "mbind",
	}
	for _, a := range arches {
		code, err := Compile(profile(a), a)
		if err != nil {
			t.Fatal(err)
		}
		m, table := newMachine(t, code), mustLookup(t, a)
		for _, name := range append(more, denied...) {
			nr, ok := table.numbers[name]
			if !ok && !table.foreign[name] {
				t.Errorf("%s: no such call: %s", a, name)
			}
			if !ok {
				continue
			}
			if got := m.run(t, call{arch: auditArch[a], nr: nr}); got != errno(unix.EPERM) {
				t.Errorf("%s: %s: %#x, want EPERM", a, name, got)
			}
		}
		if got := m.run(t, call{arch: auditArch[a], nr: table.numbers["clone3"]}); got != errno(unix.ENOSYS) {
			t.Errorf("%s: clone3: %#x, want ENOSYS", a, got)
		}
		for _, name := range []string{"read", "execve", "openat", "futex", "mmap", "ptrace", "wait4", "statx", "getrandom", "rseq"} {
			if got := m.run(t, call{arch: auditArch[a], nr: table.numbers[name]}); got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("%s: %s: %#x, want it allowed", a, name, got)
			}
		}
	}
}

// Default only allows, clone3 apart, and no call has both: so its meaning depends on no engine's order.
func TestDefaultNeedsNoOrder(t *testing.T) {
	p := Default()
	for i, s := range p.Syscalls {
		if s.Action == specs.ActAllow {
			continue
		}
		if !slices.Equal(s.Names, []string{"clone3"}) {
			t.Errorf("%v: %s", s.Names, s.Action)
		}
		for j, o := range p.Syscalls {
			if i != j && slices.Contains(o.Names, "clone3") {
				t.Error("clone3 has a second rule")
			}
		}
	}
	p.Syscalls[0].Names[0] = "changed"
	if Default().Syscalls[0].Names[0] == "changed" {
		t.Error("two callers share one profile")
	}
}

// Random profiles: every operator, several rules of one call with different actions, values of 64 bits.
func TestCompileRandomProfiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	n := uint(7)
	actions := []specs.LinuxSeccompAction{
		specs.ActAllow, specs.ActErrno, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActLog,
	}
	ops := []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpMaskedEqual,
		specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual,
	}
	names := []string{"read", "write", "openat", "close", "ioctl", "socket", "clone", "unshare", "futex", "mseal"}
	value := func() uint64 {
		return []uint64{0, 1, 40, 0xffffffff, 1 << 32, 1<<32 | 40, 1 << 63, ^uint64(0), rng.Uint64(), uint64(rng.Uint32())}[rng.IntN(10)]
	}
	for i := range 80 {
		p := &specs.LinuxSeccomp{DefaultAction: actions[rng.IntN(len(actions))]}
		for range rng.IntN(60) {
			s := specs.LinuxSyscall{Action: actions[rng.IntN(len(actions))], Names: []string{names[rng.IntN(len(names))], names[rng.IntN(len(names))]}}
			if s.Action == specs.ActErrno && rng.IntN(2) == 0 {
				s.ErrnoRet = &n
			}
			for _, index := range rng.Perm(6)[:rng.IntN(4)] {
				a := specs.LinuxSeccompArg{Index: uint(index), Op: ops[rng.IntN(len(ops))], Value: value(), ValueTwo: value()}
				if rng.IntN(2) == 0 {
					a.ValueTwo &= a.Value
				}
				s.Args = append(s.Args, a)
			}
			p.Syscalls = append(p.Syscalls, s)
		}
		compare(t, p, arches[i%2])
	}
}

// A call whose rules need far more than the reach of one jump.
func TestCompileFarJumps(t *testing.T) {
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
	for i := range uint64(150) {
		for _, name := range []string{"read", "socket"} {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{
				Names: []string{name}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: 0, Op: specs.OpEqualTo, Value: i << 30}, {Index: 2, Op: specs.OpGreaterThan, Value: i}},
			})
		}
	}
	compare(t, p, "amd64")
	for i := range uint64(700) {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{
			Names: []string{"write"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Op: specs.OpEqualTo, Value: i << 30}, {Index: 2, Op: specs.OpGreaterThan, Value: i}},
		})
	}
	if _, err := Compile(p, "amd64"); err == nil || !strings.Contains(err.Error(), "4096") {
		t.Errorf("a program that is too long: %v", err)
	}
}

// Both targets of one jump at every distance around the reach of its offsets.
func TestJumpReach(t *testing.T) {
	for near := maxJump - 4; near <= maxJump+4; near++ {
		for gap := range 6 {
			for _, swap := range []bool{false, true} {
				a := &asm{rets: map[uint32]label{}}
				yes := a.emit(opRet, 1)
				for range gap {
					a.emit(opRet, 9)
				}
				no := a.emit(opRet, 2)
				for range near {
					a.emit(opRet, 9)
				}
				if swap {
					a.jump(opEq, 5, no, yes)
				} else {
					a.jump(opEq, 5, yes, no)
				}
				a.emit(opLoad, offsetNumber)
				code, err := a.program()
				if err != nil {
					t.Fatal(err)
				}
				m := newMachine(t, code)
				hit, miss := m.run(t, call{nr: 5}), m.run(t, call{nr: 6})
				if swap {
					hit, miss = miss, hit
				}
				if hit != 1 || miss != 2 {
					t.Errorf("distance %d, gap %d, swapped %v: %d, %d", near, gap, swap, hit, miss)
				}
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	big := uint(4096)
	arg := func(a ...specs.LinuxSeccompArg) specs.LinuxSeccomp {
		return specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: a}}}
	}
	cases := []struct {
		name string
		arch string
		p    specs.LinuxSeccomp
		want string
	}{
		{"arch", "riscv64", specs.LinuxSeccomp{DefaultAction: specs.ActErrno}, "riscv64"},
		{"other arch", "amd64", specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchAARCH64}}, "not for amd64"},
		{"no default", "amd64", specs.LinuxSeccomp{}, "not supported"},
		{"notify", "amd64", specs.LinuxSeccomp{DefaultAction: specs.ActNotify}, "not supported"},
		{"errno", "amd64", specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &big}, "4096"},
		{"flags", "amd64", specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagSpecAllow}}, "flags"},
		{"typo in a refusal", "amd64", specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"unshrae"}, Action: specs.ActErrno}}}, "unshrae"},
		{"argument 6", "amd64", arg(specs.LinuxSeccompArg{Index: 6, Op: specs.OpEqualTo}), "does not exist"},
		{"twice", "amd64", arg(specs.LinuxSeccompArg{Op: specs.OpEqualTo}, specs.LinuxSeccompArg{Op: specs.OpNotEqual}), "twice"},
		{"operator", "amd64", arg(specs.LinuxSeccompArg{Op: "SCMP_CMP_XX"}), "operator"},
	}
	for _, c := range cases {
		if _, err := Compile(&c.p, c.arch); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	known := specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"socketcall", "open"}, Action: specs.ActErrno}}}
	for _, a := range arches {
		if _, err := Compile(&known, a); err != nil {
			t.Errorf("a refusal of a call that only other architectures have: %v", err)
		}
	}
}

func TestTableAgreesWithItsSource(t *testing.T) {
	for _, a := range arches {
		info, err := arch.GetInfo(a)
		if err != nil {
			t.Fatal(err)
		}
		table := mustLookup(t, a)
		for nr, name := range info.SyscallNumbers {
			if table.numbers[name] != uint32(nr) {
				t.Errorf("%s: %s is %d, our table says %d: run go generate", a, name, nr, table.numbers[name])
			}
		}
		if extra := len(table.numbers) - len(info.SyscallNumbers); extra < 0 || extra > 3 {
			t.Errorf("%s: %d calls more than the source", a, extra)
		}
	}
}

func TestCompileIsDeterministic(t *testing.T) {
	first, err := Compile(Default(), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Compile(Default(), "amd64")
		if err != nil || !slices.Equal(first, again) {
			t.Fatal("another program", err)
		}
	}
}

// The program's size is what loading it costs; it should not grow unseen.
func TestDefaultIsSmall(t *testing.T) {
	for _, a := range arches {
		code, err := Compile(profile(a), a)
		if err != nil || len(code) > 160 {
			t.Errorf("%s: %d instructions, %v", a, len(code), err)
		}
	}
}

func mustLookup(t testing.TB, a string) *table {
	t.Helper()
	tab, err := lookup(a)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func BenchmarkDefault(b *testing.B) {
	for b.Loop() {
		Default()
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, a := range arches {
		b.Run(a, func(b *testing.B) {
			p := profile(a)
			for b.Loop() {
				if _, err := Compile(p, a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		os.Exit(helper())
	}
	os.Exit(m.Run())
}

func ExampleCompile() {
	code, err := Compile(Default(), "amd64")
	fmt.Println(len(code) > 0, err)
	// Output: true <nil>
}
