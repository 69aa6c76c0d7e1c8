package runner

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Judged is what the gate command said of a step that it would not let pass.
type Judged struct {
	Step int `json:"step"` // from 1
	command.Result
	Evidence []gates.Evidence `json:"evidence,omitempty"` // the text that was judged
}

// judge has the gate command look at the steps that are still to run. It is an early, explained refusal of what nobody means;
// what a command can do in spite of it, the sandbox bounds.
func (t *task) judge() error {
	gate := t.req.Profile.Gates.Command
	if gate.Mode == "" || t.req.Profile.Gates.Mode("command") == gates.ModeOff { // "": a task of a version that had no such gate goes on
		return nil
	}
	scripts := &scripts{workspace: t.req.Workspace}
	defer scripts.close()
	for i := t.first; i < len(t.req.Steps); i++ {
		st := &t.req.Steps[i]
		r := command.AnalyzeArgs(st.Args, command.Config{Mode: command.Mode(gate.List), Allow: gate.Allow, Cwd: snapshot.WorkspaceTarget,
			Dir: cwd(st.Cwd), Home: snapshot.HomeTarget, Env: t.env(st, i+1), Open: scripts.open})
		if r.Verdict == command.Allow || r.Verdict == command.Ask && (t.req.Consent || gate.OnAsk == "allow") {
			continue
		}
		if gate.Mode != gates.ModeWarn {
			return refusedCommand(i+1, st.Args, r)
		}
		t.res.Judged = append(t.res.Judged, Judged{Step: i + 1, Result: r, Evidence: []gates.Evidence{gates.OfCommand(i+1, st.Args)}})
	}
	return nil
}

// judgedError is what the gate command said of a step, beneath the refusal of it.
type judgedError struct {
	step     int
	findings []command.Finding
	text     gates.Evidence
}

func (e *judgedError) Error() string { return e.findings[0].Message }

// refusedCommand is the refusal of a step by the gate command.
func refusedCommand(step int, args []string, r command.Result) *Error {
	f := r.Findings[0]
	cause := fmt.Sprintf("step %d: %s: %q (rule %s, at %d:%d)", step, f.Message, f.Text, f.Rule, f.Line, f.Column)
	var e *Error
	if r.Verdict == command.Ask {
		e = refuse(CodeAsk, cmp.Or(f.Safer, "start it at a terminal, where it asks, or set gates.command.on_ask: allow in the profile"), "a person has to decide: %s", cause)
	} else {
		e = refuse(CodeCommand, cmp.Or(f.Safer, "`caisson gate try command` tells what the rules say of a command line"), "%s", cause)
	}
	e.Err = &judgedError{step, r.Findings, gates.OfCommand(step, args)}
	return e
}

// scripts reads scripts that commands name, in the workspace as it was before the feature.
type scripts struct {
	workspace string
	root      *os.Root
}

// open reads at most limit bytes of a file, by its path inside.
func (s *scripts) open(path string, limit int) ([]byte, error) {
	name, ok := strings.CutPrefix(path, snapshot.WorkspaceTarget+"/")
	if !ok {
		return nil, fs.ErrNotExist
	}
	var err error
	if s.root == nil {
		if s.root, err = os.OpenRoot(s.workspace); err != nil {
			return nil, err
		}
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo has no end
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

func (s *scripts) close() {
	if s.root != nil {
		_ = s.root.Close()
	}
}
