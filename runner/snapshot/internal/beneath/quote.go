package beneath

import (
	"fmt"
	"strings"
)

// Quote returns a path as git prints it: unchanged, or in double quotes with C escapes and octal bytes when it holds
// control characters, quotes, backslashes or bytes outside of ASCII.
func Quote(path string) string {
	plain := true
	for i := 0; i < len(path) && plain; i++ {
		c := path[i]
		plain = c >= ' ' && c < 0x7f && c != '"' && c != '\\'
	}
	if plain {
		return path
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(path); i++ {
		quoteByte(&b, path[i])
	}
	b.WriteByte('"')
	return b.String()
}

func quoteByte(b *strings.Builder, c byte) {
	const named, letters = "\a\b\t\n\v\f\r\"\\", `abtnvfr"\`
	switch i := strings.IndexByte(named, c); {
	case i >= 0:
		b.WriteByte('\\')
		b.WriteByte(letters[i])
	case c < ' ' || c >= 0x7f:
		fmt.Fprintf(b, `\%03o`, c)
	default:
		b.WriteByte(c)
	}
}
