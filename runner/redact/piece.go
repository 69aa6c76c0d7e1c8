package redact

import "bytes"

// piece is what is looked at at once: lines, or a part of one.
type piece struct {
	b          []byte
	bol        bool // it begins a line
	partial    bool // its last line goes on
	begin, end int  // of the line that was looked at last
	named      int  // names before it have been looked at
}

// verdict is what stands at a place: with end a value, from start on.
type verdict struct {
	start int
	least int    // bytes of it, whatever end says
	end   *ender // nil: nothing to hide
	next  int    // where to look on
	waits bool   // more of the line has to be there to say; from start on nothing is written before
	mark  []byte
}

// The marks; the second is for where JSON wants a string.
var mark, quotedMark = []byte(Mark), []byte(`"` + Mark + `"`)

// look says what stands around b[i], where a trigger is.
func (p *piece) look(i int) verdict {
	g := gram(p.b, i) | fold
	list, known := triggered()[g]
	if v, ok := p.token(list, i); ok {
		return v
	}
	switch {
	case !known:
		return verdict{next: i + 1}
	case p.b[i+1] == ':' && p.b[i+2] == '/' && p.b[i+3] == '/':
		return p.url(i + 4)
	case g == pemGram && i > 0 && p.b[i-1] <= '-':
		if v := p.pem(i); v.end != nil || v.waits {
			return v
		}
	}
	return p.name(i)
}

const pemGram = 'b' | 'e'<<8 | 'g'<<16 | 'i'<<24

// bounds finds the line around at.
func (p *piece) bounds(at int) (begin, end int) {
	if at < p.begin || at >= p.end {
		p.begin = bytes.LastIndexByte(p.b[:at], '\n') + 1
		p.end = len(p.b)
		if i := bytes.IndexByte(p.b[at:], '\n'); i >= 0 {
			p.end = at + i
		}
	}
	return p.begin, p.end
}

// pem looks for the first line of a private key, whose BEGIN is at i.
func (p *piece) pem(i int) verdict {
	start := i
	if p.b[i-1] == ' ' {
		start-- // ---- BEGIN
	}
	for start > 0 && start > i-6 && p.b[start-1] == '-' {
		start--
	}
	_, line := p.bounds(i)
	label := p.b[i:min(line, i+80)]
	if !bytes.HasPrefix(p.b[start:i], []byte("----")) || !bytes.HasPrefix(label, []byte("BEGIN ")) && !p.cut(label, "BEGIN ") {
		return verdict{next: i + 1}
	}
	end := bytes.Index(label, []byte("----"))
	switch {
	case end < 0 && p.partial && i+len(label) == len(p.b):
		return verdict{waits: true, start: start, next: i + 1}
	case end < 0 || !bytes.Contains(label[:end], []byte("PRIVATE KEY")):
		return verdict{next: i + 1}
	}
	return verdict{start: start, next: i + 1, mark: mark, end: &ender{kind: endPEM, left: maxBlock}}
}

// cut says that label is the beginning of text, of which the rest is not there yet.
func (p *piece) cut(label []byte, text string) bool {
	return p.partial && len(label) < len(text) && string(label) == text[:len(label)]
}

// maxURL is how much of a URL is looked at for a password.
const maxURL = 2 << 10

// url looks for a password in a URL, behind its ://.
func (p *piece) url(from int) verdict {
	b := p.b[from:min(len(p.b), from+maxURL)]
	end, path, colon, at := len(b), -1, -1, -1
	if bytes.IndexByte(b, '@') < 0 && !(p.partial && from+len(b) == len(p.b)) {
		return verdict{next: from}
	}
scan:
	for i, c := range b {
		switch {
		case c <= ' ' || c == '"' || c == '<' || c == '>' || c == '`' || c == '\\' || c == 0x7f:
			end = i
			break scan
		case c == '@' && (path < 0 || colon >= 0):
			at = i
		case path >= 0:
		case c == '/' || c == '?' || c == '#':
			if path = i; at >= 0 || colon < 0 || isPort(b[colon+1:i]) {
				break scan
			}
		case c == ':' && colon < 0:
			colon = i
		}
	}
	user := verdict{next: from, start: from}
	if at < 0 {
		user.waits = p.partial && end == len(b) && len(b) < maxURL && path < 0 // what is there may be a token, before an @
		return user
	}
	who := b[:at]
	switch {
	case colon >= 0 && colon < at && !isMark(who):
		if secret := who[colon+1:]; len(secret) == 0 || isMark(secret) || isPlaceholder(secret) {
			return user
		}
	case len(who) < 16 || !mixed(who) || isMark(who):
		return user
	}
	user.end, user.least, user.mark = &ender{kind: endToken, begun: true, left: 1}, at, mark
	return user
}

// isPort says that b is a port, or stands for one: $PORT.
func isPort(b []byte) bool {
	if len(b) > 0 && (b[0] == '$' || b[0] == '\'' || b[0] == '{' || string(b) == "PORT") {
		return true
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}

// name looks for a name of a secret around b[i], and the value beside it.
func (p *piece) name(i int) verdict {
	if i < p.named {
		return verdict{next: i + 1}
	}
	if !isIdent(p.b[i]) {
		i++ // ?key
	}
	from, to := i, i
	for from > 0 && i-from < maxKey && isIdent(p.b[from-1]) {
		from--
	}
	for to < len(p.b) && to-i < maxKey && isIdent(p.b[to]) {
		to++
	}
	p.named = to
	f := field{p: p, from: from, to: to}
	if to > from && to-from < maxKey {
		f.kind = judgeKey(p.b[from:to])
	}
	if f.kind == harmless && from > 0 && (p.b[from-1] == '?' || p.b[from-1] == '&') && string(bytes.ToLower(p.b[from:to])) == "key" {
		f.kind = weak
	}
	var v verdict
	if f.kind != harmless {
		f.begin, f.line = p.bounds(to - 1)
		f.line = lineEnd(p.b, f.line)
		v = f.value()
	}
	v.next = i + 1
	return v
}
