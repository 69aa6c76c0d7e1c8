package seccomp

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is what a filter sees.
type call struct {
	arch uint32
	nr   uint32
	args [6]uint64
}

// machine runs a program in golang.org/x/net/bpf, which also checks that it is well-formed. That machine
// reads big-endian packets and seccomp native words, so the words are stored big-endian.
type machine struct {
	vm  *bpf.VM
	buf [64]byte
}

func newMachine(t testing.TB, p []unix.SockFilter) *machine {
	t.Helper()
	raw := make([]bpf.Instruction, len(p))
	for i, f := range p {
		raw[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble()
		if _, ok := raw[i].(bpf.RawInstruction); ok {
			t.Fatalf("instruction %d is none: %+v", i, f)
		}
	}
	vm, err := bpf.NewVM(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{vm: vm}
}

func (m *machine) run(t testing.TB, c call) uint32 {
	binary.BigEndian.PutUint32(m.buf[0:], c.nr)
	binary.BigEndian.PutUint32(m.buf[4:], c.arch)
	for i, a := range c.args {
		binary.BigEndian.PutUint32(m.buf[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(m.buf[20+8*i:], uint32(a>>32))
	}
	r, err := m.vm.Run(m.buf[:])
	if err != nil {
		t.Fatal(err)
	}
	return uint32(r)
}

// reference evaluates a profile as the package comment says, one rule after the other, with the system call
// tables of another project.
type reference struct {
	p       *specs.LinuxSeccomp
	goarch  string
	numbers map[int]string
	newest  uint32
}

func newReference(t testing.TB, p *specs.LinuxSeccomp, goarch string) *reference {
	t.Helper()
	info, err := arch.GetInfo(goarch)
	if err != nil {
		t.Fatal(err)
	}
	return &reference{p: p, goarch: goarch, numbers: info.SyscallNumbers, newest: 470}
}

func (r *reference) run(t testing.TB, c call) uint32 {
	native := map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7}[r.goarch]
	switch {
	case c.arch != native:
		return 0x80000000
	case r.goarch == "amd64" && c.nr >= 0x40000000:
		return 0x00050000 | 38
	}
	def := refAction(t, r.p.DefaultAction, r.p.DefaultErrnoRet)
	if c.nr > r.newest && def>>16 == 5 {
		return 0x00050000 | 38
	}
	name, known := r.numbers[int(c.nr)]
	if !known {
		return def
	}
	var hits []uint32
	for _, s := range r.p.Syscalls {
		if slices.Contains(s.Names, name) && refMatch(t, s.Args, c) {
			hits = append(hits, refAction(t, s.Action, s.ErrnoRet))
		}
	}
	for _, class := range []uint32{0x8000, 0x0000, 0x0003, 0x0005, 0x7ffc, 0x7fff} {
		for _, h := range hits {
			if h>>16 == class {
				return h
			}
		}
	}
	return def
}

func refMatch(t testing.TB, args []specs.LinuxSeccompArg, c call) bool {
	for _, a := range args {
		v := c.args[a.Index]
		ok := false
		switch a.Op {
		case specs.OpEqualTo:
			ok = v == a.Value
		case specs.OpNotEqual:
			ok = v != a.Value
		case specs.OpLessThan:
			ok = v < a.Value
		case specs.OpLessEqual:
			ok = v <= a.Value
		case specs.OpGreaterThan:
			ok = v > a.Value
		case specs.OpGreaterEqual:
			ok = v >= a.Value
		case specs.OpMaskedEqual:
			ok = v&a.Value == a.ValueTwo
		default:
			t.Fatalf("operator %q", a.Op)
		}
		if !ok {
			return false
		}
	}
	return true
}

func refAction(t testing.TB, a specs.LinuxSeccompAction, ret *uint) uint32 {
	data := uint32(1)
	if ret != nil {
		data = uint32(*ret)
	}
	switch a {
	case specs.ActKillProcess:
		return 0x80000000
	case specs.ActKill, specs.ActKillThread:
		return 0
	case specs.ActTrap:
		return 0x00030000
	case specs.ActErrno:
		return 0x00050000 | data
	case specs.ActLog:
		return 0x7ffc0000
	case specs.ActAllow:
		return 0x7fff0000
	}
	t.Fatalf("action %q", a)
	return 0
}

// values are the arguments worth trying at a rule: what it names, the neighbours, single bits turned, high
// bits set.
func values(p *specs.LinuxSeccomp, name string, index uint) []uint64 {
	v := []uint64{0, 1, ^uint64(0)}
	for _, s := range p.Syscalls {
		if !slices.Contains(s.Names, name) {
			continue
		}
		for _, a := range s.Args {
			if a.Index != index {
				continue
			}
			for _, x := range []uint64{a.Value, a.ValueTwo, a.Value &^ a.ValueTwo, a.ValueTwo | ^a.Value} {
				v = append(v, x-1, x, x+1, x^1<<31, x|1<<32, x|1<<63, x|0xffffffff<<32, uint64(uint32(x)))
			}
		}
	}
	slices.Sort(v)
	return slices.Compact(v)
}

// compare tries every number with every value worth trying of each argument that a rule looks at.
func compare(t *testing.T, p *specs.LinuxSeccomp, goarch string) (tried int) {
	t.Helper()
	code, err := Compile(p, goarch)
	if err != nil {
		t.Fatal(err)
	}
	m, ref := newMachine(t, code), newReference(t, p, goarch)
	try := func(c call) {
		tried++
		if got, want := m.run(t, c), ref.run(t, c); got != want {
			t.Fatalf("%s: call %d %q %#x: filter %#x, profile %#x", goarch, c.nr, ref.numbers[int(c.nr)], c.args, got, want)
		}
	}
	for _, nr := range numbers() {
		for _, a := range []uint32{0xc000003e, 0xc00000b7, 0x40000003, 0x40000028, 0} {
			try(call{arch: a, nr: nr})
		}
		tryArgs(p, ref, call{arch: auditArch[goarch], nr: nr}, try)
	}
	return tried
}

func numbers() []uint32 {
	var n []uint32
	for i := range uint32(600) {
		n = append(n, i, x32Bit+i, 0x80000000+i, 0x10000+i)
	}
	return append(n, 1023, 1024, 4095, 0xffff, x32Bit-1, 0x7fffffff, 0xfffffffe, 0xffffffff)
}

// tryArgs varies one argument at a time over a random background, and all together at random.
func tryArgs(p *specs.LinuxSeccomp, ref *reference, c call, try func(call)) {
	name, ok := ref.numbers[int(c.nr)]
	if !ok {
		return
	}
	rng := rand.New(rand.NewPCG(1, uint64(c.nr)))
	var vals [6][]uint64
	for i := range vals {
		vals[i] = values(p, name, uint(i))
	}
	for i := range vals {
		for _, v := range vals[i] {
			for range 3 {
				for j := range vals {
					c.args[j] = vals[j][rng.IntN(len(vals[j]))]
				}
				c.args[i] = v
				try(c)
			}
		}
	}
}
