//go:build linux

package isolationtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// box is a sandbox with what belongs to it on the host.
type box struct {
	isolation.Sandbox
	dir       string // on the host; holds all that follows
	workspace string // lowest layer of /workspace
	upper     string // of /workspace
	ids       isolation.IDs
	stacks    []isolation.Stack // as they are mounted
	group     *quota.Group      // nil when cgroups are waived
	steps     atomic.Uint32
}

// owner of the workspace on the host, as root: an ordinary user, neither root nor 1000.
const owner, ownerGroup = 4321, 4322

// programs is where the suite's programs are inside, and tmpLimit the size of /tmp.
const (
	programs = "/test"
	tmpLimit = 4 << 20
)

// limits of every sandbox; large enough for the test binary.
var limits = quota.Limits{
	CPUs: 2 * quota.CPU, Memory: 512 << 20, Pids: 256, Timeout: quota.Duration(time.Hour), Output: 1 << 20, Tmp: tmpLimit,
}

// change alters how a sandbox is built.
type change func(*isolation.BuildOptions, *box)

// start starts a sandbox that is closed when the test ends.
func (s *suite) start(t *testing.T, changes ...change) *box {
	t.Helper()
	b, err := s.tryStart(t, changes...)
	if errors.Is(err, isolation.ErrUnsupported) {
		testenv.Need(t, "userns", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tryStart is start for a sandbox that may be refused.
func (s *suite) tryStart(t *testing.T, changes ...change) (*box, error) {
	t.Helper()
	b := &box{dir: tempDir(t, s.prefix)}
	o := isolation.BuildOptions{
		ID: s.id(), Hostname: "caisson", Limits: limits, Seccomp: s.o.Seccomp, Weaker: slices.Clone(s.o.Weaker),
		Args: []string{programs + "/" + helperName}, UID: 1000, GID: 1000,
		IDs: isolation.IDs{Single: true, Owner: uint32(os.Geteuid()), OwnerGroup: uint32(os.Getegid()), Inside: 1000},
	}
	if s.root() {
		// A range of its own for each sandbox, as runner gives it.
		o.IDs = isolation.IDs{Base: 1<<30 + (1000+s.count.Load())<<16, Size: 1 << 16, Owner: owner, OwnerGroup: ownerGroup, Inside: 1000}
	}
	b.ids = o.IDs
	o.Root = b.skeleton(t)
	o.Stacks = []isolation.Stack{b.stack(t, "/workspace", isolation.MapOwner), b.stack(t, "/home/user", isolation.MapNone)}
	b.workspace, b.upper = o.Stacks[0].Lower[0].Path, o.Stacks[0].Upper
	if s.o.Cgroups == nil {
		o.Weaker = append(o.Weaker, isolation.ControlCgroups)
	} else {
		b.group, o.Init = s.cgroup(t, o.ID)
		o.Cgroup = b.group
	}
	for _, c := range changes {
		c(&o, b)
	}
	spec, err := isolation.Build(o)
	if err != nil {
		return nil, err
	}
	b.stacks = spec.Stacks
	if b.Sandbox, err = s.engine.Start(t.Context(), spec); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error("close:", err)
		}
	})
	return b, nil
}

// cgroup makes a sandbox's group; it must be empty when the test ends.
func (s *suite) cgroup(t *testing.T, id string) (*quota.Group, *quota.Leaf) {
	t.Helper()
	g, err := s.o.Cgroups.New(id, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if pids, err := g.Procs(); err == nil && len(pids) > 0 {
			t.Errorf("processes %v are left in the cgroup", pids)
			_ = g.Kill(ctx) // so that it can be removed; the test has failed already
		}
		if err := g.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	leaf, err := g.Leaf("init", nil)
	if err != nil {
		t.Fatal(err)
	}
	return g, leaf
}

// skeleton makes a root filesystem: the host's programs, and the test binary.
func (b *box) skeleton(t *testing.T) isolation.Rootfs {
	t.Helper()
	root := filepath.Join(b.dir, "root")
	for _, d := range []string{"proc", "sys", "dev", "tmp", "workspace", "home/user", "etc", "usr", "opt", "run", "var", "mnt", "root", programs} {
		mkdir(t, filepath.Join(root, d))
	}
	writeFile(t, filepath.Join(root, "etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
	writeFile(t, filepath.Join(root, programs, "binary"), "")
	for _, name := range []string{helperName, hostileName} {
		must(t, os.Symlink("binary", filepath.Join(root, programs, name)))
	}
	exe, err := os.Executable()
	must(t, err)
	fs := isolation.Rootfs{
		Layers: []isolation.Layer{{Path: root}},
		Binds: []isolation.Bind{{Source: "/usr", Target: "/usr"}, {Source: "/opt", Target: "/opt"},
			{Source: exe, Target: programs + "/binary"}},
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		info, err := os.Lstat("/" + name)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			t.Fatal(err)
		case info.IsDir():
			mkdir(t, filepath.Join(root, name))
			fs.Binds = append(fs.Binds, isolation.Bind{Source: "/" + name, Target: "/" + name})
		default: // merged into /usr
			target, err := os.Readlink("/" + name)
			must(t, err)
			must(t, os.Symlink(target, filepath.Join(root, name)))
		}
	}
	return fs
}

// stack makes an overlay's directories. With MapOwner the lowest belongs to an ordinary host user.
func (b *box) stack(t *testing.T, target string, m isolation.Mapping) isolation.Stack {
	t.Helper()
	dir := filepath.Join(b.dir, filepath.Base(target))
	lower, upper, work := filepath.Join(dir, "lower"), filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{lower, upper, work} {
		mkdir(t, d)
	}
	uid, gid := b.ids.Host(1000, 1000)
	must(t, os.Chown(upper, int(uid), int(gid)))
	if m == isolation.MapOwner {
		uid, gid = b.ids.Owner, b.ids.OwnerGroup
	}
	must(t, os.Chown(lower, int(uid), int(gid)))
	return isolation.Stack{Target: target, Lower: []isolation.Layer{{Path: lower, Map: m}}, Upper: upper, Work: work}
}

// process is a command of the suite's helper, with the usual environment.
func (b *box) process(t *testing.T, args ...string) *isolation.Process {
	t.Helper()
	p := &isolation.Process{
		Args: append([]string{programs + "/" + helperName}, args...), Cwd: "/workspace", UID: 1000, GID: 1000,
		Env: []string{"PATH=" + programs + ":/usr/bin:/bin", "HOME=/home/user"},
	}
	if b.group != nil {
		leaf, err := b.group.Leaf(fmt.Sprintf("step-%d", b.steps.Add(1)), nil)
		must(t, err)
		p.Cgroup = leaf
	}
	return p
}

// result is a command's end and what it wrote.
type result struct {
	isolation.ExitStatus
	out, err string
}

// run runs a process to its end with pipes for its output.
func (b *box) run(t *testing.T, p *isolation.Process) result {
	t.Helper()
	stdout, stderr := collect(t), collect(t)
	p.Stdout, p.Stderr = stdout.w, stderr.w
	x, err := b.Exec(t.Context(), p)
	stdout.w.Close()
	stderr.w.Close()
	if err != nil {
		t.Fatalf("exec %q: %v", p.Args, err)
	}
	status := wait(t, x)
	return result{status, string(<-stdout.data), string(<-stderr.data)}
}

// help runs the helper and returns what it printed; it must succeed.
func (b *box) help(t *testing.T, args ...string) string {
	t.Helper()
	r := b.run(t, b.process(t, args...))
	if r.Code != 0 || r.Signal != 0 {
		t.Fatalf("helper %q: %+v", args, r)
	}
	return r.out
}

// helpJSON decodes what the helper printed.
func (b *box) helpJSON(t *testing.T, to any, p *isolation.Process) {
	t.Helper()
	r := b.run(t, p)
	if err := json.Unmarshal([]byte(r.out), to); err != nil || r.Code != 0 {
		t.Fatalf("helper %q: %v: %+v", p.Args, err, r)
	}
}

// collector reads a pipe to its end.
type collector struct {
	w    *os.File
	data <-chan []byte
}

func collect(t *testing.T) collector {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	data := make(chan []byte, 1)
	go func() {
		defer r.Close()
		var buf bytes.Buffer
		_, _ = io.Copy(&buf, r) // an error ends the output, and the test sees that it is short
		data <- buf.Bytes()
	}()
	return collector{w, data}
}

// patience is how long anything may take that should be immediate; the virtual machine is slow.
const patience = time.Minute

// repeat is how often to do what a test does n times: less with -short, for the virtual machine.
func repeat(n int) int {
	if testing.Short() {
		return max(n/10, 1)
	}
	return n
}

func wait(t *testing.T, x isolation.Execution) isolation.ExitStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, err := x.Wait(ctx)
	if err != nil {
		t.Fatal("wait:", err)
	}
	return status
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// tempDir is t.TempDir under a name that leak checks recognize, and with the modes of a user's directory.
func tempDir(t *testing.T, prefix string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", prefix)
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// removeAll is os.RemoveAll also for an overlay's work directory, which has no permission bits.
func removeAll(dir string) error {
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(p, 0o700) // before it is read
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
