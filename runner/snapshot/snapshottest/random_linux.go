package snapshottest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// Random does ops random operations to features of one workspace, with seals, rollbacks, forks, promotes and everything
// else a driver can do in between, and compares what shows with a model each time. A seed repeats a run.
func Random(t *testing.T, h Harness, seed int64, ops int) {
	w := newWorld(t, h)
	r := &random{world: w, Gen: &plain.Gen{Rand: rand.New(rand.NewPCG(7, uint64(seed))), Root: os.Geteuid() == 0}, done: map[string]int{}}
	r.fill()
	r.players = []*player{r.newPlayer(w.create())}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, the last steps:\n%s", seed, strings.Join(r.log[max(0, len(r.log)-40):], "\n"))
		}
	})
	for i := range ops {
		r.step()
		if i%100 == 99 {
			r.players[0].verify("now and then")
		}
	}
	for _, p := range r.players {
		for _, id := range p.order {
			r.logf("%s: at last, rollback to %s", p.id, id)
			p.reset(id)
			p.wantPoint(p.points[id], "the checkpoint "+id+" at the end")
		}
	}
	t.Logf("seed %d: %v", seed, r.done)
}

// random is one run.
type random struct {
	*world
	*plain.Gen
	players []*player // the first is at work
	log     []string
	done    map[string]int // how often each thing was done
}

// player is a feature with its model.
type player struct {
	*feature
	r      *random
	model  *plain.Model
	bases  map[int]*point // generation → how it began
	points map[string]*point
	order  []string // ids, oldest first
}

// point is a state that must be had again exactly.
type point struct {
	view view
	tree string // a copy of the model
	gen  int    // of the workspace

	loose []string // paths of the workspace whose hard links are not compared
}

func (r *random) logf(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// fill gives the workspace something to begin with.
func (r *random) fill() {
	s := &plain.Site{Root: r.ws}
	for range 80 {
		r.Look(r.ws)
		_ = s.Run(r.Action()) // what fails is part of it
	}
}

func (r *random) newPlayer(f *feature) *player {
	r.Helper()
	p := &player{feature: f, r: r, points: map[string]*point{}, bases: map[int]*point{}}
	p.model = &plain.Model{Root: filepath.Join(r.dir, "model", f.id), Links: r.h.LinksBreak}
	r.Cleanup(p.model.Release)
	p.begin()
	return p
}

// begin notes what shows at the beginning of a generation.
func (p *player) begin() {
	p.Helper()
	must(p, p.model.Replace(p.m.Workspace, p.m.Home))
	p.bases[p.l.Info().Generation] = p.point()
}

// point notes what shows now.
func (p *player) point() *point {
	p.Helper()
	at := &point{gen: p.l.Info().Generation, view: p.view(), tree: filepath.Join(p.dir, "points", p.next("p"))}
	must(p, os.MkdirAll(filepath.Dir(at.tree), 0o700))
	must(p, plain.CloneTree(p.model.Root, at.tree))
	return at
}

// verify compares what shows with the model.
func (p *player) verify(when string) {
	p.Helper()
	want, err := listPair(p.model.Tree(0), p.model.Tree(1))
	must(p, err)
	if d := want.differ(p.view(), plain.Modelled); d != "" {
		p.Fatalf("%s: %s, the model and what shows differ:\n%s", p.id, when, d)
	}
}

// wantPoint fails unless a state shows as it did.
func (p *player) wantPoint(at *point, what string) {
	p.Helper()
	want := at.compared(at.view)
	if d := want.differ(at.compared(p.view()), plain.Exact); d != "" {
		p.Fatalf("%s: %s\n%s", p.id, what, d)
	}
}

// at makes the model that of a point, after everything was mounted anew.
func (p *player) at(to *point, what string) {
	p.Helper()
	p.wantPoint(to, what)
	if len(to.loose) > 0 {
		must(p, p.model.Replace(p.m.Workspace, p.m.Home))
		return
	}
	must(p, p.model.Replace(to.tree+"/w", to.tree+"/h"))
}

// moves are what is done besides operations, with their weights of 1000.
var moves = []struct {
	name   string
	weight int
	do     func(r *random, p *player)
}{
	{"seal", 45, func(r *random, p *player) { p.sealPoint(false) }},
	{"seal of a live one", 20, func(r *random, p *player) { p.sealPoint(true) }},
	{"rollback", 25, (*random).rollback},
	{"rollback of paths", 10, (*random).rollbackPaths},
	{"fork", 6, (*random).forkPoint},
	{"promote", 5, (*random).promote},
	{"squash", 6, (*random).squash},
	{"reopen", 10, func(_ *random, p *player) {
		before := p.view()
		p.reopen()
		p.wantView(before, "after opening it again")
	}},
	{"change", 10, (*random).changeOf},
	{"drop", 5, (*random).drop},
	{"export", 4, (*random).export},
	{"other", 10, func(r *random, _ *player) {
		r.players = append(r.players[1:], r.players[0])
		r.players[0].verify("after the others' work")
	}},
}

// without are moves that are left out, to find out which one a failure needs.
var without = strings.Split(os.Getenv("CAISSON_TEST_WITHOUT"), ",")

// step does one operation, or one of the moves.
func (r *random) step() {
	r.Helper()
	p := r.players[0]
	n := r.IntN(1000)
	for _, m := range moves {
		if n -= m.weight; n >= 0 {
			continue
		}
		if !slices.Contains(without, m.name) {
			r.logf("%s: %s", p.id, m.name)
			r.done[m.name]++
			m.do(r, p)
			return
		}
		break
	}
	tree, mounted := 0, p.m.Workspace
	if r.IntN(5) == 0 {
		tree, mounted = 1, p.m.Home
	}
	r.Look(p.model.Tree(tree))
	a := r.Action()
	r.logf("%s: %d: %q", p.id, tree, a.Text)
	r.done["operation"]++
	must(r, p.model.Apply(mounted, tree, a))
}
