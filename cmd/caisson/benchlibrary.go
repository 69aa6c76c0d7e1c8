package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// idleRounds is how often the memory of idle sandboxes is measured.
const idleRounds = 3

// boxes makes sandboxes straight from the engine: each has what `caisson run` would give it.
type boxes struct {
	dir, workspace string
	engine         isolation.Engine
	cgroups        *quota.Cgroups
	limits         quota.Limits
	spec           *isolation.Spec
}

// box is one sandbox and what was made for it.
type box struct {
	isolation.Sandbox
	spec  *isolation.Spec
	group *quota.Group
	step  *quota.Leaf
	files snapshot.Layers
	dir   string // of files
}

func (b *bencher) library(ctx context.Context) error {
	m, close, err := b.newBoxes(ctx)
	if err != nil {
		return err
	}
	defer close()
	for _, part := range []func(context.Context, *boxes) error{b.coldStart, b.liveExec, b.idleMemory, b.allAtOnce} {
		if err := part(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// newBoxes takes the spec of a feature in which `caisson run -- true` has run, and so made what all share.
func (b *bencher) newBoxes(ctx context.Context) (*boxes, func(), error) {
	a := *b.app
	a.stateDir, a.persistence = filepath.Join(b.dir, "library"), "disk"
	s, engine, err := a.openEngine(ctx, native.Options{})
	if err != nil {
		return nil, nil, err
	}
	close := func() {
		s.Close()
		engine.Close()
	}
	m := &boxes{dir: filepath.Join(b.dir, "boxes"), workspace: b.workspace(), engine: engine}
	if m.cgroups, err = quota.Probe(); err != nil {
		close()
		return nil, nil, err
	}
	profile, err := profiles.Load(profiles.LoadOptions{Name: "default"})
	if err != nil {
		close()
		return nil, nil, err
	}
	m.limits = profile.Limits
	r := runner.Request{
		Workspace: m.workspace, Profile: profile, Steps: []runner.Step{{Args: []string{"true"}}},
	}
	result, err := s.Run(ctx, r)
	if err == nil {
		m.spec, err = s.SpecOf(ctx, result.FeatureID)
	}
	if err != nil {
		close()
		return nil, nil, err
	}
	// What a bind showed of the feature's own disk is not there any more: the sandboxes of the bench have none.
	m.spec.OCI.Mounts = slices.DeleteFunc(m.spec.OCI.Mounts, func(mount specs.Mount) bool {
		_, err := os.Lstat(mount.Source)
		return filepath.IsAbs(mount.Source) && errors.Is(err, fs.ErrNotExist)
	})
	return m, close, nil
}

// prepare makes what a sandbox needs besides the engine: layers and cgroups.
func (m *boxes) prepare(id string) (*box, error) {
	uid, gid := m.spec.IDs.Host(m.spec.IDs.Inside, m.spec.IDs.Inside)
	dir := filepath.Join(m.dir, id)
	files, err := overlay.Create(snapshot.CreateOptions{
		Dir: dir, Workspace: m.workspace, Feature: id, Bases: filepath.Join(m.dir, "bases"), Owner: snapshot.Owner{UID: uid, GID: gid},
	})
	if err != nil {
		return nil, err
	}
	if err := files.Prepare(); err != nil {
		return nil, errors.Join(err, files.Close())
	}
	spec := *m.spec
	spec.ID, spec.Stacks = id, stacks(files)
	b := &box{files: files, dir: dir, spec: &spec}
	if b.group, err = m.cgroups.New(id, m.limits); err == nil {
		spec.Cgroup = b.group
		spec.Init, err = b.group.Leaf("init", nil)
	}
	if err == nil {
		b.step, err = b.group.Leaf("step-1", nil)
	}
	if err != nil {
		return nil, errors.Join(err, b.close(context.Background()))
	}
	return b, nil
}

func stacks(w snapshot.Layers) []isolation.Stack {
	var all []isolation.Stack
	for _, s := range w.Stacks() {
		stack := isolation.Stack{Target: s.Target, Upper: s.Upper, Work: s.Work}
		for _, l := range s.Lower {
			layer := isolation.Layer{Path: l.Path}
			if l.Base {
				layer.Map = isolation.MapOwner
			}
			stack.Lower = append(stack.Lower, layer)
		}
		all = append(all, stack)
	}
	return all
}

func (m *boxes) start(ctx context.Context, b *box) (err error) {
	b.Sandbox, err = m.engine.Start(ctx, b.spec)
	return err
}

// run runs true in a sandbox and returns when it was running and when its end was seen.
func (b *box) run(ctx context.Context) (running, ended time.Time, err error) {
	p := b.spec.OCI.Process
	x, err := b.Exec(ctx, &isolation.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd, UID: p.User.UID, GID: p.User.GID, Cgroup: b.step, Rlimits: p.Rlimits,
	})
	running = time.Now()
	if err != nil {
		return running, running, err
	}
	status, err := x.Wait(ctx)
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("true exited with %d", status.Code)
	}
	return running, time.Now(), err
}

// close ends a sandbox and removes its cgroups.
func (b *box) close(ctx context.Context) error {
	var err error
	if b.Sandbox != nil {
		err = b.Sandbox.Close(ctx)
	}
	if b.group != nil {
		err = errors.Join(err, b.group.Remove(ctx))
	}
	return err
}

// discard removes a sandbox's layers.
func (b *box) discard(ctx context.Context) error {
	return errors.Join(b.files.Close(), snapshot.Remove(ctx, b.dir))
}

func (b *bencher) coldStart(ctx context.Context, m *boxes) error {
	values, err := b.repeat("library: start", func(i int) ([]float64, error) {
		t0 := time.Now()
		x, err := m.prepare("cold" + strconv.Itoa(i+warmups(b.o.n)))
		if err != nil {
			return nil, err
		}
		t1 := time.Now()
		err = m.start(ctx, x)
		var t2, t3 time.Time
		if err == nil {
			t2, t3, err = x.run(ctx)
		}
		err = errors.Join(err, x.close(ctx))
		t4 := time.Now()
		since := func(t time.Time) float64 { return milliseconds(t.Sub(t1)) }
		return []float64{milliseconds(t1.Sub(t0)), since(t2), since(t3), since(t4)}, errors.Join(err, x.discard(ctx))
	})
	if err != nil {
		return err
	}
	for i, f := range []figure{
		{Name: "prepare", What: "library: layers and cgroups, before the start"},
		{Name: "start_running", What: "library: start until the command runs"},
		{Name: "start_exit", What: "library: start until its exit is seen"},
		{Name: "start_closed", What: "library: start until closed and clean"},
	} {
		f.Group, f.Unit = "library", "ms"
		b.add(f, values[i])
	}
	return nil
}

func (b *bencher) liveExec(ctx context.Context, m *boxes) error {
	x, err := m.prepare("live")
	if err != nil {
		return err
	}
	if err := m.start(ctx, x); err != nil {
		return errors.Join(err, x.close(ctx))
	}
	values, err := b.repeat("library: exec", func(int) ([]float64, error) {
		start := time.Now()
		running, ended, err := x.run(ctx)
		return []float64{milliseconds(running.Sub(start)), milliseconds(ended.Sub(start))}, err
	})
	if err = errors.Join(err, x.close(ctx), x.discard(ctx)); err != nil {
		return err
	}
	b.add(figure{Group: "library", Name: "exec_running", What: "library: exec in a live sandbox until it runs", Unit: "ms"}, values[0])
	b.add(figure{Group: "library", Name: "exec_exit", What: "library: exec in a live sandbox until its exit is seen", Unit: "ms"}, values[1])
	return nil
}

// idleMemory is what the host has less of, divided by the number of sandboxes: the kernel's share, PID 1's
// and our own. Layers and cgroups are made before, because their caches are not the sandbox's.
func (b *bencher) idleMemory(ctx context.Context, m *boxes) error {
	if b.o.atOnce == 0 {
		return nil
	}
	b.line.set("library: memory")
	var values []float64
	for round := range idleRounds {
		all := make([]*box, b.o.atOnce)
		for i := range all {
			x, err := m.prepare(fmt.Sprintf("idle%d-%d", round, i))
			if err != nil {
				return err
			}
			all[i] = x
		}
		before, err := available()
		if err != nil {
			return err
		}
		for _, x := range all {
			if err == nil {
				err = m.start(ctx, x)
			}
		}
		after, err2 := available()
		err = errors.Join(err, err2)
		for _, x := range all {
			err = errors.Join(err, x.close(ctx), x.discard(ctx))
		}
		if err != nil {
			return err
		}
		values = append(values, float64(before-after)/float64(b.o.atOnce))
	}
	b.add(figure{
		Group: "library", Name: "idle_memory", Unit: "KB",
		What: fmt.Sprintf("library: memory of an idle sandbox (of %d; host, supervisor's share included)", b.o.atOnce),
	}, values)
	return nil
}

// available is the host's MemAvailable in KB.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:")); ok {
			return strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

func (b *bencher) allAtOnce(ctx context.Context, m *boxes) error {
	if b.o.atOnce == 0 {
		return nil
	}
	what := fmt.Sprintf("library: %d sandboxes at once, each running true, all made and closed", b.o.atOnce)
	return b.atOnce("library", what, func(i int) error {
		x, err := m.prepare("once" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		if err = m.start(ctx, x); err == nil {
			_, _, err = x.run(ctx)
		}
		return errors.Join(err, x.close(ctx), x.discard(ctx))
	})
}
