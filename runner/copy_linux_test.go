package runner_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/runner"
)

// What a task makes large without filling it does not fill the host's disk either.
func TestCopyHoles(t *testing.T) {
	notEmulated(t)
	b := newNative(t, runner.Options{})
	res, _, errs := run(t, b, steps(b, "f", "truncate -s 900G large; echo end >> large; mkdir d; echo begin > d/some; truncate -s 5G d/some; : > d/empty"))
	if res.Verdict != runner.VerdictOK {
		t.Fatal(errs)
	}
	to := t.TempDir()
	for _, path := range []string{"large", "d"} {
		if err := b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: path}, runner.CopyPath{Path: to}); err != nil {
			t.Fatal(err)
		}
	}
	for path, size := range map[string]int64{"large": 900<<30 + 4, "d/some": 5 << 30, "d/empty": 0} {
		info, err := os.Stat(filepath.Join(to, path))
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || info.Size() != size || st.Blocks > 1000 {
			t.Errorf("%s: %d bytes in %d blocks", path, info.Size(), st.Blocks)
		}
	}
	f, err := os.Open(filepath.Join(to, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end := make([]byte, 8)
	if n, _ := f.ReadAt(end, 900<<30-4); string(end[:n]) != "\x00\x00\x00\x00end\n" {
		t.Errorf("%q", end[:n])
	}
}
