package promote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// sandboxOwner stands for the host ids that a sandbox's user has.
const sandboxID = 1<<30 + 1000

// box is a workspace with a feature on it.
type box struct {
	testing.TB
	ws string
	w  *workspace
}

// newBox makes a workspace and fills it by fill, which gets its path.
func newBox(t testing.TB, fill func(ws string)) *box {
	t.Helper()
	dir := t.TempDir()
	ws := filepath.Join(dir, "ws")
	must(t, os.Mkdir(ws, 0o755))
	if fill != nil {
		fill(ws)
	}
	return newBoxAt(t, ws, filepath.Join(dir, "state", "f1"))
}

func newBoxAt(t testing.TB, ws, dir string) *box {
	t.Helper()
	w, err := create(dir, ws, true)
	must(t, err)
	b := &box{t, ws, w}
	t.Cleanup(func() {
		must(t, tree.Remove(context.Background(), w.dir))
		// Hostile trees defeat the testing package's own cleaning.
		must(t, tree.Remove(context.Background(), filepath.Dir(w.dir)+"/bases"))
		must(t, tree.Remove(context.Background(), ws))
	})
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("not root")
	}
	testenv.Need(t, "root", err)
}

var overlayWorks = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "caisson-overlay")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"l", "u", "w", "m"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	s := kernel.Stack{Lower: []string{dir + "/l"}, Upper: dir + "/u", Work: dir + "/w"}
	return kernel.Show(dir+"/m", s, func() error { return nil })
})

func needOverlay(t testing.TB) {
	t.Helper()
	needRoot(t)
	testenv.Need(t, "overlay", overlayWorks())
}

// sandbox runs f in the workspace as the sandbox sees it: in a real overlay, mounted as the engine does.
func (b *box) sandbox(f func(dir string) error) {
	b.Helper()
	needOverlay(b)
	must(b, tree.Remove(context.Background(), b.w.dir+"/work/work"))
	m := b.TempDir()
	must(b, kernel.Show(m, b.w.stack(), func() error { return f(m) }))
}

// shows lists what the feature sees, in a real overlay.
func (b *box) shows() (all map[string]string) {
	b.Helper()
	b.sandbox(func(dir string) error {
		all = listing(b, dir)
		return nil
	})
	return all
}

// sh runs shell-like steps without a shell.
func steps(fs ...error) error { return errors.Join(fs...) }

func write(path, content string) error { return os.WriteFile(path, []byte(content), 0o644) }

func (b *box) change() *tree.Change {
	b.Helper()
	c, err := b.w.change(context.Background())
	must(b, err)
	return c
}

func (b *box) promote() *tree.PromoteReport {
	b.Helper()
	r, err := b.w.apply(context.Background(), b.change(), nil)
	must(b, err)
	return r
}

// summary is a change in one line per entry.
func summary(c *tree.Change) string {
	var b strings.Builder
	for i := range c.Entries {
		e := &c.Entries[i]
		fmt.Fprintf(&b, "%s %s", e.Kind, tree.Quote(e.Path))
		switch e.Kind {
		case tree.TypeOnly:
			fmt.Fprintf(&b, " %s>%s", e.OldType, e.Type)
		case tree.ModeOnly:
			fmt.Fprintf(&b, " %s>%s", tree.Octal(e.OldMode), tree.Octal(e.Mode))
		case tree.LinkOnly:
			fmt.Fprintf(&b, " %s>%s", e.OldLink, e.Link)
		}
		if e.HardLink != "" {
			fmt.Fprintf(&b, " =%s", e.HardLink)
		}
		if e.Xattrs {
			b.WriteString(" x")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (b *box) wantChange(want ...string) {
	b.Helper()
	got := summary(b.change())
	if w := strings.Join(append(want, ""), "\n"); got != w {
		b.Fatalf("change:\n%s\nwant:\n%s", got, w)
	}
}

// listing describes a tree completely: types, content, modes, owners, times, attributes, links, holes.
func listing(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[uint64]string{}
	r, err := beneath.OpenRoot(dir)
	must(t, err)
	defer r.Close()
	list(t, r, "", all, inodes)
	return all
}

func list(t testing.TB, r *beneath.Root, path string, all map[string]string, inodes map[uint64]string) {
	t.Helper()
	fd, err := r.Open(path, beneath.ReadDir)
	must(t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	attrs, err := beneath.ReadXattrs(fd, func(string) bool { return true })
	must(t, err)
	all["/"+path] = fmt.Sprintf("%o %d:%d %v %q", st.Mode, st.Uid, st.Gid, st.Mtim, attrs)
	names, err := beneath.ReadNames(fd, make([]byte, 1<<16), nil)
	must(t, err)
	slices.Sort(names)
	for _, name := range names {
		must(t, beneath.StatAt(fd, name, &st))
		sub := beneath.Join(path, name)
		if beneath.IsDir(&st) {
			list(t, r, sub, all, inodes)
			continue
		}
		line := fmt.Sprintf("%o %d:%d %v size %d rdev %d", st.Mode, st.Uid, st.Gid, st.Mtim, st.Size, st.Rdev)
		if st.Nlink > 1 {
			if first, ok := inodes[st.Ino]; ok {
				line += " = " + first
			} else {
				inodes[st.Ino] = sub
			}
		}
		switch {
		case beneath.IsFile(&st):
			line += content(t, fd, name)
		case beneath.IsLink(&st):
			target, err := beneath.ReadLink(fd, name)
			must(t, err)
			line += " -> " + target
		}
		all["/"+sub] = line
	}
}

func content(t testing.TB, dir int, name string) string {
	fd, err := beneath.OpenAt(dir, name, beneath.ReadFile)
	must(t, err)
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	attrs, err := beneath.ReadXattrs(fd, func(string) bool { return true })
	must(t, err)
	info, err := f.Stat()
	must(t, err)
	if info.Size() > 64<<20 {
		return fmt.Sprintf(" %q (large)", attrs)
	}
	data := make([]byte, info.Size())
	_, err = beneath.ReadFull(fd, data)
	must(t, err)
	return fmt.Sprintf(" %q %x", attrs, sha256.Sum256(data))
}

// differences of two listings, for a failure's message.
func differences(a, b map[string]string) string {
	var out []string
	for path, x := range a {
		if y, ok := b[path]; !ok {
			out = append(out, fmt.Sprintf("- %s: %s", tree.Quote(path), x))
		} else if x != y {
			out = append(out, fmt.Sprintf("- %s: %s\n+ %s: %s", tree.Quote(path), x, tree.Quote(path), y))
		}
	}
	for path, y := range b {
		if _, ok := a[path]; !ok {
			out = append(out, fmt.Sprintf("+ %s: %s", tree.Quote(path), y))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func (b *box) wantSame(old map[string]string, what string) {
	b.Helper()
	if d := differences(old, listing(b, b.ws)); d != "" {
		b.Fatalf("%s:\n%s", what, d)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// rounds is how often a random test goes round: usually, with -short (a fifth), and with CAISSON_TEST_LONG=1 (five times).
func rounds(usually int) int {
	switch {
	case testing.Short():
		return max(1, usually/5)
	case os.Getenv("CAISSON_TEST_LONG") != "":
		return 5 * usually
	}
	return usually
}
