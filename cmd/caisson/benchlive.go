package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// dockerCommit is what docker needs to keep the same state: a container of an image with the tree, with the changed files
// in its own layer.
func (b *bencher) dockerCommit(ctx context.Context, tree string) error {
	docker, err := exec.LookPath("docker")
	if err != nil {
		b.skip("docker commit: not installed")
		return nil
	}
	setUp, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	if exec.CommandContext(setUp, docker, "version", "--format", "{{.Server.Version}}").Run() != nil {
		b.skip("docker commit: no daemon answers")
		return nil
	}
	const image, container = "caisson-bench:tree", "caisson-bench-tree"
	changed := filepath.Join(b.dir, "docker-changed")
	if err := makeTree(changed, changedLarge); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTime)
		defer cancel()
		_ = command(ctx, b.dir, docker, "rm", "--force", container)
		_ = command(ctx, b.dir, docker, "rmi", "--force", image, image+"-commit")
	}()
	if err := command(ctx, tree, "sh", "-c", `tar -cf - --exclude .git . | "$0" import - "$1"`, docker, image); err != nil {
		return err
	}
	if err := command(ctx, b.dir, docker, "create", "--name", container, image, "/none"); err != nil {
		return err
	}
	return b.other("docker_commit", fmt.Sprintf("`docker commit`; %d changed of %d files", changedLarge, treeLarge),
		func(int) error { return command(ctx, b.dir, docker, "cp", changed+"/.", container+":/") },
		func(int) error { return command(ctx, b.dir, docker, "commit", container, image+"-commit") })
}

// liveTrees are the sizes of the workspaces in which `checkpoint create` is measured as a whole process.
var liveTrees = []int{0, 50_000}

// writer holds the workspace and changes it all the time.
const writer = `i=0; while :; do i=$((i+1)); echo $i > counter; sleep 0.02; done`

// liveCheckpoints measures the command `checkpoint create` while a process works in the feature.
func (b *bencher) liveCheckpoints(ctx context.Context) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	state := "CAISSON_STATE=" + filepath.Join(b.dir, "live-state")
	caisson := func(i int, args ...string) error {
		return b.run(ctx, tool{args: func(int) []string { return append([]string{self}, args...) }, env: []string{state}}, i)
	}
	defer func() { err = errors.Join(err, caisson(0, "stop", "--all", "--time", "0s")) }()
	for _, files := range liveTrees {
		name := fmt.Sprintf("live-%d", files)
		workspace := filepath.Join(b.dir, name)
		if err := os.Mkdir(workspace, 0o755); err != nil {
			return err
		}
		if err := makeTree(workspace, files); err != nil {
			return err
		}
		if err := caisson(0, "run", "-d", "--feature", name, "--workspace", workspace, "--", "sh", "-c", writer); err != nil {
			return err
		}
		values, err := b.repeat("checkpoint create", func(i int) ([]float64, error) {
			start := time.Now()
			err := caisson(i, "checkpoint", "create", name)
			return []float64{milliseconds(time.Since(start))}, err
		})
		if err != nil {
			return err
		}
		b.add(figure{
			Group: "checkpoints", Name: name, Unit: "ms",
			What: fmt.Sprintf("`caisson checkpoint create`, whole process, live with a writer; a tree of %d files", files),
		}, values[0])
	}
	return nil
}

// changedFiles is how many files the figures of changes are about.
const changedFiles = 10_000

// changes measures reading, printing and promoting a change of many files, against copying those files.
func (b *bencher) changes(ctx context.Context) (err error) {
	workspace := filepath.Join(b.dir, "changes")
	if err := makeTree(workspace, changedFiles); err != nil {
		return err
	}
	var values [4][]float64
	for i := range otherRounds {
		b.line.set("changes")
		round, err := b.changesOnce(ctx, workspace, filepath.Join(b.dir, "changes-layers", fmt.Sprint(i)), i)
		if err != nil {
			return err
		}
		for j := range values {
			values[j] = append(values[j], round[j])
		}
	}
	for j, f := range []figure{
		{Name: "diff_stat", What: "library: diff --stat"}, {Name: "diff_text", What: "library: diff, full text"},
		{Name: "promote", What: "library: promote"}, {Name: "cp_sync", What: "`cp -a` and `sync -f`"},
	} {
		f.Group, f.Unit, f.What = "changes", "ms", fmt.Sprintf("%s of %d changed files", f.What, changedFiles)
		b.add(f, values[j])
	}
	return nil
}

func (b *bencher) changesOnce(ctx context.Context, workspace, dir string, round int) (took [4]float64, err error) {
	l, err := overlay.Create(snapshot.CreateOptions{Dir: dir, Workspace: workspace, Feature: fmt.Sprintf("c%d", round)})
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	upper := l.Stacks()[0].Upper
	for i := range changedFiles {
		path := treeFile(upper, i)
		if i%perDirectory == 0 {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return took, err
			}
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "file %d changed in round %d\n", i, round), 0o644); err != nil {
			return took, err
		}
	}
	copied := filepath.Join(dir, "copied")
	var change *snapshot.Change
	for j, measured := range []func() error{
		func() (err error) {
			if change, err = l.Change(ctx, snapshot.Base, snapshot.Current); err == nil {
				err = l.WriteDiff(ctx, change, &bytes.Buffer{}, snapshot.DiffOptions{Stat: true})
			}
			return err
		},
		func() (err error) {
			if change, err = l.Change(ctx, snapshot.Base, snapshot.Current); err == nil {
				err = l.WriteDiff(ctx, change, &bytes.Buffer{}, snapshot.DiffOptions{Context: 3})
			}
			return err
		},
		func() error {
			_, err := l.Promote(ctx, change, snapshot.PromoteOptions{Kind: snapshot.PromoteApply})
			return err
		},
		func() error {
			if err := command(ctx, dir, "cp", "-a", workspace, copied); err != nil {
				return err
			}
			return command(ctx, dir, "sync", "-f", copied)
		},
	} {
		start := time.Now()
		if err := measured(); err != nil {
			return took, err
		}
		took[j] = milliseconds(time.Since(start))
	}
	return took, nil
}
