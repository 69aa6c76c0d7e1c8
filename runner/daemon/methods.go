package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/socket"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// The methods of *runner.Supervisor; see there.

func (c *Client) Features(ctx context.Context, all bool) ([]runner.FeatureInfo, error) {
	return features.ask(ctx, c, with[bool]{Options: all})
}

func (c *Client) Feature(ctx context.Context, ref string) (*runner.FeatureInfo, error) {
	return feature.ask(ctx, c, on{ref})
}

func (c *Client) Task(ctx context.Context, id string) (*runner.TaskInfo, error) {
	return task.ask(ctx, c, on{id})
}

func (c *Client) Wait(ctx context.Context, ref string) (*runner.Result, error) {
	return wait.ask(ctx, c, on{ref})
}

func (c *Client) Stats(ctx context.Context, refs []string) ([]runner.Stats, error) {
	return stats.ask(ctx, c, all[nothing]{Refs: refs})
}

func (c *Client) Change(ctx context.Context, ref string) (*snapshot.Change, error) {
	return change.ask(ctx, c, on{ref})
}

func (c *Client) ChangeBetween(ctx context.Context, a, b string) (*snapshot.Change, error) {
	return changeBetween.ask(ctx, c, between[nothing]{A: a, B: b})
}

func (c *Client) Holders(ctx context.Context, featureID string) ([]isolation.Holder, error) {
	return holders.ask(ctx, c, on{featureID})
}

func (c *Client) Checkpoint(ctx context.Context, ref string, o runner.CheckpointOptions) (*runner.Checkpoint, error) {
	return checkpoint.ask(ctx, c, with[runner.CheckpointOptions]{ref, o})
}

func (c *Client) Checkpoints(ctx context.Context, ref string) ([]runner.Checkpoint, error) {
	return checkpoints.ask(ctx, c, on{ref})
}

func (c *Client) CheckpointOf(ctx context.Context, ref string) (*runner.Checkpoint, error) {
	return checkpointOf.ask(ctx, c, on{ref})
}

func (c *Client) Label(ctx context.Context, ref, text string) error {
	_, err := label.ask(ctx, c, with[string]{ref, text})
	return err
}

func (c *Client) DropCheckpoints(ctx context.Context, refs ...string) error {
	_, err := drop.ask(ctx, c, all[nothing]{Refs: refs})
	return err
}

func (c *Client) Rollback(ctx context.Context, ref string, o runner.RollbackOptions) (*runner.RollbackResult, error) {
	return rollback.ask(ctx, c, with[runner.RollbackOptions]{ref, o})
}

func (c *Client) Fork(ctx context.Context, ref, name string) (*runner.FeatureInfo, error) {
	return fork.ask(ctx, c, with[string]{ref, name})
}

func (c *Client) Promote(ctx context.Context, ref string, o runner.PromoteOptions) (r *runner.PromoteResult, err error) {
	if o.PatchFile, err = absolute(o.PatchFile); err != nil {
		return nil, err
	}
	return promote.ask(ctx, c, with[runner.PromoteOptions]{ref, o})
}

func (c *Client) Approve(ctx context.Context, ref string, o runner.ApproveOptions) (*runner.ApproveResult, error) {
	return approve.ask(ctx, c, with[runner.ApproveOptions]{ref, o})
}

func (c *Client) Discard(ctx context.Context, ref string) error {
	_, err := discard.ask(ctx, c, on{ref})
	return err
}

func (c *Client) Remove(ctx context.Context, refs []string, force bool) error {
	_, err := remove.ask(ctx, c, all[bool]{refs, force})
	return err
}

func (c *Client) GC(ctx context.Context, dryRun bool) (*runner.GCReport, error) {
	return gc.ask(ctx, c, with[bool]{Options: dryRun})
}

func (c *Client) Stop(ctx context.Context, refs []string, o runner.StopOptions) error {
	_, err := stop.ask(ctx, c, all[runner.StopOptions]{refs, o})
	return err
}

func (c *Client) Kill(ctx context.Context, ref string, sig syscall.Signal) error {
	_, err := kill.ask(ctx, c, with[syscall.Signal]{ref, sig})
	return err
}

func (c *Client) Pause(ctx context.Context, ref string) error {
	_, err := pause.ask(ctx, c, on{ref})
	return err
}

func (c *Client) Unpause(ctx context.Context, ref string) error {
	_, err := unpause.ask(ctx, c, on{ref})
	return err
}

func (c *Client) Rebase(ctx context.Context, featureID string, generation int, stopAll bool) error {
	_, err := rebase.ask(ctx, c, with[moving]{featureID, moving{generation, stopAll}})
	return err
}

// Copy takes paths of the host as the caller sees them.
func (c *Client) Copy(ctx context.Context, from, to runner.CopyPath) error {
	var p paths
	for _, x := range []struct {
		from runner.CopyPath
		to   *place
	}{{from, &p.From}, {to, &p.To}} {
		path := x.from.Path
		if x.from.Ref == "" {
			abs, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			if strings.HasSuffix(path, "/") && abs != "/" {
				abs += "/" // the last slash has a meaning, as it has for cp
			}
			path = abs
		}
		*x.to = place{x.from.Ref, text(path)}
	}
	_, err := copying.ask(ctx, c, p)
	return err
}

// Start begins a task that goes on without the caller; Request.Stdin only says whether it reads what attached clients
// type.
func (c *Client) Start(ctx context.Context, r runner.Request) (*Started, error) {
	w, err := toWire(&r)
	if err != nil {
		return nil, err
	}
	return start.ask(ctx, c, w)
}

// HasTerminal reports whether the task ref, or the newest of the feature ref, has a terminal that Attach types into.
func (c *Client) HasTerminal(ctx context.Context, ref string) (bool, error) {
	return terminal.ask(ctx, c, on{ref})
}

func (c *Client) Diff(ctx context.Context, ref string, w io.Writer, o snapshot.DiffOptions) error {
	_, err := diff.run(ctx, c, with[snapshot.DiffOptions]{ref, o}, &end{out: w})
	return err
}

func (c *Client) DiffBetween(ctx context.Context, a, b string, w io.Writer, o snapshot.DiffOptions) error {
	_, err := diffBetween.run(ctx, c, between[snapshot.DiffOptions]{a, b, o}, &end{out: w})
	return err
}

func (c *Client) Logs(ctx context.Context, ref string, o runner.LogOptions, stdout, stderr io.Writer) error {
	_, err := logs.run(ctx, c, with[runner.LogOptions]{ref, o}, &end{out: stdout, err: stderr})
	return err
}

func (c *Client) Events(ctx context.Context, o runner.EventOptions, do func(runner.Event) error) error {
	_, err := events.run(ctx, c, o, &end{json: func(text []byte) error {
		var e runner.Event
		if err := json.Unmarshal(text, &e); err != nil {
			return gone(err)
		}
		return do(e)
	}})
	return err
}

func (c *Client) Export(ctx context.Context, ref string, w io.Writer, o snapshot.ExportOptions) (string, error) {
	return export.run(ctx, c, with[snapshot.ExportOptions]{ref, o}, &end{out: w})
}

func (c *Client) Import(ctx context.Context, ref string, r io.Reader, o runner.ImportOptions) (*runner.Checkpoint, error) {
	return importing.run(ctx, c, with[runner.ImportOptions]{ref, o}, &end{in: r})
}

type peers string

// with asks who holds a feature. A feature lives only while it is served: one whose lock somebody has for a command of his
// own, such as a promote or a diff, has nothing to say.
func (p peers) with(ctx context.Context, id string, do func(context.Context, *Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := socket.Dial(featureLink(string(p), id))
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err == nil {
		err = conn.Close()
	}
	if err != nil {
		return err
	}
	c, err := DialFeature(ctx, string(p), id)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

func (p peers) Rebase(ctx context.Context, id string, generation int, stopAll bool) error {
	return p.with(ctx, id, func(ctx context.Context, c *Client) error { return c.Rebase(ctx, id, generation, stopAll) })
}

func (p peers) Holders(ctx context.Context, id string) (list []isolation.Holder, err error) {
	err = p.with(ctx, id, func(ctx context.Context, c *Client) error { list, err = c.Holders(ctx, id); return err })
	return list, err
}
