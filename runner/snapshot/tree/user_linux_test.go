package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// TestWithoutKernel does everything with layers made by hand, and the view as the oracle: whoever runs it, also without
// privileges, with modes that keep their owner out.
func TestWithoutKernel(t *testing.T) {
	for seed := range rounds(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { withoutKernel(t, rand.New(rand.NewPCG(12, uint64(seed)))) })
	}
}

func withoutKernel(t *testing.T, r *rand.Rand) {
	s := newStack(t)
	for range 4 {
		s.grow()
	}
	for i, l := range s.layers {
		for range 25 {
			act(r, l)
		}
		strew(r, l, s.roots()[i].mark(), true)
		if i < len(s.layers)-1 || os.Geteuid() == 0 { // the workspace is not ours: what keeps us out there does
			lockUp(r, l)
		}
	}
	want := listed(t, s.view())
	all := s.layers
	s.merged(1, 3)
	if d := kernel.Differences(want, listed(t, s.view())); d != "" {
		t.Fatalf("before (-), merged (+):\n%s", d)
	}
	s.layers = all[2:]
	want = listed(t, s.view())
	s.layers = all
	s.restored(2, nil)
	if d := kernel.Differences(noLinks(want, nil), noLinks(listed(t, s.view()), nil)); d != "" {
		t.Fatalf("wanted (-), restored (+):\n%s", d)
	}
	s.copied(r)
}

// copied copies the newest layer while it changes, as a copy of the whole and a delta.
func (s *stack) copied(r *rand.Rand) {
	s.Helper()
	upper, below := s.layers[0], s.layers[1:]
	from := Root{Path: upper, UserXattr: s.userXattr}
	var m *Manifest
	var made []string
	for n := range 3 {
		dst := fmt.Sprintf("%s/copy%d", s.dir, n)
		must(s, os.Mkdir(dst, 0o700))
		now, d, err := CopyDelta(s.Context(), from, m, dst, DeltaOptions{})
		must(s, err)
		if d.Whole {
			made = nil
		}
		m, made = now, append([]string{dst}, made...)
		s.layers = append([]string{upper}, below...)
		want := listed(s, s.view())
		s.layers = append(append([]string{}, made...), below...)
		if d := kernel.Differences(want, listed(s, s.view())); d != "" {
			s.Fatalf("copy %d: upper (-), copies (+):\n%s", n, d)
		}
		for range 6 {
			changeByHand(r, upper)
		}
	}
}

// changeByHand does to an upper layer what overlayfs could: nothing that would let something below show again.
func changeByHand(r *rand.Rand, upper string) {
	path := upper + "/" + string(rune('a'+r.IntN(5)))
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		_ = write(path, fmt.Sprint(r.IntN(9)))
	case info.Mode().IsRegular():
		_ = os.Chmod(path, 0o600)
		_ = write(path, fmt.Sprint(r.IntN(9)))
	case info.IsDir():
		_ = write(path+"/new", fmt.Sprint(r.IntN(9)))
	}
}

// lockUp gives some directories and files modes that keep their owner out.
func lockUp(r *rand.Rand, layer string) {
	for range 3 {
		path := layer + "/" + string(rune('a'+r.IntN(5)))
		if r.IntN(2) == 0 {
			path += "/" + string(rune('a'+r.IntN(5)))
		}
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink == 0 {
			_ = unix.Chmod(path, []uint32{0, 0o200, 0o311}[r.IntN(3)])
		}
	}
}

// TestUnprivileged runs what needs no privileges again as a user without.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	home := t.TempDir()
	for dir := home; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o1 == 0 && strings.HasPrefix(dir, os.TempDir()+"/") {
			must(t, os.Chmod(dir, 0o711))
		}
	}
	exe := home + "/tree.test"
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, steps(os.WriteFile(exe, self, 0o755), os.Mkdir(home+"/tmp", 0o755), os.Chown(home+"/tmp", 12345, 12345)))
	cmd := exec.Command(exe, "-test.short", "-test.run=^(TestWithoutKernel|TestViewErrors|TestPlain|TestSums|TestCancel|TestExchangedInALoop)$")
	cmd.Env = append(os.Environ(), "TMPDIR="+home+"/tmp", "HOME="+home)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
}
