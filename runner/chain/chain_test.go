package chain

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// log is n entries of three tasks, chained.
func log(n int) []Entry {
	var head Head
	list := make([]Entry, n)
	for i := range list {
		list[i] = Entry{Count: 1, At: time.Unix(1e9, int64(i)), Feature: "f", Task: fmt.Sprint("t", i%3), Step: i, Kind: "step", Body: fmt.Appendf(nil, `{"cause":"%d"}`, i)}
		if i%2 == 1 {
			list[i].Count, list[i].Kind = 5, "files"
		}
		head = list[i].Link(head)
	}
	return list
}

func headOf(e *Entry) Head { return Head{Task: e.Task, Seq: e.Seq, Hash: e.Hash, From: "test"} }

func check(list []Entry, heads ...Head) *Report {
	c := Checker{Heads: heads, Trimmed: func(kind string) bool { return kind == "files" }}
	for i := range list {
		c.Add(&list[i])
	}
	return c.Finish()
}

// relink gives the entries from i on hashes that fit, as who rewrites the log would.
func relink(list []Entry, i int) {
	head := Head{}
	if i > 0 {
		head = headOf(&list[i-1])
	}
	for ; i < len(list); i++ {
		head = list[i].Link(head)
	}
}

// TestHash: the example of the documentation, whose hash other tools have computed.
func TestHash(t *testing.T) {
	e := Entry{Count: 1, At: time.Unix(0, 1700000000000000000), Feature: "f", Task: "t", Kind: "submit", Body: []byte(`{"to":"queued"}`)}
	e.Link(Head{})
	const want = "27e5306f530107ab7ec0e7b6dff5cbdd94a8d4279233c6a906fdd7192e751894"
	if got := e.Hash.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestWhole(t *testing.T) {
	list := log(10)
	r := check(list, headOf(&list[3]), headOf(&list[9]))
	if !r.Whole || r.Entries != 10 || r.Events != 30 || r.Tasks != 3 || r.Heads != 2 || r.Head == nil || *r.Head != (Head{Task: "t2", Seq: list[8].Seq, Hash: list[8].Hash}) {
		t.Errorf("%+v", r)
	}
	if r := check(nil); !r.Whole || r.Head != nil || r.Problems == nil {
		t.Errorf("%+v", r)
	}
}

// TestDamage: whatever is done to a log, the first entry that is wrong is named.
func TestDamage(t *testing.T) {
	var other Hash
	for name, c := range map[string]struct {
		do    func(l []Entry) []Entry
		first int64 // number
	}{
		"a body":            {func(l []Entry) []Entry { l[4].Body = []byte("{}"); return l }, 13},
		"a time":            {func(l []Entry) []Entry { l[4].At = l[4].At.Add(1); return l }, 13},
		"a task":            {func(l []Entry) []Entry { l[4].Task = "t9"; return l }, 13},
		"a feature":         {func(l []Entry) []Entry { l[4].Feature = ""; return l }, 13},
		"a step":            {func(l []Entry) []Entry { l[4].Step++; return l }, 13},
		"a kind":            {func(l []Entry) []Entry { l[4].Kind = "move"; return l }, 13},
		"a hash":            {func(l []Entry) []Entry { l[4].Hash = other; return l }, 13},
		"a count":           {func(l []Entry) []Entry { l[3].Count = 4; return l }, 8},
		"a larger count":    {func(l []Entry) []Entry { l[3].Count = 6; return l }, 12},
		"no count":          {func(l []Entry) []Entry { l[3].Count = 0; return l }, 12},
		"a field moved":     {func(l []Entry) []Entry { l[4].Feature, l[4].Task = "f\nt1", ""; return l }, 13},
		"the first removed": {func(l []Entry) []Entry { return l[1:] }, 1},
		"one removed":       {func(l []Entry) []Entry { return slices.Delete(l, 4, 5) }, 13},
		"many removed":      {func(l []Entry) []Entry { return slices.Delete(l, 2, 8) }, 7},
		"one put in": {func(l []Entry) []Entry {
			return slices.Insert(l, 4, Entry{Seq: 13, Count: 1, Kind: "step", Body: []byte("{}")})
		}, 13},
		"two exchanged":    {func(l []Entry) []Entry { l[4].Body, l[6].Body = l[6].Body, l[4].Body; return l }, 13},
		"numbers, too":     {func(l []Entry) []Entry { l[4], l[6] = l[6], l[4]; l[4].Seq, l[6].Seq = l[6].Seq, l[4].Seq; return l }, 13},
		"the end cut":      {func(l []Entry) []Entry { return l[:8] }, 30},
		"all of it":        {func([]Entry) []Entry { return nil }, 18},
		"rewritten":        {func(l []Entry) []Entry { l[4].Body = []byte("{}"); relink(l, 4); return l }, 18},
		"cut and gone on":  {func(l []Entry) []Entry { l[9].Body = []byte("{}"); relink(l, 9); return l }, 30},
		"renumbered":       {func(l []Entry) []Entry { l = slices.Delete(l, 4, 5); relink(l, 4); return l }, 18},
		"a trim pretended": {func(l []Entry) []Entry { l[4].Kind, l[4].Body = KindTrim, []byte("["); relink(l, 4); return l }, 13},
	} {
		t.Run(name, func(t *testing.T) {
			list := log(10)
			heads := []Head{headOf(&list[5]), headOf(&list[9])}
			r := check(c.do(list), heads...)
			if r.Whole || len(r.Problems) == 0 || r.Problems[0].Seq != c.first || r.Problems[0].What == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// trimmed removes entries of a log as its owner does: the last entry says which.
func trimmed(list []Entry, kind string, at ...int) []Entry {
	g := Gaps{Of: "files"}
	for _, i := range at {
		g.Add(Gap{First: list[i].Seq - list[i].Count + 1, Last: list[i].Seq, Hash: list[i].Hash})
	}
	var text []string
	for _, gap := range g.Gaps {
		text = append(text, fmt.Sprintf(`{"first":%d,"last":%d,"hash":"%s"}`, gap.First, gap.Last, gap.Hash))
	}
	e := Entry{Count: 1, Kind: kind, Body: fmt.Appendf(nil, `{"detail":{"of":"files","gaps":[%s]}}`, strings.Join(text, ","))}
	e.Link(headOf(&list[len(list)-1]))
	list = append(list, e)
	slices.Sort(at)
	for _, i := range slices.Backward(at) {
		list = slices.Delete(list, i, i+1)
	}
	return list
}

// TestTrim: what the log itself says was removed is no damage, and everything else is.
func TestTrim(t *testing.T) {
	list := trimmed(trimmed(log(10), KindTrim, 1, 5), KindTrim, 2) // of what is left
	r := check(list, headOf(&log(10)[5]))
	if !r.Whole || r.Trimmed != 15 || r.Entries != 9 {
		t.Errorf("%+v", r)
	}
	if r := check(trimmed(log(10), KindTrim, 2, 3, 4)); !r.Whole || r.Trimmed != 7 {
		t.Errorf("neighbours: %+v", r)
	}
	wrong := headOf(&log(10)[5])
	wrong.Hash[0]++
	if r := check(list, wrong); r.Whole || r.Problems[0].Seq != wrong.Seq {
		t.Errorf("another head of what went: %+v", r)
	}
	// What went since a head was kept can be counted: here the first of two trims came after it, and the second.
	kept := Checker{Kept: []Head{headOf(&log(10)[4]), headOf(&log(10)[9]), headOf(&list[len(list)-1])}, Trimmed: func(string) bool { return true }}
	for i := range list {
		kept.Add(&list[i])
	}
	if r := kept.Finish(); !r.Whole || r.Heads != 3 || !slices.Equal(r.Kept, []Kept{{13, 10}, {30, 15}, {32, 0}}) {
		t.Errorf("%+v", r)
	}
	forged := slices.Clone(list)
	forged[7].Body = bytes.Replace(forged[7].Body, []byte("files"), []byte("gate"), 1)
	relink(forged, 7)
	if r := check(forged); r.Whole || r.Problems[0].Seq != forged[7].Seq || !strings.Contains(r.Problems[0].What, "never") {
		t.Errorf("a trim of what is never trimmed: %+v", r)
	}
	right := headOf(&log(10)[5])
	if r := check(list, right, wrong); r.Whole || len(r.Problems) != 1 {
		t.Errorf("another head beside the right one: %+v", r)
	}
	for name, c := range map[string]struct {
		list  []Entry
		first int64
	}{
		"one more":            {slices.Delete(slices.Clone(list), 1, 2), 7},
		"the one that says":   {list[:len(list)-1], 8},
		"one is there":        {slices.Insert(slices.Clone(list), 1, log(10)[1]), 2},
		"the one after it":    {changed(list, 1), 7},
		"more than announced": {trimmed(log(10), KindTrim, 3)[1:], 1},
	} {
		if r := check(c.list); r.Whole || r.Problems[0].Seq != c.first {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func changed(list []Entry, i int) []Entry {
	list = slices.Clone(list)
	list[i].Body = []byte("{}")
	return list
}

// TestLost: a log that says that the one before it is gone is not whole, and says no worse of itself.
func TestLost(t *testing.T) {
	old := log(4)
	last := headOf(&old[3])
	first := Entry{Count: 1, Kind: KindLost, Body: fmt.Appendf(nil, `{"detail":{"gaps":[{"first":1,"last":%d,"hash":"%s"}]}}`, last.Seq, last.Hash)}
	head := first.Link(last)
	next := Entry{Count: 1, Kind: "step", Body: []byte("{}")}
	next.Link(head)
	r := check([]Entry{first, next}, headOf(&old[1]), last)
	if r.Whole || len(r.Problems) != 1 || r.Problems[0].Seq != 1 || !strings.Contains(r.Problems[0].What, "entries 1 to 12 are gone") || r.Trimmed != 0 {
		t.Errorf("%+v", r)
	}
	if r := check([]Entry{next}); r.Whole || r.Problems[0].Seq != 1 {
		t.Errorf("%+v", r)
	}
}

func TestHeadsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "heads")
	if _, err := ReadHeads(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	list := log(10)
	if err := AppendHead(path, headOf(&list[0]), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file that was gone came back:", err)
	}
	if err := MakeHeads(path); err != nil {
		t.Fatal(err)
	}
	if last, err := LastHead(path); err != nil || last != (Head{}) {
		t.Error(last, err)
	}
	for i := range list {
		if err := AppendHead(path, headOf(&list[i]), nil); err != nil {
			t.Fatal(err)
		}
	}
	seqs := func() (got []int64) {
		t.Helper()
		heads, err := ReadHeads(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range heads {
			got = append(got, h.Seq)
		}
		return got
	}
	var want []int64
	for i := range list {
		want = append(want, list[i].Seq)
	}
	if got := seqs(); !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	// A torn line is passed over, and spoils no other.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range bytes.LastIndexByte(text[:len(text)-1], '\n') {
		cut := len(text) - 1 - n
		if err := os.WriteFile(path, text[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if n < 60 && !slices.Equal(seqs(), want[:9]) {
			t.Fatalf("cut at %d: %d", cut, seqs())
		}
		if last, err := LastHead(path); err != nil || n < 60 && last.Seq != want[8] {
			t.Fatalf("cut at %d: %v, %v", cut, last, err)
		}
		if err := AppendHead(path, Head{Task: "new", Seq: 99}, nil); err != nil {
			t.Fatal(err)
		}
		if got := seqs(); got[len(got)-1] != 99 {
			t.Fatalf("cut at %d: %d", cut, got)
		}
	}
}

// TestHeadsBounded: the file does not grow for ever, and keeps the newest, and what the log denies.
func TestHeadsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "heads")
	if err := MakeHeads(path); err != nil {
		t.Fatal(err)
	}
	const n = 6000
	for i := range n {
		h := Head{Seq: int64(i + 1)}
		if i != 50 && i > 100 {
			h.Task = fmt.Sprintf("%026d", i)
		}
		if err := AppendHead(path, h, func(h Head) bool { return h.Seq == 51 }); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxHeads+200 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	heads, err := ReadHeads(path)
	if err != nil || len(heads) < keepHeads || heads[0].Seq != 51 || heads[1].Seq < 1000 || heads[len(heads)-1].Seq != n {
		t.Errorf("%d heads, %v", len(heads), err)
	}
}

func TestParseHead(t *testing.T) {
	h := Head{Seq: 7, Hash: Hash{1, 2}}
	if got, err := ParseHead(h.String()); err != nil || got != h {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "7", "7:", ":00", "x:" + h.Hash.String(), "0:" + h.Hash.String(), "-1:" + h.Hash.String(), "7:" + h.Hash.String() + "0", "7:" + strings.Repeat("g", 64)} {
		if got, err := ParseHead(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
