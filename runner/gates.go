package runner

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// judged is a change and where it can be looked at.
type judged struct {
	layers snapshot.Layers
	at     string // as OpenFile takes it
	change *snapshot.Change
}

// ask runs the profile's gates on a change.
func (x *session) ask(ctx context.Context, p *profiles.Effective, state *judged, allow []string) ([]gates.Verdict, error) {
	list, err := builtin.Configure(p.GateConfig(allow))
	if err != nil {
		return nil, refuse(CodeConfiguration, "correct the profile", "%v", err)
	}
	pipeline, err := gates.New(list, gates.Options{Cache: &x.s.verdicts})
	if err != nil {
		return nil, refuse(CodeConfiguration, "correct the profile", "%v", err)
	}
	root, err := os.OpenRoot(state.layers.Info().Workspace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	change := state.gated(root)
	change.Since = x.since(ctx, state, change.Entries)
	return pipeline.Run(ctx, change), nil
}

// gated is the change as gates see it.
func (j *judged) gated(workspace *os.Root) *gates.Change {
	c, info := j.change, j.layers.Info()
	out := &gates.Change{
		Entries: make([]gates.Entry, len(c.Entries)), Digest: c.Digest,
		Tree:    fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q %d %s", info.Workspace, info.Generation, c.Digest))),
		Open:    func(path string) (io.ReadCloser, error) { return j.layers.OpenFile(j.at, path) },
		OpenOld: func(path string) (io.ReadCloser, error) { return j.layers.OpenFile(snapshot.Base, path) },
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
	}
	for i, e := range c.Entries {
		out.Entries[i] = gates.Entry{
			Path: e.Path, Kind: gates.Kind(e.Kind), Type: gates.FileType(e.Type), OldType: gates.FileType(e.OldType),
			Mode: e.Mode, OldMode: e.OldMode, Size: e.Size, OldSize: e.OldSize, Link: e.Link, OldLink: e.OldLink,
			Binary: e.Binary, Xattrs: e.Xattrs,
		}
	}
	return out
}

// since answers for incremental gates what is new since the feature's newest checkpoint that they passed.
func (x *session) since(ctx context.Context, state *judged, entries []gates.Entry) func(gate, digest string) ([]gates.Entry, bool) {
	checkpoints := sync.OnceValues(func() ([]CheckpointRecord, error) { return x.s.opt.Journal.Checkpoints(ctx, x.feature.ID) })
	return func(gate, digest string) ([]gates.Entry, bool) {
		list, err := checkpoints()
		if err != nil {
			return nil, false // then everything is new
		}
		for _, c := range slices.Backward(list) {
			passed := slices.ContainsFunc(c.Verdicts, func(v gates.Verdict) bool {
				return v.Gate == gate && v.GateDigest == digest && v.Status == gates.Pass && len(v.Findings) == 0 && v.Dropped == 0
			})
			if !passed || c.Lost || c.Damaged != "" {
				continue
			}
			change, err := state.layers.Change(ctx, c.ID, state.at)
			if err != nil {
				return nil, false
			}
			moved := make(map[string]bool, len(change.Entries))
			for i := range change.Entries {
				moved[change.Entries[i].Path] = true
			}
			return slices.DeleteFunc(slices.Clone(entries), func(e gates.Entry) bool { return !moved[e.Path] }), true
		}
		return nil, false
	}
}
