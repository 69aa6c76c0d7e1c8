package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// The trees of the figures: files in the workspace, and how many of them a checkpoint has changed.
const (
	treeSmall, changedSmall = 10, 1
	treeLarge, changedLarge = 100_000, 1000
	perDirectory            = 100
)

// checkpoints measures sealing, going back and forking as a library, and what others need for the same on the same tree.
// It takes minutes, and is measured only when asked for.
func (b *bencher) checkpoints(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("checkpoints: needs root")
	}
	for _, t := range []struct {
		name           string
		files, changed int
	}{{"small", treeSmall, changedSmall}, {"large", treeLarge, changedLarge}} {
		if err := b.idleSeals(ctx, t.name, t.files, t.changed); err != nil {
			return err
		}
	}
	tree := filepath.Join(b.dir, "large")
	for _, other := range []func(context.Context, string) error{b.copies, b.reflinks, b.gitStash, b.dockerCommit} {
		if err := other(ctx, tree); err != nil {
			return err
		}
	}
	return b.liveCheckpoints(ctx)
}

// makeTree makes a directory of small files, perDirectory in each.
func makeTree(root string, files int) error {
	for i := range files {
		path := treeFile(root, i)
		if i%perDirectory == 0 {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "file %d\n", i), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func treeFile(root string, i int) string {
	return filepath.Join(root, fmt.Sprintf("d%04d", i/perDirectory), fmt.Sprintf("f%06d", i))
}

// idleSeals measures Seal, Reset and Fork of a feature that nobody holds. What a sandbox would have changed is written to
// its upper directory.
func (b *bencher) idleSeals(ctx context.Context, name string, files, changed int) (err error) {
	b.line.set(fmt.Sprintf("checkpoints: a tree of %d files", files))
	workspace := filepath.Join(b.dir, name)
	if err := makeTree(workspace, files); err != nil {
		return err
	}
	o := snapshot.CreateOptions{Dir: filepath.Join(b.dir, name+"-layers"), Workspace: workspace, Feature: name}
	l, err := overlay.Create(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	what := fmt.Sprintf("%d files, %d changed", files, changed)
	seals, err := b.repeat("seal, "+what, func(i int) ([]float64, error) {
		if err := makeTree(l.Stacks()[0].Upper, changed); err != nil {
			return nil, err
		}
		start := time.Now()
		_, err := l.Seal(ctx, snapshot.SealOptions{ID: checkpointID("s", i)})
		return []float64{milliseconds(time.Since(start))}, err
	})
	if err != nil {
		return err
	}
	b.add(figure{Group: "checkpoints", Name: "seal_" + name, What: "library: seal, idle; " + what, Unit: "ms"}, seals[0])
	backs, err := b.repeat("rollback and fork, "+what, func(i int) ([]float64, error) {
		t0 := time.Now()
		_, err := l.Reset(ctx, snapshot.ResetOptions{To: checkpointID("s", max(i, 0)/2)})
		t1 := time.Now()
		if err != nil {
			return nil, err
		}
		f := o
		f.Dir, f.Feature = filepath.Join(b.dir, name+"-fork", strconv.Itoa(i)), checkpointID(name, i)
		fork, err := overlay.Fork(ctx, snapshot.OpenOptions{Dir: o.Dir, Feature: o.Feature, ReadOnly: true}, checkpointID("s", max(i, 0)), f)
		t2 := time.Now()
		if err == nil {
			err = fork.Close()
		}
		return []float64{milliseconds(t1.Sub(t0)), milliseconds(t2.Sub(t1))}, err
	})
	if err != nil {
		return err
	}
	b.add(figure{Group: "checkpoints", Name: "rollback_" + name, What: "library: rollback, idle; " + what, Unit: "ms"}, backs[0])
	b.add(figure{Group: "checkpoints", Name: "fork_" + name, What: "library: fork; " + what, Unit: "ms"}, backs[1])
	return nil
}

func checkpointID(prefix string, i int) string { return fmt.Sprintf("%s%06d", prefix, i+1000) }

// otherRounds is how often what others do is measured: it takes seconds.
const otherRounds = 3

// other measures commands of other tools as one figure. set up is what is not measured of each round.
func (b *bencher) other(name, what string, setUp func(i int) error, measured func(i int) error) error {
	b.line.set(what)
	var values []float64
	for i := range otherRounds {
		if err := setUp(i); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		start := time.Now()
		if err := measured(i); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		values = append(values, milliseconds(time.Since(start)))
	}
	b.add(figure{Group: "checkpoints", Name: name, What: what, Unit: "ms"}, values)
	return nil
}

// command runs a program in dir to its end.
func command(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

func (b *bencher) skip(format string, args ...any) {
	b.report.Skipped = append(b.report.Skipped, fmt.Sprintf(format, args...))
}

// copies is the tree as cp -a copies it: what a checkpoint costs without layers.
func (b *bencher) copies(ctx context.Context, tree string) error {
	to := filepath.Join(b.dir, "copy")
	return b.other("cp", fmt.Sprintf("`cp -a` of the tree of %d files", treeLarge),
		func(int) error { return os.RemoveAll(to) },
		func(int) error { return command(ctx, b.dir, "cp", "-a", tree, to) })
}

// reflinks is the same on a file system that shares blocks: xfs in an image, because the state directory's mostly cannot.
func (b *bencher) reflinks(ctx context.Context, tree string) (err error) {
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		b.skip("reflink copy: no mkfs.xfs")
		return nil
	}
	image, at := filepath.Join(b.dir, "xfs.img"), filepath.Join(b.dir, "xfs")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"truncate", "-s", "4G", image}, {"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, at},
	} {
		if err := command(ctx, b.dir, args...); err != nil {
			b.skip("reflink copy: %v", err)
			return nil
		}
	}
	defer func() { err = errors.Join(err, command(context.WithoutCancel(ctx), b.dir, "umount", at)) }()
	if err := command(ctx, b.dir, "cp", "-a", tree, at); err != nil {
		return err
	}
	to := filepath.Join(at, "copy")
	return b.other("reflink", fmt.Sprintf("`cp -a --reflink=always` of the tree of %d files, xfs in an image", treeLarge),
		func(int) error { return os.RemoveAll(to) },
		func(int) error {
			return command(ctx, b.dir, "cp", "-a", "--reflink=always", filepath.Join(at, filepath.Base(tree)), to)
		})
}

// gitStash is what git needs to put the changed files away, and to take them back.
func (b *bencher) gitStash(ctx context.Context, tree string) error {
	if _, err := exec.LookPath("git"); err != nil {
		b.skip("git stash: not installed")
		return nil
	}
	git := func(args ...string) error {
		return command(ctx, tree, append([]string{"git", "-c", "user.name=bench", "-c", "user.email=bench", "-c", "gc.auto=0"}, args...)...)
	}
	defer os.RemoveAll(filepath.Join(tree, ".git"))
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "bench"}} {
		if err := git(args...); err != nil {
			return err
		}
	}
	change := func(i int) error {
		for n := range changedLarge {
			if err := os.WriteFile(treeFile(tree, n), fmt.Appendf(nil, "changed %d %d\n", i, n), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	what := fmt.Sprintf("%d changed of %d files", changedLarge, treeLarge)
	if err := b.other("git_stash", "`git stash push`; "+what, change, func(int) error { return git("stash", "push", "--quiet") }); err != nil {
		return err
	}
	return b.other("git_stash_pop", "`git stash pop`; "+what,
		func(int) error { return git("checkout", "--quiet", "--", ".") }, func(int) error { return git("stash", "pop", "--quiet") })
}
