package command

import (
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// standIn is the first of the runes that stand for bytes which are no UTF-8: a shell takes those as they are, the parser does not.
// A text that comes from outside has them at once, and what it holds of such runes itself is bytes too: no two texts become one.
const standIn = '\U0010FE00'

func isStandIn(r rune) bool { return r >= standIn && r <= standIn+0xff }

// standIns is a text from outside with a rune for each byte that is no UTF-8, and where these are.
func standIns(text string) (valid string, at []int) {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, isStandIn) {
		return text, nil
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if isStandIn(r) || r == utf8.RuneError && n == 1 {
			for _, raw := range []byte(text[i : i+n]) {
				at = append(at, b.Len())
				b.WriteRune(standIn + rune(raw))
			}
		} else {
			b.WriteRune(r)
		}
		i += n
	}
	return b.String(), at
}

// readable is a text from outside as the parser can read it.
func readable(text string) string {
	valid, _ := standIns(text)
	return valid
}

// original has the bytes again.
func original(text string) string {
	if !strings.ContainsFunc(text, isStandIn) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isStandIn(r) {
			b.WriteByte(byte(r - standIn))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// formatted is what printf makes of a format and words.
func formatted(format string, args []string) (string, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = original(arg)
	}
	text, _, err := expand.Format(&expand.Config{}, original(format), words)
	return readable(text), err
}

// escaped puts what $'…' stands for in its place: bytes too, of which the expansion would make runes.
func escaped(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		if q, ok := n.(*syntax.SglQuoted); ok && q.Dollar {
			text, _, _ := expand.Format(&expand.Config{}, original(q.Value), nil) // what it cannot read it leaves, as the expansion does
			q.Value, q.Dollar = readable(text), false
		}
		return true
	})
}
