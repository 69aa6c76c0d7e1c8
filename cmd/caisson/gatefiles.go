package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/gates/dirs"
	"github.com/caisson-dev/caisson/runner"
)

// triedFiles is the verdict on one directory, as JSON.
type triedFiles struct {
	Gate     string           `json:"gate"`
	Input    string           `json:"input"`
	Verdict  string           `json:"verdict"` // "pass", "fail"
	Rules    []string         `json:"rules"`   // that were hit, the worst first
	Findings []triedFinding   `json:"findings"`
	Dropped  int              `json:"dropped,omitempty"` // findings that are not listed
	Evidence []gates.Evidence `json:"evidence,omitempty"`
	Reason   string           `json:"reason,omitempty"` // why the gate could not do its work
	Remedy   string           `json:"remedy,omitempty"`
}

// triedFinding is a finding as those who correct it read it.
type triedFinding struct {
	Rule       string         `json:"rule"`
	Severity   gates.Severity `json:"severity"`
	File       string         `json:"file,omitempty"`
	Line       int            `json:"line,omitempty"`
	Message    string         `json:"message"`
	Suggestion string         `json:"suggestion,omitempty"`
}

// tryFiles judges a directory.
func tryFiles(ctx context.Context, a *app, g builtin.Info, o tryOptions, args []string) error {
	if len(args) != 1 || o.list != "" || o.nul {
		return usage("the gate %s takes one directory, and none of --mode and -0", g.Name)
	}
	profile, err := loadRef(o.profile)
	if err != nil {
		return err
	}
	config, err := g.Configured(profile.GateConfig(nil))
	if err != nil {
		return &runner.Error{Code: runner.CodeConfiguration, Cause: err.Error(), Remedy: "correct the profile", Exit: exitRefused}
	}
	config.Mode = gates.ModeBlock
	d, err := dirs.Open(ctx, args[0], o.base)
	if err != nil {
		return unreadableDir(err)
	}
	defer func() { _ = d.Close() }()
	v := gates.Run(ctx, []gates.Configured{config}, &d.Change)[0]
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.printTriedFiles(args[0], v); err != nil {
		return err
	}
	if v.Status != gates.Pass {
		return exitError(exitGate)
	}
	return nil
}

// unreadableDir is a mistake in what was typed, or a file that nobody can judge: both end with a refusal.
func unreadableDir(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := &runner.Error{Code: runner.CodeUsage, Cause: err.Error(), Remedy: "name a directory in which every file can be read", Exit: exitRefused}
	if errors.Is(err, os.ErrNotExist) {
		e.Remedy = "name a directory"
	}
	return e
}

func (a *app) printTriedFiles(input string, v gates.Verdict) error {
	if !a.json {
		return gates.WriteText(a.stdout, []gates.Verdict{v}, 0)
	}
	t := triedFiles{Gate: v.Gate, Input: input, Verdict: "pass", Rules: []string{}, Findings: []triedFinding{}, Dropped: v.Dropped, Evidence: v.Evidence,
		Reason: v.Reason, Remedy: v.Remedy}
	if v.Status != gates.Pass {
		t.Verdict = "fail"
	}
	for _, f := range gates.WorstFirst(v.Findings) {
		t.Findings = append(t.Findings, triedFinding{Rule: f.Rule, Severity: f.Severity, File: f.Path, Line: f.Line, Message: f.Message, Suggestion: f.Remedy})
		if !slices.Contains(t.Rules, f.Rule) {
			t.Rules = append(t.Rules, f.Rule)
		}
	}
	return a.printJSON(t)
}

// gateNamed returns the gate called name, or a mistake in what was typed.
func gateNamed(name string) (builtin.Info, error) {
	g, ok := builtin.Find(name)
	if !ok {
		return g, usage("no gate is called %q; one of %s", name, fmt.Sprint(builtin.Names()))
	}
	return g, nil
}
