package gitbranch

import (
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// rule is one line of a .gitignore, or a pattern of a .gitattributes.
type rule struct {
	glob     string // for doublestar
	anywhere bool   // of the last component, in every directory below
	dir      bool   // directories only
	keep     bool   // it takes an earlier one back
	filter   string // of a .gitattributes: what it sets
}

const (
	maxPatterns    = 1 << 20  // bytes of a file of patterns
	maxAllPatterns = 16 << 20 // of all that are read for a change
	maxRules       = 20_000   // in all of them; where the same text is in several, once
	maxPattern     = 4096     // bytes of a pattern
)

// ignoreRules reads a .gitignore as gitignore(5) has it.
func ignoreRules(text string) []rule {
	var all []rule
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		line = trimBlanks(strings.TrimSuffix(line, "\r"))
		if line == "" || line[0] == '#' {
			continue
		}
		var r rule
		line, r.keep = strings.CutPrefix(line, "!")
		if line, r.dir = strings.CutSuffix(line, "/"); r.pattern(line) {
			all = append(all, r)
		}
	}
	return all
}

// trimBlanks takes trailing blanks away that no backslash quotes.
func trimBlanks(s string) string {
	for strings.HasSuffix(s, " ") {
		rest := s[:len(s)-1]
		slashes := len(rest) - len(strings.TrimRight(rest, `\`))
		if slashes%2 == 1 {
			break
		}
		s = rest
	}
	return s
}

// pattern takes a pattern without its marks; false if it can match nothing.
func (r *rule) pattern(p string) bool {
	if p == "" || len(p) > maxPattern {
		return false
	}
	r.anywhere = !strings.Contains(p, "/")
	p = strings.TrimPrefix(p, "/")
	// doublestar knows alternatives, git does not; and for git dir/** is what is in dir, without dir.
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		switch {
		case p[i] == '\\' && i+1 < len(p):
			b.WriteByte('\\')
			i++
		case p[i] == '{' || p[i] == '}':
			b.WriteByte('\\')
		}
		b.WriteByte(p[i])
	}
	r.glob = bytewise(b.String())
	if strings.HasSuffix(r.glob, "/**") {
		r.glob += "/*"
	}
	return p != "" && doublestar.ValidatePattern(r.glob)
}

// matches reports whether a rule is about a path relative to the rule's directory.
func (r *rule) matches(path string, dir bool) bool {
	if r.dir && !dir {
		return false
	}
	if r.anywhere {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	ok, err := doublestar.Match(r.glob, bytewise(path))
	return ok && err == nil
}

// bytewise makes a character of every byte, because that is what git matches: ? is one byte of é.
func bytewise(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 }) {
		return s
	}
	chars := make([]rune, len(s))
	for i := range len(s) {
		chars[i] = rune(s[i])
	}
	return string(chars)
}

// attributeRules reads which patterns of a .gitattributes run something over a file's content. Macros are not expanded.
func attributeRules(text string) []rule {
	var all []rule
	for line := range strings.SplitSeq(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[0][0] == '#' || words[0][0] == '"' || words[0][0] == '[' {
			continue
		}
		var r rule
		if !r.pattern(words[0]) {
			continue
		}
		for _, w := range words[1:] {
			name, _, _ := strings.Cut(strings.TrimLeft(w, "-!"), "=")
			if name == "filter" || name == "working-tree-encoding" || name == "ident" {
				r.filter = w
				all = append(all, r)
			}
		}
	}
	return all
}
