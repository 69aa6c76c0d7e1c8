package secrets

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"unicode/utf16"
)

const (
	// chunkBytes is how much is looked at before the context is asked again.
	chunkBytes = 64 << 10
	// farBytes is how far from a keyword its secret reaches, nearBytes how far for the rules that go by a name.
	farBytes  = 12 << 10
	nearBytes = 512
	// lineBytes is how much of its line a match is judged by, on each side.
	lineBytes = 4 << 10
	// maxLayers is how many encodings may lie over each other.
	maxLayers = 5
)

// scan finds the secrets of one text, in the order of their places in it. The error is the context's cause.
func (s *ruleset) scan(ctx context.Context, path string, text []byte) ([]match, error) {
	skip := func(r *rule) bool { return false }
	if anyMatches(s.global.paths, path) { // lock files, vendored code, pictures: full of what only looks like a secret
		skip = func(r *rule) bool { return r.context }
	}
	f := finder{ruleset: s, path: path, skip: skip, seen: map[place]bool{}}
	l := &layer{text: text}
	for depth := 0; ; depth++ {
		if err := f.layer(ctx, l); err != nil {
			return nil, err
		}
		if l = l.decoded(); l == nil || depth == maxLayers {
			break
		}
	}
	slices.SortStableFunc(f.found, func(a, b match) int { return a.start - b.start })
	return f.found, nil
}

// finder collects what the layers of a text have.
type finder struct {
	*ruleset
	path  string
	skip  func(*rule) bool
	seen  map[place]bool // windows overlap, and what is beside a decoding is looked at again
	found []match
}

type place struct {
	rule   *rule
	secret string
	start  int
}

// layer finds the secrets of one layer.
func (f *finder) layer(ctx context.Context, l *layer) error {
	windows, err := f.windows(ctx, l.text)
	if err != nil {
		return err
	}
	for r := range f.rules {
		for _, w := range windows[r] {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			for _, m := range f.matches(&f.rules[r], f.path, l, w) {
				if key := (place{m.rule, m.secret, m.start}); !f.seen[key] {
					f.seen[key] = true
					f.found = append(f.found, m)
				}
			}
		}
	}
	return nil
}

// windows returns what of a text each rule has to see, by the rule's index: what is around its keywords.
func (f *finder) windows(ctx context.Context, text []byte) (map[int][]window, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	lower := asciiLower(text)
	out, silent := map[int][]window{}, map[int]bool{}
	for i := 0; i+1 < len(lower); i++ {
		if i%chunkBytes == chunkBytes-1 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for _, k := range f.first[int(lower[i])<<8|int(lower[i+1])] {
			w := &f.keywords[k]
			if !bytes.HasPrefix(lower[i:], []byte(w.text)) {
				continue
			}
			for _, r := range w.rules {
				rule := &f.rules[r]
				if _, known := out[r]; !known && !silent[r] {
					silent[r] = f.skip(rule) || rule.regex == nil || rule.path != nil && !rule.path().MatchString(f.path)
				}
				if !silent[r] && rule.plausible(lower, i+len(w.text)) {
					out[r] = rule.widen(out[r], lower, i)
				}
			}
		}
	}
	return out, nil
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
		return tokenRun(rest, n) >= n
	}
	if r.ID != genericRule {
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
		if tokenRun(rest, value) >= value {
			return true
		}
		if len(rest) == 0 || strings.IndexByte("`'\"= \t\n\f\r>|:?,", rest[0]) < 0 {
			return false
		}
		rest = rest[1:]
	}
	return false
}

// tokenRun counts the bytes at the beginning of b that a token can have, up to limit.
func tokenRun(b []byte, limit int) int {
	n := 0
	for n < len(b) && n < limit && (isWord(b[n]) || strings.IndexByte("+/=.~-", b[n]) >= 0) {
		n++
	}
	return n
}

func isWord(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

// window is a part of a text that an expression has to see.
type window struct {
	first      int // keyword
	start, end int
}

// whole are the rules that see all of a text in which their keyword is: their secrets have any length, or do not contain it.
var whole = map[string]bool{"private-key": true, "airtable-personnal-access-token": true, "facebook-access-token": true, "sourcegraph-access-token": true}

// widen adds what is around the keyword at i to the windows before it. They overlap, so that none has to be long.
func (r *rule) widen(windows []window, lower []byte, i int) []window {
	before, after := farBytes, farBytes
	switch {
	case r.context:
		before, after = nearBytes, nearBytes
	case tails[r.ID] > 0:
		before = nearBytes
	case whole[r.ID]:
		return append(windows[:0], window{end: len(lower)})
	}
	start, end := max(0, i-before), min(len(lower), i+after)
	n := len(windows)
	if n == 0 || start > windows[n-1].end || i-windows[n-1].first > chunkBytes {
		return append(windows, window{first: i, start: start, end: tokenEnd(lower, end)})
	}
	if w := &windows[n-1]; end > w.end {
		w.end = tokenEnd(lower, end)
	}
	return windows
}

// tokenEnd is after the token that i is in, and what an expression wants after it.
func tokenEnd(lower []byte, i int) int {
	const behind = 3
	return min(len(lower), i+tokenRun(lower[i:], chunkBytes)+behind)
}

// matches applies one rule to one window.
func (s *ruleset) matches(r *rule, path string, l *layer, w window) []match {
	var out []match
	text := l.text[w.start:w.end]
	for _, at := range r.regex().FindAllSubmatchIndex(text, -1) {
		start, end := w.start+at[0], w.start+at[1]
		if at[0] == 0 && w.start > 0 || end == w.end && end < len(l.text) || !l.news(start, end) {
			continue // what the window has cut is seen whole in another one
		}
		m := match{rule: r, text: string(bytes.Trim(text[at[0]:at[1]], "\n")), line: func() string { return lineAround(l.text, start, end) }}
		m.secret = m.text
		for g := 1; 2*g < len(at); g++ {
			if at[2*g] < at[2*g+1] && (r.SecretGroup == 0 || r.SecretGroup == g) {
				m.secret = string(text[at[2*g]:at[2*g+1]])
				break
			}
		}
		for l.text[start] == '\n' && start+1 < end {
			start++
		}
		m.start = l.origin(start)
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

func lineAround(text []byte, start, end int) string {
	before, after := text[max(0, start-lineBytes):start], text[end:min(len(text), end+lineBytes)]
	start -= len(before) - 1 - bytes.LastIndexByte(before, '\n')
	if i := bytes.IndexByte(after, '\n'); i >= 0 {
		after = after[:i]
	}
	return string(text[start : end+len(after)])
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
