package gitleakstest

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/zricethezav/gitleaks/v8/config"
)

// file is one of the corpus.
type file struct{ path, text string }

// samples are strings that the rule's expression matches whole. All but the last are accepted.
func samples(t *testing.T, r *rand.Rand, rule config.Rule, n int, accepted func(s string) bool) []string {
	t.Helper()
	tree, err := syntax.Parse(rule.Regex.String(), syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	expression := regexp.MustCompile(rule.Regex.String())
	var out []string
	for tries := 0; len(out) < n; tries++ {
		if tries == 10_000 {
			t.Fatalf("%s: no sample", rule.RuleID)
		}
		var b strings.Builder
		generate(&b, r, tree)
		if s := b.String(); expression.MatchString(s) && (len(out) == n-1 || accepted(s)) {
			out = append(out, s)
		}
	}
	return out
}

// generate writes a text of an expression, in ASCII.
func generate(b *strings.Builder, r *rand.Rand, e *syntax.Regexp) {
	switch e.Op {
	case syntax.OpLiteral:
		b.WriteString(string(e.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		if r.IntN(2) == 0 {
			b.WriteByte('.') // what it means in a name of a host
		} else {
			b.WriteByte(byte(' ' + r.IntN('~'-' '+1)))
		}
	case syntax.OpCharClass:
		b.WriteRune(oneOf(r, e.Rune))
	case syntax.OpCapture:
		generate(b, r, e.Sub[0])
	case syntax.OpAlternate:
		generate(b, r, e.Sub[r.IntN(len(e.Sub))])
	case syntax.OpConcat:
		for _, s := range e.Sub {
			generate(b, r, s)
		}
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		low, high := e.Min, e.Max
		switch e.Op {
		case syntax.OpStar:
			low, high = 0, -1
		case syntax.OpPlus:
			low, high = 1, -1
		case syntax.OpQuest:
			low, high = 0, 1
		}
		if high < 0 {
			high = low + 30
		}
		for range low + r.IntN(high-low+1) {
			generate(b, r, e.Sub[0])
		}
	}
}

func oneOf(r *rand.Rand, ranges []rune) rune {
	var all []rune
	for i := 0; i < len(ranges); i += 2 {
		for c := ranges[i]; c <= min(ranges[i+1], utf8.RuneSelf-1); c++ {
			if c >= ' ' || c == '\t' || c == '\n' {
				all = append(all, c)
			}
		}
	}
	return all[r.IntN(len(all))]
}

// A shape is a place where people put secrets: what they write around s. Some hold two.
var shapes = []struct {
	name string
	text func(s, other string) string
}{
	{"line", func(s, _ string) string { return "first\n\n" + s + "\nlast\n" }},
	{"end.txt", func(s, _ string) string { return "first\n" + s }},
	{"only", func(s, _ string) string { return s }},
	{"main.go", func(s, _ string) string { return "package p\n\nfunc f() {\n\ttoken := \"" + s + "\"\n\t_ = token\n}\n" }},
	{".env", func(s, _ string) string { return "DEBUG=1\nexport ACCESS_TOKEN=" + s + "\nX=y\n" }},
	{"conf.yaml", func(s, _ string) string { return "server:\n  port: 80\n  secret: " + s + "\n  kind: x\n" }},
	{"conf.json", func(s, _ string) string { return `{"a": [1, 2], "apiKey": "` + s + `", "b": null}` }},
	{"run.sh", func(s, _ string) string { return "set -e\ncurl -sS -H 'X-Api-Key: " + s + "' https://example.net/x\n" }},
	{"dos.ini", func(s, _ string) string { return "[x]\r\nname=1\r\npassword = " + s + "\r\n[y]\r\n" }},
	{"long.js", func(s, _ string) string {
		return strings.Repeat("a(1);b('x');", 150) + "var q='" + s + "';" + strings.Repeat("c(2);d(\"y\");", 150)
	}},
	{"two.txt", func(s, other string) string {
		return "a: " + s + " " + other + " " + s + "\n\n" + other + "\n" + s + "\n"
	}},
	{"base64.yaml", func(s, _ string) string { return "data:\n  x: " + base64.StdEncoding.EncodeToString([]byte(s)) + "\n" }},
	{"base64url.txt", func(s, _ string) string {
		return "GET /?q=" + base64.RawURLEncoding.EncodeToString([]byte("x "+s+" y")) + "&z=1\n"
	}},
	{"named.yaml", func(s, _ string) string {
		return "a: b\napi_key: " + base64.StdEncoding.EncodeToString([]byte(s)) + "\n"
	}},
	{"twice.txt", func(s, _ string) string {
		return "\n\n" + base64.StdEncoding.EncodeToString([]byte("v="+base64.StdEncoding.EncodeToString([]byte("k = "+s)))) + "\n"
	}},
	{"hex.txt", func(s, _ string) string { return "x\ny " + hex.EncodeToString([]byte(s)) + " z\n" }},
	{"percent.txt", func(s, _ string) string { return "https://example.net/?a=b&token=" + url.QueryEscape(s) + "\nx\n" }},
	{"escapes.js", func(s, _ string) string {
		var b strings.Builder
		for _, c := range s {
			fmt.Fprintf(&b, `\u%04x`, c)
		}
		return "x();\nvar token = \"" + b.String() + "\";\n"
	}},
}

// folders are for the rules that want a file of some name.
var folders = map[string]string{
	"freemius-secret-key": "%s.php", "hashicorp-tf-password": "%s.tf", "kubernetes-secret-yaml": "%s.yml", "nuget-config-password": "%s/nuget.config",
}

// heads are what the rules want somewhere in the file, far away or not.
var heads = map[string]string{
	"airtable-personnal-access-token": "# airtable\n", "facebook-access-token": "# facebook\n", "sourcegraph-access-token": "# sourcegraph\n",
}

// corpus is the secrets of all rules in all shapes.
func corpus(t *testing.T, j judge, each int) []file {
	r := rand.New(rand.NewPCG(1, 2))
	var out []file
	var everything []string
	for n, id := range slices.Sorted(maps.Keys(j.library.Config.Rules)) {
		rule := j.library.Config.Rules[id]
		if rule.Regex == nil {
			continue
		}
		name := folders[id]
		if name == "" {
			name = "%s"
		}
		head := heads[id]
		list := samples(t, r, rule, each, func(s string) bool {
			return j.expected(file{fmt.Sprintf(name, "x"), head + s})[place{id, 1 + strings.Count(head, "\n")}]
		})
		everything = append(everything, list...)
		if n%24 == 0 || head != "" { // where the matcher could cut a text
			filler := strings.Repeat("nothing to see\n", 65536/15-n/24)
			out = append(out, file{fmt.Sprintf(name, id+"/border.txt"), head + filler + list[0] + "\n" + filler[:1500]})
		}
		for i, s := range list {
			for _, shape := range shapes {
				out = append(out, file{fmt.Sprintf(name, fmt.Sprintf("%s/%d/%s", id, i, shape.name)), head + shape.text(s, list[(i+1)%len(list)])})
			}
		}
	}
	r.Shuffle(len(everything), func(i, j int) { everything[i], everything[j] = everything[j], everything[i] })
	for group := range slices.Chunk(everything, 30) {
		out = append(out, file{fmt.Sprintf("all/%d.txt", len(out)), strings.Join(group, "\n")}, file{fmt.Sprintf("all/%d.csv", len(out)), strings.Join(group, ";")})
	}
	return out
}

// soup is texts of what the rules have, in no order: names, signs, values, encodings.
func soup(t *testing.T, j judge, n int) []file {
	r := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"=", ":", "=>", "||", ":=", "?=", ",", " ", "\n", "\r\n", "\t", "'", "\"", "`", ";", "\\n", "%3D", "\\u003d", "U+003D ", "-----", "(", ")", "{", "data:", "kind: secret", "curl -u ", " -H \"", "EXAMPLE", "ſ", "\xff"}
	var values []string
	for _, id := range slices.Sorted(maps.Keys(j.library.Config.Rules)) {
		rule := j.library.Config.Rules[id]
		pieces = append(pieces, rule.Keywords...)
		if rule.Regex != nil {
			values = append(values, samples(t, r, rule, 1, nil)...)
		}
	}
	random := func() string {
		b := make([]byte, 8+r.IntN(80))
		for i := range b {
			b[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=_-."[r.IntN(68)]
		}
		return string(b)
	}
	out := make([]file, n)
	for i := range out {
		var b strings.Builder
		for range 10 + r.IntN(60) {
			s := pieces[r.IntN(len(pieces))]
			switch r.IntN(8) {
			case 0:
				s = random()
			case 1:
				s = values[r.IntN(len(values))]
			case 2:
				s = pieces[r.IntN(20)]
			case 3:
				s = base64.StdEncoding.EncodeToString([]byte(pieces[len(pieces)-1-r.IntN(300)] + " = '" + random() + "'"))
			}
			b.WriteString(s)
		}
		out[i] = file{fmt.Sprintf("soup/%d.%s", i, []string{"txt", "go", "php", "tf", "yaml"}[r.IntN(5)]), b.String()}
	}
	return out
}
