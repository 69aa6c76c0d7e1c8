package runner

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/artifacts"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// judged is a change and where it can be looked at.
type judged struct {
	layers snapshot.Layers
	at     string // as OpenFile takes it
	change *snapshot.Change
	part   bool // it is not the whole change of at, or conflicts in it are resolved

	steps []StepResult     // that led to it; nil: none has just ended
	led   []gates.Evidence // of their ends
}

// toHand is what a kind of promotion hands over of a whole change.
func toHand(layers snapshot.Layers, at string, c *snapshot.Change, kind string) *judged {
	h := handed(c, kind)
	return &judged{layers: layers, at: at, change: h, part: len(h.Entries) != len(c.Entries)}
}

// ask runs the profile's gates on a change.
func (x *session) ask(ctx context.Context, p *profiles.Effective, state *judged, allow []string) ([]gates.Verdict, error) {
	list, err := builtin.Configure(p.GateConfig(allow))
	if err != nil {
		return nil, refuse(CodeConfiguration, "correct the profile", "%v", err)
	}
	pipeline, err := gates.New(list, gates.Options{Cache: x.s.opt.Journal, Approved: x.approved(ctx), Artifacts: artifacts.Of(x.dir).Size})
	if err != nil {
		return nil, refuse(CodeConfiguration, "correct the profile", "%v", err)
	}
	root, err := os.OpenRoot(state.layers.Info().Workspace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	change := state.gated(root)
	if state.at == snapshot.Current && x.sandbox() != nil { // who runs in it can make another tree of it while gates look
		change.Tree = ""
	}
	change.Since = x.since(ctx, state, change.Entries)
	return pipeline.Run(ctx, change), nil
}

// gated is the change as gates see it.
func (j *judged) gated(workspace *os.Root) *gates.Change {
	c, info := j.change, j.layers.Info()
	tree := sha256.New()
	fmt.Fprintf(tree, "%q %d %s", info.Workspace, info.Generation, c.Digest)
	out := &gates.Change{
		Entries: make([]gates.Entry, len(c.Entries)), Digest: c.Digest,
		Open: func(path string) (io.ReadCloser, error) { return j.layers.OpenFile(j.at, path) },
		OpenOld: func(path string) (io.ReadCloser, error) {
			if c.Resolved != nil { // its old side is what the workspace has now
				return openRegular(workspace, path)
			}
			return j.layers.OpenFile(snapshot.Base, path)
		},
		Lookup: func(path string) (gates.FileType, bool) {
			info, err := workspace.Lstat(path)
			if err != nil {
				return "", false
			}
			return gates.TypeOf(info.Mode()), true
		},
		Readlink: func(path string) (string, bool) {
			target, err := workspace.Readlink(path)
			return target, err == nil
		},
		Identify: func(path string) string { return hostfile.Identity(workspace, path) },
	}
	known := true
	for i, e := range c.Entries {
		out.Entries[i] = gates.Entry{
			Path: e.Path, Kind: gates.Kind(e.Kind), Type: gates.FileType(e.Type), OldType: gates.FileType(e.OldType),
			Mode: e.Mode, OldMode: e.OldMode, Size: e.Size, OldSize: e.OldSize, Link: e.Link, OldLink: e.OldLink,
			Binary: e.Binary, Xattrs: e.Xattrs,
		}
		if old, ok := c.Entries[i].Old(); ok { // which the digest does not hold
			fmt.Fprintf(tree, " %q %+v", e.OldLink, old)
			known = known && hostfile.Settled(time.Unix(old.Ctime[0], old.Ctime[1]))
		}
	}
	if known {
		out.Tree = fmt.Sprintf("%x", tree.Sum(nil))
	}
	return out
}

// since answers for incremental gates what is new since the feature's newest checkpoint that they passed. They passed the
// change as it was then, over the workspace as it was: when the checkpoint is another change by now, everything is new.
func (x *session) since(ctx context.Context, state *judged, entries []gates.Entry) func(gate, digest string) ([]gates.Entry, bool) {
	checkpoints := sync.OnceValues(func() ([]CheckpointRecord, error) { return x.s.opt.Journal.Checkpoints(ctx, x.feature.ID) })
	var mu sync.Mutex // gates ask at once, and mostly about the same checkpoint
	known := map[string]*progress{}
	from := func(id string) *progress {
		mu.Lock()
		defer mu.Unlock()
		if known[id] == nil {
			known[id] = state.progress(ctx, id)
		}
		return known[id]
	}
	return func(gate, digest string) ([]gates.Entry, bool) {
		list, err := checkpoints()
		if err != nil {
			return nil, false // then everything is new
		}
		for _, c := range slices.Backward(list) {
			passed := slices.IndexFunc(c.Verdicts, func(v gates.Verdict) bool {
				return v.Gate == gate && v.GateDigest == digest && v.Status == gates.Pass && len(v.Findings) == 0 && v.Dropped == 0
			})
			if passed < 0 || c.Lost || c.Damaged != "" {
				continue
			}
			p := from(c.ID)
			if p == nil || p.digest != c.Verdicts[passed].ChangeDigest {
				return nil, false
			}
			return slices.DeleteFunc(slices.Clone(entries), p.same), true
		}
		return nil, false
	}
}

// progress is the way from a checkpoint to the state that is judged.
type progress struct {
	digest string // of the checkpoint's change against the workspace as it is now
	moved  map[string]bool
}

// progress compares the state with a checkpoint; nil when that cannot be.
func (j *judged) progress(ctx context.Context, id string) *progress {
	then, err := j.layers.Change(ctx, snapshot.Base, id)
	if err != nil {
		return nil
	}
	change, err := j.layers.Change(ctx, id, j.at)
	if err != nil {
		return nil
	}
	p := &progress{then.Digest, make(map[string]bool, len(change.Entries))}
	for i := range change.Entries {
		p.moved[change.Entries[i].Path] = true
	}
	return p
}

// same says that an entry is the one that was judged at the checkpoint. Of one that replaces something this is not known:
// gates compare the two, and the digest does not hold what was there before.
func (p *progress) same(e gates.Entry) bool { return !p.moved[e.Path] && e.OldType == "" }
