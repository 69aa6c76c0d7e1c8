package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/seccomp"
	"github.com/caisson-dev/caisson/quota"
)

var testFilter = seccomp.Default()

func testEngine(t testing.TB) *Engine {
	t.Helper()
	e, err := newEngine(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// skeleton is a root filesystem that shows the host's programs.
func skeleton(t testing.TB) isolation.Rootfs {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	for _, d := range []string{"proc", "sys", "dev", "tmp", "workspace", "home/user", "etc", "usr"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(dir, l)); err != nil {
			t.Fatal(err)
		}
	}
	return isolation.Rootfs{Layers: []isolation.Layer{{Path: dir}}, Binds: []isolation.Bind{{Source: "/usr", Target: "/usr"}}}
}

func testIDs() isolation.IDs {
	if os.Geteuid() != 0 {
		return isolation.IDs{Single: true, Owner: uint32(os.Geteuid()), OwnerGroup: uint32(os.Getegid()), Inside: 1000}
	}
	return isolation.IDs{Base: 1<<30 + 77*65536, Size: 65536, Inside: 1000}
}

// stack is an overlay over a fresh lower directory.
func stack(t testing.TB, ids isolation.IDs, target string) isolation.Stack {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := ids.Host(1000, 1000)
	if err := os.Chown(filepath.Join(dir, "upper"), int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clearVolatile(filepath.Join(dir, "work")); err != nil {
			t.Error(err)
		}
	})
	return isolation.Stack{Target: target, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"),
		Lower: []isolation.Layer{{Path: filepath.Join(dir, "lower"), Map: isolation.MapOwner}}}
}

// testLimits are small enough to be hit in a test.
var testLimits = quota.Limits{CPUs: 2 * quota.CPU, Memory: 256 << 20, Pids: 128, Tmp: 64 << 20}

// withCgroup gives a spec a group of its own; the test fails or skips where there can be none.
func withCgroup(t testing.TB, s *isolation.Spec) *isolation.Spec {
	t.Helper()
	c, err := quota.Probe()
	testenv.Need(t, "cgroups", err)
	g, err := c.New(s.ID, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if err := c.Cleanup(); err != nil {
			t.Log(err)
		}
	})
	leaf, err := g.Leaf("init", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Cgroup, s.Init, s.Weaker = g, leaf, nil
	return s
}

func testSpec(t testing.TB) *isolation.Spec {
	t.Helper()
	ids := testIDs()
	name := strings.NewReplacer("/", "-", "#", "-").Replace(strings.ToLower(t.Name()))
	s, err := isolation.Build(isolation.BuildOptions{
		ID: fmt.Sprintf("test-%s-%d", name, os.Getpid()), Hostname: "caisson", Root: skeleton(t),
		Stacks: []isolation.Stack{stack(t, ids, "/workspace"), stack(t, ids, "/home/user")},
		IDs:    ids, Limits: testLimits, Weaker: []isolation.Control{isolation.ControlCgroups},
		Seccomp: testFilter, Args: []string{"true"}, UID: 1000, GID: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startBox(t testing.TB, e *Engine, s *isolation.Spec) *sandbox {
	t.Helper()
	b, err := e.Start(t.Context(), s)
	if errors.Is(err, isolation.ErrUnsupported) {
		testenv.Need(t, "userns", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b.(*sandbox)
}

// sh runs a shell command and returns what it wrote and its code.
func sh(t testing.TB, b isolation.Sandbox, script string) (string, int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := b.Exec(t.Context(), &isolation.Process{
		Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/user"}, Cwd: "/workspace",
		UID: 1000, GID: 1000, Stdout: w, Stderr: w,
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	st, err := x.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Signal != 0 {
		return string(out), 128 + int(st.Signal)
	}
	return string(out), st.Code
}

// quantile returns the q-th part (0 to 1) of the measurements.
func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[int(q*float64(len(s)-1))]
}

// TestStartAgain mounts the same layers a second time, as a feature's next task does, with what the first one wrote.
func TestStartAgain(t *testing.T) {
	needUserns(t)
	e, s := testEngine(t), testSpec(t)
	for i, script := range []string{"echo one >f", "grep one f"} {
		b, err := e.Start(t.Context(), s)
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if out, code := sh(t, b, script); code != 0 {
			t.Errorf("%s: exit %d: %s", script, code, out)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyMaps: the namespaces of features that have gone are not kept for ever.
func TestManyMaps(t *testing.T) {
	testenv.Need(t, "root", needRoot())
	e := testEngine(t)
	for i := range keptMaps + 10 {
		m := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(probeBase + i*probeRange), Size: probeRange}}
		var now immediate
		tree, err := now.call("open_tree", unix.SYS_OPEN_TREE, unix.AT_FDCWD, t.TempDir(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == nil {
			err = e.idmap(tree, "tree", m, m)
		}
		now.close()
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(e.maps.ns); n != keptMaps || len(e.maps.keys) != n {
		t.Errorf("%d namespaces, want %d", n, keptMaps)
	}
}

func needRoot() error {
	if !privileged() {
		return fs.ErrPermission
	}
	return nil
}
