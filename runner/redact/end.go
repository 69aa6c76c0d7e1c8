package redact

import "bytes"

// ender knows where a value ends. It can be asked piece by piece: what it says of a byte depends on what came before, and on
// little that follows.
type ender struct {
	kind    endKind
	quote   byte // that ends it, with so many backslashes before it; 0: none does
	slashes int
	closer  byte // ), ] or } of what was opened before the name; 0: none
	query   bool // & and # end it
	indent  int  // of the name, for blocks
	left    int  // how many bytes may follow
	run     int  // backslashes just before
	begun   bool // it had a byte
	inside  bool // a string of a list; a line of a block
}

type endKind int

const (
	endQuote endKind = iota // at the quote, or with left 0 at the end of the line
	endWord                 // before a space, or what separates fields
	endLine                 // with the line, or at the quote
	endToken                // after the last character that tokens have
	endPEM                  // after -----END …-----
	endBlock                // with the lines that are further in
	endTag                  // before <
	endList                 // before ]
)

// lines says that the value can go on in the next line.
func (e *ender) lines() bool {
	return e.kind == endPEM || e.kind == endBlock || e.kind == endQuote && e.left > 0
}

// find says how many bytes of b belong to the value, and whether it ends there. Where it does not, what is left of b is to be
// shown again, with more behind it.
func (e *ender) find(b []byte) (n int, ended bool) {
	switch e.kind {
	case endPEM:
		return e.pem(b)
	case endBlock:
		return e.block(b)
	}
	if !e.begun { // a mark is a word, whatever is in it
		n, e.begun = markLen(b), true
	}
	for ; n < len(b); n++ {
		c := b[n]
		if c == '\\' && e.kind != endToken {
			e.run++
			continue
		}
		switch back, at := e.at(b, n); at {
		case stops:
			return max(n-back, 0), true
		case unsure:
			return n, false
		case skips:
			n += len(quoted) - 1
		}
		e.run = 0
		if e.left > 0 {
			if e.left--; e.left == 0 {
				return n + 1, true
			}
		}
	}
	if n > len(b) {
		n = len(b)
	}
	if e.run < 16 { // they may belong to what ends it
		n -= min(e.run, n)
		e.run = 0
	}
	return n, false
}

// answer is what the next byte is to a value.
type answer int

const (
	goesOn answer = iota
	stops
	unsure // what follows would tell
	skips  // it is a quote of the value's own, as a shell writes it
)

const quoted = `'\''`

// at says what b[n] is, and how many bytes before it do not belong to the value either.
func (e *ender) at(b []byte, n int) (back int, a answer) {
	c := b[n]
	switch {
	case c == '\n' && (e.kind != endQuote || e.left == 0):
		return n - lineEnd(b, n), stops
	case e.quote != 0 && e.run == e.slashes+1 && (c == 'n' || c == 'r' || c == 't') && (e.kind == endWord || e.kind == endLine):
		return e.run, stops // a line of a text in quotes
	case e.quote != 0 && c == e.quote && e.closes():
		return e.quoteAt(b[n:])
	}
	switch e.kind {
	case endList:
		return 0, when(c == ']' && !e.inside)
	case endTag:
		return 0, when(c == '<')
	case endToken:
		return 0, when(!isToken(c))
	case endWord:
		if c <= ' ' || c == 0x7f || e.query && (c == '&' || c == '#') {
			return 0, stops
		}
		return 0, e.separates(b[n:])
	}
	return 0, goesOn
}

func when(ends bool) answer {
	if ends {
		return stops
	}
	return goesOn
}

// quoteAt says what a quote is that b begins with.
func (e *ender) quoteAt(b []byte) (back int, a answer) {
	switch {
	case e.kind == endList:
		e.inside = !e.inside
		return 0, goesOn
	case e.kind == endQuote && e.quote == '\'' && e.slashes == 0:
		if bytes.HasPrefix(b, []byte(quoted)) {
			return 0, skips
		}
		if len(b) < len(quoted) && string(b) == quoted[:len(b)] {
			return 0, unsure
		}
	}
	return min(e.run, e.slashes), stops
}

// lineEnd is n, or before the carriage return that is before it.
func lineEnd(b []byte, n int) int {
	if n > 0 && b[n-1] == '\r' {
		return n - 1
	}
	return n
}

// closes says that a quote after so many backslashes is not one of the value's own: each level of JSON in JSON doubles them
// and adds one.
func (e *ender) closes() bool {
	return e.run <= e.slashes || e.run%(2*(e.slashes+1)) == e.slashes
}

// separates says whether b begins with what stands between fields, and not in a value.
func (e *ender) separates(b []byte) answer {
	switch b[0] {
	case ',', ';', '&':
	case ')', ']', '}':
		if b[0] != e.closer {
			return goesOn
		}
	default:
		return goesOn
	}
	if len(b) == 1 {
		return unsure
	}
	switch c := b[1]; {
	case c <= ' ', c == '"', c == '\'', c == '\\', c == '`', c == '{':
		return when(b[0] != '&')
	case b[0] == e.closer:
		return when(c == ',' || c == ';' || c == '.' || c == ')' || c == ']' || c == '}')
	}
	i := 1 // another field
	for i < len(b) && i < 48 && isIdent(b[i]) {
		i++
	}
	if i == len(b) && i < 48 {
		return unsure
	}
	return when(i > 1 && i < 48 && (b[i] == '=' || b[i] == ':' && b[0] == ','))
}

// isToken says that c can be in a token.
func isToken(c byte) bool {
	return isIdent(c) || c == '/' || c == '+' || c == '=' || c == '~' || c == '%'
}

var pemEnd = []byte("-----END ")

// pem ends after the line that ends a block.
func (e *ender) pem(b []byte) (n int, ended bool) {
	const tail = 80 // such a line is no longer
	for n < len(b) && e.left > 0 {
		i := bytes.Index(b[n:], pemEnd)
		if i < 0 {
			i = len(b) - n - len(pemEnd) + 1
			if i <= 0 {
				return n, false
			}
			return e.take(n, i)
		}
		if i >= e.left {
			return e.take(n, i)
		}
		label := b[n+i+len(pemEnd):]
		there := len(label) >= tail
		label = label[:min(len(label), tail)]
		if k := bytes.IndexByte(label, '\n'); k >= 0 {
			label, there = label[:k], true
		}
		if j := bytes.Index(label, []byte("-----")); j >= 0 {
			return n + i + len(pemEnd) + j + len("-----"), true
		}
		if !there {
			e.left -= i
			return n + i, false
		}
		if m, ended := e.take(n, i+1); ended {
			return m, true
		}
		n += i + 1
	}
	return n, e.left <= 0
}

// endsWith says that rest, after which nothing comes, is the end of a quotation.
func (e *ender) endsWith(rest []byte) bool {
	return e.kind == endQuote && len(rest) == 1 && rest[0] == e.quote
}

// take takes i more bytes after n, as far as they may be taken.
func (e *ender) take(n, i int) (int, bool) {
	i = min(i, e.left)
	e.left -= i
	return n + i, e.left == 0
}

// block takes lines that are further in than the name.
func (e *ender) block(b []byte) (n int, ended bool) {
	for n < len(b) {
		if e.inside {
			i := bytes.IndexByte(b[n:], '\n')
			if i < 0 {
				return len(b), false
			}
			e.inside = false
			n += i
		}
		i := n
		begin := n
		for i < len(b) && i < n+maxQuote && (b[i] == '\n' || b[i] == ' ' || b[i] == '\t' || b[i] == '\r') {
			if b[i] == '\n' {
				begin = i + 1
			}
			i++
		}
		if i == n+maxQuote { // blank lines without end
			return n, true
		}
		if i == len(b) {
			return n, false
		}
		if i-begin <= e.indent || begin == n {
			return n, true
		}
		n, e.inside = i, true
	}
	return n, false
}
