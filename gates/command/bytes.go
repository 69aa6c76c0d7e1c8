package command

import (
	"strings"
	"unicode/utf8"
)

// standIn is the first of the runes that stand for bytes which are no UTF-8: a shell takes those as they are, the parser does not.
const standIn = '\U0010FE00'

func isStandIn(r rune) bool { return r >= standIn && r <= standIn+0xff }

// standIns is a text with a rune for each byte that is no UTF-8, and where these are.
func standIns(text string) (valid string, at []int) {
	if utf8.ValidString(text) {
		return text, nil
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			at = append(at, b.Len())
			r = standIn + rune(text[i])
		}
		b.WriteRune(r)
		i += n
	}
	return b.String(), at
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
