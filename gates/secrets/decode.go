package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"sort"
	"strings"
	"unicode/utf8"
)

// layer is a text, or what it is when the encodings that are in a layer are taken off.
type layer struct {
	text    []byte
	outer   *layer // the encoded one; nil: this is the file
	decodes []decoding
}

// decoding is a part of a layer that was encoded in the outer one.
type decoding struct {
	start, end int // in the layer
	from, to   int // in the outer one
}

// origin is the place in the file that has become the place p of the layer.
func (l *layer) origin(p int) int {
	if l.outer == nil {
		return p
	}
	if i := sort.Search(len(l.decodes), func(i int) bool { return l.decodes[i].start > p }) - 1; i >= 0 {
		if d := l.decodes[i]; p < d.end {
			p = d.from
		} else {
			p = d.to + p - d.end
		}
	}
	return l.outer.origin(p)
}

// news says whether the outer layers had not the same between start and end.
func (l *layer) news(start, end int) bool {
	i := sort.Search(len(l.decodes), func(i int) bool { return l.decodes[i].end >= start })
	return l.outer == nil || i < len(l.decodes) && l.decodes[i].start <= end
}

// decoded takes off what is encoded: as gitleaks does, in its place, so that a name beside a value stays there. It is nil when
// there is nothing.
func (l *layer) decoded() *layer {
	out := layer{outer: l}
	done, before := 0, noEncoding // what is decoded up to; the encoding that ends at i
	for i := 0; i < len(l.text); {
		n, kind := encoding(l.text[i:])
		if kind != noEncoding && before <= kind && following(l.text[i+n:]) <= kind {
			if plain := decoders[kind](l.text[i : i+n]); plain != nil {
				out.text = append(out.text, l.text[done:i]...)
				start := len(out.text)
				out.text = append(out.text, plain...)
				out.decodes = append(out.decodes, decoding{start, len(out.text), i, i + n})
				done = i + n
			}
		}
		i, before = i+n, kind
	}
	if len(out.decodes) == 0 {
		return nil
	}
	out.text = append(out.text, l.text[done:]...)
	return &out
}

// kind is a kind of encoding. Of two that touch, the later one comes first, and the other in the next layer: what is in
// percent signs can be a sign of the base64 beside it.
type kind int

const (
	noEncoding kind = iota
	base64Kind
	hexKind
	escapeKind
	pointKind
	percentKind

	minBase64 = 16
	minHex    = 32
)

// decoders return what is encoded, nil unless that is text.
var decoders = map[kind]func([]byte) []byte{
	base64Kind: decodeBase64, hexKind: decodeHex, escapeKind: unescape, pointKind: unescape, percentKind: unpercent,
}

// encoding looks for an encoding at the beginning of b. It returns how many bytes it has, or how many have none: at least one.
func encoding(b []byte) (int, kind) {
	switch b[0] {
	case '%':
		if n := percentRun(b); n > 0 {
			return n, percentKind
		}
	case '\\':
		if n := escapes(b); n > 0 {
			return n, escapeKind
		}
	case 'U':
		if n := codePoints(b); n > 0 {
			return n, pointKind
		}
	}
	if n := runOf(b, hexByte); n >= minHex {
		return n, hexKind
	}
	n := runOf(b, base64Byte)
	if n >= minBase64 {
		return n + runOf(b[n:min(n+2, len(b))], func(c byte) bool { return c == '=' }), base64Kind
	}
	if n > 1 {
		if i := bytes.Index(b[1:n], []byte("U+")); i >= 0 {
			return 1 + i, noEncoding
		}
	}
	return max(n, 1), noEncoding
}

// following is the encoding at the beginning of b, where that is one of signs.
func following(b []byte) kind {
	if len(b) == 0 || b[0] != '%' && b[0] != '\\' {
		return noEncoding
	}
	_, k := encoding(b)
	return k
}

func runOf(b []byte, is func(byte) bool) int {
	n := 0
	for n < len(b) && is(b[n]) {
		n++
	}
	return n
}

func hexByte(c byte) bool {
	return c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' || c >= '0' && c <= '9'
}

func base64Byte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}

// decodeHex needs a digit, and base64 one or a sign: words of letters only are words.
func decodeHex(b []byte) []byte {
	out := make([]byte, len(b)/2)
	if _, err := hex.Decode(out, b); err != nil || !bytes.ContainsAny(b, "0123456789") || !isText(out) {
		return nil
	}
	return out
}

func decodeBase64(b []byte) []byte {
	if b = bytes.TrimRight(b, "="); !bytes.ContainsAny(b, "0123456789+/-_") {
		return nil
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		out := make([]byte, e.DecodedLen(len(b)))
		if n, err := e.Decode(out, b); err == nil && isText(out[:n]) {
			return out[:n]
		}
	}
	return nil
}

func percentAt(b []byte, i int) bool {
	return i+2 < len(b) && b[i] == '%' && hexByte(b[i+1]) && hexByte(b[i+2])
}

// percentRun is the length of what begins with a character in percent signs and ends with the last one of the line.
func percentRun(b []byte) int {
	n := 0
	for i := 0; percentAt(b, 0) && i < len(b) && b[i] != '\n'; i++ {
		if percentAt(b, i) {
			n = i + 3
		}
	}
	return n
}

func unpercent(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		c := b[i]
		if percentAt(b, i) {
			c, i = byte(number(b[i+1:i+3])), i+2
			if !isText([]byte{c}) {
				return nil
			}
		}
		out = append(out, c)
	}
	return out
}

// escapes is the length of \uXXXX, with one backslash or two, as often as it is there.
func escapes(b []byte) int {
	for n := 0; ; {
		rest := b[n:]
		slashes := runOf(rest[:min(2, len(rest))], func(c byte) bool { return c == '\\' })
		if rest = rest[slashes:]; slashes == 0 || len(rest) < 5 || rest[0]|0x20 != 'u' || runOf(rest[1:5], hexByte) < 4 {
			return n
		}
		n += slashes + 5
	}
}

// codePoints is the length of U+XXXX, each with white space behind it, as often as it is there.
func codePoints(b []byte) int {
	for n := 0; ; {
		rest := b[n:]
		if len(rest) < 6 || rest[0] != 'U' || rest[1] != '+' || runOf(rest[2:6], hexByte) < 4 ||
			len(rest) > 6 && bytes.IndexByte([]byte(" \t\n\f\r"), rest[6]) < 0 {
			return n
		}
		n = min(n+7, len(b))
	}
}

// unescape takes the numbers out of escapes or code points.
func unescape(b []byte) (out []byte) {
	for i := 0; i+4 <= len(b); {
		if runOf(b[i:i+4], hexByte) == 4 {
			out = utf8.AppendRune(out, rune(number(b[i:i+4])))
			i += 4
		} else {
			i++
		}
	}
	return out
}

func number(digits []byte) (n int) {
	for _, c := range digits {
		n = n<<4 | strings.IndexByte("0123456789abcdef", c|0x20)
	}
	return n
}

func isText(b []byte) bool {
	for _, c := range b {
		if c >= 0x7f || c <= '\b' {
			return false
		}
	}
	return true
}
