// Package archtest holds the repository to its architecture: who may import whom, and how large things may get. It parses
// the files itself instead of asking the go command, so that it sees every system's files, and so that the test cache
// knows when one has changed.
package archtest

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/caisson-dev/caisson/images"
	"github.com/caisson-dev/caisson/profiles"
)

// ours is the architecture. Siblings share plain data and never each other; runner alone knows the order.
var ours = rules{
	module: "github.com/caisson-dev/caisson",
	imports: map[string][]string{
		"quota":         nil,
		"gates":         nil,
		"gates/files":   {"gates"},
		"gates/dirs":    {"gates"},
		"gates/builtin": {"gates", "gates/command", "gates/files", "gates/secrets"},
		"gates/secrets": {"gates"},
		"gates/command": {"gates"},
		"images":        nil,
		"profiles":      {"gates", "gates/builtin", "gates/command", "gates/files", "gates/secrets", "isolation", "isolation/egress", "quota"}, // types and validation only

		"isolation":         {"quota"}, // plain types only
		"isolation/seccomp": nil,
		"isolation/native":  {"isolation", "isolation/seccomp", "quota"},
		"isolation/egress":  {"isolation/egress/splice", "isolation/egress/tun"},

		"isolation/egress/splice": nil,
		"isolation/egress/tun":    nil,

		// The suite that every engine passes, and the program that tries to get out.
		"isolation/isolationtest":         {"isolation", "isolation/isolationtest/hostile", "isolation/seccomp", "quota", "internal/leaktest", "internal/testenv"},
		"isolation/isolationtest/hostile": nil,

		"quota/disk": {"quota"},

		// Only runner knows the order; its helpers know one thing each.
		"runner": {"gates", "gates/builtin", "gates/command", "images", "isolation", "isolation/egress", "isolation/seccomp", "profiles", "quota", "quota/disk",
			"runner/artifacts", "runner/flock", "runner/hostfile", "runner/live", "runner/logfile", "runner/pump", "runner/redact", "runner/slots", "runner/steps",
			"runner/rootfs", "runner/snapshot", "runner/snapshot/copytree", "runner/snapshot/gitbranch", "runner/snapshot/overlay", "runner/uplink", "runner/watch"},
		"runner/artifacts":   {"gates"}, // logs and reports that verdicts rest on
		"runner/chain":       nil,
		"runner/flock":       nil,
		"runner/hostfile":    nil,
		"runner/live":        {"isolation", "quota", "quota/disk", "runner/snapshot", "runner/watch"}, // one live sandbox
		"runner/logfile":     nil,
		"runner/pump":        nil,
		"runner/redact":      nil,
		"runner/rootfs":      {"images", "isolation", "isolation/egress", "profiles", "runner/hostfile", "runner/snapshot"},
		"runner/slots":       {"runner/flock"},
		"runner/steps":       {"isolation", "quota", "runner/hostfile", "runner/logfile", "runner/pump", "runner/redact", "runner/uplink"},
		"runner/uplink":      {"isolation", "isolation/egress"}, // one live sandbox's network
		"runner/watch":       nil,
		"runner/report":      {"gates", "gates/builtin", "isolation/egress", "runner", "runner/snapshot", "runner/uplink"}, // a task for those who were not there
		"runner/store":       {"gates", "isolation/egress", "runner", "runner/chain", "runner/flock", "runner/redact", "runner/snapshot"},
		"runner/journaltest": {"gates", "isolation/egress", "runner", "runner/snapshot"}, // the suite that every journal passes
		"runner/daemon":      {"isolation", "isolation/egress", "runner", "runner/flock", "runner/hostfile", "runner/snapshot"},

		// Two drivers behind one interface, over one view of layers.
		"runner/snapshot":              {"runner/snapshot/tree"},
		"runner/snapshot/tree":         {"runner/snapshot/internal/"},
		"runner/snapshot/promote":      {"runner/snapshot/tree", "runner/snapshot/internal/"},
		"runner/snapshot/gitbranch":    {"runner/snapshot/tree", "runner/snapshot/internal/"},
		"runner/snapshot/book":         {"runner/snapshot", "runner/snapshot/internal/"},
		"runner/snapshot/layertar":     {"runner/snapshot/tree", "runner/snapshot/internal/"},
		"runner/snapshot/overlay":      {"runner/snapshot", "runner/snapshot/book", "runner/snapshot/layertar", "runner/snapshot/promote", "runner/snapshot/tree", "runner/snapshot/internal/"},
		"runner/snapshot/copytree":     {"runner/snapshot", "runner/snapshot/book", "runner/snapshot/layertar", "runner/snapshot/promote", "runner/snapshot/tree", "runner/snapshot/internal/"},
		"runner/snapshot/snapshottest": {"runner/snapshot", "runner/snapshot/tree", "internal/testenv"}, // the suite that every driver passes

		"cmd/caisson":     {"*"}, // wires everything
		"cmd/vmtest":      {"cmd/vmtest/wire"},
		"cmd/vmtest/init": {"cmd/vmtest/wire"},
		"cmd/vmtest/wire": nil,

		"internal/archtest":       nil,
		"internal/leaktest":       {"internal/testenv"},
		"internal/leaktest/leaks": {"internal/leaktest"},
		"internal/testenv":        nil,
	},
	tests: map[string][]string{
		"":                  {"internal/leaktest", "internal/testenv"},
		"internal/archtest": {"images", "profiles"},
		// The suite and the engine are each other's test.
		"isolation/isolationtest":  {"isolation/native"},
		"isolation/native":         {"isolation/isolationtest", "isolation/isolationtest/hostile"},
		"runner":                   {"isolation/native", "runner/journaltest", "runner/store"},
		"runner/daemon":            {"isolation/native", "runner/store"},
		"runner/live":              {"isolation/native", "runner/snapshot/overlay"},
		"runner/report":            {"gates/command"},
		"runner/snapshot/copytree": {"runner/snapshot/snapshottest"},
		"runner/snapshot/overlay":  {"runner/snapshot/snapshottest"},
		"runner/store":             {"runner/journaltest"},
	},
	importers: map[string][]string{
		"database/sql":                     {"runner/store", "runner/store/internal/prepared"},
		"modernc.org/sqlite":               {"runner/store", "runner/store/internal/prepared"},
		"net/http":                         {"isolation/egress", "runner/daemon"},
		"gvisor.dev/gvisor":                {"isolation/egress", "isolation/egress/splice"},
		"mvdan.cc/sh":                      {"gates/command"},
		"github.com/go-git/go-git":         {"runner/snapshot/gitbranch"},
		"github.com/go-git/gcfg":           {"runner/snapshot/gitbranch"},
		"github.com/klauspost/compress":    {"images", "runner/snapshot/layertar"},
		"github.com/spf13/viper":           {"profiles"},
		"github.com/spf13/cobra":           {"cmd/caisson"},
		"github.com/containerd/cgroups":    {"quota"},
		"github.com/moby/profiles/seccomp": {"isolation/seccomp"},
		// Libraries do not log: they return errors, and whoever knows the task says it once.
		"log": {"cmd/caisson", "cmd/vmtest", "cmd/vmtest/init"},
	},
	functionLines: 60, parameters: 5, fileLines: 400, files: 12,
	exceptions: []exception{
		{"files", "cmd/caisson", "one file per command"},
		{"files", "runner", "the supervisor's API: one file per thing that it does"},
		{"files", "gates/command", "one table of rules: a file for each subject"},
		{"files", "profiles", "one table of keys: a file for each part of it"},
		{"function", "gates/command/git.go:gitCommands", "a table"},
		{"function", "isolation/isolationtest/hostile/kernel.go:kernelCases", "a table"},
		{"function", "isolation/isolationtest/hostile/processes.go:processCases", "a table"},
		{"sleep", "isolation/isolationtest/program.go:tick", "the test's program is to be caught at work, slowly"},
		{"sleep", "isolation/isolationtest/tree.go:waitFor", "only tests call it, and /proc announces nothing"},
	},
}

func TestArchitecture(t *testing.T) {
	found, err := check(os.DirFS("../.."), ours)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range found {
		t.Error(v)
	}
}

// TestHostListIsTheProfiles: what rootfs host shows is profile data, and images has the same for use without profiles.
func TestHostListIsTheProfiles(t *testing.T) {
	e, err := profiles.Load(profiles.LoadOptions{Name: "default"})
	if err != nil {
		t.Fatal(err)
	}
	want := images.DefaultHostList()
	if !slices.Equal(e.HostRoot.Paths, want.Paths) || !slices.Equal(e.HostRoot.Etc, want.Etc) {
		t.Errorf("builtin/default.yaml has %+v\nimages.DefaultHostList has %+v", e.HostRoot, want)
	}
}

// TestCheckerTurnsRed breaks every rule once, in a repository of three packages.
func TestCheckerTurnsRed(t *testing.T) {
	r := rules{
		module:  "m",
		imports: map[string][]string{"low": nil, "high": {"low"}, "store": nil},
		tests:   map[string][]string{"": {"kit"}, "low": {"high"}}, importers: map[string][]string{"database/sql": {"store"}},
		functionLines: 3, parameters: 2, fileLines: 9, files: 1,
	}
	good := map[string]string{
		"low/a.go":      "// Package low is low.\npackage low\n\nfunc F(a, b int) {}\n",
		"low/a_test.go": "package low\n\nimport (\n\t_ \"m/high\"\n\t_ \"m/kit\"\n\t\"time\"\n)\n\nfunc g(a, b, c int) {\n\ttime.Sleep(1)\n\n\n\n}\n",
		"high/a.go":     "// Package high is high.\npackage high\n\nimport _ \"m/low\"\n",
		"store/a.go":    "// Package store stores.\npackage store\n\nimport _ \"database/sql/driver\"\n",
		// not the repository's own Go
		"high/internal/x/a.go":       "// Package x is part of high.\npackage x\n\nimport _ \"m/high/internal/y\"\n",
		"high/internal/y/a.go":       "// Package y is part of high.\npackage y\n",
		"high/internal/y/a_other.go": "package y\n",
		"low/gen.go":                 "//go:build ignore\n\npackage main\n\nimport _ \"m/high\"\n",
		"low/testdata/x.go":          "package x\n\nimport _ \"m/high\"\n", ".ci/x.go": "package x\n",
		"examples/go/go.mod": "module x\n", "examples/go/main.go": "package main\n",
	}
	cases := map[string]struct {
		file, content string
		want          string
	}{
		"nothing":           {"high/README", "", ""},
		"upwards":           {"low/a.go", "// Package low is low.\npackage low\n\nimport _ \"m/high\"\n", "low/a.go: imports: low may not import high"},
		"under a tag":       {"low/a.go", "//go:build plan9\n\n// Package low is low.\npackage low\n\nimport _ \"m/high\"\n", "low/a.go: imports: low may not import high"},
		"in a test":         {"high/a_test.go", "package high_test\n\nimport (\n\t_ \"m/high\"\n\t_ \"m/store\"\n)\n", "high/a_test.go: imports: high may not import store"},
		"internal outwards": {"high/internal/x/a.go", "// Package x is part of high.\npackage x\n\nimport _ \"m/low\"\n", "high/internal/x/a.go: imports: high/internal/x may not import low"},
		"internal upwards":  {"high/internal/x/a.go", "// Package x is part of high.\npackage x\n\nimport _ \"m/high\"\n", "high/internal/x/a.go: imports: high/internal/x may not import high"},
		"other's internal":  {"low/a.go", "// Package low is low.\npackage low\n\nimport _ \"m/high/internal/x\"\n", "low/a.go: imports: low may not import high/internal/x"},
		"nobody's internal": {"new/internal/x/a.go", "// Package x is new.\npackage x\n", "new/internal/x: imports: is not in the table"},
		"unknown package":   {"new/a.go", "// Package x is new.\npackage x\n", "new: imports: is not in the table"},
		"sole importer":     {"high/a.go", "// Package high is high.\npackage high\n\nimport _ \"database/sql\"\n", "high/a.go: importers: only store may import database/sql"},
		"no comment":        {"low/a.go", "// Copyright\n\npackage low\n", "low: comment: has no package comment"},
		"too many files":    {"low/b.go", "package low\n", "low: files: has 2 files"},
		"long file":         {"low/a.go", "// Package low is low.\npackage low\n" + strings.Repeat("\n", 8), "low/a.go: lines: has 10 lines"},
		"long function":     {"low/a.go", "// Package low is low.\npackage low\n\nfunc F() {\n\n\n}\n", "low/a.go:F: function: has 4 lines"},
		"long literal":      {"low/a.go", "// Package low is low.\npackage low\n\nvar f = func() {\n\n\n}\n", "low/a.go: function: has 4 lines"},
		"many parameters":   {"low/a.go", "// Package low is low.\npackage low\n\ntype T int\n\nfunc (t T) F(a, b int, _ string) {}\n", "low/a.go:F: parameters: has 3 parameters"},
		"sleep":             {"low/a.go", "// Package low is low.\npackage low\n\nimport \"time\"\n\nfunc F() { time.Sleep(1) }\n", "low/a.go:F: sleep:"},
		"renamed sleep":     {"low/a.go", "// Package low is low.\npackage low\n\nimport zz \"time\"\n\nvar f = zz.Sleep\n", "low/a.go: sleep:"},
		"does not compile":  {"low/a.go", "package low {\n", "error: low/a.go"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			repo := fstest.MapFS{}
			for file, content := range good {
				repo[file] = &fstest.MapFile{Data: []byte(content)}
			}
			repo[c.file] = &fstest.MapFile{Data: []byte(c.content)}
			expect(t, repo, r, c.want)
		})
	}
}

// TestCheckerKnowsItsExceptions: one that is used is quiet, one that is not, or has no reason, is not.
func TestCheckerKnowsItsExceptions(t *testing.T) {
	repo := fstest.MapFS{"low/a.go": {Data: []byte("// Package low is low.\npackage low\n\nfunc F() {\n\n\n}\n")}}
	r := rules{module: "m", imports: map[string][]string{"low": nil}, functionLines: 3, parameters: 2, fileLines: 9, files: 1}
	r.exceptions = []exception{{"function", "low/a.go:F", "a table"}}
	expect(t, repo, r, "")
	r.exceptions = []exception{{"function", "low/a.go:F", ""}}
	expect(t, repo, r, "low/a.go:F: exception: has no reason")
	r.exceptions = []exception{{"function", "low/a.go:F", "a table"}, {"lines", "low/a.go", "a list"}}
	expect(t, repo, r, "low/a.go: exception: is not needed any more for lines")
	r.exceptions, r.functionLines = nil, 9
	r.imports = map[string][]string{"low": nil, "gone": nil}
	expect(t, repo, r, "gone: imports: is in the table but does not exist")
	expect(t, fstest.MapFS{}, r, "error: no Go files")
}

// expect checks repo and wants one violation, or an error, that begins like want; or nothing at all.
func expect(t *testing.T, repo fstest.MapFS, r rules, want string) {
	t.Helper()
	found, err := check(repo, r)
	var got []string
	if err != nil {
		got = append(got, "error: "+err.Error())
	}
	for _, v := range found {
		got = append(got, v.String())
	}
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
