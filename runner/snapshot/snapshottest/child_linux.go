package snapshottest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// childTB stands in for a test in a process that is none: what fails ends the process with a message.
type childTB struct{ testing.TB }

func (childTB) Helper()                  {}
func (childTB) Cleanup(func())           {}
func (childTB) Context() context.Context { return context.Background() }

func (childTB) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

func (childTB) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// worker is the child's side of Kill.
type worker struct {
	*feature
	*plain.Gen
	points map[string]string
	prefix string
	n      int
}

// child works until it is killed.
func child(h Harness) error {
	var p plan
	if err := json.NewDecoder(os.Stdin).Decode(&p); err != nil {
		return err
	}
	dir := os.Args[1]
	w := &world{TB: childTB{}, h: h, dir: dir, ws: filepath.Join(dir, "ws"), dirs: map[string]string{}}
	if w.h.Mount == nil {
		w.h.Mount = Mount
	}
	w.createOptions("f1") // notes its directory
	l, err := h.Open(w.openOptions("f1"))
	if err != nil {
		return err
	}
	k := &worker{
		feature: &feature{world: w, id: "f1", l: l}, points: p.Points, prefix: fmt.Sprintf("k%d-", p.Seed),
		Gen: &plain.Gen{Rand: rand.New(rand.NewPCG(13, p.Seed)), Root: os.Geteuid() == 0},
	}
	if k.points == nil {
		k.points = map[string]string{}
	}
	k.mount()
	for {
		k.tell(report{Op: "work"})
		for range 1 + k.IntN(6) {
			k.Look(k.m.Workspace + "/")
			root := k.m.Workspace
			if k.IntN(5) == 0 {
				root = k.m.Home
			}
			_ = (&plain.Site{Root: root}).Run(k.Action())
		}
		works[k.IntN(len(works))](k)
	}
}

// tell writes a line. A parent that is gone ends the child.
func (k *worker) tell(r report) {
	data, err := json.Marshal(r)
	if err == nil {
		_, err = os.Stdout.Write(append(data, '\n'))
	}
	must(k, err)
}

// begin says what is about to happen to a state that will be as it is, or as after.
func (k *worker) begin(op, id, after string) report {
	base, err := plain.List(k.ws)
	must(k, err)
	r := report{Op: op, ID: id, Before: k.view().digest(plain.Exact), After: after, Base: view{base, plain.Listing{}}.digest(plain.Exact)}
	if after == "" {
		r.After = r.Before
	}
	if op != "promote" {
		k.tell(r)
	}
	return r
}

func (k *worker) end(r report) {
	r.Done = true
	k.tell(r)
}

// works are what a child does, and may be killed in.
var works = []func(k *worker){
	func(k *worker) { k.seal(nil) },
	func(k *worker) { k.seal(nil) },
	func(k *worker) {
		k.seal(standing)
	},
	func(k *worker) {
		if id := k.pick(); id != "" {
			r := k.begin("reset", id, k.points[id])
			k.reset(id)
			k.end(r)
		}
	},
	func(k *worker) {
		r := k.begin("squash", "", "")
		_, err := k.l.Squash(k.Context(), true)
		must(k, err)
		k.end(r)
	},
	(*worker).collect,
	(*worker).promote,
}

func (k *worker) pick() string {
	if len(k.points) == 0 {
		return ""
	}
	ids := slices.Sorted(maps.Keys(k.points))
	return ids[k.IntN(len(ids))]
}

func (k *worker) seal(live *snapshot.Live) {
	k.n++
	id := fmt.Sprint(k.prefix, k.n)
	op := "seal"
	if live != nil {
		op = "live"
	}
	r := k.begin(op, id, "")
	s, err := k.l.Seal(k.Context(), snapshot.SealOptions{ID: id, Live: live})
	must(k, err)
	k.points[id] = r.After
	k.end(r)
	if s.Rotated {
		k.mount()
	}
}

func (k *worker) collect() {
	if id := k.pick(); len(k.points) > 8 && id != k.l.Info().Head {
		r := k.begin("drop", id, "")
		must(k, k.l.Drop(k.Context(), id))
		delete(k.points, id)
		k.end(r)
	}
	r := k.begin("collect", "", "")
	_, err := k.l.Collect(k.Context(), nil)
	must(k, err)
	k.end(r)
}

func (k *worker) promote() {
	r := k.begin("promote", "", "")
	c := k.change(snapshot.Base, snapshot.Current)
	base, err := plain.List(k.ws)
	must(k, err)
	r.Wanted = view{applied(base, c, k.view()[0]), plain.Listing{}}.digest(plain.Promoted)
	k.unmount()
	k.tell(r)
	_, err = k.l.Promote(k.Context(), c, snapshot.PromoteOptions{LockDir: k.dir})
	if !errors.Is(err, snapshot.ErrConflict) { // with what was promoted since the checkpoint that it went back to
		must(k, err)
		r.Before, r.Base = "", "" // anew, and not known yet
	}
	k.mount()
	k.end(r)
}
