package secrets

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

//go:embed gitleaks.toml
var gitleaks []byte

// file is gitleaks' rule file.
type file struct {
	Title      string
	MinVersion string
	Allowlist  allowlist
	Rules      []rule
}

// rule is one kind of secret.
type rule struct {
	ID          string
	Description string
	Regex       string
	Path        string
	SecretGroup int
	Entropy     float64
	Keywords    []string // in lower case; one must be there for the rule to be asked
	Allowlists  []allowlist

	regex, path func() *regexp.Regexp // compiled when they are first needed: most rules never are
	// context says that only what stands beside it makes the value a secret, a name like api_key. Where it does not, the
	// value is a secret wherever it lies.
	context bool
}

// allowlist is what is no secret after all.
type allowlist struct {
	Description string
	Condition   string // "AND": all that is said must hold; else any
	RegexTarget string // "match", "line"; else the secret
	Paths       []string
	Regexes     []string
	Stopwords   []string

	paths, regexes []func() *regexp.Regexp
}

// ruleset is the rules with what finds those to ask.
type ruleset struct {
	rules    []rule
	global   allowlist
	keywords []keyword
	first    [1 << 16][]int32 // keywords, by their first two bytes
}

type keyword struct {
	text  string
	rules []int
}

// load reads the embedded rules, at their first use.
var load = sync.OnceValues(func() (*ruleset, error) { return parse(gitleaks) })

// parse reads a rule file. An expression that does not compile is found when it is first used, and by the tests.
func parse(data []byte) (*ruleset, error) {
	var f file
	d := toml.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("the rules of secrets: %w", err)
	}
	s := &ruleset{rules: f.Rules, global: f.Allowlist}
	s.global.prepare()
	index := map[string]int{}
	for i := range s.rules {
		r := &s.rules[i]
		r.regex, r.path = lazily(r.Regex), lazily(r.Path)
		r.context = strings.HasPrefix(r.Regex, `(?i)[\w.-]{0,50}?`)
		for j := range r.Allowlists {
			r.Allowlists[j].prepare()
		}
		for _, k := range r.Keywords {
			at, known := index[k]
			if !known {
				at = len(s.keywords)
				index[k] = at
				s.keywords = append(s.keywords, keyword{text: k})
				prefix := int(k[0])<<8 | int(k[1])
				s.first[prefix] = append(s.first[prefix], int32(at))
			}
			s.keywords[at].rules = append(s.keywords[at].rules, i)
		}
	}
	return s, nil
}

func lazily(expression string) func() *regexp.Regexp {
	if expression == "" {
		return nil
	}
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

func (a *allowlist) prepare() {
	for _, p := range a.Paths {
		a.paths = append(a.paths, lazily(p))
	}
	for _, r := range a.Regexes {
		a.regexes = append(a.regexes, lazily(r))
	}
	for i, w := range a.Stopwords {
		a.Stopwords[i] = strings.ToLower(w)
	}
}

func anyMatches(list []func() *regexp.Regexp, s string) bool {
	return slices.ContainsFunc(list, func(r func() *regexp.Regexp) bool { return r().MatchString(s) })
}

// match is one place that a rule's expression matches.
type match struct {
	rule         *rule
	start        int // of the expression, in the text
	text, secret string
	line         func() string
}

// allows says whether m is no secret after all, in a file at path.
func (a *allowlist) allows(m *match, path string) bool {
	target := m.secret
	switch a.RegexTarget {
	case "match":
		target = m.text
	case "line":
		target = m.line()
	}
	lower := strings.ToLower(m.secret)
	word := slices.ContainsFunc(a.Stopwords, func(w string) bool { return strings.Contains(lower, w) })
	if a.Condition != "AND" {
		return word || anyMatches(a.regexes, target)
	}
	return (len(a.paths) == 0 || anyMatches(a.paths, path)) && (len(a.regexes) == 0 || anyMatches(a.regexes, target)) && (len(a.Stopwords) == 0 || word)
}

// entropy is Shannon's, in bits for each character.
func entropy(s string) (bits float64) {
	counts := map[rune]int{}
	for _, r := range s {
		counts[r]++
	}
	for _, n := range counts {
		p := float64(n) / float64(len(s))
		bits -= p * math.Log2(p)
	}
	return bits
}
