package daemon

import (
	"context"
	"syscall"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// routes is the API: POST /v1/NAME with the arguments in JSON.
var routes = []route{
	features, feature, task, wait, stats, change, changeBetween, checkpoint, checkpoints, checkpointOf, label, drop,
	rollback, fork, promote, approve, discard, remove, gc, start, terminal, stop, kill, pause, unpause, copying, rebase, holders,
	diff, diffBetween, logs, events, export, importing, execute, resume, attach,
}

// The arguments of calls.
type (
	nothing struct{}
	on      struct {
		Ref string `json:"ref"`
	}
	with[O any] struct { // O is the supervisor's own type
		Ref     string `json:"ref"`
		Options O      `json:"options"`
	}
	all[O any] struct {
		Refs    []string `json:"refs"`
		Options O        `json:"options"`
	}
	between[O any] struct {
		A       string `json:"a"`
		B       string `json:"b"`
		Options O      `json:"options"`
	}
	moving struct {
		Generation int  `json:"generation"`
		Stop       bool `json:"stop,omitempty"`
	}
	paths struct {
		From place `json:"from"`
		To   place `json:"to"`
	}
	place struct {
		Ref  string `json:"ref,omitempty"`
		Path text   `json:"path"`
	}
)

func define[A, R any](name string, do func(context.Context, *Server, A) (R, error)) *call[A, R] {
	return &call[A, R]{name, do}
}

// done is the answer of a call that has none.
func done(err error) (nothing, error) { return nothing{}, err }

// What reads.
var (
	features = define("features", func(ctx context.Context, s *Server, a with[bool]) ([]runner.FeatureInfo, error) {
		return s.opt.Supervisor.Features(ctx, a.Options)
	})
	feature = define("feature", func(ctx context.Context, s *Server, a on) (*runner.FeatureInfo, error) {
		return s.opt.Supervisor.Feature(ctx, a.Ref)
	})
	task = define("task", func(ctx context.Context, s *Server, a on) (*runner.TaskInfo, error) {
		return s.opt.Supervisor.Task(ctx, a.Ref)
	})
	wait = define("wait", func(ctx context.Context, s *Server, a on) (*runner.Result, error) {
		return s.await(ctx, a.Ref)
	})
	stats = define("stats", func(ctx context.Context, s *Server, a all[nothing]) ([]runner.Stats, error) {
		return s.opt.Supervisor.Stats(ctx, a.Refs)
	})
	change = define("change", func(ctx context.Context, s *Server, a on) (*snapshot.Change, error) {
		return s.opt.Supervisor.Change(ctx, a.Ref)
	})
	changeBetween = define("change-between", func(ctx context.Context, s *Server, a between[nothing]) (*snapshot.Change, error) {
		return s.opt.Supervisor.ChangeBetween(ctx, a.A, a.B)
	})
	holders = define("holders", func(ctx context.Context, s *Server, a on) ([]isolation.Holder, error) {
		return s.opt.Supervisor.Holders(ctx, a.Ref)
	})
)

// Checkpoints.
var (
	checkpoint = define("checkpoint", func(ctx context.Context, s *Server, a with[runner.CheckpointOptions]) (*runner.Checkpoint, error) {
		return s.opt.Supervisor.Checkpoint(ctx, a.Ref, a.Options)
	})
	checkpoints = define("checkpoints", func(ctx context.Context, s *Server, a on) ([]runner.Checkpoint, error) {
		return s.opt.Supervisor.Checkpoints(ctx, a.Ref)
	})
	checkpointOf = define("checkpoint-of", func(ctx context.Context, s *Server, a on) (*runner.Checkpoint, error) {
		return s.opt.Supervisor.CheckpointOf(ctx, a.Ref)
	})
	label = define("label", func(ctx context.Context, s *Server, a with[string]) (nothing, error) {
		return done(s.opt.Supervisor.Label(ctx, a.Ref, a.Options))
	})
	drop = define("drop-checkpoints", func(ctx context.Context, s *Server, a all[nothing]) (nothing, error) {
		return done(s.opt.Supervisor.DropCheckpoints(ctx, a.Refs...))
	})
	rollback = define("rollback", func(ctx context.Context, s *Server, a with[runner.RollbackOptions]) (*runner.RollbackResult, error) {
		return s.opt.Supervisor.Rollback(ctx, a.Ref, a.Options)
	})
	fork = define("fork", func(ctx context.Context, s *Server, a with[string]) (*runner.FeatureInfo, error) {
		return s.opt.Supervisor.Fork(ctx, a.Ref, a.Options)
	})
)

// What changes features.
var (
	promote = define("promote", func(ctx context.Context, s *Server, a with[runner.PromoteOptions]) (*runner.PromoteResult, error) {
		return s.opt.Supervisor.Promote(ctx, a.Ref, a.Options)
	})
	approve = define("approve", func(ctx context.Context, s *Server, a with[runner.ApproveOptions]) (*runner.ApproveResult, error) {
		return s.opt.Supervisor.Approve(ctx, a.Ref, a.Options)
	})
	discard = define("discard", func(ctx context.Context, s *Server, a on) (nothing, error) {
		return done(s.opt.Supervisor.Discard(ctx, a.Ref))
	})
	remove = define("remove", func(ctx context.Context, s *Server, a all[bool]) (nothing, error) {
		return done(s.opt.Supervisor.Remove(ctx, a.Refs, a.Options))
	})
	gc = define("gc", func(ctx context.Context, s *Server, a with[bool]) (*runner.GCReport, error) {
		return s.opt.Supervisor.GC(ctx, a.Options)
	})
	stop = define("stop", func(ctx context.Context, s *Server, a all[runner.StopOptions]) (nothing, error) {
		return done(s.opt.Supervisor.Stop(ctx, a.Refs, a.Options))
	})
	kill = define("kill", func(ctx context.Context, s *Server, a with[syscall.Signal]) (nothing, error) {
		return done(s.opt.Supervisor.Kill(ctx, a.Ref, a.Options))
	})
	pause = define("pause", func(ctx context.Context, s *Server, a on) (nothing, error) {
		defer s.wake() // its idle time stands still, too
		return done(s.opt.Supervisor.Pause(ctx, a.Ref))
	})
	unpause = define("unpause", func(ctx context.Context, s *Server, a on) (nothing, error) {
		defer s.wake()
		return done(s.opt.Supervisor.Unpause(ctx, a.Ref))
	})
	copying = define("copy", func(ctx context.Context, s *Server, a paths) (nothing, error) {
		return done(s.opt.Supervisor.Copy(ctx, runner.CopyPath{Ref: a.From.Ref, Path: string(a.From.Path)},
			runner.CopyPath{Ref: a.To.Ref, Path: string(a.To.Path)}))
	})
	rebase = define("rebase", func(ctx context.Context, s *Server, a with[moving]) (nothing, error) {
		return done(s.opt.Supervisor.Rebase(ctx, a.Ref, a.Options.Generation, a.Options.Stop))
	})
)

// Started is a task that goes on without its caller.
type Started struct {
	Task      string `json:"task"`
	Feature   string `json:"feature"`
	FeatureID string `json:"feature_id"`

	State runner.State  `json:"state"` // of the task; queued: its feature is to be live when there is a place for it
	Live  bool          `json:"live"`
	Ports []runner.Port `json:"ports,omitempty"` // that are shown
}

// start begins a detached task. It is the supervisor's, whoever asked for it.
var start = define("start", func(_ context.Context, s *Server, a *wireRequest) (*Started, error) {
	r, err := a.request()
	if err != nil {
		return nil, err
	}
	r.Detach = true
	x := newSession(r, a.Input)
	if err := s.begin(); err != nil {
		return nil, err
	}
	r.Progress = func(at runner.Progress) { s.register(at.TaskID, x) } // from its first state on: somebody may attach at once
	running, err := s.opt.Supervisor.Start(s.life, *r)
	if err != nil {
		s.finish(x, nil, err)
		return nil, err
	}
	go func() {
		result, err := running.Wait(s.life)
		s.finish(x, result, err)
	}()
	return &Started{Task: running.Task(), Feature: running.Feature(), FeatureID: running.FeatureID(),
		State: running.State(), Live: running.Live() != nil, Ports: running.Ports()}, nil
})

// terminal says whether a task has a terminal that attach can type into: false for one without a session here.
var terminal = define("terminal", func(ctx context.Context, s *Server, a on) (bool, error) {
	_, id, err := s.newest(ctx, a.Ref)
	if err != nil {
		return false, err
	}
	x := s.session(id)
	return x != nil && x.tty, nil
})
