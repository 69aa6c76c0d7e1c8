package words

import (
	"slices"
	"strings"
	"testing"
)

func TestTop(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want []Count
	}{
		{"", 3, []Count{}},
		{"a b a", 3, []Count{{"a", 2}, {"b", 1}}},
		{"The box, the BOX -- and the river!", 2, []Count{{"the", 3}, {"box", 2}}},
		{"b a", 1, []Count{{"a", 1}}},
	} {
		got, err := Top(strings.NewReader(tt.text), tt.n)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("Top(%q, %d) = %v, %v; want %v", tt.text, tt.n, got, err, tt.want)
		}
	}
}
