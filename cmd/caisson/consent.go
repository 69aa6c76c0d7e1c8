package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

// withConsent runs a task. When the gate command wants a person to decide, and one sits at the terminal, it asks, and runs the
// task again if the answer is yes.
func (a *app) withConsent(r *runner.Request, run func() error) error {
	err := run()
	if !errors.Is(err, &runner.Error{Code: runner.CodeAsk}) || a.json || !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return err
	}
	if !a.confirm(err.Error()) {
		return err
	}
	r.Consent = true
	return run()
}

// confirm asks a question of yes or no; nothing is no. The terminal may be in raw mode, where a line ends in CR.
func (a *app) confirm(question string) bool {
	a.say("caisson: %s\r\nrun it all the same? [y/N] ", gates.Quote(question))
	var line []byte
	for b := make([]byte, 1); ; {
		if n, err := a.stdin.Read(b); n == 0 || err != nil || b[0] == 3 || b[0] == 4 { // ^C and ^D, raw
			return false
		}
		if b[0] == '\n' || b[0] == '\r' {
			fmt.Fprint(a.stderr, "\r\n")
			return slices.Contains([]string{"y", "yes"}, strings.ToLower(string(line)))
		}
		line = append(line, b[0])
	}
}
