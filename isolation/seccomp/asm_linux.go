package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are two 32-bit words each, the low one first: both
// architectures are little-endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K
	opGoto = unix.BPF_JMP | unix.BPF_JA
	opEq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opGt   = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opGe   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
)

// maxJump is how far a conditional jump reaches: its offsets are bytes.
const maxJump = 255

// label names an instruction: how many instructions there are from it to the program's end.
type label int

// asm builds a program backwards, from its last instruction to its first. BPF jumps only forward, so every
// target is there, and its distance known, when a jump to it is written.
type asm struct {
	code []unix.SockFilter // last instruction first
	rets map[uint32]label  // the nearest return of each action
}

func (a *asm) emit(code uint16, k uint32) label {
	a.code = append(a.code, unix.SockFilter{Code: code, K: k})
	return label(len(a.code))
}

// distance is how many instructions the next one written would skip to reach to.
func (a *asm) distance(to label) int { return len(a.code) - int(to) }

// next makes to the instruction that follows the one written next.
func (a *asm) next(to label) {
	if d := a.distance(to); d > 0 {
		a.emit(opGoto, uint32(d))
	}
}

// load puts the word at offset into the accumulator and goes on at then; and keeps the bits of mask.
func (a *asm) load(offset uint32, then label) label {
	a.next(then)
	return a.emit(opLoad, offset)
}

func (a *asm) and(mask uint32, then label) label {
	a.next(then)
	return a.emit(opAnd, mask)
}

// ret returns action. A return within easy reach of jumps is used again.
func (a *asm) ret(action uint32) label {
	if l, ok := a.rets[action]; ok && a.distance(l) < maxJump/2 {
		return l
	}
	a.rets[action] = a.emit(opRet, action)
	return a.rets[action]
}

// jump compares the accumulator with k and goes to yes or no. Targets out of its reach get a goto on the way.
func (a *asm) jump(op uint16, k uint32, yes, no label) label {
	if yes == no {
		return yes
	}
	if a.distance(yes) >= maxJump { // one less: the other goto may come between
		yes = a.emit(opGoto, uint32(a.distance(yes)))
	}
	if a.distance(no) > maxJump {
		no = a.emit(opGoto, uint32(a.distance(no)))
	}
	a.code = append(a.code, unix.SockFilter{
		Code: op, Jt: uint8(a.distance(yes)), Jf: uint8(a.distance(no)), K: k,
	})
	return label(len(a.code))
}

// program returns the finished code, first instruction first.
func (a *asm) program() ([]unix.SockFilter, error) {
	if n := len(a.code); n > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("seccomp: the profile needs %d instructions, the kernel takes %d", n, unix.BPF_MAXINSNS)
	}
	p := slices.Clone(a.code)
	slices.Reverse(p)
	return p, nil
}

// span is the numbers from start up to the next span's: they lead to rules, or to act when there are none.
type span struct {
	start uint32
	act   uint32
	rules []rule
}

// appendSpan adds s, unless it says the same as the span before it.
func appendSpan(spans []span, s span) []span {
	if n := len(spans); n > 0 && s.rules == nil && spans[n-1].rules == nil && spans[n-1].act == s.act {
		return spans
	}
	return append(spans, s)
}

// search finds the accumulator's span by bisection. The spans cover every number: the first starts at 0.
// Where a span has rules, def is what happens when none of them matches.
func (a *asm) search(spans []span, def uint32) label {
	if len(spans) == 1 {
		if s := spans[0]; s.rules != nil {
			return a.rules(s.rules, def)
		}
		return a.ret(spans[0].act)
	}
	m := len(spans) / 2
	high := a.search(spans[m:], def)
	low := a.search(spans[:m], def)
	return a.jump(opGe, spans[m].start, high, low)
}
