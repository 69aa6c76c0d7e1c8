package keys

import (
	"bytes"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "ctrl-p,ctrl-q": "\x10\x11", "a": "a", "ctrl-A,~,.": "\x01~.", "ctrl-@": "\x00", "ctrl-[": "\x1b", "ctrl-_": "\x1f",
	} {
		if got, err := Parse(s); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{",", "a,", "ctrl-", "ctrl-1", "ctrl-pp", "alt-x", " ", "é"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("%q: %q", s, got)
		}
	}
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		keys, in, out string
		found         bool
	}{
		{"", "anything", "anything", false},
		{"pq", "pq", "", true},
		{"pq", "ls\npqrest", "ls\n", true},
		{"pq", "pp", "pp", false},
		{"pq", "ppq", "p", true},
		{"pq", "pxpq", "px", true},
		{"aab", "aaab", "a", true},
		{"abac", "ababac", "ab", true},
		{"abac", "abab", "abab", false},
	} {
		for size := 1; size <= len(c.in); size++ { // however it comes in
			f := Filter{Keys: []byte(c.keys)}
			var out strings.Builder
			found := false
			for p := range pieces(c.in, size) {
				var o []byte
				o, found = f.Pass(p)
				out.Write(o)
				if found {
					break
				}
			}
			if !found {
				out.Write(f.Rest())
			}
			if out.String() != c.out || found != c.found {
				t.Errorf("%q in %q by %d: %q, %v", c.keys, c.in, size, out.String(), found)
			}
		}
	}
}

func pieces(s string, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(s) > 0 {
			n := min(size, len(s))
			if !yield([]byte(s[:n])) {
				return
			}
			s = s[n:]
		}
	}
}

// FuzzFilter: what goes in comes out, up to the first time that the sequence is complete.
func FuzzFilter(f *testing.F) {
	f.Add([]byte("aab"), []byte("aaaabaa"), 2)
	f.Add([]byte{16, 17}, []byte("x\x10\x10\x11y"), 1)
	f.Fuzz(func(t *testing.T, keys, in []byte, size int) {
		if len(keys) == 0 || size < 1 {
			return
		}
		filter := Filter{Keys: keys}
		var out []byte
		want, _, expected := bytes.Cut(in, keys)
		found := false
		for p := range pieces(string(in), size) {
			var o []byte
			o, found = filter.Pass(p)
			if out = append(out, o...); found {
				break
			}
		}
		if !found {
			out = append(out, filter.Rest()...)
			want = in
		}
		if found != expected || !bytes.Equal(out, want) {
			t.Fatalf("%q in %q: %q, %v", keys, in, out, found)
		}
	})
}
