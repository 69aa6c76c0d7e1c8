// Package redact takes secrets out of what is kept and told: logs, events, results, artifacts. It knows two kinds.
//
// Known values are given to it (Know): a secret of a profile, a variable with a telling name. They go wherever they stand,
// also split over writes, and in the forms in which programs echo them: escaped for JSON, a URL or a shell, in hexadecimal,
// in base64 at each of the three alignments, and line by line. A mark with their name takes their place.
//
// Everybody else's secrets are found by their shape: beside a telling name (KEY=value, key: value, "key": "value" with any
// depth of escapes, YAML, .env, XML, headers, flags), in a URL (userinfo, query parameters), in a PEM block of a private key,
// and as tokens that say themselves whose they are (ghp_, AKIA, eyJ…). Shapes are read line by line. The rules are meant for
// output that people read: what is clearly a message about a secret ("token: unexpected EOF") stays.
//
// A value goes whole, and neither a part of it nor its length is told. What has nothing to hide comes out byte by byte as it
// went in, binary data too; what was redacted once does not change by being redacted again. How the input is cut into writes
// does not matter, time is linear in it, and memory bounded: a line is looked at in pieces of 64 KiB, a value that goes on
// beyond one is hidden to its end, and what follows the beginning of a private key that never ends, for 64 KiB.
//
// Nothing is made before it is needed: a program that prints nothing pays nothing.
package redact

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Mark takes the place of a secret that was found by its shape.
const Mark = "[redacted]"

// The sizes, in bytes, of values that can be known. A shorter one would be found everywhere; of a longer one the beginning
// is known.
const (
	MinValue = 6
	MaxValue = 64 << 10
)

// Value is a secret.
type Value struct {
	Name string // what may be shown of it
	Text string
}

// Redactor knows secrets. The zero Redactor, and nil, know only shapes. It is safe for concurrent use.
type Redactor struct {
	mu      sync.Mutex
	known   map[Value]int // how many know it
	matcher atomic.Pointer[matcher]
	stale   atomic.Bool // known has changed since matcher was made
}

// Know has values hidden from now on, also in what writers that exist get next, until forget is called. Those shorter than
// MinValue are ignored. No value is ever written anywhere.
func (r *Redactor) Know(values ...Value) (forget func()) {
	values = slices.DeleteFunc(slices.Clone(values), func(v Value) bool { return len(v.Text) < MinValue })
	r.count(values, 1)
	return sync.OnceFunc(func() { r.count(values, -1) })
}

func (r *Redactor) count(values []Value, n int) {
	if len(values) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[Value]int{}
	}
	for _, v := range values {
		before := r.known[v]
		if r.known[v] = before + n; before+n == 0 {
			delete(r.known, v)
		}
		if before == 0 || before+n == 0 {
			r.stale.Store(true)
		}
	}
}

// values finds the known values; nil when there are none.
func (r *Redactor) values() *matcher {
	if r == nil {
		return nil
	}
	if !r.stale.Load() {
		return r.matcher.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale.Swap(false) {
		list := make([]Value, 0, len(r.known))
		for v := range r.known {
			list = append(list, v)
		}
		slices.SortFunc(list, func(a, b Value) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Text, b.Text)) })
		r.matcher.Store(newMatcher(list))
	}
	return r.matcher.Load()
}

// Text is s without its secrets; s itself where there are none.
func (r *Redactor) Text(s string) string {
	m := r.values()
	if !m.suspects(s) && !suspicious(s) {
		return s
	}
	var b bytes.Buffer
	w := r.Writer(&b)
	_, _ = io.WriteString(w, s) // a Buffer takes everything
	_ = w.Close()
	if b.Len() == len(s) && b.String() == s {
		return s
	}
	return b.String()
}

// Args is a command line without its secrets: what follows a flag with a telling name goes, too.
func (r *Redactor) Args(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = r.Text(a); i > 0 && flagged(args[i-1], a) && !isMark(a) {
			out[i] = Mark
		}
	}
	return out
}

// Env is variables (KEY=VALUE) without their secrets: those with a telling name lose their value, however it looks.
func (r *Redactor) Env(vars []string) []string {
	out := make([]string, len(vars))
	for i, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		if out[i] = r.Text(kv); SecretName(name) && value != "" && !isMark(value) && !isPlaceholder([]byte(value)) {
			out[i] = name + "=" + Mark
		}
	}
	return out
}

// SecretName says whether what has this name is likely to be a secret: API_KEY, dbPassword, X-Auth-Token; and not key,
// token_file, secret_name or PASSWORD_REQUIRED.
func SecretName(name string) bool { return judgeKey(name) != harmless }

// Values are those of variables (KEY=VALUE) whose name says that they are secrets, for Know.
func Values(vars []string) (list []Value) {
	for _, kv := range vars {
		if name, value, ok := strings.Cut(kv, "="); ok && SecretName(name) && !isPlaceholder([]byte(value)) && !isMark(value) {
			list = append(list, Value{Name: name, Text: value})
		}
	}
	return list
}

// markOf is what stands for a value with a name. The name is shown only as far as it cannot break what is around it.
func markOf(name string, values []Value) string {
	plain := strings.Map(func(c rune) rune {
		if c < 0x80 && isIdent(byte(c)) {
			return c
		}
		return '_'
	}, name[:min(len(name), 64)])
	if plain == "" || slices.ContainsFunc(values, func(v Value) bool { return strings.Contains(plain, v.Text) }) {
		return Mark
	}
	return "[redacted:" + plain + "]"
}

// isMark says that s stands for a secret already.
func isMark[T string | []byte](s T) bool { return len(s) > 0 && markLen(s) == len(s) }

// markLen is how long the mark is that s begins with; 0 when there is none.
func markLen[T string | []byte](s T) int {
	const open = "[redacted"
	if len(s) <= len(open) || string(s[:len(open)]) != open {
		return 0
	}
	if s[len(open)] == ']' {
		return len(open) + 1
	}
	if s[len(open)] != ':' {
		return 0
	}
	for i := len(open) + 1; i < len(s) && i < len(open)+70; i++ {
		if s[i] == ']' {
			return i + 1
		}
		if !isIdent(s[i]) {
			return 0
		}
	}
	return 0
}

// isIdent says that c can be part of a name.
func isIdent(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}
