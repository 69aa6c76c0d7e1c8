package promote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// act does one random thing to a tree; what fails (a missing name, a directory that is not empty) is part of the fun.
func act(r *rand.Rand, m string) {
	path := func() string {
		p := m
		for range 1 + r.IntN(3) {
			p += "/" + string(rune('a'+r.IntN(5)))
		}
		return p
	}
	a, b := path(), path()
	switch r.IntN(12) {
	case 0, 1, 2:
		_ = write(a, fmt.Sprint(r.IntN(4)))
	case 3, 4:
		_ = os.Mkdir(a, 0o755)
	case 5:
		_ = os.RemoveAll(a)
	case 6, 7, 8:
		_ = unix.Rename(a, b)
	case 9:
		_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	case 10:
		_ = os.Link(a, b)
	case 11:
		if r.IntN(2) == 0 {
			_ = os.Symlink(fmt.Sprint(r.IntN(3)), a)
		} else if info, err := os.Lstat(a); err == nil && info.Mode()&os.ModeSymlink == 0 {
			_ = os.Chmod(a, []os.FileMode{0o755, 0o700, 0o644}[r.IntN(3)])
		}
	}
}

// shape is a listing without times and owners, and without hard links to files that the change left alone.
func shape(all map[string]string) map[string]string {
	out := map[string]string{}
	for path, line := range all {
		head, tail, _ := strings.Cut(line, "}")
		mode, _, _ := strings.Cut(head, " ")
		if strings.HasPrefix(mode, "12") {
			mode = "link"
		}
		if strings.HasPrefix(mode, "4") {
			tail = "" // overlayfs' own attributes are not visible inside
		}
		out[path] = mode + tail
	}
	return out
}

// TestRandom does random things to random trees in a real overlay. Promote must make of the workspace what the sandbox
// saw; before that, a promote that is cancelled somewhere must change nothing.
func TestRandom(t *testing.T) {
	for seed := range rounds(50) {
		r := rand.New(rand.NewPCG(1, uint64(seed)))
		b := newBox(t, func(ws string) {
			for range 40 {
				act(r, ws)
			}
			unlink(t, ws)
		})
		old := listing(t, b.ws)
		var seen map[string]string
		for range 2 + r.IntN(3) { // the later mounts find the marks of the first
			if r.IntN(2) == 0 {
				must(t, b.w.seal())
			}
			b.sandbox(func(m string) error {
				for range 15 {
					act(r, m)
				}
				seen = listing(t, m)
				return nil
			})
		}
		c := b.change()
		n, calls := 1+r.IntN(8), 0
		ctx, cancel := context.WithCancel(t.Context())
		journal.Step = func(string) {
			if calls++; calls == n {
				cancel()
			}
		}
		_, err := b.w.apply(ctx, c, nil)
		journal.Step = func(string) {}
		cancel()
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("seed %d: %v\n%s", seed, err, summary(c))
			}
			b.wantSame(old, fmt.Sprintf("seed %d: cancelled at step %d", seed, n))
			c2 := b.change()
			if c2.Digest != c.Digest {
				t.Fatalf("seed %d: digest changed", seed)
			}
			if _, err = b.w.apply(t.Context(), c2, nil); err != nil {
				t.Fatalf("seed %d: promote after a cancelled one: %v\n%s", seed, err, summary(c2))
			}
		}
		if d := differences(shape(seen), shape(listing(t, b.ws))); d != "" {
			t.Fatalf("seed %d: sandbox and workspace differ:\n%s\nchange:\n%s", seed, d, summary(c))
		}
		b.wantChange()
	}
}

// unlink breaks hard links of a base up: overlayfs loses them at the first write, which is no matter of this package.
func unlink(t testing.TB, ws string) {
	must(t, filepath.Walk(ws, func(p string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		if target, err := os.Readlink(p); err == nil {
			return steps(os.Remove(p), os.Symlink(target, p))
		}
		data, err := os.ReadFile(p)
		return steps(err, os.Remove(p), os.WriteFile(p, data, info.Mode().Perm()), os.Chmod(p, info.Mode().Perm()))
	}))
}
