package redact

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
)

// pieces redacts text that comes in pieces whose sizes cuts has, again and again.
func pieces(t testing.TB, r *Redactor, text string, cuts ...int) string {
	t.Helper()
	var b bytes.Buffer
	w := r.Writer(&b)
	for i := 0; len(text) > 0; i++ {
		n := min(max(cuts[i%len(cuts)], 1), len(text))
		if _, err := io.WriteString(w, text[:n]); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// example is a line of the corpus.
type example struct{ verdict, reason, text, want string }

// corpus reads testdata/corpus.txt: verdict, reason, text as Go would quote it, and where something goes what is left.
func corpus(t testing.TB) (list []example) {
	t.Helper()
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	unquote := func(s string) string {
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(s, `"`, `\"`), `\\"`, `\\\"`) + `"`)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		return text
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\n"); line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 3 || f[0] == "hide" && len(f) != 4 {
			t.Fatalf("%q", line)
		}
		e := example{verdict: f[0], reason: f[1], text: unquote(f[2])}
		if e.want = e.text; f[0] == "hide" {
			e.want = unquote(f[3])
		}
		list = append(list, e)
	}
	return list
}
