package builtin

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/files"
)

// file is one path of a fixture: a regular file with its content, or a link.
type file struct {
	content string
	mode    fs.FileMode // 0: 0644
	link    string
}

type tree map[string]file

func text(content string) file { return file{content: content} }

func (f file) entry(p string) gates.Entry {
	e := gates.Entry{Path: p, Type: gates.TypeFile, Mode: f.mode, Size: int64(len(f.content)), Binary: strings.ContainsRune(f.content, 0)}
	if e.Mode == 0 {
		e.Mode = 0o644
	}
	if f.link != "" {
		e.Type, e.Link, e.Mode, e.Size = gates.TypeSymlink, f.link, 0o777, int64(len(f.link))
	}
	return e
}

func (t tree) open(p string) (io.ReadCloser, error) {
	f, ok := t[p]
	if !ok || f.link != "" {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(f.content)), nil
}

func (t tree) lookup(p string) (gates.FileType, bool) {
	f, ok := t[p]
	return f.entry(p).Type, ok
}

func (t tree) readlink(p string) (string, bool) { return t[p].link, t[p].link != "" }

// fixture is what now differs in from old.
func fixture(name, rule string, old, now tree) gates.Fixture {
	c := &gates.Change{Digest: "selftest", Open: now.open, OpenOld: old.open, Lookup: old.lookup, Readlink: old.readlink}
	for _, p := range slices.Sorted(maps.Keys(now)) {
		e := now[p].entry(p)
		e.Kind = gates.KindAdded
		if was, existed := old[p]; existed {
			if was == now[p] {
				continue
			}
			o := was.entry(p)
			e.Kind, e.OldType, e.OldMode, e.OldSize, e.OldLink = gates.KindModified, o.Type, o.Mode, o.Size, o.Link
		}
		c.Entries = append(c.Entries, e)
	}
	for _, p := range slices.Sorted(maps.Keys(old)) {
		if _, ok := now[p]; !ok {
			o := old[p].entry(p)
			c.Entries = append(c.Entries, gates.Entry{Path: p, Kind: gates.KindDeleted, OldType: o.Type, OldMode: o.Mode, OldSize: o.Size, OldLink: o.Link})
		}
	}
	return gates.Fixture{Name: name, Rule: rule, Change: c}
}

func commandFixtures() ([]gates.Fixture, Config) {
	return []gates.Fixture{
		fixture("a harmless script", "", nil, tree{"x.sh": text("make\nrm -rf ./build\n"), "a.md": text("rm -rf /\n")}),
		fixture("a dangerous script", "remove-root", nil, tree{"x.sh": text("rm -rf /\n")}),
	}, Config{}
}

func linksFixtures() ([]gates.Fixture, Config) {
	return []gates.Fixture{
		fixture("a link inside", "", tree{"a": text("x")}, tree{"a": text("x"), "d/l": {link: "../a"}}),
		fixture("an absolute link", "outside", nil, tree{"l": {link: "/etc/passwd"}}),
		fixture("a link upwards, through another", "outside", tree{"up": {link: "../.."}}, tree{"up": {link: "../.."}, "l": {link: "up/x"}}),
	}, Config{}
}

func execFixtures() ([]gates.Fixture, Config) {
	return []gates.Fixture{
		fixture("text", "", nil, tree{"a.go": text("package a\n")}),
		fixture("an edited script", "", tree{"a": {"#!/bin/sh\n", 0o755, ""}}, tree{"a": {"#!/bin/sh\ntrue\n", 0o755, ""}}),
		fixture("a new script", "executable", nil, tree{"a": {"#!/bin/sh\n", 0o755, ""}}),
		fixture("a program", "program", nil, tree{"a.so": text("\x7fELF\x02\x01\x01\x00")}),
		fixture("a setuid file", "setuid", nil, tree{"su": {"x", 0o755 | fs.ModeSetuid, ""}}),
		fixture("a strange interpreter", "shebang", nil, tree{"a": {"#!/tmp/x\n", 0o755, ""}}),
	}, Config{}
}

func sizeFixtures() ([]gates.Fixture, Config) {
	c := Config{Size: files.SizeConfig{Files: 2, Bytes: 100, File: 80}}
	large := string(bytes.Repeat([]byte("x"), 60))
	return []gates.Fixture{
		fixture("a little", "", nil, tree{"a": text(large), "b": text("x")}),
		fixture("many files", "files", nil, tree{"a": text("x"), "b": text("x"), "c": text("x")}),
		fixture("many bytes", "bytes", nil, tree{"a": text(large), "b": text(large)}),
		fixture("a large file", "file", nil, tree{"a": text(large + large)}),
		fixture("a binary", "binary", nil, tree{"a": text("\x00")}),
	}, c
}

func scopeFixtures() ([]gates.Fixture, Config) {
	c := Config{Scope: files.ScopeConfig{Allowed: []string{"src/**", "!src/gen/**"}, Forbidden: []string{"**/*.pem"}, Protected: []string{"src/ci/**"}}}
	return []gates.Fixture{
		fixture("inside", "", nil, tree{"src/a": text("x")}),
		fixture("outside", "outside", nil, tree{"docs/a": text("x")}),
		fixture("taken out", "outside", nil, tree{"src/gen/a": text("x")}),
		fixture("forbidden", "forbidden", nil, tree{"src/a.PEM": text("x")}),
		fixture("protected", "protected", nil, tree{"src/ci/a": text("x")}),
	}, c
}

func immutableFixtures() ([]gates.Fixture, Config) {
	c := Config{Immutable: files.ImmutableConfig{Paths: []string{"LICENSE"}, Keys: map[string][]string{"*.json": {"scripts.*"}, "*.yaml": {"image"}, "*.toml": {"a.b"}}}}
	return []gates.Fixture{
		fixture("another order, other keys", "", tree{"a.json": text(`{"scripts": {"a": 1, "b": 2}}`), "a.yaml": text("image: x\n"), "a.toml": text("[a]\nb = 1\n")},
			tree{"a.json": text(`{"x": 1, "scripts": {"b": 2.0, "a": 1}}`), "a.yaml": text("# a comment\nimage: \"x\"\n"), "a.toml": text("a.b = 1 # one\n")}),
		fixture("a path", "path", tree{"LICENSE": text("MIT")}, tree{"LICENSE": text("mine")}),
		fixture("a path deleted", "path", tree{"LICENSE": text("MIT")}, nil),
		fixture("JSON", "key", tree{"a.json": text(`{"scripts": {"a": 1}}`)}, tree{"a.json": text(`{"scripts": {"a": 1, "b": 2}}`)}),
		fixture("YAML", "key", tree{"a.yaml": text("image: x\n")}, tree{"a.yaml": text("image: y\n")}),
		fixture("TOML", "key", tree{"a.toml": text("[a]\nb = 1\n")}, tree{"a.toml": text("[a]\nc = 1\n")}),
		fixture("no document", "unreadable", tree{"a.json": text(`{}`)}, tree{"a.json": text(`{`)}),
	}, c
}

func secretsFixtures() ([]gates.Fixture, Config) {
	key := "AKIA" + "IMNOJVGFDXXXE4OA" // of nobody; in two parts, so that this file passes the gate
	return []gates.Fixture{
		fixture("a placeholder", "", nil, tree{"a.env": text("AWS_ACCESS_KEY_ID=${KEY}\nAPI_KEY=changeme\n")}),
		fixture("a key", "aws-access-token", nil, tree{"a.env": text("AWS_ACCESS_KEY_ID=" + key + "\n")}),
		fixture("a key with a comment to let it pass", "aws-access-token", nil, tree{"vendor/a.go": text("x = \"" + key + "\" // gitleaks:allow\n")}),
	}, Config{}
}

func lockFixtures() ([]gates.Fixture, Config) {
	gomod, more := text("module x\nrequire a v1\n"), text("module x\nrequire a v2\n")
	return []gates.Fixture{
		fixture("both", "", tree{"go.mod": gomod, "go.sum": text("1")}, tree{"go.mod": more, "go.sum": text("2")}),
		fixture("only the manifest", "stale", tree{"go.mod": gomod, "go.sum": text("1")}, tree{"go.mod": more, "go.sum": text("1")}),
		fixture("only the lock file", "alone", tree{"go.mod": gomod, "go.sum": text("1")}, tree{"go.mod": gomod, "go.sum": text("2")}),
		fixture("none", "missing", nil, tree{"package.json": text(`{"dependencies": {"a": "1"}}`)}),
	}, Config{}
}
