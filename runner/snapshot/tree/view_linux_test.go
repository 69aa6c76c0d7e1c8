package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// TestViewIsTheKernels grows random stacks in real overlays and compares the view with the kernel's.
func TestViewIsTheKernels(t *testing.T) {
	const deepest = 60
	for seed := range rounds(12) {
		r := rand.New(rand.NewPCG(2, uint64(seed)))
		s := newStack(t)
		for range 60 {
			act(r, s.layers[0])
		}
		depth := 2 + r.IntN(deepest-1)
		for len(s.layers) < depth {
			s.sandbox(func(m string) error {
				for range 1 + r.IntN(12) {
					act(r, m)
				}
				return nil
			})
		}
		s.wantKernels(fmt.Sprintf("seed %d, %d layers", seed, depth))
	}
}

// TestViewOfAnything makes layers by hand, with marks where no overlay would put them. The kernel knows what they mean.
func TestViewOfAnything(t *testing.T) {
	for seed := range rounds(150) {
		r := rand.New(rand.NewPCG(3, uint64(seed)))
		s := newStack(t)
		s.userXattr = s.userXattr || seed%3 == 0
		for range 2 + r.IntN(7) {
			s.grow()
		}
		for i, l := range s.layers {
			for range 25 {
				act(r, l)
			}
			strew(r, l, s.roots()[i].mark(), s.userXattr)
		}
		s.wantKernels(fmt.Sprintf("seed %d", seed))
	}
}

// strew strews random marks over a layer.
func strew(r *rand.Rand, layer, mark string, userXattr bool) {
	name := func() string { return string(rune('a' + r.IntN(5))) }
	for range 10 {
		path := layer + "/" + name()
		if r.IntN(2) == 0 {
			path += "/" + name()
		}
		info, err := os.Lstat(path)
		switch r.IntN(4) {
		case 0:
			if err != nil {
				_ = unix.Mknod(path, unix.S_IFCHR, 0)
			}
		case 1:
			if err == nil && info.IsDir() {
				_ = unix.Setxattr(path, mark+"opaque", []byte{"xyy"[r.IntN(3)]}, 0)
			}
		case 2:
			// Without redirect_dir the kernel refuses directories that have one.
			if err == nil && info.IsDir() && !userXattr {
				to := []string{name(), "/" + name(), "/" + name() + "/" + name()}[r.IntN(3)]
				_ = unix.Setxattr(path, mark+"redirect", []byte(to), 0)
			}
		case 3:
			if err != nil && !kernel.Before(6, 8) && write(path, "") == nil { // older ones know no whiteouts in attributes
				_ = unix.Setxattr(path, mark+"whiteout", nil, 0)
			}
		}
	}
}

func TestViewErrors(t *testing.T) {
	s := newStack(t)
	must(t, steps(os.MkdirAll(s.dir+"/ws/d/e", 0o755), write(s.dir+"/ws/d/f", "f"), os.Symlink("d", s.dir+"/ws/l")))
	upper := s.grow()
	must(t, steps(os.Mkdir(upper+"/d", 0o755), unix.Mknod(upper+"/d/e", unix.S_IFCHR, 0)))
	v := s.view()
	for _, path := range []string{"nothing", "d/e", "d/e/x", "l/f", "../x", "d/../d/f", "d", "/d/f", "l", "", "."} {
		if f, err := v.Open(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%q): %v, %v", path, f, err)
		}
	}
	for _, path := range []string{".", "d", "d/f", "l"} {
		if _, err := v.Lstat(path); err != nil {
			t.Errorf("Lstat(%q): %v", path, err)
		}
	}
	if _, err := OpenView([]Root{{Path: s.dir + "/gone"}}); !errors.Is(err, ErrUnusableLayers) {
		t.Errorf("a layer that is gone: %v", err)
	}
	if _, err := OpenView([]Root{{Path: s.dir + "/gone", Base: true}}); errors.Is(err, ErrUnusableLayers) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a workspace that is gone: %v", err)
	}
}

// TestPlain: in a whole tree nothing is a mark.
func TestPlain(t *testing.T) {
	s := newStack(t)
	ws := s.layers[0]
	must(t, steps(write(ws+"/empty", ""), unix.Setxattr(ws+"/empty", "user.overlay.whiteout", nil, 0), unix.Mknod(ws+"/char", unix.S_IFCHR, 0)))
	v, err := OpenView([]Root{{Path: ws, UserXattr: true, Plain: true}})
	must(t, err)
	defer v.Close()
	for _, path := range []string{"empty", "char"} {
		if _, err := v.Lstat(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
