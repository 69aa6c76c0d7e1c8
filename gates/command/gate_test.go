package command

import (
	"bytes"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/gates"
)

// changeOf is one of files whose content before and after is given; before "" they are new.
func changeOf(files map[string][2]string) *gates.Change {
	c := &gates.Change{}
	open := func(i int) func(string) (io.ReadCloser, error) {
		return func(p string) (io.ReadCloser, error) {
			if files[p][i] == "" {
				return nil, fs.ErrNotExist
			}
			return io.NopCloser(bytes.NewReader([]byte(files[p][i]))), nil
		}
	}
	c.OpenOld, c.Open = open(0), open(1)
	for p, text := range files {
		kind := gates.KindAdded
		if text[0] != "" {
			kind = gates.KindModified
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(p, "bin/") {
			mode = 0o755
		}
		c.Entries = append(c.Entries, gates.Entry{Path: p, Kind: kind, Type: gates.TypeFile, Mode: mode, Size: int64(len(text[1]))})
	}
	return c
}

func TestScriptsOfAChange(t *testing.T) {
	for name, c := range map[string]struct {
		path, before, after string
		rule                string // "": nothing is found
		line                int
		severity            gates.Severity
	}{
		"new":                       {"x.sh", "", "make\nrm -rf /\n", "remove-root", 2, gates.SeverityBlock},
		"by its first line":         {"bin/x", "", "#!/usr/bin/env bash\ncurl https://x.test/i | sh\n", "download-run", 2, gates.SeverityBlock},
		"asked about":               {"x.sh", "", "eval \"$1\"\n", "unresolved", 1, gates.SeverityInfo},
		"harmless":                  {"x.sh", "", "set -e\nrm -rf ./build\nmake \"$@\"\n", "", 0, ""},
		"was there before":          {"x.sh", "rm -rf /\n", "echo hello\nrm -rf /\n", "", 0, ""},
		"came with the change":      {"x.sh", "rm -rf /\n", "rm -rf /\ngit push --force\n", "git-push-force", 2, gates.SeverityBlock},
		"no script":                 {"README.md", "", "rm -rf /\n", "", 0, ""},
		"nothing starts it":         {"data/x", "", "#!/bin/sh\nrm -rf /\n", "", 0, ""},
		"another language":          {"bin/x", "", "#!/usr/bin/python3\nprint('rm -rf /')\n", "", 0, ""},
		"no shell can read it":      {"x.sh", "", "echo 'x\n", "unparsable", 1, gates.SeverityBlock},
		"longer than can be judged": {"x.sh", "", string(bytes.Repeat([]byte("make\n"), 20000)), "long-script", 0, gates.SeverityWarn},
	} {
		v, err := Gate(Config{}).Check(t.Context(), changeOf(map[string][2]string{c.path: {c.before, c.after}}))
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.rule == "" && len(v.Findings) > 0:
			t.Errorf("%s: %+v", name, v.Findings)
		case c.rule != "" && (len(v.Findings) != 1 || v.Findings[0].Rule != c.rule || v.Findings[0].Line != c.line || v.Findings[0].Severity != c.severity || v.Findings[0].Path != c.path):
			t.Errorf("%s: %+v", name, v.Findings)
		}
	}
	if Gate(Config{}).Digest() == Gate(Config{Mode: ModeAllow}).Digest() {
		t.Error("two configurations have one digest")
	}
}

// A message holds the script's own text, which may be made to look like something else.
func TestScriptTextIsQuoted(t *testing.T) {
	v, err := Gate(Config{}).Check(t.Context(), changeOf(map[string][2]string{"x.sh": {"", "rm -rf / '\x1b[2J\ncaisson: promoted'\n"}}))
	if err != nil || len(v.Findings) == 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	for _, f := range v.Findings {
		if f.Message != gates.Quote(f.Message) {
			t.Errorf("%q", f.Message)
		}
	}
}
