package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// A feature that lives keeps what its profile says, while it lives; the rest can be had from archives.
func TestRetentionOfALiveFeature(t *testing.T) {
	notEmulated(t)
	b := newNative(t, runner.Options{})
	p := *b.profile
	p.Retention = b.profile.Retention
	p.Retention.Count, p.Retention.Export = 5, "zstd"
	b.profile = &p
	detach(t, b, "f")
	var marked string
	for i := range 40 {
		if _, err := b.Exec(t.Context(), "f", steps(b, "", fmt.Sprintf("echo %d > x; echo %d > y%d", i, i, i))); err != nil {
			t.Fatal(err)
		}
		c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			marked = c.ID
			if err := b.Label(t.Context(), "f@"+c.ID, "mark"); err != nil {
				t.Fatal(err)
			}
		}
	}
	c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{Label: "last", Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for left := 40; left > 7; time.Sleep(10 * time.Millisecond) { // five, the labelled one and the last good one
		list, err := b.Checkpoints(t.Context(), "f")
		left = len(slices.DeleteFunc(list, func(c runner.Checkpoint) bool { return c.AliasOf != "" }))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d are left: %v", left, err)
		}
	}
	if got := shown(t, b, "f@"+marked, "x") + " " + shown(t, b, "f@"+c.ID, "x"); got != "3 39" {
		t.Fatal(got)
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "mark"}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "y3") + shown(t, b, "f", "y4"); got != "3" {
		t.Fatal(got)
	}
	b.importOldest(t)
}

// importOldest takes the oldest archive of the only feature back.
func (b *bench) importOldest(t *testing.T) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(b.state, "features", "*", "exports", "*.tar.zst"))
	if err != nil || len(archives) < 2 {
		t.Fatal(archives, err)
	}
	slices.Sort(archives)
	file, err := os.Open(archives[1])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	back, err := b.Import(t.Context(), "f", file, runner.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f@"+back.ID, "y0"); got != "0" {
		t.Fatalf("%q of %s", got, archives[1])
	}
}

// What is put aside takes no more of the host than the feature itself may.
func TestArchivesAreBounded(t *testing.T) {
	notEmulated(t)
	b := newNative(t, runner.Options{})
	p := *b.profile
	most := 20 * quota.MiB
	p.Limits.Disk = &most
	p.Retention.Count, p.Retention.Export = 1, "zstd"
	b.profile = &p
	for range 12 {
		run(t, b, steps(b, "f", "head -c 2500000 /dev/urandom > x"))
		if r, err := b.GC(t.Context(), false); err != nil || len(r.Problems) > 0 {
			t.Fatalf("%+v %v", r, err)
		}
	}
	archives, err := filepath.Glob(filepath.Join(b.state, "features", "*", "exports", "*"))
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	var size int64
	for _, name := range archives {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > int64(most) {
		t.Fatalf("%d bytes in %d archives", size, len(archives))
	}
}

// The state that a task would go on at stays, however many automatic checkpoints come after it.
func TestRetentionKeepsWhatResumes(t *testing.T) {
	b := newNative(t, runner.Options{})
	p := *b.profile
	p.Retention.Count = 1
	b.profile = &p
	res, _, _ := run(t, b, steps(b, "f", "echo one > x", "echo two > y", "rm x; exit 3"))
	for range 3 {
		if _, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := b.GC(t.Context(), false); err != nil || len(r.Problems) > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	again, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	if err != nil || again.ExitCode != 3 {
		t.Fatalf("%+v %v", again, err)
	}
}

// A feature that is used in many short runs does not become deeper and deeper.
func TestManyShortRuns(t *testing.T) {
	notEmulated(t)
	b := newNative(t, runner.Options{})
	var res *runner.Result
	for i := range 60 {
		res, _, _ = run(t, b, steps(b, "f", fmt.Sprintf("echo %d > x; echo %d > y%d", i, i, i)))
	}
	u, err := b.disk.Open(t.Context(), res.FeatureID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	l, err := overlay.Open(snapshot.OpenOptions{Dir: u.Dir(), Bases: filepath.Join(b.state, "bases"), ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if depth := l.Info().Depth; depth > 45 {
		t.Errorf("60 runs made %d layers", depth)
	}
	if got := shown(t, b, "f", "y7") + " " + shown(t, b, "f", "x"); got != "7 59" {
		t.Error(got)
	}
}

// Ten features with a hundred checkpoints each leave no mount and no descriptor, and a small store.
func TestNoGrowth(t *testing.T) {
	b := newNative(t, runner.Options{})
	features, checkpoints := 10, 100
	if testing.Short() || driver == snapshot.DriverCopy { // the journal is the same
		features, checkpoints = 3, 30
	}
	detach(t, b, "warm")
	fds, mounts := descriptors(t), mountLines(t)
	for n := range features {
		name := fmt.Sprintf("f%d", n)
		r := steps(b, name)
		for i := range checkpoints {
			r.Steps = append(r.Steps, runner.Step{Args: []string{"sh", "-c", fmt.Sprintf("echo %d > x%d", i, i%20)}})
		}
		if res, _, errs := run(t, b, r); res.Verdict != runner.VerdictOK || len(res.Checkpoints) <= checkpoints {
			t.Fatalf("%s, %d checkpoints: %s", res.Verdict, len(res.Checkpoints), errs)
		}
	}
	if now := descriptors(t); len(now) > len(fds)+4 {
		t.Errorf("%d descriptors, and %d before: %v", len(now), len(fds), now)
	}
	if now := mountLines(t); now != mounts {
		t.Errorf("%d mounts, and %d before", now, mounts)
	}
	if err := b.journal.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(b.state, "store.db"))
	if err != nil || info.Size() > 2<<20 {
		t.Fatal(info.Size(), err)
	}
	t.Logf("store.db: %d bytes", info.Size())
}

func mountLines(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// descriptors are what this process has open, sorted.
func descriptors(t *testing.T) (to []string) {
	t.Helper()
	const dir = "/proc/self/fd"
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err == nil && !strings.HasPrefix(target, "user:") { // the engine keeps some of these, and has a test of its own for that
			to = append(to, target)
		}
	}
	slices.Sort(to)
	return to
}
