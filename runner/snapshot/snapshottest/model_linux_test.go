package snapshottest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

func TestMain(m *testing.M) { Main(m) }

// TestModel compares the model with the kernel's overlay and no driver: layers are stacked by hand.
func TestModel(t *testing.T) {
	testenv.Need(t, "overlay", mountable())
	for seed := range 12 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { modelRun(t, uint64(seed)) })
	}
}

func modelRun(t *testing.T, seed uint64) {
	dir, err := os.MkdirTemp("", "caisson-model")
	must(t, err)
	t.Cleanup(func() { must(t, snapshot.Remove(context.Background(), dir)) })
	g := &plain.Gen{Rand: rand.New(rand.NewPCG(7, seed)), Root: os.Geteuid() == 0}
	must(t, os.MkdirAll(dir+"/ws", 0o755))
	for range 80 {
		g.Look(dir + "/ws")
		_ = (&plain.Site{Root: dir + "/ws"}).Run(g.Action())
	}
	m := &plain.Model{Root: dir + "/model", Links: true}
	defer m.Release()
	lower, mounted := []snapshot.Layer{{Path: dir + "/ws", Base: true}}, (*Mounted)(nil)
	defer func() { mounted.Close() }()
	var log []string
	for round := range 8 {
		upper := fmt.Sprintf("%s/%d", dir, round)
		must(t, os.MkdirAll(upper+"/w", 0o755))
		must(t, plain.CloneMetaOf(lower[0].Path, upper+"/w"))
		again := func() {
			if mounted != nil {
				mounted.Close()
			}
			must(t, snapshot.Remove(context.Background(), upper+"/ww"))
			must(t, os.Mkdir(upper+"/ww", 0o755))
			mounted = Mount(t, []snapshot.Stack{{Target: snapshot.WorkspaceTarget, Lower: lower, Upper: upper + "/w", Work: upper + "/ww"}})
		}
		again()
		if round == 0 {
			must(t, os.MkdirAll(dir+"/home", 0o755))
			must(t, m.Replace(mounted.Workspace, dir+"/home"))
		} else {
			must(t, m.Mounted())
		}
		for i := range 120 {
			g.Look(m.Tree(0))
			a := g.Action()
			log = append(log, fmt.Sprintf("%q", a.Text))
			if err := m.Apply(mounted.Workspace, 0, a); err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(log[max(0, len(log)-30):], "\n"))
			}
			if i%20 != 19 {
				continue
			}
			if os.Geteuid() != 0 {
				again() // until then, a link of a file that was just copied up has another inode number
			}
			want, err := plain.List(m.Tree(0))
			must(t, err)
			got, err := plain.List(mounted.Workspace)
			must(t, err)
			if d := want.Differ(got, plain.Modelled); d != "" {
				t.Fatalf("round %d:\n%s\n%s", round, d, strings.Join(log[max(0, len(log)-30):], "\n"))
			}
		}
		lower = append([]snapshot.Layer{{Path: upper + "/w"}}, lower...)
		log = append(log, "sealed")
	}
}
