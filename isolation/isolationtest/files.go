//go:build linux

package isolationtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

var fileTests = []test{
	{"the root is read-only", (*suite).testReadOnlyRoot, nil},
	{"tmp is bounded", (*suite).testTmp, nil},
	{"tmp is private", (*suite).testPrivate, nil},
	{"the workspace is not written", (*suite).testWorkspace, nil},
	{"the workspace's owner", (*suite).testOwner, nil},
	{"home", (*suite).testHome, nil},
	{"binds", (*suite).testBinds, nil},
	{"binds over the workspace", (*suite).testBindOver, nil},
	{"strange paths", (*suite).testStrangePaths, nil},
	{"deep paths", (*suite).testDeepPaths, nil},
	{"hostname", (*suite).testHostname, nil},
	{"nothing is mounted on the host", (*suite).testHostMounts, nil},
}

func (s *suite) testReadOnlyRoot(t *testing.T) {
	b := s.start(t)
	for _, path := range []string{"/new", "/etc/new", "/usr/new", "/etc/passwd", "/home/new", "/mnt/new", "/var/new", "/root/new"} {
		if r := b.run(t, b.process(t, "write", path, "x")); r.Code == 0 {
			t.Errorf("%s was written", path)
		}
	}
}

// testTmp: the size is a limit, and files in /tmp can be executed and removed.
func (s *suite) testTmp(t *testing.T) {
	b := s.start(t)
	var n int
	var why string
	out := b.help(t, "fill", "/tmp/full")
	if _, err := fmt.Sscan(out, &n, &why); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	if why != "ENOSPC" || n > tmpLimit || n < tmpLimit*9/10 {
		t.Errorf("%d bytes and %s, want ENOSPC at %d", n, why, tmpLimit)
	}
	b.help(t, "write", "/tmp/again", "x")
	for _, dir := range []string{"/dev", "/dev/shm"} {
		out := b.run(t, b.process(t, "fill", dir+"/full"))
		if strings.Contains(out.out, "unbounded") {
			t.Errorf("%s is unbounded: %+v", dir, out)
		}
	}
}

func (s *suite) testPrivate(t *testing.T) {
	a, b := s.start(t), s.start(t)
	for _, path := range []string{"/tmp/mine", "/dev/shm/mine", "/workspace/mine", "/home/user/mine"} {
		a.help(t, "write", path, "secret")
		if got := a.help(t, "read", path); got != "secret" {
			t.Errorf("%s: %q", path, got)
		}
		if r := b.run(t, b.process(t, "read", path)); r.Code == 0 {
			t.Errorf("another sandbox reads %s", path)
		}
	}
	if _, err := os.Stat("/tmp/mine"); err == nil {
		t.Error("the host has /tmp/mine")
	}
}

// testWorkspace: every kind of change goes to the upper layer, and the workspace stays as it was.
func (s *suite) testWorkspace(t *testing.T) {
	b := s.start(t, func(_ *isolation.BuildOptions, b *box) {
		for _, name := range []string{"modified", "deleted", "moved", "mode", "untouched"} {
			writeFile(t, filepath.Join(b.workspace, name), "before")
			must(t, os.Chown(filepath.Join(b.workspace, name), int(b.ids.Owner), int(b.ids.OwnerGroup)))
		}
	})
	before := listing(t, b.workspace)
	b.help(t, "edit", "/workspace")
	if got := b.help(t, "read", "/workspace/modified"); got != "after" {
		t.Errorf("inside: %q", got)
	}
	if after := listing(t, b.workspace); !slices.Equal(before, after) {
		t.Errorf("the workspace was written:\n%q\n%q", before, after)
	}
	uppers := listing(t, b.upper)
	for _, want := range []string{"modified", "added", "moved-away", "mode", "subdir", "symlink", "hardlink", "deleted", "moved"} {
		if !slices.ContainsFunc(uppers, func(l string) bool { return strings.HasPrefix(l, want+" ") }) {
			t.Errorf("%s is not in the upper layer %q", want, uppers)
		}
	}
	if slices.ContainsFunc(uppers, func(l string) bool { return strings.HasPrefix(l, "untouched ") }) {
		t.Error("what was not changed is in the upper layer")
	}
	data, err := os.ReadFile(filepath.Join(b.upper, "added"))
	if err != nil || string(data) != "new" {
		t.Errorf("added: %q, %v", data, err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(b.upper, "added"), &st))
	if uid, gid := b.ids.Host(1000, 1000); st.Uid != uid || st.Gid != gid {
		t.Errorf("a new file belongs to %d:%d on the host, want %d:%d", st.Uid, st.Gid, uid, gid)
	}
}

// testOwner: the command's user owns what the workspace's owner owns, and nothing else.
func (s *suite) testOwner(t *testing.T) {
	b := s.start(t, func(_ *isolation.BuildOptions, b *box) {
		for name, mode := range map[string]os.FileMode{"private": 0o600, "others": 0o600} {
			path := filepath.Join(b.workspace, name)
			must(t, os.WriteFile(path, []byte(name), mode))
			must(t, os.Chown(path, int(b.ids.Owner), int(b.ids.OwnerGroup)))
		}
		if s.root() { // root's own file in a user's directory
			must(t, os.Chown(filepath.Join(b.workspace, "others"), 0, 0))
		}
	})
	if got := b.help(t, "read", "/workspace/private"); got != "private" {
		t.Errorf("%q", got)
	}
	if !s.root() {
		return
	}
	if r := b.run(t, b.process(t, "read", "/workspace/others")); r.Code == 0 {
		t.Errorf("the command read a file of another user: %+v", r)
	}
}

func (s *suite) testHome(t *testing.T) {
	b := s.start(t)
	b.help(t, "write", "/home/user/.config", "x")
	if got := b.help(t, "read", "/home/user/.config"); got != "x" {
		t.Errorf("%q", got)
	}
}

// testBinds: read-only unless asked, nosuid and nodev always; a bind of a single file too.
func (s *suite) testBinds(t *testing.T) {
	b := s.start(t, func(o *isolation.BuildOptions, b *box) {
		for _, d := range []string{"ro", "rw"} {
			mkdir(t, filepath.Join(b.dir, d))
			writeFile(t, filepath.Join(b.dir, d, "file"), d)
			mkdir(t, filepath.Join(o.Root.Layers[0].Path, "mnt", d))
			m := isolation.MapOwner
			for _, p := range []string{filepath.Join(b.dir, d), filepath.Join(b.dir, d, "file")} {
				must(t, os.Chown(p, int(b.ids.Owner), int(b.ids.OwnerGroup)))
			}
			o.Mounts = append(o.Mounts, isolation.Bind{Source: filepath.Join(b.dir, d), Target: "/mnt/" + d, Writable: d == "rw", Map: m, Owner: b.ids.Owner, Group: b.ids.OwnerGroup})
		}
		writeFile(t, filepath.Join(o.Root.Layers[0].Path, "mnt/file"), "")
		o.Mounts = append(o.Mounts, isolation.Bind{Source: filepath.Join(b.dir, "ro/file"), Target: "/mnt/file"})
	})
	for path, want := range map[string]string{"/mnt/ro/file": "ro", "/mnt/rw/file": "rw", "/mnt/file": "ro"} {
		if got := b.help(t, "read", path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	if r := b.run(t, b.process(t, "write", "/mnt/ro/file", "x")); r.Code == 0 {
		t.Error("a read-only bind was written")
	}
	b.help(t, "write", "/mnt/rw/file", "changed")
	data, err := os.ReadFile(filepath.Join(b.dir, "rw/file"))
	if err != nil || string(data) != "changed" {
		t.Errorf("on the host: %q, %v", data, err)
	}
	for line := range strings.Lines(b.help(t, "read", "/proc/self/mountinfo")) {
		if strings.Contains(line, " /mnt/") && (!strings.Contains(line, "nosuid") || !strings.Contains(line, "nodev")) {
			t.Errorf("no nosuid or nodev: %s", line)
		}
	}
}

// testBindOver: a mount may lie in the workspace, where it hides a directory; the layers do not notice.
func (s *suite) testBindOver(t *testing.T) {
	b := s.start(t, func(o *isolation.BuildOptions, b *box) {
		mkdir(t, filepath.Join(b.workspace, "vendor"))
		mkdir(t, filepath.Join(b.dir, "cache"))
		writeFile(t, filepath.Join(b.dir, "cache/module"), "cached")
		o.Mounts = append(o.Mounts, isolation.Bind{Source: filepath.Join(b.dir, "cache"), Target: "/workspace/vendor"})
	})
	if got := b.help(t, "read", "/workspace/vendor/module"); got != "cached" {
		t.Errorf("%q", got)
	}
}

// testStrangePaths: mount options give a meaning to commas, colons, backslashes and equals signs; mountinfo to blanks
// and line breaks. A user's directory may have any of them in its name, and bytes that are no UTF-8.
func (s *suite) testStrangePaths(t *testing.T) {
	for _, name := range []string{"a,b", "a:b", `a\b`, "a=b,upperdir=/etc", "a b\tc", "a\nb", "\xff\xfe", `"a'$(b)`, "..a", "-a", "a%20b", "lowerdir+"} {
		s.testIn(t, name)
	}
}

// testDeepPaths: an option's value may have 255 bytes, a path 4095.
func (s *suite) testDeepPaths(t *testing.T) {
	s.testIn(t, strings.Repeat("a", 255))
	s.testIn(t, strings.Repeat(strings.Repeat("b", 200)+"/", 15))
}

// testIn starts a sandbox all of whose directories lie in one with that name.
func (s *suite) testIn(t *testing.T, name string) {
	t.Helper()
	b, err := s.tryStart(t, func(o *isolation.BuildOptions, b *box) {
		dir := filepath.Join(b.dir, name)
		mkdir(t, filepath.Dir(dir))
		tmp := b.dir + "-moved"
		must(t, os.Mkdir(tmp, 0o755))
		for _, d := range []string{"root", "workspace", "user"} {
			must(t, os.Rename(filepath.Join(b.dir, d), filepath.Join(tmp, d)))
		}
		must(t, os.Rename(tmp, dir))
		moved := func(p string) string { return dir + strings.TrimPrefix(p, b.dir) }
		o.Root.Layers[0].Path = moved(o.Root.Layers[0].Path)
		for i := range o.Stacks {
			o.Stacks[i].Upper, o.Stacks[i].Work = moved(o.Stacks[i].Upper), moved(o.Stacks[i].Work)
			o.Stacks[i].Lower[0].Path = moved(o.Stacks[i].Lower[0].Path)
		}
		writeFile(t, filepath.Join(o.Stacks[0].Lower[0].Path, "file"), "there")
		must(t, os.Mkdir(filepath.Join(dir, "bound"), 0o755))
		writeFile(t, filepath.Join(dir, "bound/file"), "bound")
		o.Mounts = append(o.Mounts, isolation.Bind{Source: filepath.Join(dir, "bound"), Target: "/mnt"})
	})
	if err != nil {
		t.Errorf("%.40q: %v", name, err)
		return
	}
	for path, want := range map[string]string{"/workspace/file": "there", "/mnt/file": "bound"} {
		if r := b.run(t, b.process(t, "read", path)); r.out != want {
			t.Errorf("%.40q: %s: %+v", name, path, r)
		}
	}
	if r := b.run(t, b.process(t, "write", "/workspace/new", "x")); r.Code != 0 {
		t.Errorf("%.40q: %+v", name, r)
	}
}

func (s *suite) testHostname(t *testing.T) {
	b := s.start(t, func(o *isolation.BuildOptions, _ *box) { o.Hostname = "other-name" })
	if got := b.help(t, "read", "/proc/sys/kernel/hostname"); got != "other-name\n" {
		t.Errorf("%q", got)
	}
}

// testHostMounts: a running sandbox does not show in the host's mount table.
func (s *suite) testHostMounts(t *testing.T) {
	b := s.start(t)
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(data), b.dir) {
		t.Error("the host has mounts of the sandbox")
	}
}

// listing describes a tree: names, modes, sizes, times and content.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v %d %d", rel, info.Mode(), info.Size(), info.ModTime().UnixNano())
		if d.Type().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			line += fmt.Sprintf(" %q", data)
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// testDeepStack: as many layers as the kernel takes, at the start and by an exchange.
func (s *suite) testDeepStack(t *testing.T) {
	depth := 500
	if s.o.Shallow {
		depth = 40
	}
	b := s.start(t, func(o *isolation.BuildOptions, b *box) {
		lowest := o.Stacks[0].Lower[0]
		for i := range depth - 1 {
			dir := b.layer(t)
			writeFile(t, filepath.Join(dir, fmt.Sprintf("f%d", i)), "x")
			o.Stacks[0].Lower = append([]isolation.Layer{{Path: dir}}, o.Stacks[0].Lower...)
		}
		if got := o.Stacks[0].Lower[depth-1]; got != lowest {
			t.Errorf("lowest %+v", got)
		}
	})
	next := b.fresh(t, workspace, b.stacks[0].Lower)
	for _, name := range []string{"f0", fmt.Sprintf("f%d", depth-2)} {
		if got := b.help(t, "read", "/workspace/"+name); got != "x" {
			t.Errorf("%s: %q", name, got)
		}
	}
	b.exchange(t, next)
	b.help(t, "write", "/workspace/new", "y")
	if got, err := os.ReadFile(filepath.Join(next.Upper, "new")); err != nil || string(got) != "y" {
		t.Errorf("%q, %v", got, err)
	}
}

// testPlainStacks: a directory without overlay, writable, and layers without an upper.
func (s *suite) testPlainStacks(t *testing.T) {
	b := s.start(t)
	dir := b.layer(t)
	b.exchange(t, isolation.Stack{Target: workspace, Upper: dir}, b.fresh(t, home, b.stacks[1].Lower))
	b.help(t, "write", "/workspace/plain", "x")
	if got, err := os.ReadFile(filepath.Join(dir, "plain")); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	for _, lower := range [][]isolation.Layer{{{Path: dir}}, {{Path: dir}, {Path: b.workspace, Map: isolation.MapOwner}}} {
		b.exchange(t, isolation.Stack{Target: workspace, Lower: lower})
		if got := b.help(t, "read", "/workspace/plain"); got != "x" {
			t.Errorf("%q", got)
		}
		for _, path := range []string{"/workspace/plain", "/workspace/new"} {
			if r := b.run(t, b.process(t, "write", path, "y")); r.Code == 0 {
				t.Errorf("%s was written, of %d layers and no upper", path, len(lower))
			}
		}
	}
}

// testBadStacks: what cannot be mounted is an error, and changes nothing.
func (s *suite) testBadStacks(t *testing.T) {
	b := s.start(t)
	b.help(t, "write", "/workspace/file", "x")
	good := func() isolation.Stack { return b.fresh(t, home, b.stacks[1].Lower) }
	bad := func(f func(*isolation.Stack)) isolation.Stack {
		next := b.fresh(t, workspace, b.stacks[0].Lower)
		f(&next)
		return next
	}
	for name, c := range map[string][]isolation.Stack{
		"incomplete":     {good(), {Target: workspace}},
		"twice":          {good(), good()},
		"overlap":        {good(), bad(func(s *isolation.Stack) { s.Target = home + "/below" })},
		"not there":      {good(), bad(func(s *isolation.Stack) { s.Target = "/mnt" })},
		"relative":       {good(), bad(func(s *isolation.Stack) { s.Target = "workspace" })},
		"missing upper":  {good(), bad(func(s *isolation.Stack) { s.Upper += "/none" })},
		"missing layer":  {good(), bad(func(s *isolation.Stack) { s.Lower = []isolation.Layer{{Path: b.dir + "/none"}} })},
		"a file":         {good(), bad(func(s *isolation.Stack) { s.Lower = []isolation.Layer{{Path: b.stacks[0].Upper + "/file"}} })},
		"too many":       {good(), bad(func(s *isolation.Stack) { s.Lower = slices.Repeat(s.Lower, 501) })},
		"lost its mount": {good(), bad(func(s *isolation.Stack) { s.Work = "" })},
	} {
		if err := b.Exchange(t.Context(), c...); err == nil || errors.Is(err, os.ErrClosed) || errors.Is(err, isolation.ErrHeld) {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.help(t, "read", "/workspace/file"); got != "x" {
			t.Fatalf("%s: %q", name, got)
		}
	}
	b.exchange(t, b.sealed(t)...)
}
