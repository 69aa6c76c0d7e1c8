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
	g := &gen{Rand: rand.New(rand.NewPCG(7, seed)), root: os.Geteuid() == 0}
	must(t, os.MkdirAll(dir+"/ws", 0o755))
	for range 80 {
		g.look(dir + "/ws")
		_ = (&site{root: dir + "/ws"}).run(g.action())
	}
	m := &model{root: dir + "/model", links: true}
	defer m.release()
	lower, mounted := []snapshot.Layer{{Path: dir + "/ws", Base: true}}, (*Mounted)(nil)
	var log []string
	for round := range 8 {
		upper := fmt.Sprintf("%s/%d", dir, round)
		must(t, os.MkdirAll(upper+"/w", 0o755))
		must(t, os.Mkdir(upper+"/ww", 0o755))
		must(t, cloneMetaOf(lower[0].Path, upper+"/w"))
		if mounted != nil {
			mounted.Close()
		}
		mounted = Mount(t, []snapshot.Stack{{Target: snapshot.WorkspaceTarget, Lower: lower, Upper: upper + "/w", Work: upper + "/ww"}})
		defer mounted.Close()
		if round == 0 {
			must(t, os.MkdirAll(dir+"/home", 0o755))
			must(t, m.replace(mounted.Workspace, dir+"/home"))
		} else {
			must(t, m.mounted())
		}
		for i := range 120 {
			g.look(m.tree(0))
			a := g.action()
			log = append(log, fmt.Sprintf("%q", a.text))
			if err := m.apply(mounted.Workspace, 0, a); err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(log[max(0, len(log)-30):], "\n"))
			}
			if i%20 != 19 {
				continue
			}
			want, err := list(m.tree(0))
			must(t, err)
			got, err := list(mounted.Workspace)
			must(t, err)
			if d := want.differ(got, modelled); d != "" {
				t.Fatalf("round %d:\n%s\n%s", round, d, strings.Join(log[max(0, len(log)-30):], "\n"))
			}
		}
		lower = append([]snapshot.Layer{{Path: upper + "/w"}}, lower...)
		log = append(log, "sealed")
	}
}
