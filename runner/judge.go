package runner

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

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
func (t *task) judge(ctx context.Context) error {
	gate := t.req.Profile.Gates.Command
	if gate.Mode == "" || t.req.Profile.Gates.Mode("command") == gates.ModeOff { // "": a task of a version that had no such gate goes on
		return nil
	}
	for i, r := range t.verdicts(ctx) {
		i += t.first
		st := &t.req.Steps[i]
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

// verdicts are those on the steps that are still to run. Scripts that they name are read as the feature has them: its layers are opened
// when there is one to be read.
func (t *task) verdicts(ctx context.Context) (list []command.Result) {
	if isNew := t.fresh && t.owner; !isNew {
		named := false
		list = t.analyze(func(path string, _ int) ([]byte, error) {
			named = named || strings.HasPrefix(path, snapshot.WorkspaceTarget+"/")
			return nil, fs.ErrNotExist
		})
		if !named {
			return list
		}
		err := t.s.use(ctx, t.feature.ID, reading, func(x *session) error {
			list = t.analyzeWith(func(name string) (string, error) { return x.layers.Readlink(snapshot.Current, name) },
				func(name string) (*os.File, error) { return x.layers.OpenFile(snapshot.Current, name) })
			return nil
		})
		if err == nil {
			return list
		}
	} // whoever cannot open it now is refused in a moment
	root, err := os.OpenRoot(t.req.Workspace)
	if err != nil {
		return t.analyze(nil)
	}
	defer func() { _ = root.Close() }()
	return t.analyzeWith(root.Readlink, func(name string) (*os.File, error) { return openRegular(root, name) })
}

// analyze judges the steps that are still to run.
func (t *task) analyze(open func(path string, limit int) ([]byte, error)) (list []command.Result) {
	gate := t.req.Profile.Gates.Command
	for i := t.first; i < len(t.req.Steps); i++ {
		st := &t.req.Steps[i]
		list = append(list, command.AnalyzeArgs(st.Args, command.Config{Mode: command.Mode(gate.List), Allow: gate.Allow, Cwd: snapshot.WorkspaceTarget,
			Dir: cwd(st.Cwd), Home: snapshot.HomeTarget, Env: t.env(st, i+1), Open: open}))
	}
	return list
}

// analyzeWith judges them with the files of the workspace, which a path names as the links in it lead; open opens one.
func (t *task) analyzeWith(readlink func(name string) (string, error), open func(name string) (*os.File, error)) []command.Result {
	links := gates.Change{Readlink: func(name string) (string, bool) {
		to, err := readlink(name)
		return to, err == nil
	}}
	resolve := links.Resolver()
	return t.analyze(func(path string, limit int) ([]byte, error) {
		name, err := inWorkspace(path, resolve)
		if err != nil {
			return nil, err
		}
		f, err := open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		return io.ReadAll(io.LimitReader(f, int64(limit)))
	})
}

// inWorkspace is the name in the workspace that a path inside leads to.
func inWorkspace(path string, resolve func(dir, target string) (end string, outside bool)) (string, error) {
	for range maxAbsolute {
		name, inside := strings.CutPrefix(path, snapshot.WorkspaceTarget+"/")
		if !inside {
			break
		}
		outside := false
		if path, outside = resolve("", name); !outside {
			return path, nil
		}
	}
	return "", fs.ErrNotExist
}

// maxAbsolute is how many links by absolute paths are followed.
const maxAbsolute = 8
