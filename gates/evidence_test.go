package gates

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"testing"
)

// files is a change that adds files with contents.
func files(contents map[string]string) *Change {
	c := &Change{Open: func(p string) (io.ReadCloser, error) {
		text, ok := contents[p]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}}
	for p, text := range contents {
		c.Entries = append(c.Entries, Entry{Path: p, Kind: KindAdded, Type: TypeFile, Size: int64(len(text))})
	}
	return c
}

func hexSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// ask asks one gate that answers v.
func ask(t *testing.T, c *Change, o Options, v Verdict) Verdict {
	t.Helper()
	v.Checked = 1
	p, err := New([]Configured{{Mode: ModeBlock, Gate: fake{"g", answer(v, nil)}}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return p.Run(t.Context(), c)[0]
}

// What a finding is about is kept as it was judged, whatever its name; what is no file of the change, or has gone, is not.
func TestFilesWithFindings(t *testing.T) {
	odd := "a\xff\n`b"
	c := files(map[string]string{"x": "one", odd: "two", "quiet": "three"})
	c.Entries = append(c.Entries, Entry{Path: "gone", Kind: KindDeleted, OldType: TypeFile}, Entry{Path: "dir", Kind: KindAdded, Type: TypeDir},
		Entry{Path: "unreadable", Kind: KindAdded, Type: TypeFile, Size: 7})
	var findings []Finding
	for _, p := range []string{"x", "x", odd, "gone", "dir", "", "elsewhere", "unreadable"} {
		findings = append(findings, Finding{Rule: "r", Path: p, Severity: SeverityInfo})
	}
	v := ask(t, c, Options{}, Verdict{Findings: findings})
	want := []Evidence{{Kind: EvidenceFile, File: &File{Path: "x", Size: 3, SHA256: hexSum("one")}},
		{Kind: EvidenceFile, File: &File{Path: odd, Size: 3, SHA256: hexSum("two")}},
		{Kind: EvidenceFile, File: &File{Path: "unreadable", Size: 7, Unread: fs.ErrNotExist.Error()}}}
	if v.Status != Pass || !reflect.DeepEqual(v.Evidence, want) {
		t.Errorf("%+v", v)
	}
	data, err := json.Marshal(v)
	var back Verdict
	if err = errors.Join(err, json.Unmarshal(data, &back)); err != nil || !reflect.DeepEqual(back.Evidence, want) || back.Findings[2].Path != odd {
		t.Errorf("%v: %s", err, data)
	}
}

// Evidence that is not what it says fails the gate, with a remedy, and is not kept.
func TestEvidenceHasToBeSound(t *testing.T) {
	there := func(path string) (int64, error) {
		if path != "evidence/1" {
			return 0, fs.ErrNotExist
		}
		return 5, nil
	}
	report := func(a Artifact) Evidence { return OfReport(Report{Format: "sarif", Artifact: a}) }
	for name, c := range map[string]struct {
		e    Evidence
		none bool // there is no place for artifacts
		want string
	}{
		"file":               {OfFile("x"), false, ""},
		"missing file":       {OfFile("y"), false, "the evidence y is not there"},
		"another file":       {Evidence{Kind: EvidenceFile, File: &File{Path: "x", Size: 3, SHA256: hexSum("two")}}, false, "it is another one"},
		"report":             {report(Artifact{"evidence/1", 5, "aa"}), false, ""},
		"empty report":       {report(Artifact{"evidence/1", 0, "aa"}), false, "the report is empty"},
		"missing report":     {report(Artifact{"evidence/2", 5, "aa"}), false, "is not there"},
		"cut report":         {report(Artifact{"evidence/1", 6, "aa"}), false, "it has 5 bytes, and had 6"},
		"report without one": {report(Artifact{}), false, "the report is empty"},
		"no place":           {report(Artifact{"evidence/1", 5, "aa"}), true, "there is no place"},
		"log":                {OfLog(Log{Artifact: Artifact{"evidence/1", 5, "aa"}}), false, ""},
		"empty log":          {OfLog(Log{}), true, ""},
		"missing log":        {OfLog(Log{Artifact: Artifact{"evidence/2", 5, "aa"}}), false, "is not there"},
		"exit code":          {OfExit(ExitCode{Step: 1, Verdict: "ok"}), false, ""},
		"command":            {OfCommand(1, []string{"make", "test"}), false, ""},
		"number":             {OfMeasurement(Measurement{Name: "n", Value: 1}), false, ""},
		"no number":          {OfMeasurement(Measurement{Name: "n", Value: math.NaN()}), false, "no number"},
		"nothing":            {Evidence{Kind: EvidenceFile}, false, "is none"},
		"another kind":       {Evidence{Kind: EvidenceLog, ExitCode: &ExitCode{}}, false, "is none"},
		"unknown kind":       {Evidence{Kind: "photo"}, false, "unknown kind"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Artifacts: there}
			if c.none {
				o.Artifacts = nil
			}
			v := ask(t, files(map[string]string{"x": "one"}), o, Verdict{Evidence: []Evidence{c.e}})
			switch {
			case c.want == "" && (v.Status != Pass || len(v.Evidence) != 1):
				t.Errorf("%+v", v)
			case c.want != "" && (v.Status != Error || !strings.Contains(v.Reason, c.want) || v.Remedy == "" || len(v.Evidence) != 0):
				t.Errorf("%+v", v)
			}
			if _, err := json.Marshal(v); err != nil {
				t.Error(err)
			}
		})
	}
}

// An answer whose report has gone since is not used again.
func TestCachedAnswerNeedsItsReports(t *testing.T) {
	var cache MemoryCache
	gone := false
	o := Options{Cache: &cache, Artifacts: func(string) (int64, error) {
		if gone {
			return 0, fs.ErrNotExist
		}
		return 5, nil
	}}
	c := files(map[string]string{"x": "one"})
	c.Tree = "tree"
	v := Verdict{Evidence: []Evidence{OfReport(Report{Artifact: Artifact{"evidence/1", 5, "aa"}})}}
	if first, again := ask(t, c, o, v), ask(t, c, o, v); first.Cached || !again.Cached || len(again.Evidence) != 1 {
		t.Errorf("%+v, then %+v", first, again)
	}
	gone = true
	if after := ask(t, c, o, v); after.Cached || after.Status != Error {
		t.Errorf("%+v", after)
	}
}

// The words of a command are told from one that has them joined.
func TestCommandDigest(t *testing.T) {
	a, b := OfCommand(1, []string{"a", "b"}).Command, OfCommand(1, []string{"a b"}).Command
	if a.SHA256 == b.SHA256 || a.SHA256 != hexSum("a\x00b\x00") || a.Bytes != 4 {
		t.Errorf("%+v %+v", a, b)
	}
}

// Verdicts of versions that had no evidence are read.
func TestOldVerdict(t *testing.T) {
	var v Verdict
	err := json.Unmarshal([]byte(`{"gate":"size","status":"pass","mode":"block","measured":[{"name":"files","value":3,"limit":10}],"checked":3,"duration_ns":5}`), &v)
	if err != nil || v.Gate != "size" || v.Checked != 3 || !reflect.DeepEqual(v.Measurements(), []Measurement{{Name: "files", Value: 3, Limit: 10}}) {
		t.Errorf("%v: %+v", err, v)
	}
}
