package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/gates"
)

// files are contents by path. A value may begin with "link:" or be "dir"; a path may begin with "+x " or "+s ".
type files map[string]string

// changed is what now differs in from old, as the supervisor sees it.
func changed(old, now files) *gates.Change {
	before, after := entries(old), entries(now)
	c := &gates.Change{Digest: "d", Open: opener(after), OpenOld: opener(before),
		Lookup:   func(p string) (gates.FileType, bool) { f, ok := before[p]; return f.Type, ok },
		Readlink: func(p string) (string, bool) { f, ok := before[p]; return f.Link, ok && f.Type == gates.TypeSymlink },
	}
	for p, e := range after {
		was, existed := before[p]
		e.OldType, e.OldMode, e.OldSize, e.OldLink = was.Type, was.Mode, was.Size, was.Link
		switch {
		case !existed:
			e.Kind = gates.KindAdded
		case was.Type != e.Type:
			e.Kind = gates.KindType
		case was.content != e.content && e.Type == gates.TypeSymlink:
			e.Kind = gates.KindLink
		case was.content != e.content:
			e.Kind = gates.KindModified
		case was.Mode != e.Mode:
			e.Kind = gates.KindMode
		default:
			continue
		}
		c.Entries = append(c.Entries, e.Entry)
	}
	for p, e := range before {
		if _, ok := after[p]; !ok {
			c.Entries = append(c.Entries, gates.Entry{Path: p, Kind: gates.KindDeleted, OldType: e.Type, OldMode: e.Mode, OldSize: e.Size})
		}
	}
	slices.SortFunc(c.Entries, func(a, b gates.Entry) int { return strings.Compare(a.Path, b.Path) })
	return c
}

type content struct {
	gates.Entry
	content string
}

func entries(fs_ files) map[string]content {
	out := map[string]content{}
	for p, s := range fs_ {
		mode := fs.FileMode(0o644)
		for prefix, m := range map[string]fs.FileMode{"+x ": 0o755, "+s ": 0o755 | fs.ModeSetuid} {
			if rest, ok := strings.CutPrefix(p, prefix); ok {
				p, mode = rest, m
			}
		}
		e := gates.Entry{Path: p, Type: gates.TypeFile, Mode: mode, Size: int64(len(s)), Binary: strings.ContainsRune(s, 0)}
		if target, ok := strings.CutPrefix(s, "link:"); ok {
			e.Type, e.Link = gates.TypeSymlink, target
		} else if s == "dir" {
			e.Type = gates.TypeDir
		}
		out[p] = content{e, s}
	}
	return out
}

func opener(m map[string]content) func(string) (io.ReadCloser, error) {
	return func(p string) (io.ReadCloser, error) {
		f, ok := m[p]
		if !ok || f.Type != gates.TypeFile {
			return nil, fs.ErrNotExist
		}
		if f.content == "unreadable" {
			return nil, errors.New("input/output error")
		}
		return io.NopCloser(strings.NewReader(f.content)), nil
	}
}

// judge returns each finding as "severity rule path[:line]", in order.
func judge(t testing.TB, g gates.Gate, err error, c *gates.Change) []string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	v := gates.Run(t.Context(), []gates.Configured{{Gate: g, Mode: gates.ModeBlock}}, c)[0]
	if v.Status == gates.Error {
		return []string{"error " + v.Reason}
	}
	var out []string
	for _, f := range v.Findings {
		line := fmt.Sprintf("%s %s %s", f.Severity, f.Rule, f.Path)
		if f.Line > 0 {
			line += fmt.Sprintf(":%d", f.Line)
		}
		out = append(out, strings.TrimSpace(line))
		if f.Message == "" || f.Severity == gates.SeverityBlock && f.Remedy == "" {
			t.Errorf("a finding without words: %+v", f)
		}
	}
	return out
}

// expect compares findings with a text that has them with commas between.
func expect(t *testing.T, name string, got []string, want string) {
	t.Helper()
	if g := strings.Join(got, ", "); g != want {
		t.Errorf("%s:\ngot  %s\nwant %s", name, g, want)
	}
}

func TestLinks(t *testing.T) {
	for _, c := range []struct {
		name     string
		old, now files
		want     string
	}{
		{"inside", files{"dir/a": "x"}, files{"dir/a": "x", "l": "link:dir/a", "dir/m": "link:../l", "root": "link:."}, ""},
		{"absolute", nil, files{"l": "link:/etc/passwd"}, "block outside l"},
		{"absolute, though to the workspace", nil, files{"l": "link:/workspace/a", "a": "x"}, "block outside l"},
		{"upwards", nil, files{"a": "dir", "a/l": "link:../../x"}, "block outside a/l"},
		{"through a link that was there", files{"up": "link:../.."}, files{"up": "link:../..", "l": "link:up/x"}, "block outside l"},
		{"programs", nil, files{"venv/bin/python": "link:/usr/bin/python3"}, "warn outside venv/bin/python"},
		{"not quite programs", nil, files{"l": "link:/usr/../etc/passwd"}, "block outside l"},
		{"nothing there", nil, files{"l": "link:gone"}, "warn broken l"},
		{"deleted", files{"a": "x", "l": "link:a"}, files{"l": "link:./a"}, "warn broken l"},
		{"circle", nil, files{"a": "link:b", "b": "link:a"}, "warn circle a, warn circle b"},
		{"a directory before", files{"d": "dir", "d/x": "1", "e": "dir"}, files{"d": "link:e", "e": "dir"}, "block replaced d"},
		{"taken away", files{"l": "link:/etc"}, nil, ""},
		{"retargeted", files{"l": "link:a", "a": "x"}, files{"l": "link:/etc", "a": "x"}, "block outside l"},
	} {
		g, err := Links(LinksConfig{})
		expect(t, c.name, judge(t, g, err, changed(c.old, c.now)), c.want)
	}
	g, err := Links(LinksConfig{Outside: gates.SeverityOff, Broken: gates.SeverityBlock})
	expect(t, "configured", judge(t, g, err, changed(nil, files{"l": "link:/etc", "m": "link:gone"})), "block broken m")
}

func TestExec(t *testing.T) {
	const elf = "\x7fELF\x02\x01\x01\x00"
	for _, c := range []struct {
		name     string
		config   ExecConfig
		old, now files
		want     string
	}{
		{"text", ExecConfig{}, nil, files{"a.txt": "x", "b.sh": "#!/tmp/evil\n"}, ""},
		{"new script", ExecConfig{}, nil, files{"+x a.sh": "#!/bin/sh\n"}, "block executable a.sh"},
		{"became executable", ExecConfig{}, files{"a.sh": "#!/bin/sh\n"}, files{"+x a.sh": "#!/bin/sh\n"}, "block executable a.sh"},
		{"was executable", ExecConfig{}, files{"+x a.sh": "#!/bin/sh\n"}, files{"+x a.sh": "#!/bin/sh\necho\n"}, ""},
		{"allowed", ExecConfig{Allowed: []string{"scripts", "!scripts/no*"}}, nil, files{"+x scripts/a": "#!/bin/sh\n", "+x scripts/no.sh": "#!/bin/sh\n"}, "block executable scripts/no.sh"},
		{"setuid", ExecConfig{Allowed: []string{"**"}}, nil, files{"+s su": "#!/bin/sh\n"}, "block setuid su"},
		{"a program", ExecConfig{}, nil, files{"+x a": elf}, "block executable a, block program a"},
		{"a library", ExecConfig{}, nil, files{"a.so": elf}, "block program a.so"},
		{"a changed program", ExecConfig{}, files{"+x a": elf}, files{"+x a": elf + "1"}, "block program a"},
		{"a picture", ExecConfig{}, nil, files{"a.png": "\x89PNG\x00"}, ""},
		{"odd interpreters", ExecConfig{Executables: gates.SeverityOff}, nil, files{
			"+x a": "#!/tmp/x\n", "+x b": "#!./sh\n", "+x c": "#!/usr/bin/env -S evil -x\n", "+x d": "#!/bin/sh\r\n", "+x e": "#! /bin/shady\n", "+x f": "#!/usr/bin/env A=b sh", "+x g": "#!/workspace/bin/python\n",
		}, "block shebang a:1, block shebang b:1, block shebang c:1, block shebang d:1, block shebang e:1, block shebang f:1, block shebang g:1"},
		{"known interpreters", ExecConfig{Executables: gates.SeverityOff}, nil, files{
			"+x a": "#!/bin/sh -e\n", "+x b": "#!/usr/bin/env python3\n", "+x c": "#!/usr/bin/env -S node --x\n", "+x d": "#! \t/usr/bin/perl\t-w\n", "+x e": "#!/usr/local/bin/python3.12", "+x f": "no shebang",
		}, ""},
		{"its own interpreter", ExecConfig{Executables: gates.SeverityOff, Interpreters: []string{"/workspace/run", "sh"}}, nil, files{"+x a": "#!/workspace/run x\n", "+x b": "#!/bin/bash\n"}, "block shebang b:1"},
		{"as before", ExecConfig{}, files{"+x a": "#!/opt/tool\n1"}, files{"+x a": "#!/opt/tool\n2"}, ""},
		{"another than before", ExecConfig{}, files{"+x a": "#!/opt/tool\n1"}, files{"+x a": "#!/opt/evil\n1"}, "block shebang a:1"},
		{"unreadable", ExecConfig{Executables: gates.SeverityWarn}, nil, files{"+x a": "unreadable"}, "warn executable a, block unread a"},
	} {
		g, err := Exec(c.config)
		expect(t, c.name, judge(t, g, err, changed(c.old, c.now)), c.want)
	}
}

func TestSize(t *testing.T) {
	c := SizeConfig{Files: 2, Bytes: 100, File: 60}
	for _, x := range []struct {
		name     string
		old, now files
		want     string
	}{
		{"small", nil, files{"a": "x", "d": "dir", "b": strings.Repeat("x", 60)}, ""},
		{"files", files{"c": "x"}, files{"a": "x", "b": "x"}, "block files"},
		{"one file", nil, files{"a": strings.Repeat("x", 61)}, "block file a"},
		{"bytes", nil, files{"a": strings.Repeat("x", 60), "b": strings.Repeat("x", 41)}, "block bytes"},
		{"a binary", nil, files{"a": "\x00", "i.png": "\x00"}, "block binary a"},
		{"only its mode", files{"a": strings.Repeat("x", 500)}, files{"+x a": strings.Repeat("x", 500)}, ""},
		{"deleted", files{"a": strings.Repeat("x", 500)}, nil, ""},
	} {
		g, err := Size(c)
		expect(t, x.name, judge(t, g, err, changed(x.old, x.now)), x.want)
	}
	g, err := Size(SizeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := g.Check(t.Context(), changed(nil, files{"a": "abc"}))
	if err != nil || len(v.Measurements()) != 2 || v.Measurements()[0] != (gates.Measurement{Name: "files", Value: 1, Limit: 2000}) || v.Measurements()[1].Value != 3 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestScope(t *testing.T) {
	for _, c := range []struct {
		name   string
		config ScopeConfig
		paths  string
		want   string
	}{
		{"everything", ScopeConfig{}, "a b/c", ""},
		{"inside", ScopeConfig{Allowed: []string{"src/**", "*.md"}}, "src src/a src/b/c README.md", ""},
		{"outside", ScopeConfig{Allowed: []string{"src/**", "*.md"}}, "docs/x.md srcs/a", "block outside docs/x.md, block outside srcs/a"},
		{"a directory's name", ScopeConfig{Allowed: []string{"src/"}}, "src/a/b", ""},
		{"negated", ScopeConfig{Allowed: []string{"src/**", "!src/gen/**", "src/gen/keep.go"}}, "src/a src/gen/x src/gen/keep.go", "block outside src/gen/x"},
		{"the task's", ScopeConfig{Allowed: []string{"src/**"}, Task: []string{"**/a.go"}}, "src/a.go src/b.go a.go", "block outside a.go, block outside src/b.go"},
		{"forbidden", ScopeConfig{Forbidden: []string{"**/*.lock", "!mine.lock"}}, "x/y.lock mine.lock", "block forbidden x/y.lock"},
		{"forbidden, by another case", ScopeConfig{Forbidden: []string{"secret/**", "!secret/ok"}}, "SECRET/x secret/ok Secret/OK", "block forbidden SECRET/x, block forbidden Secret/OK"},
		{"protected", ScopeConfig{Protected: []string{"ci/**"}, AllowProtected: []string{"ci/a"}}, "ci/a ci/b", "info protected ci/a, block protected ci/b"},
		{"nothing", ScopeConfig{Allowed: []string{}}, "a", "error gates.scope.allowed is empty: nothing may change"},
	} {
		now := files{}
		for p := range strings.FieldsSeq(c.paths) {
			now[p] = "x"
		}
		g, err := Scope(c.config)
		expect(t, c.name, judge(t, g, err, changed(nil, now)), c.want)
	}
	// A new directory on the way to what may change is no change of its own.
	g, err := Scope(ScopeConfig{Allowed: []string{"a/b/**"}})
	expect(t, "passage", judge(t, g, err, changed(nil, files{"a": "dir", "a/b": "dir", "a/b/x": "1", "c": "dir"})), "block outside c")
	expect(t, "passage deleted", judge(t, g, err, changed(files{"a": "dir", "a/b/x": "1"}, nil)), "block outside a")
}

func TestConfigs(t *testing.T) {
	for _, c := range []interface{ Validate() error }{
		LinksConfig{Outside: "x"}, ExecConfig{Setuid: "x"}, ExecConfig{Allowed: []string{"../x"}}, SizeConfig{Files: -1}, SizeConfig{Binaries: "x"}, SizeConfig{Allowed: []string{"["}},
		ScopeConfig{Allowed: []string{"/x"}}, ScopeConfig{Task: []string{""}}, ScopeConfig{Forbidden: []string{"!"}}, ImmutableConfig{Paths: []string{"["}},
		ImmutableConfig{Keys: map[string][]string{"a.json": {"a..b"}}}, ImmutableConfig{Keys: map[string][]string{"a.json": nil}}, ImmutableConfig{Keys: map[string][]string{"": {"a"}}},
		LockConfig{Stale: "x"}, LockConfig{Ignored: []string{"/"}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "gate ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []interface{ Validate() error }{LinksConfig{}, ExecConfig{}, SizeConfig{}, ScopeConfig{}, ImmutableConfig{}, LockConfig{}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
	}
}
