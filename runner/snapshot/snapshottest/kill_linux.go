package snapshottest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

const childVariable = "CAISSON_SNAPSHOTTEST_CHILD"

// Main is the TestMain of a driver's tests: the suite starts the test program again, as the child that is killed and as
// the one that mounts without privileges.
func Main(m *testing.M, harnesses ...Harness) {
	fail := func(what string, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, what+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(mounterVariable) != "" {
		fail("mounter", serveMounts())
	}
	if name := os.Getenv(childVariable); name != "" {
		i := slices.IndexFunc(harnesses, func(h Harness) bool { return h.Name == name })
		if i < 0 {
			fail("child", fmt.Errorf("no harness %q", name))
		}
		fail("child", child(harnesses[i]))
	}
	os.Exit(m.Run())
}

// plan is what a child is told.
type plan struct {
	Seed   uint64
	Points map[string]string // checkpoint → digest of its view
}

// report is a line of a child: what it is about to do, then that it is done.
type report struct {
	Op     string // work, seal, live, reset, squash, collect, promote, ready
	ID     string // of the checkpoint
	Done   bool
	Before string // digests of the current view; "" if it is about to change anyhow
	After  string
	Base   string // digest of the workspace as it was, and, of a promote, as it is to be
	Wanted string
}

// Kill has children work on a feature and kills each with SIGKILL at a random moment of a seal, rollback, squash,
// collection or promote. Whatever the moment: the state is the old one or the new one, every checkpoint is plain.Exact, and
// nothing is left that nobody needs.
func Kill(t *testing.T, h Harness, kills int) {
	w := newWorld(t, h)
	k := &killer{world: w, Rand: rand.New(rand.NewPCG(11, uint64(kills))), points: map[string]string{}, hit: map[string]int{}}
	g := &plain.Gen{Rand: k.Rand, Root: os.Geteuid() == 0}
	for range 60 {
		g.Look(w.ws)
		_ = (&plain.Site{Root: w.ws}).Run(g.Action())
	}
	f := w.create()
	k.id = f.id
	f.close()
	for i := range kills {
		k.once(uint64(i))
	}
	t.Logf("%d kills: %v", kills, k.hit)
}

type killer struct {
	*world
	*rand.Rand
	id     string
	points map[string]string
	hit    map[string]int // which operation was hit how often
}

// once runs a child and kills it.
func (k *killer) once(seed uint64) {
	k.Helper()
	data, err := json.Marshal(plan{seed, k.points})
	must(k, err)
	cmd := exec.Command("/proc/self/exe", k.dir)
	cmd.Env = append(os.Environ(), childVariable+"="+k.h.Name)
	cmd.Stdin = strings.NewReader(string(data))
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.StdoutPipe()
	must(k, err)
	must(k, cmd.Start())
	last := k.follow(cmd, out)
	err = cmd.Wait()
	if problems.Len() > 0 {
		k.Fatalf("kill %d: the child failed: %v\n%s", seed, err, problems.String())
	}
	where := last.Op
	if last.Done {
		where = "after " + where
	}
	k.hit[where]++
	k.check(fmt.Sprintf("kill %d, in %s %s", seed, where, last.ID), last)
}

// follow reads what the child does and kills it a random time after one of its next operations began.
func (k *killer) follow(cmd *exec.Cmd, out io.Reader) (last report) {
	left := 1 + k.IntN(5)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break // cut in two
		}
		last = r
		if r.Done {
			switch r.Op {
			case "seal", "live":
				k.points[r.ID] = r.After
			case "drop":
				delete(k.points, r.ID)
			}
			continue
		}
		if r.Op == "drop" {
			delete(k.points, r.ID) // may go from now on
		}
		if left--; left == 0 && r.Op != "work" {
			time.AfterFunc(time.Duration(k.IntN(4000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		} else if left == 0 {
			left = 1
		}
	}
	return last
}

// check opens what a killed child left.
func (k *killer) check(what string, last report) {
	k.Helper()
	l, err := k.h.Open(k.openOptions(k.id))
	if err != nil {
		k.Fatalf("%s: %v", what, err)
	}
	f := &feature{world: k.world, id: k.id, l: l}
	defer f.close()
	f.mount()
	k.checkCurrent(what, last, f)
	all, err := l.Records()
	must(k, err)
	have := map[string]bool{}
	for _, r := range all {
		have[r.ID] = true
		if r.Damaged != "" {
			k.Fatalf("%s: %s is damaged: %s", what, r.ID, r.Damaged)
		}
	}
	if !last.Done && (last.Op == "seal" || last.Op == "live") && have[last.ID] {
		k.points[last.ID] = last.After // it was committed before the child could say so
	}
	ids := slices.Sorted(maps.Keys(k.points))
	for _, id := range ids {
		if !have[id] {
			k.Fatalf("%s: %s is lost", what, id)
		}
	}
	for n := range min(3, len(ids)) {
		id := ids[len(ids)-1]
		if n > 0 {
			id = ids[k.IntN(len(ids))]
		}
		if got := k.digestAt(l, id); got != k.points[id] {
			k.Fatalf("%s: %s has changed", what, id)
		}
	}
	k.checkLeft(what, l)
}

// checkCurrent compares what shows now, and the workspace.
func (k *killer) checkCurrent(what string, last report, f *feature) {
	k.Helper()
	v := f.view()
	now, was := v.digest(plain.Exact), k.baseDigest(plain.Exact)
	if last.Base != "" && was != last.Base && (last.Op != "promote" || k.baseDigest(plain.Promoted) != last.Wanted) {
		k.Fatalf("%s: the workspace is neither what it was nor what was promoted", what)
	}
	if last.Op == "work" || last.Op == "ready" || last.Before == "" {
		return
	}
	switch {
	case now == last.Before && was == last.Base:
	case now == last.After && last.Op != "promote":
	case last.Op == "promote" && view{v[0], plain.Listing{}}.digest(plain.Promoted) == last.Wanted:
	default:
		base, err := plain.List(k.ws)
		must(k, err)
		k.Fatalf("%s: the current state is neither the old nor the new one. Head %q; the workspace and what shows:\n%s", what,
			f.l.Info().Head, base.Differ(v[0], plain.Exact))
	}
}

func (k *killer) baseDigest(how plain.Compared) string {
	k.Helper()
	l, err := plain.List(k.ws)
	must(k, err)
	return view{l, plain.Listing{}}.digest(how)
}

func (k *killer) digestAt(l snapshot.Layers, id string) string {
	k.Helper()
	stacks, err := l.StacksAt(id)
	must(k, err)
	m := k.h.Mount(k, stacks)
	defer m.Close()
	v, err := listPair(m.Workspace, m.Home)
	must(k, err)
	return v.digest(plain.Exact)
}

// checkLeft wants nothing in the feature's directory but what is needed.
func (k *killer) checkLeft(what string, l snapshot.Layers) {
	k.Helper()
	if _, err := l.Collect(context.Background(), nil); err != nil {
		k.Fatalf("%s: collect: %v", what, err)
	}
	refs, err := l.Refs()
	must(k, err)
	need := map[string]bool{}
	for _, r := range refs {
		need[fmt.Sprint(r.Layer)] = true
	}
	dir := k.dirs[k.id]
	must(k, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, name := strings.TrimPrefix(path, dir+"/"), d.Name()
		layer, isLayer := strings.CutPrefix(rel, "layers/")
		switch {
		case strings.HasSuffix(name, ".tmp"), isLayer && !need[layer] && !strings.Contains(layer, "/"):
			k.Fatalf("%s: %s is left", what, rel)
		case isLayer && d.IsDir():
			return filepath.SkipDir // what is in it is the layer's
		}
		return nil
	}))
}
