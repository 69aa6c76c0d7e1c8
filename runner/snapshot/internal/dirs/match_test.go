package dirs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
)

func TestMatcher(t *testing.T) {
	for _, c := range []struct {
		paths, skip string // nil when empty
		yes, no     string
	}{
		{"", "", "a a/b .", ""},
		{"", "b a/c", "a a/b", "b b/x a/c a/c/d"},
		{"a", "", "a a/b a/b/c", "ab b b/a"},
		{"a/b *.go", "a/b/c", "a/b a/b/x x.go x.go/y", "a a/c a/b/c a/b/c/d d/x.go"},
		{`\*x a\{b c\d`, "", "*x a{b cd", `yx ab \*x c\d`},
		{"a/ /b", "", "", "a a/b b"},
		{"]x", "", "]x ]x/z", "x"},
		{"{a,b}/c [xy]", "", "a/c b/c/d x y", "c a z"},
	} {
		match, err := dirs.Matcher(fields(c.paths), fields(c.skip))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range strings.Fields(c.yes) {
			if !match(p) {
				t.Errorf("%q without %q leaves out %q", c.paths, c.skip, p)
			}
		}
		for _, p := range strings.Fields(c.no) {
			if match(p) {
				t.Errorf("%q without %q takes %q", c.paths, c.skip, p)
			}
		}
	}
	for _, bad := range []string{"[", "{a", `a\`} {
		if _, err := dirs.Matcher([]string{bad}, nil); !errors.Is(err, doublestar.ErrBadPattern) {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := dirs.Matcher(nil, []string{bad}); !errors.Is(err, doublestar.ErrBadPattern) {
			t.Errorf("without %q: %v", bad, err)
		}
	}
}

func fields(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Fields(s)
}

// FuzzMatcher: what is looked up as a name is what the pattern says. What is no UTF-8 is left out: to doublestar, all such
// bytes are one.
func FuzzMatcher(f *testing.F) {
	f.Add(`a\*/b`, "a*/b/c")
	f.Add("a/**/b", "a/b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		match, err := dirs.Matcher([]string{pattern}, nil)
		if err != nil || !utf8.ValidString(pattern) || !utf8.ValidString(path) {
			return
		}
		want := doublestar.MatchUnvalidated(pattern, path)
		for i := range len(path) {
			want = want || path[i] == '/' && doublestar.MatchUnvalidated(pattern, path[:i])
		}
		if got := match(path); got != want {
			t.Errorf("%q of %q: %v", pattern, path, got)
		}
	})
}

// BenchmarkMatcher: a hundred files by name out of a thousand.
func BenchmarkMatcher(b *testing.B) {
	var names []string
	for n := range 100 {
		names = append(names, fmt.Sprintf("some/directory/file%04d", n))
	}
	match, err := dirs.Matcher(names, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for n := range 1000 {
			match(names[n%100] + "x")
		}
	}
}
