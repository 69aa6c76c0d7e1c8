package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/term"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner/redact"
)

// app is one invocation: where it reads and writes, and the options that every command has.
type app struct {
	args   []string
	stdin  *os.File
	stdout *os.File
	stderr *os.File

	json        bool
	stateDir    string
	persistence string
	maxTasks    maxTasks
	repairing   bool // the state directory may be without its store

	redact *redact.Redactor // what is kept and told goes through it; nil: it knows shapes

	lost    error  // why the command's output could not be written
	midLine bool   // the command's last line on stderr has no end: ours begin with one
	command string // the command that was chosen, such as "caisson run"
	parsed  bool   // flags and arguments were accepted; an error before that is a usage error
}

func newApp(args []string) *app {
	return &app{args: args, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, redact: &redact.Redactor{}}
}

// wantsJSON is a.json, also when the flags could not be parsed to the end.
func (a *app) wantsJSON() bool {
	if a.parsed || a.json {
		return a.json
	}
	own := a.args
	if i := slices.Index(own, "--"); i >= 0 {
		own = own[:i]
	}
	return slices.Contains(own, "--json")
}

// printJSON writes v as one line.
func (a *app) printJSON(v any) error {
	return writeJSON(a.stdout, v, "")
}

// printIndented writes v over several lines, for commands whose output is always JSON.
func (a *app) printIndented(v any) error {
	if a.json {
		return a.printJSON(v)
	}
	return writeJSON(a.stdout, v, "  ")
}

func writeJSON(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// note writes one line for people, never with --json. Whatever it names, it stays one line of printable characters.
func (a *app) note(format string, args ...any) {
	if !a.json {
		a.say("caisson: %s\n", gates.Quote(fmt.Sprintf(format, args...)))
	}
}

// say writes to standard error, from the beginning of a line.
func (a *app) say(format string, args ...any) {
	if a.midLine {
		a.midLine = false
		format = "\n" + format
	}
	fmt.Fprintf(a.stderr, format, args...)
}

// isTerminal says whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour says whether stdout should be coloured: a terminal, and no NO_COLOR.
func (a *app) colour() bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(a.stdout)
}
