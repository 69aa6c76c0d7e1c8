package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

func flow[A, R any](name string, do func(context.Context, *Server, A, *pipe) (R, error)) *stream[A, R] {
	return &stream[A, R]{name: name, do: do}
}

// Streams of output, or of input, that end when the client goes.
var (
	diff = flow("diff", func(ctx context.Context, s *Server, a with[snapshot.DiffOptions], p *pipe) (nothing, error) {
		return done(s.opt.Supervisor.Diff(ctx, a.Ref, p.to(frame.Stdout), a.Options))
	})
	diffBetween = flow("diff-between", func(ctx context.Context, s *Server, a between[snapshot.DiffOptions], p *pipe) (nothing, error) {
		return done(s.opt.Supervisor.DiffBetween(ctx, a.A, a.B, p.to(frame.Stdout), a.Options))
	})
	logs = flow("logs", func(ctx context.Context, s *Server, a with[runner.LogOptions], p *pipe) (nothing, error) {
		return done(s.opt.Supervisor.Logs(ctx, a.Ref, a.Options, p.to(frame.Stdout), p.to(frame.Stderr)))
	})
	// events has one JSON text in each frame; a long one in several, as results.
	events = flow("events", func(ctx context.Context, s *Server, a runner.EventOptions, p *pipe) (nothing, error) {
		return done(s.opt.Supervisor.Events(ctx, a, func(e runner.Event) error { return p.w.JSON(frame.Stdout, e) }))
	})
	export = flow("export", func(ctx context.Context, s *Server, a with[snapshot.ExportOptions], p *pipe) (string, error) {
		return s.opt.Supervisor.Export(ctx, a.Ref, p.to(frame.Stdout), a.Options)
	})
	importing = flow("import", func(ctx context.Context, s *Server, a with[runner.ImportOptions], p *pipe) (*runner.Checkpoint, error) {
		return s.opt.Supervisor.Import(ctx, a.Ref, p.in, a.Options)
	})
)

// execute runs a task in a live feature. The caller is connected to it as to a child of its own: it is held up when the
// caller reads slowly. A caller that has gone is not missed.
var execute = taskStream("exec", func(ctx context.Context, s *Server, feature string, r *runner.Request) (*runner.Result, error) {
	return s.opt.Supervisor.Exec(ctx, feature, *r)
})

func taskStream(name string, run func(context.Context, *Server, string, *runner.Request) (*runner.Result, error)) *stream[with[*wireRequest], *runner.Result] {
	return &stream[with[*wireRequest], *runner.Result]{name: name, task: true,
		do: func(_ context.Context, s *Server, a with[*wireRequest], p *pipe) (*runner.Result, error) {
			if a.Options == nil {
				return nil, badRequest(io.ErrUnexpectedEOF)
			}
			r, err := a.Options.request()
			if err != nil {
				return nil, err
			}
			x := newSession(r, a.Options.Input)
			r.Stdout, r.Stderr = p.to(frame.Stdout), p.to(frame.Stderr)
			r.Terminal.Out = r.Stdout
			return s.conduct(x, p, &r.Progress, func(ctx context.Context) (*runner.Result, error) { return run(ctx, s, a.Ref, r) })
		}}
}

// wireResume is runner.ResumeOptions without streams.
type wireResume struct {
	RetryInterrupted bool            `json:"retry_interrupted,omitempty"`
	SkipInterrupted  bool            `json:"skip_interrupted,omitempty"`
	Detach           bool            `json:"detach,omitempty"`
	Environ          []text          `json:"environ,omitempty"`
	Profile          json.RawMessage `json:"profile,omitempty"`
	Input            bool            `json:"input,omitempty"`
}

var resume = &stream[with[wireResume], *runner.Result]{name: "resume", task: true,
	do: func(_ context.Context, s *Server, a with[wireResume], p *pipe) (*runner.Result, error) {
		o := runner.ResumeOptions{RetryInterrupted: a.Options.RetryInterrupted, SkipInterrupted: a.Options.SkipInterrupted,
			Detach: a.Options.Detach, Environ: environ(a.Options.Environ), Stdout: p.to(frame.Stdout), Stderr: p.to(frame.Stderr)}
		if len(a.Options.Profile) > 0 {
			if err := json.Unmarshal(a.Options.Profile, &o.Profile); err != nil {
				return nil, badRequest(err)
			}
		}
		r := &runner.Request{}
		x := newSession(r, a.Options.Input)
		o.Stdin, o.Signals = r.Stdin, r.Signals
		return s.conduct(x, p, &o.Progress, func(ctx context.Context) (*runner.Result, error) {
			return s.opt.Supervisor.Resume(ctx, a.Ref, o)
		})
	}}

// conduct runs a task on the supervisor's own time and answers its result, if the client is there to hear it.
func (s *Server) conduct(x *session, p *pipe, progress *func(runner.Progress), run func(context.Context) (*runner.Result, error)) (*runner.Result, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(s.life)
	*progress = func(at runner.Progress) {
		s.register(at.TaskID, x)
		p.post(frame.Progress, at)
	}
	p.listen(x, cancel)
	go func() {
		defer cancel(nil)
		result, err := run(ctx)
		s.finish(x, result, err)
	}()
	select {
	case <-x.done:
		return x.result, x.err
	case <-p.gone:
		if x.in != nil && !x.tty {
			x.in.Close(io.EOF) // a pipe has two ends; a terminal waits for somebody else
		}
		return nil, errLeft
	}
}

// attachment says to what, and how.
type attachment struct {
	Ref  string        `json:"ref"`
	Size *terminalSize `json:"size,omitempty"`
}

type terminalSize struct{ Rows, Cols uint16 }

// attach connects a client to a task that runs, or has run: first its log, then what comes. The client follows the log at
// its own pace, so it holds nobody up; of a bounded log it may miss a part, and is told how much. What it types goes to the
// task if that reads at all, and if it was begun through this supervisor.
var attach = &stream[attachment, *runner.Result]{name: "attach", task: true,
	do: func(ctx context.Context, s *Server, a attachment, p *pipe) (*runner.Result, error) {
		feature, id, err := s.newest(ctx, a.Ref)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		x := s.session(id)
		if x != nil && a.Size != nil {
			x.size(runner.Winsize(*a.Size))
		}
		p.late = true
		p.listen(x, cancel)
		go func() { <-p.gone; cancel(errLeft) }()
		o := runner.LogOptions{Task: id, Follow: true}
		if err := s.opt.Supervisor.Logs(ctx, feature, o, p.to(frame.Stdout), p.to(frame.Stderr)); err != nil {
			return nil, err
		}
		return s.await(ctx, id)
	}}

// await waits for a task's end. The one of a foreground run is recorded before its server is shut, and over only after.
func (s *Server) await(ctx context.Context, ref string) (*runner.Result, error) {
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-s.shutting:
			stop(errLeaving)
		case <-waiting.Done():
		}
	}()
	r, err := s.opt.Supervisor.Wait(waiting, ref)
	if err == nil || !errors.Is(context.Cause(waiting), errLeaving) {
		return r, err
	}
	_, id, terr := s.newest(ctx, ref)
	if terr != nil {
		return nil, err
	}
	if t, terr := s.opt.Supervisor.Task(ctx, id); terr == nil && t.Result != nil {
		return t.Result, nil
	}
	return nil, err
}

// newest finds a task: by its id, or the newest of a feature that runs, or if none does the newest.
func (s *Server) newest(ctx context.Context, ref string) (feature, id string, err error) {
	f, err := s.opt.Supervisor.Feature(ctx, ref)
	if runner.CodeOf(err) == runner.CodeNotFound {
		t, terr := s.opt.Supervisor.Task(ctx, ref)
		if terr != nil {
			return "", "", err
		}
		return t.Feature, t.ID, nil
	}
	if err != nil {
		return "", "", err
	}
	if len(f.Tasks) == 0 {
		return "", "", &runner.Error{Code: runner.CodeNotLive, Cause: "nothing runs in the feature " + f.Name, Exit: runner.ExitRefused,
			Remedy: "caisson shell " + f.Name}
	}
	id = f.Tasks[len(f.Tasks)-1].ID
	for _, t := range slices.Backward(f.Tasks) {
		if !t.State.Ended() {
			id = t.ID
			break
		}
	}
	return f.ID, id, nil
}
