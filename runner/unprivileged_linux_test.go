package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// ordinary is a user that owns nothing.
const ordinary = 61234

// asOrdinary gives the bench to an ordinary user, and makes the test binary reachable for it.
func asOrdinary(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", os.ErrPermission)
	}
	top := t.TempDir()
	b := &bench{state: filepath.Join(top, "state"), workspace: filepath.Join(top, "workspace")}
	for _, dir := range []string{b.state, b.workspace} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.write(t, "file", "old\n")
	for _, p := range []string{b.state, b.workspace, filepath.Join(b.workspace, "file")} {
		if err := os.Chown(p, ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	for dir := top; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(dir, info.Mode().Perm()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

// An ordinary user without cgroups is refused with the control and the remedy, and nothing runs; with the word that the
// remedy names, everything but the limits of cgroups works.
func TestUnprivileged(t *testing.T) {
	b := asOrdinary(t)
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(filepath.Dir(b.state), "caisson.test")
	if err := os.WriteFile(bin, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	act := func(act string, args ...string) (string, error) {
		c := b.process(t, act, args...)
		c.Path, c.Dir = bin, "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := act("run", "touch", "/workspace/ran")
	if err == nil || !strings.Contains(out, "cgroups") {
		t.Fatalf("not refused: %s", out)
	}
	out, err = act("unprivileged", "sh", "-c", "id -u; pwd; cat file; echo new > file; mkdir d; echo more > d/added; touch ~/x; rm -rf ~/x; mv d e; mv e d")
	if strings.Contains(out, "cannot enforce userns") {
		testenv.Need(t, "userns", os.ErrPermission)
	}
	if err != nil || !strings.HasPrefix(out, "1000\n/workspace\nold\n") {
		t.Fatalf("%v %s", err, out)
	}
	b.oldOrNew(t)
	if b.read(t, "file") != "new\n" {
		t.Fatal("not promoted")
	}
	info, err := os.Stat(filepath.Join(b.workspace, "d/added"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != ordinary {
		t.Fatal("promoted with another owner", err)
	}
	// Nothing enforces the disk's limit here: who goes over it is killed, and the verdict says so.
	out, err = act("unprivileged", "sh", "-c", "for i in 1 2 3; do dd if=/dev/zero of=big$i bs=64k count=480 2>/dev/null; done; sleep 60")
	if err == nil || !strings.Contains(out, "disk: the feature's disk is full: the limit is 50m") {
		t.Fatalf("%v %s", err, out)
	}
}
