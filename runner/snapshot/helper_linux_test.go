package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// sandboxOwner stands for the host ids that a sandbox's user has.
const sandboxID = 1<<30 + 1000

// box is a workspace with a feature on it.
type box struct {
	testing.TB
	ws string
	w  *Workspace
}

// newBox makes a workspace and fills it by make, which gets its path.
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
	owner := Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	w, err := Create(CreateOptions{Dir: dir, Workspace: ws, Owner: owner})
	must(t, err)
	b := &box{t, ws, w}
	t.Cleanup(func() {
		must(t, Remove(context.Background(), w.dir))
		// Hostile trees defeat the testing package's own cleaning.
		must(t, Remove(context.Background(), ws))
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
	return inNamespace(func() error {
		return mountOverlay(dir+"/m", Stack{Lower: []Layer{{Path: dir + "/l"}}, Upper: dir + "/u", Work: dir + "/w"})
	})
})

// mountOverlay mounts a stack with the engine's options.
func mountOverlay(at string, s Stack, more ...string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	options := []string{"index", "off", "metacopy", "off", "xino", "auto", "redirect_dir", "on", "volatile", ""}
	if more != nil {
		options = more
	}
	// By descriptor, as the engine does: kernels before 6.5 know no lowerdir+, and take a comma for the end of a path.
	paths := make([]string, 0, len(s.Lower)+2)
	for _, l := range s.Lower {
		paths = append(paths, l.Path)
	}
	for i, path := range append(paths, s.Upper, s.Work) {
		dir, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(dir)
		if i < len(paths) {
			paths[i] = fmt.Sprintf("/proc/self/fd/%d", dir)
		} else {
			options = append(options, []string{"upperdir", "workdir"}[i-len(paths)], fmt.Sprintf("/proc/self/fd/%d", dir))
		}
	}
	options = append(options, "lowerdir", strings.Join(paths, ":"))
	for i := 0; i < len(options); i += 2 {
		if options[i+1] == "" {
			err = unix.FsconfigSetFlag(fd, options[i])
		} else {
			err = unix.FsconfigSetString(fd, options[i], options[i+1])
		}
		if err != nil {
			return fmt.Errorf("overlay option %s=%s: %w", options[i], options[i+1], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func needOverlay(t testing.TB) {
	t.Helper()
	needRoot(t)
	testenv.Need(t, "overlay", overlayWorks())
}

// inNamespace runs f on a thread with a mount namespace of its own, which dies with it.
func inNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// sandbox runs f in the workspace as the sandbox sees it: in a real overlay, mounted as the engine does.
func (b *box) sandbox(f func(dir string) error) {
	b.Helper()
	needOverlay(b)
	must(b, b.w.Prepare())
	s := b.w.Stacks()[0]
	m := b.TempDir()
	must(b, inNamespace(func() error {
		if err := mountOverlay(m, s); err != nil {
			return err
		}
		return errors.Join(f(m), unix.Unmount(m, unix.MNT_DETACH))
	}))
}

// sh runs shell-like steps without a shell.
func steps(fs ...error) error { return errors.Join(fs...) }

func write(path, content string) error { return os.WriteFile(path, []byte(content), 0o644) }

func (b *box) change() *Change {
	b.Helper()
	c, err := b.w.Change(context.Background())
	must(b, err)
	return c
}

func (b *box) promote() *PromoteReport {
	b.Helper()
	r, err := b.w.Promote(context.Background(), b.change(), PromoteOptions{})
	must(b, err)
	return r
}

// summary is a change in one line per entry.
func summary(c *Change) string {
	var b strings.Builder
	for i := range c.Entries {
		e := &c.Entries[i]
		fmt.Fprintf(&b, "%s %s", e.Kind, Quote(e.Path))
		switch e.Kind {
		case TypeOnly:
			fmt.Fprintf(&b, " %s>%s", e.OldType, e.Type)
		case ModeOnly:
			fmt.Fprintf(&b, " %s>%s", tree.Octal(e.OldMode), tree.Octal(e.Mode))
		case LinkOnly:
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
			out = append(out, fmt.Sprintf("- %s: %s", Quote(path), x))
		} else if x != y {
			out = append(out, fmt.Sprintf("- %s: %s\n+ %s: %s", Quote(path), x, Quote(path), y))
		}
	}
	for path, y := range b {
		if _, ok := a[path]; !ok {
			out = append(out, fmt.Sprintf("+ %s: %s", Quote(path), y))
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
