package gates

import (
	"strings"
	"testing"
)

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		patterns, path string
		match, folded  bool
	}{
		{"src/**", "src/a/b", true, true}, {"src/**", "src", true, true}, {"src/**", "srcs", false, false}, {"src", "src/a", true, true}, {"src/", "src/a", true, true},
		{"*.md", "a.md", true, true}, {"*.md", "d/a.md", false, false}, {"**/*.md", "a.md", true, true}, {"*", "a/b", true, true},
		{"a/**,!a/b/**", "a/b/c", false, false}, {"a/**,!a/b/**,a/b/c", "a/b/c", true, true}, {"!a", "a", false, false},
		{"a/B", "A/b", false, true}, {"a/**,!a/B", "a/B", false, false}, {"a/**,!a/B", "a/b", true, true}, {".git/**", "GIT~1/x", false, true},
		{"", "a", false, false}, {"{a,b}/c", "b/c/d", true, true},
	} {
		g, err := ParseGlobs(strings.FieldsFunc(c.patterns, func(r rune) bool { return r == ',' && !strings.Contains(c.patterns, "{") }))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := g.Match(c.path); ok != c.match {
			t.Errorf("%s and %s: %v", c.patterns, c.path, ok)
		}
		if _, ok := g.MatchFolded(c.path); ok != c.folded {
			t.Errorf("%s and %s, folded: %v", c.patterns, c.path, ok)
		}
	}
	for _, p := range []string{"", "!", "/a", "../a", "a/../b", "./a", "!./a", "a/./b", "a/.", "a//b", "[", strings.Repeat("a", 5000), "**/a/**/a/**/a/**/a/**"} {
		if _, err := ParseGlobs([]string{p}); err == nil {
			t.Errorf("%.20q is taken", p)
		}
	}
}

// FuzzGlobs: what a glob without "!" matches as it is written, it matches folded, too; and "!" only takes out.
func FuzzGlobs(f *testing.F) {
	for _, s := range [][2]string{{"src/**", "src/a"}, {"**/*.{go,md}", "a/B.GO"}, {"a[b-c]?", "ab1"}, {".git/", ".GiT/config"}, {"\\*", "*"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, p string) {
		g, err := ParseGlobs([]string{pattern})
		if err != nil || len(p) > 200 || len(pattern) > 200 {
			return
		}
		_, exact := g.Match(p)
		_, folded := g.MatchFolded(p)
		if strings.HasPrefix(pattern, "!") {
			if exact || folded {
				t.Errorf("%q lets %q in", pattern, p)
			}
			return
		}
		if exact && !folded && fold(p) == p && foldCase(pattern) == pattern {
			t.Errorf("%q matches %q only as it is written", pattern, p)
		}
		both, err := ParseGlobs([]string{"**", "!" + pattern})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := both.Match(p); ok == exact && proper(p) {
			t.Errorf("%q taken out of everything: %q is %v", pattern, p, ok)
		}
	})
}
