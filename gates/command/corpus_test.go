package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// labelled is one line of testdata/corpus.tsv: what it is, why, and the command line.
type labelled struct {
	dangerous bool
	why       string
	line      string
}

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
		if len(fields) != 3 || fields[0] != "dangerous" && fields[0] != "harmless" || fields[1] == "" {
			t.Fatalf("%q has no label, reason and command", l)
		}
		c := labelled{dangerous: fields[0] == "dangerous", why: fields[1]}
		if err := json.Unmarshal([]byte(fields[2]), &c.line); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		all = append(all, c)
	}
	return all
}

// TestCorpus: nothing dangerous is allowed, and of what is harmless at most 2 % are not, whether denied or asked about.
func TestCorpus(t *testing.T) {
	refused, harmless := 0, 0
	all := corpus(t)
	for _, c := range all {
		r := Analyze(c.line, Config{})
		switch {
		case !c.dangerous:
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
