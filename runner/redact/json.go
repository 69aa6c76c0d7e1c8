package redact

import (
	"bytes"
	"encoding/json"
	"strings"
)

// JSON is a document without the secrets in its strings, still valid: each string goes through Text, and goes whole where the
// name that it has in its object tells that it is a secret, or the flag before it in a list. What is not valid JSON goes
// through Text as it is. It is doc itself where there is nothing to hide.
func (r *Redactor) JSON(doc []byte) []byte {
	if m := r.values(); (m == nil || !contains(&m.filter, doc, 0)) && !suspicious(doc) {
		return doc
	}
	if !json.Valid(doc) {
		return []byte(r.Text(string(doc)))
	}
	w := document{r: r, doc: doc}
	w.walk()
	if w.done == 0 {
		return doc
	}
	return append(w.out, doc[w.done:]...)
}

// document is gone through once, and copied but for some strings.
type document struct {
	r    *Redactor
	doc  []byte
	out  []byte
	done int // of doc, what is in out
	in   []group
}

// group is an object or a list.
type group struct {
	list bool
	name string // of the next value; of all, in a list
	flag string // in a list: the string before
}

func (w *document) walk() {
	for i := 0; i < len(w.doc); i++ {
		switch c := w.doc[i]; c {
		case '{', '[':
			name := ""
			if n := len(w.in); n > 0 {
				name = w.in[n-1].name
			}
			w.in = append(w.in, group{list: c == '[', name: name})
		case '}', ']':
			w.in = w.in[:len(w.in)-1]
		case '"':
			end := i + 1
			for w.doc[end] != '"' {
				if w.doc[end] == '\\' {
					end++
				}
				end++
			}
			w.text(i, end+1)
			i = end
		}
	}
}

// text is about the string in doc[from:to].
func (w *document) text(from, to int) {
	text := string(w.doc[from+1 : to-1])
	if strings.IndexByte(text, '\\') >= 0 {
		_ = json.Unmarshal(w.doc[from:to], &text) // it is valid
	}
	var in group
	if n := len(w.in); n > 0 {
		g := &w.in[n-1]
		if rest := bytes.TrimLeft(w.doc[to:], " \t\r\n"); !g.list && len(rest) > 0 && rest[0] == ':' {
			g.name = text
			return
		}
		in, g.flag = *g, text
	}
	hidden := w.r.Text(text)
	if named(in.name, text) || in.list && flagged(in.flag, text) {
		hidden = Mark
	}
	if hidden == text || isMark(text) {
		return
	}
	w.out = append(append(w.out, w.doc[w.done:from]...), '"')
	w.out = append(append(w.out, jsonOf(hidden, false)...), '"')
	w.done = to
}

// named says that a text is a secret because its name says so.
func named(name, text string) bool {
	k := judgeKey(name)
	return k != harmless && !isPlaceholder([]byte(text)) && (k != weak || len(text) >= MinValue && !lower([]byte(text)))
}

// flagged says that a text is the value of the option before it.
func flagged(flag, text string) bool {
	return strings.HasPrefix(flag, "-") && !strings.HasPrefix(text, "-") && !strings.ContainsAny(flag, "= ") && judgeKey(flag) != harmless && !isPlaceholder([]byte(text))
}
