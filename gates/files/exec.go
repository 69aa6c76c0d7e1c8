package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
)

// ExecConfig configures the gate exec.
type ExecConfig struct {
	Executables gates.Severity `json:"executables,omitempty"` // files that become executable; "": block
	Programs    gates.Severity `json:"programs,omitempty"`    // new or changed machine code, executable or not; "": block
	Setuid      gates.Severity `json:"setuid,omitempty"`      // setuid and setgid files; "": block
	Shebangs    gates.Severity `json:"shebangs,omitempty"`    // scripts for an interpreter that is not in the list; "": block
	// Allowed are globs of what may become executable or be a program. Setuid and shebangs hold there, too.
	Allowed []string `json:"allowed,omitempty"`
	// Interpreters are names, looked for in /bin, /usr/bin and /usr/local/bin, or whole paths; nil:
	// DefaultInterpreters. A version may follow a name: python3.12.
	Interpreters []string `json:"interpreters,omitempty"`
}

// DefaultInterpreters returns the names that a shebang may have.
func DefaultInterpreters() []string {
	return []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "python", "perl", "ruby", "node", "deno", "bun", "php", "lua", "awk",
		"gawk", "sed", "make", "tclsh", "Rscript", "julia", "jq", "pwsh", "escript", "elixir", "groovy", "guile", "racket"}
}

// Validate names the first value that makes no sense.
func (c ExecConfig) Validate() error {
	_, err := Exec(c)
	return err
}

const execVersion = 1

// headBytes is more than any kernel reads of a shebang.
const headBytes = 4096

// Exec returns the gate that looks for what can run: new executables, machine code, setuid files, shebangs.
func Exec(c ExecConfig) (gates.Gate, error) {
	err := fill("exec", level{&c.Executables, gates.SeverityBlock}, level{&c.Programs, gates.SeverityBlock},
		level{&c.Setuid, gates.SeverityBlock}, level{&c.Shebangs, gates.SeverityBlock})
	if err != nil {
		return nil, err
	}
	if c.Interpreters == nil {
		c.Interpreters = DefaultInterpreters()
	}
	lists, err := globs("exec", c.Allowed)
	if err != nil {
		return nil, err
	}
	return gate{"exec", gates.DigestOf("exec", execVersion, c), func(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
		l := execLook{ExecConfig: c, allowed: lists[0], reader: gates.NewReader(ctx, change, gates.DefaultBounds)}
		err := each(ctx, change, l.entry)
		return l.list.Verdict(len(change.Entries)), errors.Join(err, l.err)
	}}, nil
}

type execLook struct {
	ExecConfig
	allowed gates.Globs
	reader  *gates.Reader
	list    gates.List
	err     error
}

func (l *execLook) find(e *gates.Entry, s gates.Severity, rule, message, remedy string) {
	l.list.Add(gates.Finding{Rule: rule, Path: e.Path, Message: message, Remedy: remedy, Severity: s})
}

func (l *execLook) entry(e *gates.Entry) {
	if e.Kind == gates.KindDeleted || e.Type != gates.TypeFile || l.err != nil {
		return
	}
	const executable = 0o111
	if e.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		l.find(e, l.Setuid, "setuid", "a setuid or setgid file: whoever starts it gets its owner's rights", "chmod ug-s in the sandbox")
	}
	_, allowed := l.allowed.Match(e.Path)
	was := e.OldMode&executable != 0 && e.OldType == gates.TypeFile && e.Kind != gates.KindAdded
	if e.Mode&executable != 0 && !was && !allowed {
		l.find(e, l.Executables, "executable", "becomes executable", "chmod a-x in the sandbox, or name it in gates.exec.allowed")
	}
	if e.Mode&executable == 0 && !e.Binary {
		return
	}
	head, err := l.reader.Head(e.Path, headBytes)
	if err != nil {
		l.err = unread(&l.list, err)
		return
	}
	if kind := machineCode(head); kind != "" && !allowed && e.Kind != gates.KindMode {
		l.find(e, l.Programs, "program", "a program: "+kind+", which nobody can read in a review", "build it from its source where it is used, or name it in gates.exec.allowed")
	}
	if e.Mode&executable != 0 {
		l.shebang(e, head)
	}
}

// shebang judges the interpreter of a script, unless it was there before.
func (l *execLook) shebang(e *gates.Entry, head []byte) {
	line, ok := shebangLine(head)
	if !ok || l.known(line) {
		return
	}
	if e.OldType == gates.TypeFile && e.OldMode&0o111 != 0 && e.Kind == gates.KindModified {
		if old, err := l.reader.OldHead(e.Path, headBytes); err == nil {
			if was, ok := shebangLine(old); ok && was == line {
				return
			}
		}
	}
	l.list.Add(gates.Finding{Rule: "shebang", Path: e.Path, Line: 1, Severity: l.Shebangs,
		Message: fmt.Sprintf("a script for %.80q, which is none of the known interpreters", line),
		Remedy:  "use #!/bin/sh or #!/usr/bin/env with a name of gates.exec.interpreters"})
}

// shebangLine is what follows "#!" in the first line.
func shebangLine(head []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(head, []byte("#!"))
	if !ok {
		return "", false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strings.Trim(string(line), " \t"), true
}

// known says whether a shebang starts an interpreter of the list. A carriage return, or any other control character, is part
// of the name for the kernel: then it is another one.
func (l *execLook) known(line string) bool {
	program, args, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
	if slices.Contains(l.Interpreters, program) {
		return true
	}
	dir, name := path.Split(program)
	if !slices.Contains([]string{"/bin/", "/usr/bin/", "/usr/local/bin/"}, dir) {
		return false
	}
	if name == "env" {
		args, _ = strings.CutPrefix(strings.TrimSpace(args), "-S")
		name, _, _ = strings.Cut(strings.TrimSpace(args), " ")
	}
	return slices.ContainsFunc(l.Interpreters, func(known string) bool {
		v, ok := strings.CutPrefix(name, known)
		return ok && strings.Trim(v, "0123456789.") == "" && !strings.HasPrefix(v, ".")
	})
}

// machineCode says what kind of program begins like this, or "".
func machineCode(head []byte) string {
	for _, m := range []struct{ magic, kind string }{
		{"\x7fELF", "ELF"}, {"MZ", "PE"}, {"\x00asm", "WebAssembly"},
		{"\xfe\xed\xfa\xce", "Mach-O"}, {"\xfe\xed\xfa\xcf", "Mach-O"}, {"\xce\xfa\xed\xfe", "Mach-O"}, {"\xcf\xfa\xed\xfe", "Mach-O"},
		{"\xca\xfe\xba\xbe", "Mach-O or Java"}, {"!<arch>\n", "a library of object files"}, {"dex\n", "Android"}, {"BC\xc0\xde", "LLVM"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return m.kind
		}
	}
	return ""
}
