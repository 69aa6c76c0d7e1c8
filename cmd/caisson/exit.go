package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Exit codes of caisson's own. Everything below 120 is the command's; so are 126 (not executable), 127 (not
// found) and 128+n (ended by signal n), except 130 for a cancelled task.
const (
	exitRefused   = runner.ExitRefused // 120
	exitGate      = runner.ExitGate    // 121
	exitLimit     = 122
	exitWaits     = 123
	exitTimeout   = 124
	exitInternal  = runner.ExitInternal // 125
	exitCancelled = runner.ExitCanceled // 130

	exitOwn = -1 // the command's own
)

// exitCodes is the one table from verdict to exit code.
var exitCodes = map[runner.Verdict]int{
	runner.VerdictOK:          exitOwn,
	runner.VerdictNonzero:     exitOwn,
	runner.VerdictSignalled:   exitOwn,
	runner.VerdictRefused:     exitRefused,
	runner.VerdictGate:        exitGate,
	runner.VerdictMemory:      exitLimit,
	runner.VerdictPids:        exitLimit,
	runner.VerdictDisk:        exitLimit,
	runner.VerdictOutput:      exitLimit,
	runner.VerdictEgress:      exitLimit,
	runner.VerdictTimeout:     exitTimeout,
	runner.VerdictInternal:    exitInternal,
	runner.VerdictInterrupted: exitInternal,
	runner.VerdictCancelled:   exitCancelled,
}

// exitCode is caisson's exit code for a task that has ended, or that waits for a person.
func exitCode(r *runner.Result) int {
	code, known := exitCodes[r.Verdict]
	switch {
	case r.State == runner.StateAwaitingApproval:
		return exitWaits
	case !known:
		return exitInternal
	case code == exitOwn:
		return r.ExitCode
	}
	return code
}

// exitError ends caisson with a code when what there is to say has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// usage is a mistake in what was typed.
func usage(format string, args ...any) *runner.Error {
	return &runner.Error{Code: runner.CodeUsage, Cause: fmt.Sprintf(format, args...), Exit: exitRefused}
}

// finish reports err, if it is one, and returns the process's exit code.
func (a *app) finish(err error) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	e := a.explain(err)
	a.report(e, err)
	return e.Exit
}

// explain makes the {code, cause, remedy} of an error.
func (a *app) explain(err error) *runner.Error {
	e := explainTyped(err)
	switch {
	case e != nil:
	case !a.parsed:
		e = usage("%v", err)
	case errors.Is(err, context.Canceled):
		e = &runner.Error{Code: runner.CodeCancelled, Cause: "cancelled", Exit: exitCancelled}
	default:
		e = &runner.Error{Code: runner.CodeInternal, Cause: err.Error(), Exit: exitInternal}
	}
	if e.Remedy == "" && e.Code == runner.CodeUsage {
		e.Remedy = a.command + " --help"
	}
	return e
}

// explainTyped knows the errors that say by their type what they are; nil for any other.
func explainTyped(err error) *runner.Error {
	refuse := func(code, remedy string) *runner.Error {
		return &runner.Error{Code: code, Cause: err.Error(), Remedy: remedy, Exit: exitRefused, Err: nil}
	}
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*profiles.Error](err); ok {
		return refuse(runner.CodeConfiguration, e.Remedy)
	}
	if e, ok := errors.AsType[*profiles.MountError](err); ok {
		return refuse(runner.CodeMount, e.Remedy)
	}
	if e, ok := errors.AsType[*snapshot.WorkspaceError](err); ok {
		return refuse(runner.CodeWorkspace, e.Remedy)
	}
	if e, ok := errors.AsType[*isolation.ShortageError](err); ok {
		return refuse(runner.CodeUnsupported, e.Remedy())
	}
	if e, ok := errors.AsType[*isolation.UnsupportedError](err); ok {
		return refuse(runner.CodeUnsupported, e.Remedy)
	}
	if e, ok := errors.AsType[*quota.UnavailableError](err); ok {
		return refuse(runner.CodeUnsupported, e.Remedy)
	}
	return nil
}

// errorEvent is an error as JSON: always the last thing on standard output.
type errorEvent struct {
	Event     string              `json:"event"` // "error"
	Code      string              `json:"code"`
	Cause     string              `json:"cause"`
	Remedy    string              `json:"remedy"`
	ExitCode  int                 `json:"exit_code"`
	Conflicts []snapshot.Conflict `json:"conflicts,omitempty"`
	Gates     []gates.Verdict     `json:"gates,omitempty"`
}

// blockedError is the refusal of a promotion with what the gates found.
type blockedError struct {
	error
	verdicts []gates.Verdict
}

func (e *blockedError) Unwrap() error { return e.error }

// report says what went wrong, with what err knows besides: three lines on standard error, or one object on
// standard output.
func (a *app) report(e *runner.Error, err error) {
	event := errorEvent{Event: "error", Code: e.Code, Cause: a.redact.Text(e.Error()), Remedy: a.redact.Text(e.Remedy), ExitCode: e.Exit}
	if conflict, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		event.Conflicts = conflict.Conflicts
	}
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		event.Gates = blocked.verdicts
	}
	if a.wantsJSON() {
		_ = a.printJSON(event) // if nobody reads it, nobody reads that either
		return
	}
	a.reportLines(event.Code, event.Cause, event.Remedy)
	for i, c := range event.Conflicts {
		if i == maxListed {
			fmt.Fprintf(a.stderr, "  … and %d more\n", len(event.Conflicts)-i)
			break
		}
		fmt.Fprintf(a.stderr, "  %s: %s\n", snapshot.Quote(c.Path), c.Reason)
		a.reportSides(&c)
	}
	a.reportBlocking(event.Gates)
}

// reportLines is how people see a failure.
func (a *app) reportLines(code, cause, remedy string) {
	a.say("caisson: %s\n", code)
	fmt.Fprintf(a.stderr, "  cause:  %s\n", lines(cause))
	if remedy != "" {
		fmt.Fprintf(a.stderr, "  remedy: %s\n", lines(remedy))
	}
}

// lines sets the lines of a text below each other; names that a task chose play no tricks in them.
func lines(text string) string {
	all := strings.Split(text, "\n")
	for i := range all {
		all[i] = gates.Quote(all[i])
	}
	return strings.Join(all, "\n          ")
}

// maxListed is how many conflicts, or findings of one gate, are listed for people; --json has them all.
const maxListed = 20

// reportBlocking lists what the gates found that refuse a change.
func (a *app) reportBlocking(verdicts []gates.Verdict) {
	_ = gates.WriteText(a.stderr, gates.Blocking(verdicts), maxListed) // where nobody reads, nothing is to be said
}

// warn says, in a line for each, what gates would refuse that only warn.
func (a *app) warn(verdicts []gates.Verdict) {
	for i := range verdicts {
		if text := verdicts[i].Warning(); text != "" {
			a.note("%s", text)
		}
	}
}
