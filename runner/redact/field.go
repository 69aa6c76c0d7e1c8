package redact

import "bytes"

// field is a name of a secret and what stands behind it.
type field struct {
	p           *piece
	kind        kind
	from, to    int // of the name
	begin, line int // of its line: where it begins and ends

	quoted  bool // the name is in quotes
	sep     byte // between name and value: = : > or a space
	spaced  bool // with spaces around it
	outer   byte // the quote that all of it may be in; 0: none
	slashes int  // before that
	opens   bool // that quote is right before the name
}

// maxSpaces is how far a value may be from its name.
const maxSpaces = 64

// value finds the value and decides about it.
func (f *field) value() verdict {
	at, ok := f.separator()
	if !ok || at >= f.line {
		return verdict{}
	}
	f.context()
	b := f.p.b[at:f.line]
	slashes := leading(b, '\\')
	if slashes < len(b) && (b[slashes] == '"' || b[slashes] == '\'') && (slashes == 0 || b[slashes] == '"') {
		return f.string(at+slashes+1, b[slashes], slashes)
	}
	if f.sep == ':' && !f.spaced && b[0] >= '0' && b[0] <= '9' && bytes.IndexByte(f.p.b[f.from:f.to], '.') > 0 {
		return verdict{} // a host and its port, a file and its line
	}
	if f.sep == ' ' && !f.flag() || f.sep == '>' && f.p.b[at] == '<' {
		return verdict{}
	}
	return f.bare(at)
}

// separator finds what stands between the name and the value, and where that begins.
func (f *field) separator() (at int, ok bool) {
	b, i := f.p.b[:f.line], f.to
	slashes := leading(b[i:], '\\')
	if i += slashes; i < len(b) && (b[i] == '"' || b[i] == '\'' || b[i] == '`') {
		f.quoted = f.from-slashes > f.begin && b[f.from-slashes-1] == b[i]
		i++
	} else {
		i -= slashes
	}
	spaces := blanks(b[i:])
	i += spaces
	if i == len(b) || spaces > maxSpaces {
		return 0, false
	}
	f.sep, f.spaced = b[i], spaces > 0
	switch next := following(b, i); {
	case f.sep == '=' && next != '=' && next != '~', f.sep == ':' && next != ':':
		i++
		if next == '=' || f.sep == '=' && next == '>' {
			i++
			f.spaced = true
		}
	case f.sep == '>' && f.from > f.begin && b[f.from-1] == '<':
		i++
	case spaces > 0 && !f.quoted:
		f.sep = ' '
		return i, f.flag() || f.kind == strong && b[i] == '\'' // PASSWORD 'x', of SQL
	default:
		return 0, false
	}
	spaces = blanks(b[i:])
	f.spaced = f.spaced || spaces > 0
	return i + spaces, spaces <= maxSpaces
}

func following(b []byte, i int) byte {
	if i+1 < len(b) {
		return b[i+1]
	}
	return 0
}

func leading(b []byte, c byte) (n int) {
	for n < len(b) && b[n] == c {
		n++
	}
	return n
}

func blanks(b []byte) (n int) {
	for n < len(b) && (b[n] == ' ' || b[n] == '\t') && n <= maxSpaces {
		n++
	}
	return n
}

// context finds the quote that the whole field may be in: the one before it, if its line has one not far away.
func (f *field) context() {
	near := f.p.b[max(f.begin, f.from-context):f.from]
	if f.quoted {
		return
	}
	i := bytes.LastIndexAny(near, "\"'`")
	if i < 0 {
		return
	}
	f.outer, f.opens = near[i], i == len(near)-1
	for j := i; j > 0 && near[j-1] == '\\'; j-- {
		f.slashes++
	}
}

// alone says that nothing but what can begin a line of a list is before the name.
func (f *field) alone() bool {
	before := f.p.b[f.begin:f.from]
	if f.begin == 0 && !f.p.bol {
		return false
	}
	if len(before) > context {
		return false
	}
	before = bytes.TrimLeft(before, " \t-")
	return len(before) == 0
}

// assigns says that the line is KEY=…, of a file or of env.
func (f *field) assigns() bool {
	return f.sep == '=' && !f.spaced && f.alone() && !bytes.ContainsFunc(f.p.b[f.from:f.to], func(c rune) bool { return c >= 'a' && c <= 'z' || c == '-' })
}

// flag says that the name is one of an option.
func (f *field) flag() bool {
	b := f.p.b
	return b[f.from] == '-' && (f.from == f.begin || b[f.from-1] <= ' ' || b[f.from-1] == '"' || b[f.from-1] == '\'')
}

// string decides about a value in quotes.
func (f *field) string(start int, quote byte, slashes int) verdict {
	e := &ender{kind: endQuote, quote: quote, slashes: slashes}
	v := verdict{start: start, end: e, mark: mark}
	probe := *e
	n, ended := probe.find(f.p.b[start:min(f.line, start+context)])
	text := f.p.b[start : start+n]
	switch {
	case n == 0 && (ended || start >= f.line && !f.assigns()):
		return verdict{}
	case !ended && start+n >= f.line-2 && f.p.partial && f.lastLine():
		return v // it goes on
	case !ended && !f.p.partial && f.assigns() && f.open(*e, start):
		e.left = maxQuote // the quotation goes on in the next line
		return v
	case isMark(text) || !f.worth(text):
		return verdict{}
	}
	return v
}

// open says that the quotation from start on does not end on its line.
func (f *field) open(e ender, start int) bool {
	_, ended := e.find(f.p.b[start:f.line])
	return !ended
}

// lastLine says that the field's line is the one that goes on.
func (f *field) lastLine() bool { return f.p.end == len(f.p.b) }

// worth says that a text in quotes beside the name is a secret.
func (f *field) worth(text []byte) bool {
	if isPlaceholder(text) || !f.quoted && f.sep != '=' && prose(text) {
		return false
	}
	if f.kind != weak {
		return true
	}
	if len(text) < MinValue || isSmallNumber(text) {
		return false
	}
	return f.quoted || f.sep == '=' || !lower(text)
}

// bare decides about a value without quotes.
func (f *field) bare(at int) verdict {
	b := f.p.b[at:f.line]
	word := b[:wordLen(b)]
	e := &ender{kind: endWord, quote: f.outer, slashes: f.slashes, closer: f.opened(word), query: f.inQuery()}
	v := verdict{start: at, end: e, mark: mark}
	if f.quoted {
		v.mark = quotedMark
	}
	if i := bytes.IndexAny(word, ",}]"); i > 0 && f.quoted { // a number of JSON
		word = word[:i]
	}
	if len(word) == 0 {
		return verdict{}
	}
	whole := len(word) == len(bytes.TrimRight(b, " \t"))
	switch {
	case markLen(word) > 0 && markLen(word) >= len(bytes.TrimRight(word, ",;)]}\"'")):
		return verdict{}
	case f.sep == '>':
		e.kind = endTag
		return f.unless(v, f.kind != strong && !tokenLike(word) || isPlaceholder(word[:tagLen(word)]))
	case f.kind == header:
		e.kind = endLine
		return f.unless(v, f.sep == ' ' || isPlaceholder(b) || prose(b) && !isScheme(word))
	case f.alone() && f.sep == ':' && (word[0] == '|' || word[0] == '>') && whole && len(word) <= 3:
		return verdict{start: at, mark: mark, end: &ender{kind: endBlock, indent: f.from - f.begin, inside: true}}
	case isPlaceholder(trimEnd(word)) || isPlaceholder(bytes.TrimRight(b, " \t,;")) || word[0] == '[' || word[0] == '{' || word[0] == '"' || word[0] == '`':
		return verdict{}
	case f.p.partial && f.lastLine() && at+len(word) == f.line && f.kind != strong:
		return verdict{waits: true, start: at}
	case f.kind == weak:
		return f.unless(v, !f.weakWord(trimEnd(word), whole))
	}
	return f.strongValue(v, b, word)
}

// unless is v, or nothing.
func (f *field) unless(v verdict, not bool) verdict {
	if not {
		return verdict{}
	}
	return v
}

// strongValue decides about a password without quotes: several words, where no other field follows.
func (f *field) strongValue(v verdict, b, word []byte) verdict {
	switch {
	case f.assigns():
		v.end.kind, v.end.quote = endLine, 0
	case f.sep == '=' && !f.spaced && f.opens: // "PASSWORD=a b"
		v.end.kind = endLine
	case f.sep == '=' && !f.spaced:
		return f.unless(v, isCall(word) && !f.alone())
	case f.sep == ' ':
		return f.unless(v, metavar(word))
	case prose(b) || isCall(word) || len(word) <= 3 && isSmallNumber(word): // so many of them
		return verdict{}
	case f.alone() || f.spaced && !f.quoted && !fieldFollows(b):
		v.end.kind = endLine
	}
	return v
}

// weakWord says that a word beside the name of a token is one.
func (f *field) weakWord(word []byte, whole bool) bool {
	switch {
	case len(word) < MinValue || isSmallNumber(word) || isCall(word) || isPath(word) || metavar(word):
		return false
	case f.inQuery(), f.assigns():
		return true
	case f.sep == '=' && !f.spaced, f.sep == ':' && f.quoted:
		return !lower(word) || len(word) >= 16
	case f.alone() && whole:
		return len(word) >= 8 && !lower(word) && (tokenLike(word) || !isIdentifier(word))
	}
	return tokenLike(word)
}

// inQuery says that the field is one of a query or a form.
func (f *field) inQuery() bool {
	return f.from > 0 && f.sep == '=' && (f.p.b[f.from-1] == '?' || f.p.b[f.from-1] == '&')
}

// opened is what closes the bracket before the name, if one is open and the word has such an end.
func (f *field) opened(word []byte) byte {
	if !bytes.ContainsAny(word, ")]}") {
		return 0
	}
	near := f.p.b[max(f.begin, f.from-context):f.from]
	var depth [3]int
	for i := len(near) - 1; i >= 0; i-- {
		for k := range 3 {
			switch near[i] {
			case ")]}"[k]:
				depth[k]++
			case "([{"[k]:
				if depth[k]--; depth[k] < 0 {
					return ")]}"[k]
				}
			}
		}
	}
	return 0
}
