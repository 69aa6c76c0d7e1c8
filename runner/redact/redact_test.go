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

// example is a text of the corpus, and what is to be left of it.
type example struct{ reason, text, want string }

// corpus reads testdata/corpus.txt.
func corpus(t testing.TB) (list []example) {
	t.Helper()
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		reason, text, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%q has no tab", line)
		}
		if text, err = strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		e := example{reason: reason}
		for text != "" {
			before, rest, _ := strings.Cut(text, "«")
			secret, after, hides := strings.Cut(rest, "»")
			e.text += before + secret
			e.want += before
			if hides {
				e.want += Mark
			}
			text = after
		}
		list = append(list, e)
	}
	return list
}

// TestCorpus: secrets of all shapes go whole, and what is none stays.
func TestCorpus(t *testing.T) {
	var r *Redactor
	hide, keep := 0, 0
	for _, e := range corpus(t) {
		if e.want == e.text {
			keep++
		} else {
			hide++
		}
		if got := r.Text(e.text); got != e.want {
			t.Errorf("%s: %q\nis   %q\nwant %q", e.reason, e.text, got, e.want)
		}
		if got := r.Text(e.want); got != e.want {
			t.Errorf("%s: %q becomes %q", e.reason, e.want, got)
		}
		line := "x\n" + e.text + "\ny\n" // among others
		if got, want := r.Text(line), "x\n"+e.want+"\ny\n"; got != want {
			t.Errorf("%s: %q\nis   %q\nwant %q", e.reason, line, got, want)
		}
		for n := range 9 {
			if got := pieces(t, r, e.text, n+1); got != e.want {
				t.Errorf("%s: in pieces of %d it is %q", e.reason, n+1, got)
			}
		}
	}
	t.Logf("%d are hidden, %d kept", hide, keep)
	if hide < 100 || keep < 90 {
		t.Error("the corpus is too small")
	}
}
