package delta

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// A directory that goes between the look at the upper and the copy is no error of the first pass, and what was removed in it
// before is hidden by the second, also when the directory is back, with the inode that it had.
func TestDirectoryGoesWhileCopying(t *testing.T) {
	upper, below, dst := t.TempDir(), t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(upper, name) }
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	must(os.Mkdir(at("p"), 0o755), os.WriteFile(at("p/more"), nil, 0o644), os.WriteFile(at("p/kept"), nil, 0o644))
	before, _, err := Copy(t.Context(), upper, nil, below, Options{})
	must(err, os.Remove(at("p/more")))

	c := firstPass(t, upper, dst, before)
	must(c.scan(t.Context(), "", standing{}))
	c.vanished()
	must(os.Rename(at("p"), upper+".aside"))
	must(c.write(t.Context()), c.to.Finish(), c.root.Close(), c.from.Close())
	must(os.Rename(upper+".aside", at("p")))

	first := Delta{before: before}
	for name := range c.names {
		first.Names = append(first.Names, name)
	}
	_, d, err := Copy(t.Context(), upper, c.next, dst, Options{Resume: &first})
	must(err)
	var st unix.Stat_t
	must(unix.Lstat(filepath.Join(dst, "p/more"), &st))
	if !beneath.IsWhiteout(&st) || !slices.Contains(d.Names, "p/more") {
		t.Errorf("%o, %q: what was removed shows", st.Mode, d.Names)
	}
	if _, err := os.Lstat(filepath.Join(dst, "p/kept")); err == nil {
		t.Error("what did not change was copied")
	}
}

// firstPass is a copier that has not begun.
func firstPass(t *testing.T, upper, dst string, before *Manifest) *copier {
	t.Helper()
	from, err := beneath.OpenRoot(upper)
	if err != nil {
		t.Fatal(err)
	}
	to, err := beneath.OpenRoot(dst)
	if err != nil {
		t.Fatal(err)
	}
	from.Ours, to.Ours = true, true
	c := &copier{from: from, root: to, mark: "user.overlay.", before: before, always: map[string]bool{}, names: map[string]bool{},
		buf: make([]byte, 64<<10), next: &Manifest{all: map[string]known{}}, seated: map[string]bool{}}
	c.to = layer.NewWriter(to, c.mark)
	return c
}
