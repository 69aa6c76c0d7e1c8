// Package keys finds a sequence of keys in what somebody types, such as the one that lets go of a task.
package keys

import (
	"fmt"
	"strings"
)

// Parse reads a sequence: single characters and ctrl-X, with commas between. "" is none.
func Parse(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(s, ",") {
		k, err := parseKey(name)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

func parseKey(name string) (byte, error) {
	if len(name) == 1 && name[0] > ' ' && name[0] < 0x7f {
		return name[0], nil
	}
	if c, ok := strings.CutPrefix(strings.ToLower(name), "ctrl-"); ok && len(c) == 1 && strings.Contains(letters, c) {
		return c[0] & 0x1f, nil // as terminals do: the five lower bits
	}
	return 0, fmt.Errorf("%q is no key: a character, or ctrl- and a letter or one of @ [ \\ ] ^ _", name)
}

const letters = "@abcdefghijklmnopqrstuvwxyz[\\]^_"

// Filter holds back what may be the beginning of the sequence.
type Filter struct {
	Keys []byte // none are never found

	held int    // how many of Keys were typed last
	out  []byte // reused
}

// Pass returns what goes on, which is valid until the next call, and whether the sequence is complete; what was typed after
// it is dropped.
func (f *Filter) Pass(p []byte) (out []byte, found bool) {
	if len(f.Keys) == 0 {
		return p, false
	}
	f.out = f.out[:0]
	for _, c := range p {
		f.step(c)
		if f.held == len(f.Keys) {
			f.held = 0
			return f.out, true
		}
	}
	return f.out, false
}

// step takes one byte: what is held is the longest end of the input that begins the sequence.
func (f *Filter) step(c byte) {
	for f.held > 0 && f.Keys[f.held] != c {
		shorter := f.held - 1
		for shorter > 0 && string(f.Keys[:shorter]) != string(f.Keys[f.held-shorter:f.held]) {
			shorter--
		}
		f.out = append(f.out, f.Keys[:f.held-shorter]...)
		f.held = shorter
	}
	if f.Keys[f.held] == c {
		f.held++
		return
	}
	f.out = append(f.out, c)
}

// Rest is what was held back when the input ends.
func (f *Filter) Rest() []byte {
	rest := f.Keys[:f.held]
	f.held = 0
	return rest
}
