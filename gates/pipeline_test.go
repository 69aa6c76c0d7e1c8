package gates

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func passes() func(context.Context, *Change) (Verdict, error) {
	return answer(Verdict{Checked: 1}, nil)
}
func blocks() func(context.Context, *Change) (Verdict, error) {
	return answer(Verdict{Checked: 1, Findings: []Finding{{Rule: "r", Severity: SeverityBlock}}}, nil)
}

func TestLoad(t *testing.T) {
	g := func(name string, p Phase, needs ...string) Configured {
		return Configured{Gate: fake{name, passes()}, Mode: ModeBlock, Phase: p, Needs: needs}
	}
	for want, gs := range map[string][]Configured{
		"":                    {g("a", ""), g("b", "", "a"), g("c", PhaseTest, "a", "b"), g("d", PhaseDecide)},
		`a needs "nobody"`:    {g("a", "", "nobody")},
		"circle: a → a":       {g("a", "", "a")},
		"circle: b → c → b":   {g("a", "", "b"), g("b", "", "c"), g("c", "", "b")},
		"is asked later":      {g("a", PhasePre, "b"), g("b", PhaseStatic)},
		"unknown phase":       {g("a", "later")},
		"a is there twice":    {g("a", ""), g("a", "")},
		"no such gate":        {{Mode: ModeBlock}},
		`severity "terrible"`: {{Gate: fake{"a", passes()}, Severity: "terrible"}},
		`severity "off"`:      {{Gate: fake{"a", passes()}, Severity: SeverityOff}},
	} {
		_, err := New(gs, Options{})
		var load *LoadError
		if want == "" && err != nil || want != "" && (!errors.As(err, &load) || !strings.Contains(err.Error(), want) || load.Remedy == "") {
			t.Errorf("want %q: %v", want, err)
		}
		if want != "" {
			for _, v := range Run(t.Context(), gs, &Change{}) {
				if v.Status != Error || v.accepts() || v.Remedy == "" {
					t.Errorf("%s: %+v", want, v)
				}
			}
		}
	}
}

// A gate is asked after those that it needs, and never when one of them blocks; a phase only after the ones before.
func TestOrder(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	g := func(name string, p Phase, m Mode, check func(context.Context, *Change) (Verdict, error), needs ...string) Configured {
		return Configured{Mode: m, Phase: p, Needs: needs, Gate: fake{name, func(ctx context.Context, c *Change) (Verdict, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, name)
			return check(ctx, c)
		}}}
	}
	p, err := New([]Configured{
		g("last", PhaseDecide, ModeBlock, passes()),
		g("c", "", ModeBlock, passes(), "b"),
		g("b", "", ModeBlock, passes(), "a", "w"),
		g("w", "", ModeWarn, blocks()),
		g("off", "", ModeOff, blocks()),
		g("a", "", ModeBlock, passes(), "first", "off"),
		g("first", PhasePre, ModeBlock, passes()),
		g("test", PhaseTest, ModeBlock, blocks()),
		g("post", PhasePost, ModeWarn, passes()),
	}, Options{Parallel: 1})
	if err != nil {
		t.Fatal(err)
	}
	vs := p.Run(t.Context(), &Change{Entries: []Entry{{Path: "x"}}})
	before := func(a, b string) {
		if i, j := slices.Index(asked, a), slices.Index(asked, b); i < 0 || j < 0 || i > j {
			t.Errorf("%s before %s: %v", a, b, asked)
		}
	}
	before("first", "a")
	before("a", "b")
	before("w", "b")
	before("b", "c")
	before("c", "test")
	if len(asked) != 6 {
		t.Errorf("asked %v", asked)
	}
	for i, name := range []string{0: "last", 8: "post"} {
		if name == "" {
			continue
		}
		if v := vs[i]; v.Gate != name || v.Status != Skipped || !strings.Contains(v.Reason, "gate test of phase test") || v.Remedy == "" {
			t.Errorf("%+v", v)
		}
	}
	if vs[0].accepts() {
		t.Error("a gate that was not asked accepts")
	}
}

func TestNeedsThatFail(t *testing.T) {
	vs := Run(t.Context(), []Configured{
		{Mode: ModeBlock, Gate: fake{"b", passes()}, Needs: []string{"a"}},
		{Mode: ModeBlock, Gate: fake{"a", blocks()}},
	}, &Change{Entries: []Entry{{Path: "x"}}})
	if vs[0].Status != Skipped || !strings.Contains(vs[0].Reason, "needs the gate a") || vs[1].Status != Fail {
		t.Errorf("%+v", vs)
	}
}

func TestParallelIsBounded(t *testing.T) {
	var now, most atomic.Int32
	var gs []Configured
	for i := range 12 {
		gs = append(gs, Configured{Mode: ModeBlock, Gate: fake{fmt.Sprint(i), func(context.Context, *Change) (Verdict, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			now.Add(-1)
			return Verdict{Checked: 1}, nil
		}}})
	}
	p, err := New(gs, Options{Parallel: 3})
	if err != nil {
		t.Fatal(err)
	}
	if vs := p.Run(t.Context(), &Change{}); Blocked(vs) || most.Load() > 3 {
		t.Errorf("%d at once, %+v", most.Load(), vs)
	}
}

func TestCache(t *testing.T) {
	asked := 0
	result := blocks()
	g := Configured{Mode: ModeWarn, Gate: fake{"g", func(ctx context.Context, c *Change) (Verdict, error) { asked++; return result(ctx, c) }}}
	cache := &MemoryCache{Size: 2}
	ask := func(c *Change, image string) Verdict {
		p, err := New([]Configured{g}, Options{Cache: cache, Image: image})
		if err != nil {
			t.Fatal(err)
		}
		return p.Run(t.Context(), c)[0]
	}
	entries := []Entry{{Path: "x"}}
	for i, c := range []struct {
		tree, image string
		mode        Mode
		asked       int
	}{
		{"1", "", ModeWarn, 1}, {"1", "", ModeBlock, 1}, {"2", "", ModeBlock, 2}, {"2", "i", ModeBlock, 3},
		{"1", "", ModeBlock, 4}, // the oldest went
		{"", "", ModeBlock, 5}, {"", "", ModeBlock, 6},
	} {
		g.Mode = c.mode
		was := asked
		v := ask(&Change{Entries: entries, Digest: "d", Tree: c.tree}, c.image)
		if asked != c.asked || v.Status != Fail || v.Mode != c.mode || v.Cached != (asked == was) || v.ChangeDigest != "d" || len(v.Findings) != 1 {
			t.Errorf("%d: asked %d: %+v", i, asked, v)
		}
	}
	result = answer(Verdict{}, errors.New("broken"))
	for range 2 {
		if v := ask(&Change{Entries: entries, Tree: "3"}, ""); v.Status != Error || v.Cached {
			t.Errorf("an error was kept: %+v", v)
		}
	}
	for name, look := range map[string]func(c *Change){
		"open": func(c *Change) { _, _ = c.OpenOld("y") }, "lookup": func(c *Change) { c.Lookup("y") }, "readlink": func(c *Change) { c.Readlink("y") },
	} {
		result = func(_ context.Context, c *Change) (Verdict, error) { look(c); return Verdict{Checked: 1}, nil }
		there := "1"
		below := &Change{Entries: entries, Tree: name, OpenOld: func(string) (io.ReadCloser, error) { return nil, io.EOF },
			Lookup: func(string) (FileType, bool) { return "", false }, Readlink: func(string) (string, bool) { return "", false }}
		identify := func(string) string { return there }
		for i, c := range []struct {
			there    string
			identify func(string) string
			replaces bool
			cached   bool
		}{
			{"1", nil, false, false}, {"1", nil, false, false}, // nobody can tell
			{"1", identify, false, false}, {"1", identify, false, true}, {"2", identify, false, false}, {"2", identify, false, true},
			{"", identify, false, false}, // it cannot be told now
			{"2", nil, false, false},
			{"3", nil, true, false}, {"3", nil, true, true}, // what is replaced belongs to the tree
		} {
			if there = c.there; c.replaces {
				below.Entries, below.Tree = []Entry{{Path: "y", OldType: TypeFile}}, name+" replaced"
			}
			below.Identify = c.identify
			if v := ask(below, ""); v.Status != Pass || v.Cached != c.cached {
				t.Errorf("%s: %d: cached %v", name, i, v.Cached)
			}
		}
	}
	if asked != 29 {
		t.Errorf("asked %d", asked)
	}
}

func TestIncremental(t *testing.T) {
	var seen []string
	g := Configured{Mode: ModeBlock, Gate: fake{"g", func(_ context.Context, c *Change) (Verdict, error) {
		for _, e := range c.Entries {
			seen = append(seen, e.Path)
		}
		return Verdict{Checked: len(c.Entries)}, nil
	}}}
	known, recent := true, []Entry{{Path: "b"}}
	c := &Change{Entries: []Entry{{Path: "a"}, {Path: "b"}}, Since: func(gate, digest string) ([]Entry, bool) {
		if gate != "g" || digest != "digest of g" {
			t.Errorf("%s %s", gate, digest)
		}
		return recent, known
	}}
	ask := func(want string) {
		t.Helper()
		seen = nil
		if v := Run(t.Context(), []Configured{g}, c)[0]; v.Status != Pass || strings.Join(seen, " ") != want {
			t.Errorf("%v, %+v", seen, v)
		}
	}
	ask("a b")
	g.Incremental = true
	ask("b")
	recent = nil
	ask("")
	known = false
	ask("a b")
}

func TestMeasurements(t *testing.T) {
	for _, m := range []Measurement{{Name: "n", Value: math.NaN()}, {Name: "n", Value: math.Inf(1)}, {Name: "n", Limit: math.NaN()}, {Name: "n", Limit: math.Inf(-1)}} {
		v := Run(t.Context(), []Configured{{Mode: ModeBlock, Gate: fake{"g", answer(Verdict{Checked: 1, Evidence: []Evidence{OfMeasurement(m)}}, nil)}}}, &Change{})[0]
		if v.Status != Error || v.Remedy == "" || !strings.Contains(v.Reason, "no number") {
			t.Errorf("%v: %+v", m, v)
		}
	}
}

func TestSeverityIsCapped(t *testing.T) {
	for worst, want := range map[Severity]Status{"": Fail, SeverityBlock: Fail, SeverityWarn: Pass, SeverityInfo: Pass} {
		v := Run(t.Context(), []Configured{{Mode: ModeBlock, Severity: worst, Gate: fake{"g", blocks()}}}, &Change{Entries: []Entry{{Path: "x"}}})[0]
		if v.Status != want || len(v.Findings) != 1 || worst != "" && v.Severity != worst {
			t.Errorf("%q: %+v", worst, v)
		}
	}
}

// Objects tells what is new to a gate that blocks from what it said before.
func TestObjects(t *testing.T) {
	at := func(rule, path string, line int) Finding {
		return Finding{Rule: rule, Path: path, Line: line, Severity: SeverityBlock}
	}
	fails := func(dropped int, f ...Finding) []Verdict {
		return []Verdict{{Gate: "g", GateDigest: "1", Mode: ModeBlock, Status: Fail, Findings: f, Dropped: dropped}}
	}
	with := func(v []Verdict, change func(*Verdict)) []Verdict { change(&v[0]); return v }
	weak := at("r", "a", 1)
	weak.Severity = SeverityWarn
	for name, c := range map[string]struct {
		before, after []Verdict
		want          bool
	}{
		"nobody looked":        {nil, nil, true},
		"nobody looked before": {nil, fails(0, at("r", "a", 1)), true},
		"the same":             {fails(0, at("r", "a", 1)), fails(0, at("r", "a", 1)), false},
		"moved":                {fails(0, at("r", "a", 1)), fails(0, at("r", "a", 9)), false},
		"less":                 {fails(0, at("r", "a", 1), at("r", "b", 1)), fails(0, at("r", "b", 1)), false},
		"another path":         {fails(0, at("r", "a", 1)), fails(0, at("r", "b", 1)), true},
		"another rule":         {fails(0, at("r", "a", 1)), fails(0, at("s", "a", 1)), true},
		"once more":            {fails(0, at("r", "a", 1)), fails(0, at("r", "a", 1), at("r", "a", 2)), true},
		"more that is hidden":  {fails(3, at("r", "a", 1)), fails(4, at("r", "a", 1)), true},
		"as much hidden":       {fails(3, at("r", "a", 1)), fails(3, at("r", "a", 1)), false},
		"it only warned":       {fails(0, weak), fails(0, at("r", "a", 1)), true},
		"it only warns":        {fails(0, at("r", "b", 1)), fails(0, at("r", "b", 1), weak), false},
		"other settings":       {with(fails(0, at("r", "a", 1)), func(v *Verdict) { v.GateDigest = "2" }), fails(0, at("r", "a", 1)), true},
		"cannot look":          {fails(0), with(fails(0), func(v *Verdict) { v.Status = Error }), true},
		"accepts":              {fails(0), with(fails(0), func(v *Verdict) { v.Status = Pass }), false},
		"mode warn":            {nil, with(fails(0, at("r", "a", 1)), func(v *Verdict) { v.Mode = ModeWarn }), false},
	} {
		if got := Objects(c.before, c.after); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
