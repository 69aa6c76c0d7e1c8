package seccomp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// x32Bit marks system call numbers of the x32 ABI.
const x32Bit = 0x40000000

var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Compile turns p into a program for a GOARCH, to be loaded by seccomp(2): a binary search over the call's
// number, then its argument rules. See the package comment for what a profile means.
//
// An error says what could not be enforced as written: an architecture, action, operator or flag that is not
// supported, a call that is to be refused and that nobody knows, one argument compared twice in a rule (some
// engines read that as "or"), or a program beyond the kernel's limit. Callers keep the result: it takes a
// fraction of a millisecond.
func Compile(p *specs.LinuxSeccomp, arch string) ([]unix.SockFilter, error) {
	t, err := lookup(arch)
	if err != nil {
		return nil, err
	}
	if err := supported(p, arch); err != nil {
		return nil, err
	}
	def, err := action(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, fmt.Errorf("seccomp: default: %w", err)
	}
	calls, err := collect(p, t, def)
	if err != nil {
		return nil, err
	}
	a := &asm{rets: map[uint32]label{}}
	entry := a.search(callSpans(calls, def, t.max), def)
	if arch == "amd64" {
		// Before the search for calls, which would take them for newer than the table.
		entry = a.jump(opGe, x32Bit, a.ret(errno(unix.ENOSYS)), entry)
	}
	entry = a.load(offsetNumber, entry)
	entry = a.jump(opEq, auditArch[arch], entry, a.ret(unix.SECCOMP_RET_KILL_PROCESS))
	a.load(offsetArch, entry)
	return a.program()
}

// supported refuses what the program could not express.
func supported(p *specs.LinuxSeccomp, arch string) error {
	if len(p.Architectures) > 0 && !slices.Contains(p.Architectures, ociArch[arch]) {
		return fmt.Errorf("seccomp: the profile is for %v, not for %s", p.Architectures, arch)
	}
	if len(p.Flags) > 0 || p.ListenerPath != "" {
		return fmt.Errorf("seccomp: flags and listeners are not supported")
	}
	return nil
}

// rule is one alternative of a call: all conditions hold, then act.
type rule struct {
	act   uint32
	conds []specs.LinuxSeccompArg
}

// collect sorts the rules by call, and each call's rules strictest first; what follows an unconditional rule
// can never match and goes.
func collect(p *specs.LinuxSeccomp, t *table, def uint32) (map[uint32][]rule, error) {
	calls := make(map[uint32][]rule, len(t.numbers))
	first := make([]rule, 0, len(t.numbers)) // of each call, in one piece
	for _, s := range p.Syscalls {
		act, err := action(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, fmt.Errorf("seccomp: %v: %w", s.Names, err)
		}
		if err := checkArgs(s.Args); err != nil {
			return nil, fmt.Errorf("seccomp: %v: %w", s.Names, err)
		}
		for _, name := range s.Names {
			if nr, ok := t.numbers[name]; ok {
				r := rule{act: act, conds: s.Args}
				if have := calls[nr]; have != nil {
					calls[nr] = append(have, r)
					continue
				}
				first = append(first, r)
				calls[nr] = first[len(first)-1 : len(first) : len(first)]
			} else if !t.foreign[name] && strictness(act) < strictness(def) {
				return nil, fmt.Errorf("seccomp: %s is to be refused, but no system call has that name", name)
			}
		}
	}
	for nr, rules := range calls {
		if len(rules) == 1 {
			continue
		}
		slices.SortStableFunc(rules, func(a, b rule) int { return cmp.Compare(strictness(a.act), strictness(b.act)) })
		if i := slices.IndexFunc(rules, func(r rule) bool { return len(r.conds) == 0 }); i >= 0 {
			rules = rules[:i+1]
		}
		calls[nr] = rules
	}
	return calls, nil
}

func checkArgs(args []specs.LinuxSeccompArg) error {
	var seen [6]bool
	for _, c := range args {
		if c.Index >= uint(len(seen)) {
			return fmt.Errorf("argument %d does not exist", c.Index)
		}
		if seen[c.Index] {
			return fmt.Errorf("argument %d is compared twice in one rule", c.Index)
		}
		seen[c.Index] = true
		switch c.Op {
		case specs.OpEqualTo, specs.OpNotEqual, specs.OpMaskedEqual,
			specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual:
		default:
			return fmt.Errorf("unknown operator %q", c.Op)
		}
	}
	return nil
}

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e)&unix.SECCOMP_RET_DATA }

func action(a specs.LinuxSeccompAction, ret *uint) (uint32, error) {
	switch a {
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActKill, specs.ActKillThread: // what libseccomp means by KILL
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		const maxErrno = 4095 // the kernel cuts what is larger
		switch {
		case ret == nil:
			return errno(unix.EPERM), nil
		case *ret > maxErrno:
			return 0, fmt.Errorf("errno %d is larger than %d", *ret, maxErrno)
		}
		return errno(unix.Errno(*ret)), nil
	}
	return 0, fmt.Errorf("action %q is not supported", a)
}

// strictness orders actions as the kernel does between filters: the lowest wins. KILL_PROCESS has the sign
// bit, so the order is that of signed numbers.
func strictness(act uint32) int32 { return int32(act & unix.SECCOMP_RET_ACTION_FULL) }

// callSpans makes the spans of the search over call numbers.
func callSpans(calls map[uint32][]rule, def, newest uint32) []span {
	unknown := def
	if def&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO {
		unknown = errno(unix.ENOSYS)
	}
	var spans []span
	for nr := range newest + 1 {
		s := span{start: nr, act: def}
		if rules := calls[nr]; len(rules) > 0 {
			if s.rules = rules; len(rules[0].conds) == 0 {
				s.act, s.rules = rules[0].act, nil
			}
		}
		spans = appendSpan(spans, s)
	}
	return appendSpan(spans, span{start: newest + 1, act: unknown})
}

// argSpans turns a call's alternatives into spans of one argument's low half: possible where each compares
// leading bits of it and nothing else, as those of Default do. One search then replaces a long list.
func argSpans(rules []rule, def uint32) (spans []span, offset uint32, ok bool) {
	type interval struct{ first, last, act uint32 }
	var all []interval
	starts := []uint32{0}
	for _, r := range rules {
		if len(r.conds) != 1 || r.conds[0].Op != specs.OpMaskedEqual || r.conds[0].Index != rules[0].conds[0].Index {
			return nil, 0, false
		}
		mask, value := r.conds[0].Value, r.conds[0].ValueTwo
		rest := ^uint32(mask)
		if mask>>32 != 0 || value&^mask != 0 || rest&(rest+1) != 0 {
			return nil, 0, false
		}
		iv := interval{first: uint32(value), last: uint32(value) | rest, act: r.act}
		all = append(all, iv)
		if starts = append(starts, iv.first); iv.last != ^uint32(0) {
			starts = append(starts, iv.last+1)
		}
	}
	slices.Sort(starts)
	for _, start := range slices.Compact(starts) {
		act := def
		if i := slices.IndexFunc(all, func(v interval) bool { return v.first <= start && start <= v.last }); i >= 0 {
			act = all[i].act
		}
		spans = appendSpan(spans, span{start: start, act: act})
	}
	return spans, offsetArgs + 8*uint32(rules[0].conds[0].Index), true
}

// rules writes a call's alternatives; the accumulator is lost.
func (a *asm) rules(rules []rule, def uint32) label {
	if spans, offset, ok := argSpans(rules, def); ok {
		return a.load(offset, a.search(spans, def))
	}
	next := a.ret(def)
	for _, r := range slices.Backward(rules) {
		yes := a.ret(r.act)
		for _, c := range slices.Backward(r.conds) {
			yes = a.cond(c, yes, next)
		}
		next = yes
	}
	return next
}

// cond writes one comparison of a 64-bit argument, in two halves.
func (a *asm) cond(c specs.LinuxSeccompArg, yes, no label) label {
	low := offsetArgs + 8*uint32(c.Index)
	high := low + 4
	vl, vh := uint32(c.Value), uint32(c.Value>>32)
	switch c.Op {
	case specs.OpNotEqual:
		yes, no = no, yes
		fallthrough
	case specs.OpEqualTo:
		return a.masked(high, ^uint32(0), vh, a.masked(low, ^uint32(0), vl, yes, no), no)
	case specs.OpMaskedEqual:
		wl, wh := uint32(c.ValueTwo), uint32(c.ValueTwo>>32)
		return a.masked(high, vh, wh, a.masked(low, vl, wl, yes, no), no)
	case specs.OpLessThan, specs.OpLessEqual:
		yes, no = no, yes
	}
	op := uint16(opGt) // LessEqual is "not greater"; LessThan "not greater or equal"
	if c.Op == specs.OpGreaterEqual || c.Op == specs.OpLessThan {
		op = opGe
	}
	equal := a.load(low, a.jump(op, vl, yes, no))
	return a.load(high, a.jump(opGt, vh, yes, a.jump(opEq, vh, equal, no)))
}

// masked compares the bits of mask in one word with want.
func (a *asm) masked(offset, mask, want uint32, yes, no label) label {
	switch {
	case want&^mask != 0:
		return no
	case mask == 0:
		return yes
	}
	entry := a.jump(opEq, want, yes, no)
	if mask != ^uint32(0) {
		entry = a.and(mask, entry)
	}
	return a.load(offset, entry)
}
