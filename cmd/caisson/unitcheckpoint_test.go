package main

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/runner"
)

// The tree is drawn as git draws one: newest first, a lane for each branch.
func TestGraph(t *testing.T) {
	for name, c := range map[string]struct {
		nodes string // "id<parent", newest first
		want  string
	}{
		"nothing": {"", ""},
		"line":    {"c<b b<a a<", "c\nb\na\n"},
		"branch": {"d<b c<b b<a a<", `
d
│ c
├─╯
b
a
`},
		"three of one": {"d<a c<a b<a a<", `
d
│ c
│ │ b
├─┴─╯
a
`},
		"crossing": {"f<a e<b d<a c<b b<x a<x x<", `
f
│ e
│ │ d
│ │ │ c
│ ├─┼─╯
│ b │
├─┼─╯
a │
├─╯
x
`},
		"two trees, a lane used again": {"d<c c< b<a a<", "d\nc\nb\na\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var g graph
			var b strings.Builder
			for node := range strings.FieldsSeq(c.nodes) {
				id, parent, _ := strings.Cut(node, "<")
				for _, line := range g.node(id, parent, id) {
					b.WriteString(strings.TrimRight(line, " ") + "\n")
				}
			}
			if want := strings.TrimPrefix(c.want, "\n"); b.String() != want {
				t.Errorf("got\n%swant\n%s", b.String(), want)
			}
			if len(g.lanes) > 0 {
				t.Errorf("lanes are left: %q", g.lanes)
			}
		})
	}
}

func TestViolations(t *testing.T) {
	for text, want := range map[string]string{
		`["a","b/c"]`: "a b/c",
		`[{"path":"a","rule":"x"},{"path":"/workspace/b"}]`: "a b",
		`{"findings":[{"path":"a"}]}`:                       "a",
		`{"violations":["a"],"findings":["b"]}`:             "a",
	} {
		got, err := parseViolations([]byte(text))
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{``, `{}`, `[]`, `[1]`, `[{"rule":"x"}]`, `{"violations":3}`, `"a"`} {
		if got, err := parseViolations([]byte(text)); err == nil {
			t.Errorf("%s: %q and no error", text, got)
		}
	}
}

func TestCopyPath(t *testing.T) {
	for arg, want := range map[string]runner.CopyPath{
		"f:x":         {Ref: "f", Path: "x"},
		"f@c:/a/b":    {Ref: "f@c", Path: "/a/b"},
		"f:a:b":       {Ref: "f", Path: "a:b"},
		"./f:x":       {Path: "./f:x"},
		"/tmp/a:b":    {Path: "/tmp/a:b"},
		"dir/f:x":     {Path: "dir/f:x"},
		"file":        {Path: "file"},
		":x":          {Path: ":x"},
		"..":          {Path: ".."},
		"f:":          {Ref: "f"},
		"../up:there": {Path: "../up:there"},
	} {
		if got := copyPath(arg); got != want {
			t.Errorf("%s: %+v, want %+v", arg, got, want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{"KILL": 9, "SIGTERM": 15, "int": 2, "15": 15, "64": 64} {
		if got, err := parseSignal(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "65", "-1", "NONESUCH", "SIG"} {
		if got, err := parseSignal(text); err == nil {
			t.Errorf("%q: %d and no error", text, got)
		}
	}
}

func TestParseUser(t *testing.T) {
	for text, want := range map[string][2]uint32{"5": {5, 5}, "0:7": {0, 7}} {
		if uid, gid, err := parseUser(text); uid != want[0] || gid != want[1] || err != nil {
			t.Errorf("%s: %d:%d, %v", text, uid, gid, err)
		}
	}
	for _, text := range []string{"", ":", "a", "1:", "1:2:3", "-1", "4294967296"} {
		if _, _, err := parseUser(text); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
}

// caisson's flags may stand before and after the feature; the command's begin at its first word.
func TestFeatureAndCommand(t *testing.T) {
	for line, want := range map[string]string{
		"f ls -l":          "f|ls -l|false",
		"f -- ls -l":       "f|ls -l|false",
		"-i f ls -i":       "f|ls -i|true",
		"f -i -- ls -i":    "f|ls -i|true",
		"f -i ls -i -- x":  "f|ls -i -- x|true",
		"-- f ls":          "f|ls|false",
		"f sh -c x -- -i":  "f|sh -c x -- -i|false",
		"f":                "f||false",
		"f --":             "f||false",
		"f -- -i":          "f|-i|false",
		"f -i -- -- -dash": "f|-- -dash|true",
	} {
		var interactive bool
		f := pflag.NewFlagSet("exec", pflag.ContinueOnError)
		f.SetInterspersed(false)
		f.BoolVarP(&interactive, "interactive", "i", false, "")
		if err := f.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		ref, command, err := featureAndCommand(f, f.Args())
		got := ref + "|" + strings.Join(command, " ") + "|" + map[bool]string{true: "true", false: "false"}[interactive]
		if err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", line, got, err, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		-1: "-", 0: "0", 1023: "1023", 1024: "1k", 1536: "1.5k", 10 << 10: "10k", 20 << 20: "20m", 1 << 30: "1g", 5 << 40: "5t",
	} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestStatsTable(t *testing.T) {
	all := []runner.Stats{{
		Feature: "f", Live: true, CPU: 3 * time.Second, Memory: 1 << 20, Pids: 2,
		Disk:  &runner.DiskUsage{Used: 5 << 20, Limit: 50 << 20, Inodes: 7, InodeLimit: 1000},
		Times: map[string]runner.Percentiles{"seal": {N: 3, P50: 850 * time.Microsecond, P95: 1234 * time.Microsecond, P99: 35 * time.Millisecond}},
	}, {Feature: "g", Memory: -1}}
	before := []runner.Stats{{Feature: "f", CPU: 2500 * time.Millisecond}}
	lines := strings.Split(string(statsTable(all, before, time.Second)), "\n")
	for i, want := range []string{
		"FEATURE LIVE CPU MEMORY PIDS DISK FILES SEAL p50/p95/p99 ROLLBACK VALIDATION",
		"f yes 50 % 1m 2 5m/50m 7/1000 850µs/1.2ms/35ms - -",
		"g no 0s - 0 - - - - -",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d: %s\nwant %s", i, got, want)
		}
	}
}

func TestCheckpointMarks(t *testing.T) {
	c := runner.Checkpoint{Head: true, LastGood: true, Damaged: "layer 3 is missing"}
	if got := checkpointMarks(&c); !slices.Equal(got, []string{"head", "last good", "damaged"}) {
		t.Errorf("marks %q", got)
	}
}

// An alias is not a state of its own: what it is, the one that it means is.
func TestWithoutAliases(t *testing.T) {
	got := withoutAliases([]runner.Checkpoint{
		{ID: "a"}, {ID: "b", Parent: "a", Label: "x"}, {ID: "c", Parent: "b", AliasOf: "b", Label: "y"},
		{ID: "d", Parent: "c", AliasOf: "c", Head: true}, {ID: "e", Parent: "d", LastGood: true},
	})
	var text []string
	for _, c := range got {
		text = append(text, strings.Join(append([]string{c.ID, c.Parent, c.Label}, checkpointMarks(&c)...), ":"))
	}
	if got, want := strings.Join(text, " "), "a:: b:a:x, y:head e:b::last good"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
