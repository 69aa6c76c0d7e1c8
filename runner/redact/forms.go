package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	minLine  = 8    // of a value of several lines, what is known of its own
	maxPiece = 1023 // a longer value is known as pieces that overlap; a multiple of 3, for base64
)

// form is one way in which a value is written. What is encoded in base64 can share its first and its last character with
// what stands beside it: those go, too.
type form struct {
	text        string
	before, end bool
}

// forms are the ways in which a value is written.
func forms(value string) []form {
	value = value[:min(len(value), MaxValue)]
	seen := map[form]bool{}
	var list []form
	add := func(f form) {
		if len(f.text) >= MinValue && !seen[f] {
			seen[f] = true
			list = append(list, f)
		}
	}
	for _, whole := range wholes(value) {
		for _, part := range parts(whole) {
			for _, text := range written(part) {
				add(form{text: text})
			}
			for _, f := range base64Forms(part) {
				add(f)
			}
		}
		for _, f := range wrapped(whole) {
			add(f)
		}
	}
	return list
}

// wholes are a value, and the lines of one that has several.
func wholes(value string) []string {
	whole := []string{value}
	if trimmed := strings.TrimSpace(value); trimmed != value && len(trimmed) >= MinValue {
		whole = append(whole, trimmed)
	}
	if strings.ContainsAny(value, "\r\n") {
		for line := range strings.FieldsFuncSeq(value, func(c rune) bool { return c == '\r' || c == '\n' }) {
			if line = strings.TrimSpace(line); len(line) >= minLine && !strings.HasPrefix(line, "-----") {
				whole = append(whole, line)
			}
		}
	}
	return whole
}

// parts are s, or what is long in pieces.
func parts(s string) (list []string) {
	for len(s) > maxPiece {
		list = append(list, s[:maxPiece])
		s = s[min(maxPiece, len(s)-maxPiece):]
	}
	return append(list, s)
}

// written is a text as it is, and escaped.
func written(s string) []string {
	html := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")
	plain := jsonOf(s, false)
	list := []string{
		s, hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))),
		plain, jsonOf(s, true), asciiJSON(s), strings.ReplaceAll(plain, "/", `\/`), jsonOf(plain, false), jsonOf(jsonOf(s, true), true), // JSON in JSON
		inside(strconv.Quote(s)), inside(strconv.QuoteToASCII(s)),
		strings.ReplaceAll(s, "'", `'\''`), strings.ReplaceAll(s, "'", `'"'"'`), backslashed(s, "\"\\$`"), backslashed(s, shellSpecial),
		strings.ReplaceAll(s, "'", "''"), // SQL, YAML
		html.Replace(s),
	}
	for _, escaped := range []string{url.QueryEscape(s), url.PathEscape(s), strings.ReplaceAll(url.QueryEscape(s), "+", "%20"),
		url.UserPassword("", s).String()[1:], percent(s)} {
		list = append(list, escaped, lowerPercent(escaped))
	}
	return list
}

// inside is what is between quotes.
func inside(quoted string) string { return quoted[1 : len(quoted)-1] }

const shellSpecial = " \t\n!\"#$&'()*,;<>?[\\]^`{|}~"

func backslashed(s, special string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(special, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// jsonOf is s in a string of JSON.
func jsonOf(s string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	_ = e.Encode(s) //nolint:errchkjson // of a string into a Buffer
	return inside(strings.TrimSuffix(b.String(), "\n"))
}

// asciiJSON is s in a string of JSON as it is written where only ASCII is wanted.
func asciiJSON(s string) string {
	var b strings.Builder
	for _, c := range jsonOf(s, false) {
		switch {
		case c < utf8.RuneSelf:
			b.WriteByte(byte(c))
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			b.WriteString(`\u` + strconv.FormatInt(int64(high), 16) + `\u` + strconv.FormatInt(int64(low), 16))
		default:
			b.WriteString(`\u` + strconv.FormatInt(0x10000|int64(c), 16)[1:])
		}
	}
	return b.String()
}

// percent escapes what encodeURIComponent of JavaScript does.
func percent(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if isIdent(c) || strings.IndexByte("!~*'()", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// lowerPercent has the digits of the escapes in lower case.
func lowerPercent(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// base64Forms are what s has of its own in the base64 of a text that it is part of, by where in it it begins.
func base64Forms(s string) (list []form) {
	for shift := range 3 {
		list = append(list, base64At(shift, s)...)
	}
	return list
}

// base64At is base64Forms where s begins so many bytes after a multiple of three.
func base64At(shift int, s string) (list []form) {
	first, used := 0, shift+len(s)
	if shift > 0 {
		first = shift + 1 // the character before has bits of both
	}
	last := used / 3 * 4
	if used%3 > 0 {
		last += used % 3 // likewise the one after
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		text := e.EncodeToString(append(make([]byte, shift), s...))
		if first < last {
			list = append(list, form{text: text[first:last], before: shift > 0, end: used%3 > 0})
		}
	}
	return list
}

// How many bytes a line has where an encoder wraps what it writes.
const (
	mimeLine = 57 // 76 characters: base64, MIME
	pemLine  = 48 // 64: openssl, PEM
	hexLine  = 30 // 60: xxd -p
)

// wrapped are the lines of an encoder that reads s first. What is before s would move them.
func wrapped(s string) (list []form) {
	for _, n := range []int{mimeLine, pemLine} {
		list = append(list, wrap(s, n, func(line string) []form { return base64At(0, line) })...)
	}
	return append(list, wrap(s, hexLine, func(line string) []form {
		text := hex.EncodeToString([]byte(line))
		return []form{{text: text}, {text: strings.ToUpper(text)}}
	})...)
}

// wrap encodes s in lines of n bytes. The last one, which can be too short to be known, is known with the one before it, too.
func wrap(s string, n int, encode func(string) []form) (list []form) {
	var before []form
	for len(s) > 0 && (len(s) > n || before != nil) {
		line := encode(s[:min(n, len(s))])
		s = s[min(n, len(s)):]
		list = append(list, line...)
		if s == "" {
			for i, f := range line {
				list = append(list, form{text: before[i].text + "\n" + f.text, end: f.end})
			}
		}
		before = line
	}
	return list
}
