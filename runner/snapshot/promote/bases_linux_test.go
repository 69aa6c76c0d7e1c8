package promote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// at lists the workspace as it was at a generation, from a real overlay.
func (b *box) at(generation int) (all map[string]string) {
	b.Helper()
	s := kernel.Stack{UserXattr: b.w.state.UserXattr}
	for _, r := range b.w.bases.Above(generation) {
		s.Lower = append(s.Lower, r.Path)
	}
	if len(s.Lower) == 0 {
		return b.list(b.ws)
	}
	s.Lower = append(s.Lower, b.ws)
	m := b.TempDir()
	must(b, kernel.Show(m, s, func() error {
		all = b.list(m)
		return nil
	}))
	return all
}

// list is kernel.List without the names of hard links: what a promote took of a group is no link of the rest any more.
func (b *box) list(dir string) map[string]string {
	b.Helper()
	all, err := kernel.List(dir)
	must(b, err)
	for path, line := range all {
		if head, tail, ok := strings.Cut(line, " = "); ok {
			all[path] = head + tail[strings.IndexByte(tail, ' '):]
		}
	}
	return all
}

// TestGenerations promotes random changes again and again: every state that the workspace had can still be seen, exactly,
// and so can what another feature sees that began on one of them.
func TestGenerations(t *testing.T) {
	if os.Geteuid() != 0 {
		testGenerations(t)
		return
	}
	for seed := range rounds(15) {
		r := rand.New(rand.NewPCG(9, uint64(seed)))
		b := newBox(t, func(ws string) {
			for range 40 {
				act(r, ws)
			}
		})
		states := []map[string]string{b.list(b.ws)}
		var began []int // the others' generations
		var others []*box
		var seen []map[string]string
		for n := range 5 {
			other := newBoxAt(t, b.ws, fmt.Sprintf("%s-%d", b.w.dir, n))
			other.sandbox(func(m string) error {
				for range r.IntN(10) {
					act(r, m)
				}
				seen = append(seen, b.list(m))
				return nil
			})
			others = append(others, other)
			began = append(began, other.w.state.Generation)
			b.sandbox(func(m string) error {
				for range 1 + r.IntN(12) {
					act(r, m)
				}
				return nil
			})
			if r := b.promote(); r.Generation == len(states) { // not a change of nothing
				states = append(states, nil)
			}
			states[len(states)-1] = b.list(b.ws)
		}
		what := fmt.Sprintf("seed %d", seed)
		b.checkStates(what, states)
		for i, other := range others {
			var now map[string]string
			other.sandbox(func(m string) error { now = b.list(m); return nil })
			if d := kernel.Differences(seen[i], now); d != "" {
				t.Fatalf("%s: feature of generation %d saw (-), sees (+):\n%s", what, began[i], d)
			}
		}
		// What nobody needs any more goes, the rest stays.
		_, err := b.w.bases.Collect(t.Context(), 2)
		must(t, err)
		if exists(b.w.bases.path(2)) || len(states) > 3 && !exists(b.w.bases.path(3)) {
			t.Errorf("%s: collected the wrong ones", what)
		}
		for g := 2; g < len(states); g++ {
			if d := kernel.Differences(states[g], b.at(g)); d != "" {
				t.Fatalf("%s: generation %d after collecting:\n%s", what, g, d)
			}
		}
	}
}

func (b *box) checkStates(what string, states []map[string]string) {
	b.Helper()
	for g, want := range states {
		if d := kernel.Differences(want, b.at(g)); d != "" {
			b.Fatalf("%s: generation %d of %d was (-), shows (+):\n%s", what, g, len(states)-1, d)
		}
	}
}

// testGenerations is the same without overlays of our own: the view shows the old state.
func testGenerations(t *testing.T) {
	b := newBox(t, project(t))
	want := listing(t, b.ws)["/edit"]
	b.upper("edit", "mine")
	must(t, os.Mkdir(b.w.dir+"/upper/new", 0o700))
	b.promote()
	v, err := tree.OpenView(append(b.w.bases.Above(0), tree.Root{Path: b.ws, Base: true, UserXattr: true}))
	must(t, err)
	defer v.Close()
	f, err := v.Open("edit")
	must(t, err)
	defer f.Close()
	text, err := kernel.Text(f)
	must(t, err)
	if !strings.HasSuffix(want, text) {
		t.Errorf("edit was %s, shows %s", want, text)
	}
	if _, err := v.Lstat("new"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("new: %v", err)
	}
}

// TestMoving: live features are asked after the base layer can be seen and before anything moves, and can refuse.
func TestMoving(t *testing.T) {
	needOverlay(t)
	b := newBox(t, project(t))
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	b.sandbox(everything)
	before, old := other.shows(), listing(t, b.ws)
	why := errors.New("held")
	c := b.change()
	_, err := b.w.apply(t.Context(), c, func(_ context.Context, generation int) error {
		if generation != 1 || len(other.w.bases.Above(0)) != 1 {
			t.Errorf("generation %d, %v", generation, other.w.bases.Above(0))
		}
		if d := differences(before, other.shows()); d != "" {
			t.Errorf("while moving:\n%s", d)
		}
		return why
	})
	if !errors.Is(err, why) {
		t.Fatalf("refused: %v", err)
	}
	b.wantSame(old, "refused")
	// Whoever moved already may stay where it is; whoever begins now does not see it.
	if b.w.bases.Generation() != 1 || len(b.w.bases.Above(0)) != 0 || !exists(b.w.bases.path(1)) {
		t.Errorf("generation %d, above 0: %v", b.w.bases.Generation(), b.w.bases.Above(0))
	}
	if touched, err := b.w.bases.Touched(0); err != nil || len(touched) > 0 {
		t.Errorf("touched: %v, %v", touched, err)
	}
	if _, err := b.w.apply(t.Context(), b.change(), func(context.Context, int) error { return tree.ErrStayed }); !errors.Is(err, tree.ErrStayed) {
		t.Fatalf("refused before anybody moved: %v", err)
	}
	if b.w.bases.Generation() != 1 || exists(b.w.bases.path(2)) {
		t.Errorf("generation %d is left", b.w.bases.Generation())
	}
	r := b.promote()
	if r.Generation != 2 || b.w.state.Generation != 2 {
		t.Errorf("generation %d, %d", r.Generation, b.w.state.Generation)
	}
	if d := differences(before, other.shows()); d != "" {
		t.Errorf("afterwards:\n%s", d)
	}
	list, err := other.w.conflicts(t.Context(), other.change())
	if err != nil || len(list) > 0 {
		t.Errorf("conflicts of a feature that changed nothing: %v, %v", list, err)
	}
}

// TestRetracted: a promote that fails before its base layer could be seen leaves nothing of it, and no conflicts.
func TestRetracted(t *testing.T) {
	b := newBox(t, project(t))
	needOverlay(t)
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	b.sandbox(everything)
	other.sandbox(everything)
	for _, step := range []string{"kept", "planned", "all kept"} {
		ctx, cancel := context.WithCancel(t.Context())
		journal.Step = func(name string) {
			if name == step {
				cancel()
			}
		}
		_, err := b.w.apply(ctx, b.change(), nil)
		journal.Step = func(string) {}
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v", step, err)
		}
		if b.w.bases.Generation() != 0 != (step == "all kept") {
			t.Errorf("%s: generation %d", step, b.w.bases.Generation())
		}
		list, err := b.w.conflicts(t.Context(), b.change())
		if err != nil || len(list) > 0 {
			t.Errorf("%s: %v, %v", step, list, err)
		}
	}
	b.promote()
}

// TestOpenWriter: what somebody has open for writing is copied, so that the base layer does not change with it.
func TestOpenWriter(t *testing.T) {
	needOverlay(t)
	b := newBox(t, project(t))
	want := listing(t, b.ws)
	f, err := os.OpenFile(b.ws+"/edit", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_WRITE|unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(data)) }()
	b.upper("edit", "mine")
	b.upper("keep", "mine")
	b.promote()
	copy(data, "XXXX")
	_, err = f.WriteAt([]byte("theirs"), 0)
	must(t, err)
	got := b.at(0)
	for _, path := range []string{"/edit", "/keep"} {
		if linePart(got[path]) != linePart(want[path]) {
			t.Errorf("%s was %s, shows %s", path, want[path], got[path])
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(b.w.bases.path(1)+"/keep", &st))
	if st.Nlink != 1 {
		t.Errorf("keep has %d links", st.Nlink)
	}
}

// TestOpenedWhilePromoting: somebody opens or links what is promoted at each step, and writes when all is done. Either the
// promote refuses, or the base layer keeps what was there.
func TestOpenedWhilePromoting(t *testing.T) {
	needOverlay(t)
	refused := 0
	for _, victim := range []string{"edit", "dir/a"} {
		for n := 1; ; n++ {
			b := newBox(t, project(t))
			want := listing(t, b.ws)["/"+victim]
			b.sandbox(func(m string) error { return steps(write(m+"/edit", "mine"), os.RemoveAll(m+"/dir")) })
			var f *os.File
			calls, at := 0, ""
			journal.Step = func(name string) {
				if calls++; calls == n {
					at = name
					f, _ = os.OpenFile(b.ws+"/"+victim, os.O_RDWR, 0) // or it is gone by now
				}
			}
			_, err := b.w.apply(t.Context(), b.change(), nil)
			journal.Step = func(string) {}
			if at == "" {
				break
			}
			if f == nil {
				must(t, err)
				continue
			}
			_, wrote := f.WriteAt([]byte("theirs"), 0)
			must(t, errors.Join(wrote, f.Close()))
			switch {
			case errors.Is(err, tree.ErrConflict):
				refused++
				if data, err := os.ReadFile(b.ws + "/" + victim); err != nil || !strings.HasPrefix(string(data), "theirs") {
					t.Errorf("%s at %s: refused, but the file holds %q, %v", victim, at, data, err)
				}
			case err != nil:
				t.Errorf("%s at %s: %v", victim, at, err)
			case linePart(b.at(0)["/"+victim]) != linePart(want):
				t.Errorf("%s at %s: was %s, shows %s", victim, at, want, b.at(0)["/"+victim])
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestWriterInALoop: what was kept never changes again, whoever has the workspace's files open and writes into what was
// taken away.
func TestWriterInALoop(t *testing.T) {
	needOverlay(t)
	b := newBox(t, func(ws string) { must(t, write(ws+"/edit", "0000000000")) })
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				writeLate(b.ws+"/edit", n)
			}
		}
	}()
	kept := map[int]string{}
	tries := rounds(40)
	for n := range tries {
		b.upper("edit", fmt.Sprintf("mine %05d", n))
		c, err := b.w.change(t.Context())
		if err == nil {
			var r *tree.PromoteReport
			if r, err = b.w.apply(t.Context(), c, nil); err == nil {
				data, err := os.ReadFile(b.w.bases.path(r.Generation) + "/edit")
				must(t, err)
				kept[r.Generation] = string(data)
			}
		}
		if errors.Is(err, tree.ErrConflict) {
			b.w.state.Generation = b.w.bases.Generation()
			err = b.w.begin()
		}
		must(t, err)
	}
	close(stop)
	<-done
	for g, want := range kept {
		if data, err := os.ReadFile(b.w.bases.path(g) + "/edit"); err != nil || string(data) != want {
			t.Errorf("generation %d held %q, holds %q, %v", g, want, data, err)
		}
	}
	t.Logf("%d of %d promoted", len(kept), tries)
	if len(kept) == 0 {
		t.Error("nothing was promoted")
	}
}

// writeLate opens a file for a while, and writes into it if something else has got its name meanwhile.
func writeLate(path string, n int) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	mine, err := f.Stat()
	for i := 0; err == nil && i < n%1000; i++ {
		now, err := os.Lstat(path)
		if err == nil && !os.SameFile(mine, now) {
			_, _ = fmt.Fprintf(f, "late %05d", n)
			return
		}
	}
}

// linePart is the sum at the end of a listing's line.
func linePart(line string) string { return line[strings.LastIndexByte(line, ' ')+1:] }

// TestNoSpaceForBases: a base layer that does not fit refuses the promote, and leaves nothing.
func TestNoSpaceForBases(t *testing.T) {
	needRoot(t)
	b := newBox(t, func(ws string) {
		project(t)(ws)
		must(t, write(ws+"/big", strings.Repeat("x", 2<<20)))
		must(t, write(ws+"/dir/big", strings.Repeat("y", 100<<10)))
	})
	b.upper("big", "small now")
	must(t, os.Mkdir(b.w.dir+"/upper/dir", 0o755))
	b.upper("dir/big", "small")
	old := listing(t, b.ws)
	c := b.change()
	must(t, kernel.InNamespace(func() error {
		for _, size := range []string{"size=1m", "nr_inodes=6"} {
			if err := unix.Mount("tmpfs", b.w.bases.dir, "tmpfs", 0, size); err != nil {
				return err
			}
			_, err := b.w.apply(t.Context(), c, nil)
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s: %v", size, err)
			}
			left, err := filepath.Glob(b.w.bases.dir + "/[0-9]*")
			if err != nil || len(left) > 0 {
				t.Errorf("%s: left %v, %v", size, left, err)
			}
			must(t, unix.Unmount(b.w.bases.dir, unix.MNT_DETACH))
			b.wantSame(old, size)
			c = b.change()
		}
		return nil
	}))
	b.promote()
}

// TestNoSpaceAnywhere lets a promote run out of inodes at each object that it makes, in the workspace and in the base
// layer: the old state, and nothing left.
func TestNoSpaceAnywhere(t *testing.T) {
	needOverlay(t)
	for _, where := range []string{"workspace", "bases"} {
		refused := 0
		for free := 0; ; free++ {
			var err error
			must(t, kernel.InNamespace(func() error {
				err = promoteWith(t, where, free)
				return nil
			}))
			if err == nil {
				break
			}
			if refused++; !errors.Is(err, unix.ENOSPC) || refused > 100 {
				t.Fatalf("%s with %d inodes free: %v", where, free, err)
			}
		}
		if refused < 5 {
			t.Errorf("%s was refused only %d times", where, refused)
		}
	}
}

// promoteWith promotes with some inodes free in one place, and checks that an error left the old state.
func promoteWith(t *testing.T, where string, free int) error {
	ws := t.TempDir()
	must(t, unix.Mount("tmpfs", ws, "tmpfs", 0, "nr_inodes=100"))
	defer func() { must(t, unix.Unmount(ws, unix.MNT_DETACH)) }()
	project(t)(ws)
	b := &box{TB: t, ws: ws}
	var err error
	b.w, err = create(t.TempDir()+"/f", ws, true)
	must(t, err)
	m := t.TempDir()
	must(t, kernel.Mount(m, b.w.stack()))
	must(t, steps(everything(m), unix.Unmount(m, unix.MNT_DETACH)))
	full := ws
	if where == "bases" {
		full = b.w.bases.dir
		must(t, unix.Mount("tmpfs", full, "tmpfs", 0, "nr_inodes=100"))
		defer func() { must(t, unix.Unmount(full, unix.MNT_DETACH)) }()
	}
	must(t, os.Mkdir(full+"/filler", 0o755))
	var fs unix.Statfs_t
	must(t, unix.Statfs(full, &fs))
	for i := range int(fs.Ffree) - free {
		must(t, write(fmt.Sprintf("%s/filler/%d", full, i), ""))
	}
	old := listing(t, ws)
	_, err = b.w.apply(t.Context(), b.change(), nil)
	if err != nil {
		b.wantSame(old, fmt.Sprintf("%s with %d inodes free", where, free))
	}
	return err
}

// TestCopied promotes a change of a copy of the workspace: what others changed since the copy is a conflict.
func TestCopied(t *testing.T) {
	b := newBox(t, project(t))
	dir := t.TempDir()
	manifest := map[string]tree.Seen{}
	for _, name := range []string{"copy", "now"} {
		must(t, os.Mkdir(dir+"/"+name, 0o755))
		for _, f := range []string{"edit", "gone", "keep"} {
			data, err := os.ReadFile(b.ws + "/" + f)
			must(t, err)
			must(t, write(dir+"/"+name+"/"+f, string(data)))
			var st unix.Stat_t
			must(t, unix.Lstat(b.ws+"/"+f, &st))
			manifest[f] = journal.See(&st)
		}
	}
	must(t, steps(write(dir+"/now/edit", "mine"), os.Remove(dir+"/now/gone"), write(dir+"/now/new", "new")))
	promote := func() error {
		old, err := tree.OpenView([]tree.Root{{Path: dir + "/copy", Plain: true}})
		must(t, err)
		now, err := tree.OpenView([]tree.Root{{Path: dir + "/now", Plain: true}})
		must(t, err)
		defer func() { must(t, steps(old.Close(), now.Close())) }()
		c, err := tree.Compare(t.Context(), old, now, tree.CompareOptions{})
		must(t, err)
		tg := Target{
			Dir: b.w.dir, Workspace: b.ws, Bases: b.w.bases, Old: old, New: now, Generation: 0,
			Seen: func(path string) (tree.Seen, bool) { s, ok := manifest[path]; return s, ok },
		}
		_, err = Apply(t.Context(), tg, c, nil)
		return err
	}
	others, err := os.ReadFile(b.ws + "/edit")
	must(t, err)
	must(t, write(b.ws+"/edit", "theirs"))
	var ce *tree.ConflictError
	if err := promote(); !errors.As(err, &ce) || len(ce.Conflicts) != 1 || ce.Conflicts[0].Path != "edit" {
		t.Fatalf("others edited: %v", err)
	}
	must(t, write(b.ws+"/edit", string(others)))
	var st unix.Stat_t
	must(t, unix.Lstat(b.ws+"/edit", &st))
	manifest["edit"] = journal.See(&st)
	// Whether layers can lie there is not known: without one, what others see would change under them.
	before, real := listing(t, b.ws), mark
	t.Cleanup(func() { mark = real })
	for _, no := range []error{unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.EIO} {
		mark = func(*layer.Writer) error { return &os.PathError{Op: "mark", Path: "x", Err: no} }
		if err := promote(); !errors.Is(err, no) {
			t.Errorf("%v: %v", no, err)
		}
		if d := differences(before, listing(t, b.ws)); d != "" {
			t.Fatalf("%v: changed:\n%s", no, d)
		}
	}
	mark = real
	must(t, promote())
	for path, want := range map[string]string{"edit": "mine", "new": "new", "keep": "same\n"} {
		if data, err := os.ReadFile(b.ws + "/" + path); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
	if exists(b.ws + "/gone") {
		t.Error("gone is still there")
	}
}

// TestCanKeep: only a file system that refuses marks cannot take layers.
func TestCanKeep(t *testing.T) {
	real := mark
	t.Cleanup(func() { mark = real })
	dir := t.TempDir()
	for no, cannot := range map[error]bool{unix.EOPNOTSUPP: true, unix.EPERM: true, unix.EINVAL: true,
		unix.ENOSPC: false, unix.EDQUOT: false, unix.EMFILE: false, unix.EIO: false, unix.EROFS: false} {
		mark = func(*layer.Writer) error { return &os.PathError{Op: "mark", Path: "x", Err: no} }
		if err := CanKeep(dir); !errors.Is(err, no) || errors.Is(err, ErrCannotKeep) != cannot {
			t.Errorf("%v: %v", no, err)
		}
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestBasesAreOnes: two ways to the same directory are one workspace, another directory at its place is not.
func TestBasesAreOnes(t *testing.T) {
	dir := t.TempDir()
	must(t, steps(os.Mkdir(dir+"/ws", 0o755), os.Symlink("ws", dir+"/alias")))
	a, err := OpenBases(dir+"/bases", dir+"/ws")
	must(t, err)
	b, err := OpenBases(dir+"/bases", dir+"/alias")
	must(t, err)
	must(t, steps(os.Rename(dir+"/ws", dir+"/old"), os.Mkdir(dir+"/ws", 0o755)))
	c, err := OpenBases(dir+"/bases", dir+"/ws")
	must(t, err)
	if a.dir != b.dir || a.dir == c.dir {
		t.Errorf("%s, %s, %s", a.dir, b.dir, c.dir)
	}
	must(t, os.RemoveAll(dir+"/ws"))
	var we *tree.WorkspaceError
	if _, err := OpenBases(dir+"/bases", dir+"/ws"); !errors.As(err, &we) || !errors.Is(err, tree.ErrMissing) {
		t.Errorf("gone: %v", err)
	}
	must(t, write(a.dir+"/state.json", "{"))
	if _, err := OpenBases(dir+"/bases", dir+"/old"); err != nil {
		t.Errorf("moved: %v", err) // another path: another workspace
	}
	must(t, steps(os.Rename(dir+"/old", dir+"/ws")))
	if _, err := OpenBases(dir+"/bases", dir+"/ws"); !errors.Is(err, tree.ErrUnusableLayers) {
		t.Errorf("damaged: %v", err)
	}
}

// TestCollectUnused: what a workspace that nobody uses has left goes, also when it is gone itself.
func TestCollectUnused(t *testing.T) {
	b := newBox(t, project(t))
	b.upper("edit", "mine")
	b.promote()
	all := filepath.Dir(b.w.bases.dir)
	used := true
	look := func(workspace string) bool {
		if workspace != b.ws {
			t.Errorf("asked for %s", workspace)
		}
		return used
	}
	if freed, err := CollectUnused(t.Context(), all, look); err != nil || freed != 0 || !exists(b.w.bases.path(1)) {
		t.Errorf("in use: %d freed, %v", freed, err)
	}
	must(t, os.Rename(b.ws, b.ws+".gone"))
	used = false
	if freed, err := CollectUnused(t.Context(), all, look); err != nil || freed == 0 || exists(b.w.bases.path(1)) {
		t.Errorf("not in use: %d freed, %v", freed, err)
	}
	must(t, os.Rename(b.ws+".gone", b.ws))
	if b.w.bases.Generation() != 1 {
		t.Error("the generation is lost")
	}
	if freed, err := CollectUnused(t.Context(), all+"/missing", look); err != nil || freed != 0 {
		t.Errorf("nothing there: %d, %v", freed, err)
	}
}

// TestBasesLock: a promote waits for those who read, and they do not wait for each other.
func TestBasesLock(t *testing.T) {
	b := newBox(t, nil)
	one, err := b.w.bases.Lock(t.Context(), false)
	must(t, err)
	two, err := b.w.bases.Lock(t.Context(), false)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.w.bases.Lock(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("exclusive beside shared: %v", err)
	}
	two()
	done := make(chan error, 1)
	go func() {
		unlock, err := b.w.bases.Lock(t.Context(), true)
		if err == nil {
			unlock()
		}
		done <- err
	}()
	one()
	must(t, <-done)
}

// TestExchangedInALoop promotes while somebody exchanges a directory of the workspace with a link that leads out.
func TestExchangedInALoop(t *testing.T) {
	b := newBox(t, project(t))
	outside := t.TempDir()
	must(t, steps(write(outside+"/a", "outside"), os.Mkdir(outside+"/sub", 0o755), write(outside+"/sub/c", "outside")))
	before := listing(t, outside)
	must(t, os.Symlink(outside, b.ws+"/trap"))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, b.ws+"/dir", unix.AT_FDCWD, b.ws+"/trap", unix.RENAME_EXCHANGE)
			}
		}
	}()
	promoted, tries := 0, rounds(60)
	for n := range tries {
		must(t, os.MkdirAll(b.w.dir+"/upper/dir/sub", 0o755))
		b.upper("dir/a", fmt.Sprint("mine ", n))
		b.upper("dir/sub/c", fmt.Sprint("mine ", n))
		c, err := b.w.change(t.Context())
		if err != nil {
			continue
		}
		if _, err = b.w.apply(t.Context(), c, nil); err == nil {
			promoted++
		} else if !errors.Is(err, tree.ErrConflict) {
			must(t, recovers(b.w.dir))
		}
	}
	close(stop)
	<-done
	if d := differences(before, listing(t, outside)); d != "" {
		t.Fatalf("written outside:\n%s", d)
	}
	t.Logf("%d of %d promoted", promoted, tries)
	if left := leftovers(b.ws); left != nil {
		t.Errorf("left %v", left)
	}
	if !slices.Contains([]int{0, 1}, len(leftovers(outside))) {
		t.Error("stage outside")
	}
}
