package gates

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// matcher finds the first of many patterns that a path matches. Most patterns have an element without
// wildcards, which must then be an element of the path: looking those up is what keeps a change of 100,000
// entries quick.
type matcher struct {
	patterns []string         // folded, in their order
	names    []string         // as they were given
	literal  map[string][]int // indices, by the longest literal element
	rest     []int            // those without one
}

func newMatcher(patterns []string) (*matcher, error) {
	m := &matcher{literal: map[string][]int{}}
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return nil, err
		}
		for _, simple := range expand(p) {
			m.add(p, foldCase(simple))
		}
	}
	return m, nil
}

// checkPattern refuses what is no glob, and what could never match the path of an entry.
func checkPattern(p string) error {
	never := path.IsAbs(p) || strings.HasPrefix(p, "./") || strings.HasSuffix(p, "/.") || strings.Contains(p, "/./") || strings.Contains(p, "//")
	if !doublestar.ValidatePattern(p) || p == "" || never || slices.Contains(strings.Split(p, "/"), "..") {
		return fmt.Errorf("%q is not a glob relative to the workspace", p)
	}
	return nil
}

func (m *matcher) add(name, pattern string) {
	i := len(m.patterns)
	m.patterns, m.names = append(m.patterns, pattern), append(m.names, name)
	anchor := ""
	for e := range strings.SplitSeq(pattern, "/") {
		if isLiteral(e) && len(e) > len(anchor) {
			anchor = e
		}
	}
	if anchor == "" {
		m.rest = append(m.rest, i)
	} else {
		m.literal[anchor] = append(m.literal[anchor], i)
	}
}

func isLiteral(element string) bool { return !strings.ContainsAny(element, `*?[]{}\`) }

// find returns the pattern, as it was given, that a folded path matches.
func (m *matcher) find(folded string) (string, bool) {
	best := -1
	try := func(candidates []int) {
		for _, i := range candidates {
			if (best < 0 || i < best) && doublestar.MatchUnvalidated(m.patterns[i], folded) {
				best = i
			}
		}
	}
	try(m.rest)
	for e := range strings.SplitSeq(folded, "/") {
		if c, ok := m.literal[e]; ok {
			try(c)
		}
	}
	if best < 0 {
		return "", false
	}
	return m.names[best], true
}

// expand writes out the alternatives of braces, so that most elements become literal.
func expand(p string) []string {
	open := strings.IndexByte(p, '{')
	if open < 0 || strings.ContainsAny(p, `[\`) {
		return []string{p}
	}
	var parts []string
	depth, start := 0, open+1
	for i := open; i < len(p); i++ {
		switch p[i] {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth == 0 || depth == 1 && p[i] == ',' {
			parts = append(parts, p[start:i])
			start = i + 1
		}
		if depth == 0 {
			break
		}
	}
	if depth != 0 {
		return []string{p}
	}
	var out []string
	for _, part := range parts {
		out = append(out, expand(p[:open]+part+p[start:])...)
	}
	return out
}

// parents returns the directories above what a pattern protects: a link there would put another directory's
// files in their place.
func parents(patterns []string) []string {
	var out []string
	for _, p := range patterns {
		for _, simple := range expand(p) {
			elements := strings.Split(simple, "/")
			for i := range elements[:len(elements)-1] {
				if isLiteral(elements[i]) {
					out = append(out, strings.Join(elements[:i+1], "/"))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// fold maps a path to what it may mean on a filesystem that ignores case or repairs names: ext4 and f2fs with
// casefold, vfat, NTFS, HFS+, shares of other systems. Git's own checks are the model (CVE-2014-9390).
func fold(p string) string {
	if isPlain(p) {
		return p
	}
	elements := strings.Split(foldCase(p), "/")
	for i, e := range elements {
		if cut := strings.IndexByte(e, ':'); cut > 0 { // an NTFS stream
			e = e[:cut]
		}
		if trimmed := strings.TrimRight(e, ". "); trimmed != "" {
			e = trimmed
		}
		if e == "git~1" { // its short name
			e = ".git"
		}
		elements[i] = e
	}
	return strings.Join(elements, "/")
}

// isPlain says whether fold changes nothing: true for nearly every path.
func isPlain(p string) bool {
	for i := range len(p) {
		c := p[i]
		if 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf || c == ':' || c == '~' {
			return false
		}
		if (c == '.' || c == ' ') && (i+1 == len(p) || p[i+1] == '/') {
			return false
		}
	}
	return true
}

// ligatures are single characters that casefolding turns into several.
var ligatures = strings.NewReplacer("ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st", "ß", "ss", "ẞ", "ss")

// foldCase also turns bytes that are no UTF-8 into U+FFFD: they must not switch the rest off.
func foldCase(s string) string {
	return strings.Map(func(r rune) rune {
		if ignorable(r) {
			return -1
		}
		for o := unicode.SimpleFold(r); r >= utf8.RuneSelf && o != r; o = unicode.SimpleFold(o) {
			if o < utf8.RuneSelf { // K (Kelvin) and ſ (long s)
				return unicode.ToLower(o)
			}
		}
		return unicode.ToLower(r)
	}, ligatures.Replace(s))
}

// ignorable are the characters that HFS+ and casefolding filesystems do not see.
func ignorable(r rune) bool {
	if r < utf8.RuneSelf {
		return false
	}
	return r == 0xad || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || unicode.Is(unicode.Variation_Selector, r) ||
		0x200b <= r && r <= 0x200f || 0x202a <= r && r <= 0x202e || 0x2060 <= r && r <= 0x206f || r == 0xfeff
}

// matchExact matches a path as it is written.
func matchExact(pattern, p string) bool { return doublestar.MatchUnvalidated(pattern, p) }

// Globs is a list of doublestar globs in which the last one that matches decides; one after "!" says no. A glob matches
// what it names and everything below; "/" at its end is for people.
type Globs struct{ rules []globRule }

type globRule struct {
	given   string
	not     bool
	exact   string
	folded  string
	anchors string // letters before the first wildcard: most paths are no match by these alone
}

// maxStars is how many "**" a glob may have: each multiplies what a match can cost.
const maxStars = 4

// ParseGlobs reads globs relative to the workspace, at most 1000 of them, of at most 4 KiB and four "**" each.
func ParseGlobs(patterns []string) (Globs, error) {
	var g Globs
	if len(patterns) > 1000 {
		return g, fmt.Errorf("%d globs; at most 1000", len(patterns))
	}
	for _, given := range patterns {
		p, not := strings.CutPrefix(given, "!")
		p = strings.TrimSuffix(p, "/")
		if err := checkPattern(p); err != nil {
			return g, err
		}
		if len(p) > 4096 || strings.Count(p, "**") > maxStars {
			return g, fmt.Errorf("%.80q is too long, or has more than %d times **", given, maxStars)
		}
		literal := p
		if i := strings.IndexAny(p, `*?[]{}\`); i >= 0 {
			literal = p[:i]
		}
		g.rules = append(g.rules, globRule{given: given, not: not, exact: p, folded: foldCase(p), anchors: literal})
	}
	return g, nil
}

// Empty says whether there is no glob.
func (g Globs) Empty() bool { return len(g.rules) == 0 }

// Match decides about a path as it is written, and returns the glob that did.
func (g Globs) Match(p string) (pattern string, ok bool) {
	for _, r := range slices.Backward(g.rules) {
		if r.matches(p) {
			return r.given, !r.not
		}
	}
	return "", false
}

// MatchFolded is Match for lists that forbid: a path counts as everything that a filesystem may take it for. What "!" takes
// out is still as it is written.
func (g Globs) MatchFolded(p string) (pattern string, ok bool) {
	folded := fold(p)
	for _, r := range slices.Backward(g.rules) {
		if r.not && r.matches(p) || !r.not && matchesTree(r.folded, folded) {
			return r.given, !r.not
		}
	}
	return "", false
}

func (r globRule) matches(p string) bool {
	return (strings.HasPrefix(p, r.anchors) || strings.HasPrefix(r.anchors, p)) && matchesTree(r.exact, p)
}

// matchesTree says whether pattern matches p or a directory above it.
func matchesTree(pattern, p string) bool {
	if doublestar.MatchUnvalidated(pattern, p) {
		return true
	}
	return !strings.HasSuffix(pattern, "**") && doublestar.MatchUnvalidated(pattern+"/**", p)
}

// LiteralParents returns the directories above what the globs name, as far as they are written without wildcards: what
// takes one away takes everything below away.
func (g Globs) LiteralParents() map[string]string {
	out := map[string]string{}
	for _, r := range g.rules {
		if r.not {
			continue
		}
		for _, dir := range parents([]string{r.exact}) {
			if strings.HasPrefix(r.exact, dir+"/") {
				out[dir] = r.given
			}
		}
	}
	return out
}
