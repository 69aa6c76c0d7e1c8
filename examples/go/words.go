// Package words counts words.
package words

import (
	"bufio"
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode"
)

// Count is a word and how often it occurs.
type Count struct {
	Word string
	N    int
}

// Top returns the n most frequent words of r in lower case; words of equal frequency in alphabetical order.
func Top(r io.Reader, n int) ([]Count, error) {
	seen := map[string]int{}
	s := bufio.NewScanner(r)
	s.Split(bufio.ScanWords)
	for s.Scan() {
		word := strings.TrimFunc(strings.ToLower(s.Text()), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if word != "" {
			seen[word]++
		}
	}
	counts := make([]Count, 0, len(seen))
	for word, n := range seen {
		counts = append(counts, Count{word, n})
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Word, b.Word))
	})
	return counts[:min(n, len(counts))], s.Err()
}
