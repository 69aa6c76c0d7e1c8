package secrets

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
)

// A text is looked at in chunks, so that the context is asked in between, and each rule sees only chunks with its keyword.
// They overlap by more than any secret is long.
const (
	chunkBytes   = 64 << 10
	overlapBytes = 12 << 10
	// nearBytes is how far from its name a secret can end, for the rules that go by the name.
	nearBytes = 512
	// maxMatches bounds what one rule finds in one chunk.
	maxMatches = 200
	// maxLayers is how many encodings may lie over each other.
	maxLayers = 2
)

// scan finds the secrets of one text. The error is the context's cause.
func (s *ruleset) scan(ctx context.Context, path string, data []byte) ([]match, error) {
	text := plain(data)
	skip := func(r *rule) bool { return false }
	if anyMatches(s.global.paths, path) { // lock files, vendored code, pictures: full of what only looks like a secret
		skip = func(r *rule) bool { return r.context }
	}
	return s.layer(ctx, layer{path: path, text: text, skip: skip})
}

// layer is a text, or what is left of a part of it when an encoding is taken off.
type layer struct {
	path  string
	text  []byte
	skip  func(r *rule) bool
	depth int
}

func (s *ruleset) layer(ctx context.Context, l layer) ([]match, error) {
	var out []match
	seen := map[string]bool{}
	for start := 0; start < len(l.text); start += chunkBytes - overlapBytes {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		end := min(start+chunkBytes, len(l.text))
		for _, m := range s.chunk(l, l.text[start:end]) {
			m.start += start
			if key := m.rule.ID + "\x00" + m.secret; !seen[key] {
				seen[key] = true
				out = append(out, m)
			}
		}
		if end == len(l.text) {
			break
		}
	}
	if l.depth == maxLayers {
		return out, nil
	}
	for _, run := range encodedRuns(l.text) {
		inner, err := s.layer(ctx, layer{path: l.path, text: run.text, depth: l.depth + 1,
			skip: func(r *rule) bool { return r.context }})
		if err != nil {
			return nil, err
		}
		for _, m := range inner {
			m.start = run.start
			out = append(out, m)
		}
	}
	return out, nil
}

// chunk asks the rules whose keywords the chunk has.
func (s *ruleset) chunk(l layer, chunk []byte) []match {
	lower := bytes.ToLower(chunk)
	if len(lower) != len(chunk) {
		lower = asciiLower(chunk) // a letter whose small form has another length
	}
	places := map[int][]int{} // of keywords, by rule
	for i := 0; i+1 < len(lower); i++ {
		for _, k := range s.first[int(lower[i])<<8|int(lower[i+1])] {
			if w := &s.keywords[k]; bytes.HasPrefix(lower[i:], []byte(w.text)) {
				for _, r := range w.rules {
					if !l.skip(&s.rules[r]) && s.rules[r].plausible(lower, i+len(w.text)) {
						places[r] = append(places[r], i)
					}
				}
			}
		}
	}
	var out []match
	for r, at := range places {
		rule := &s.rules[r]
		if rule.regex == nil || rule.path != nil && !rule.path().MatchString(l.path) {
			continue
		}
		for _, w := range rule.windows(at, len(chunk)) {
			out = append(out, s.matches(rule, l.path, chunk, w)...)
		}
	}
	slices.SortFunc(out, func(a, b match) int { return a.start - b.start })
	return out
}

func asciiLower(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}

// tails are, for rules with a keyword that ordinary words have in them, how many letters, digits and signs of tokens follow
// the keyword at least, by the rule's own expression.
var tails = map[string]int{"jwt": 17, "vault-service-token": 24, "twilio-api-key": 32, "azure-ad-client-secret": 31, "sendgrid-api-token": 66}

// plausible says whether what follows a keyword can be what the rule wants: it spares most texts the expression, which is
// slow. Names are followed by a sign of assignment and a value, tokens by more of them.
func (r *rule) plausible(lower []byte, after int) bool {
	rest := lower[after:]
	if n := tails[r.ID]; n > 0 {
		return tokenRun(rest) >= n
	}
	if r.ID != "generic-api-key" {
		return true
	}
	// What the expression has between the name and the sign, and between the sign and the value, is no longer than this.
	const between, beside, value = 26, 9, 10
	name := rest[:min(between, len(rest))]
	sign := bytes.IndexAny(name, "=>|:?,")
	if sign < 0 || bytes.ContainsFunc(name[:sign], func(c rune) bool { return !strings.ContainsRune(" \t\n\f\r'\".-", c) && (c > 0x7f || !isWord(byte(c))) }) {
		return false
	}
	rest = rest[sign+1:]
	for n := 0; n < beside; n++ {
		if tokenRun(rest) >= value {
			return true
		}
		if len(rest) == 0 || strings.IndexByte("`'\"= \t\n\f\r>|:?,", rest[0]) < 0 {
			return false
		}
		rest = rest[1:]
	}
	return false
}

// tokenRun counts the bytes at the beginning of b that a token can have.
func tokenRun(b []byte) int {
	n := 0
	for n < len(b) && (isWord(b[n]) || strings.IndexByte("+/=.~-", b[n]) >= 0) {
		n++
	}
	return n
}

func isWord(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

// windows are the parts of a chunk that an expression has to see.
func (r *rule) windows(at []int, size int) [][2]int {
	before, after := size, size
	if r.context {
		before, after = nearBytes, nearBytes
	} else if tails[r.ID] > 0 {
		before, after = nearBytes, overlapBytes
	}
	var out [][2]int
	for _, i := range at {
		w := [2]int{max(0, i-before), min(size, i+after)}
		if n := len(out); n > 0 && w[0] <= out[n-1][1] {
			out[n-1][1] = w[1]
		} else {
			out = append(out, w)
		}
	}
	return out
}

// matches applies one rule to one window.
func (s *ruleset) matches(r *rule, path string, chunk []byte, w [2]int) []match {
	var out []match
	text := string(chunk[w[0]:w[1]])
	for _, at := range r.regex().FindAllStringSubmatchIndex(text, maxMatches) {
		m := match{rule: r, start: w[0] + at[0], text: strings.Trim(text[at[0]:at[1]], "\n")}
		m.secret = m.text
		for g := 1; 2*g < len(at); g++ {
			if at[2*g] < at[2*g+1] && (r.SecretGroup == 0 || r.SecretGroup == g) {
				m.secret = text[at[2*g]:at[2*g+1]]
				break
			}
		}
		m.line = lineAround(text, at[0], at[1])
		refuted := r.Entropy > 0 && entropy(m.secret) <= r.Entropy || s.global.allows(&m, path)
		for i := range r.Allowlists {
			refuted = refuted || r.Allowlists[i].allows(&m, path)
		}
		if !refuted {
			out = append(out, m)
		}
	}
	return out
}

func lineAround(text string, start, end int) string {
	start = strings.LastIndexByte(text[:start], '\n') + 1
	if i := strings.IndexByte(text[end:], '\n'); i >= 0 {
		end += i
	} else {
		end = len(text)
	}
	return text[start:end]
}

// run is a part of a text that is another text, encoded.
type run struct {
	start int
	text  []byte
}

// encodedRuns finds base64 (either alphabet) and hexadecimal of at least 24 characters that decode to text.
func encodedRuns(text []byte) []run {
	var out []run
	for i := 0; i < len(text); {
		n := 0
		for i+n < len(text) && base64Byte(text[i+n]) {
			n++
		}
		if n >= 24 {
			if decoded := decode(text[i : i+n]); decoded != nil {
				out = append(out, run{i, decoded})
			}
		}
		i += n + 1
	}
	return out
}

func base64Byte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}

// decode returns what b encodes, nil unless that is text.
func decode(b []byte) []byte {
	if len(b)%2 == 0 {
		out := make([]byte, len(b)/2)
		if _, err := hex.Decode(out, b); err == nil && isText(out) {
			return out
		}
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		out := make([]byte, e.DecodedLen(len(b)))
		if n, err := e.Decode(out, b); err == nil && isText(out[:n]) {
			return out[:n]
		}
	}
	return nil
}

func isText(b []byte) bool {
	for _, c := range b {
		if c >= 0x7f || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return true
}

// plain is a text of bytes: what was written in UTF-16, as Windows does, in UTF-8.
func plain(data []byte) []byte {
	low, high := 0, 1
	switch {
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		low, high = 1, 0
	case !bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		return data
	}
	units := make([]uint16, 0, len(data)/2)
	for i := 2; i+1 < len(data); i += 2 {
		units = append(units, uint16(data[i+low])|uint16(data[i+high])<<8)
	}
	return []byte(string(utf16.Decode(units)))
}
