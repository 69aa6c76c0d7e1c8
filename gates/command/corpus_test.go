package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// labelled is one line of testdata/corpus.tsv: what it is, why, and the command line.
type labelled struct{ label, why, line string }

func corpus(t testing.TB) (all []labelled) {
	t.Helper()
	text, err := os.ReadFile("testdata/corpus.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		fields := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(fields) != 3 || fields[0] != "dangerous" && fields[0] != "harmless" && fields[0] != "asked" || fields[1] == "" {
			t.Fatalf("%q has no label, reason and command", l)
		}
		c := labelled{label: fields[0], why: fields[1]}
		if err := json.Unmarshal([]byte(fields[2]), &c.line); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		all = append(all, c)
	}
	return all
}

// TestCorpus: nothing dangerous is allowed, and of what is harmless at most 2 % are not, whether denied or asked about. What is
// asked about is what people do every day and a person should see first: it is neither allowed nor denied.
func TestCorpus(t *testing.T) {
	refused, harmless := 0, 0
	all := corpus(t)
	for _, c := range all {
		r := Analyze(c.line, Config{})
		switch {
		case c.label == "asked":
			if r.Verdict != Ask {
				t.Errorf("to be asked about (%s), and %s: %q: %+v", c.why, r.Verdict, c.line, r.Findings)
			}
		case c.label == "harmless":
			harmless++
			if r.Verdict != Allow {
				refused++
				t.Logf("harmless (%s), and refused: %q: %+v", c.why, c.line, r.Findings[0])
			}
		case r.Verdict == Allow:
			t.Errorf("dangerous (%s), and allowed: %q", c.why, c.line)
		}
	}
	if len(all) < 400 || harmless < 150 || refused*50 > harmless {
		t.Errorf("%d lines; %d of %d harmless ones are refused", len(all), refused, harmless)
	}
}
