//go:build linux

package isolationtest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest/hostile"
)

var escapeTests = []test{
	{"hostile program", (*suite).testHostile, nil},
	{"hostile program as root inside", (*suite).testHostileRoot, (*suite).root},
	{"working directory by descriptor", (*suite).testCwdDescriptor, nil},
	{"program by descriptor", (*suite).testProgramDescriptor, nil},
	{"links at mount targets", (*suite).testLinkTargets, nil},
	{"links in the workspace", (*suite).testWorkspaceLinks, nil},
	{"watching the execs", (*suite).testWatch, nil},
}

// secret is what must not be seen inside. It is in the supervisor's environment and in files of the host.
var secret = "secret-" + rand.Text()

// secretEnvironment puts the secret and the canary where a leak would show them.
func secretEnvironment(t *testing.T) {
	t.Setenv("CAISSON_ISOLATIONTEST_SECRET", secret)
	if _, err := rand.Read(canary[:]); err != nil {
		t.Fatal(err)
	}
	canary[0], canary[15] = 1, 1 // never zero
}

func (s *suite) testHostile(t *testing.T) { s.attack(t, 1000) }

// testHostileRoot: uid 0 of the user namespace has no capability and is nobody outside. An unprivileged user's
// sandbox has one id.
func (s *suite) testHostileRoot(t *testing.T) { s.attack(t, 0) }

// attack runs the hostile program with real targets and fails for every hole.
func (s *suite) attack(t *testing.T, uid uint32) {
	h := s.targets(t)
	b := s.start(t, func(o *isolation.BuildOptions, b *box) {
		s.plant(t, &h, b)
	})
	r := b.runHostile(t, h, uid)
	if len(r.Inherited) > 0 {
		t.Errorf("inherited descriptors: %q", r.Inherited)
	}
	names := map[string]bool{}
	for _, o := range r.Outcomes {
		names[o.Name] = true
		if o.Skipped {
			t.Logf("not tried: %s: %s", o.Name, o.Detail)
		}
	}
	for _, c := range hostile.Cases() {
		if !names[c.Name] {
			t.Errorf("%s was not tried", c.Name)
		}
	}
	for _, o := range r.Holes() {
		t.Errorf("hole: %s gives %s: %s", o.Name, o.Gives, o.Detail)
	}
	t.Logf("%d attempts as uid %d", len(r.Outcomes), uid)
	if got := b.help(t, "echo", "unharmed"); got != "unharmed\n" {
		t.Error(got)
	}
	checkHost(t, h)
}

// runHostile runs the hostile program to its end.
func (b *box) runHostile(t *testing.T, h hostile.Host, uid uint32) *hostile.Report {
	t.Helper()
	args, err := hostile.Args(h)
	must(t, err)
	p := b.process(t)
	p.Args, p.UID, p.GID = append([]string{programs + "/" + hostileName}, args...), uid, uid
	res := b.run(t, p)
	r := &hostile.Report{}
	if err := json.Unmarshal([]byte(res.out), r); err != nil || res.Code != 0 {
		t.Fatalf("hostile program: %v: %+v", err, res)
	}
	return r
}

// targets prepares things on the host that must not be reached, and takes note of what must not change.
func (s *suite) targets(t *testing.T) hostile.Host {
	t.Helper()
	h := hostile.Host{
		PID: os.Getpid(), Secret: secret, Namespaces: map[string]string{}, Mapped: s.root(),
		Writable: []string{"/workspace", "/home/user", "/tmp"},
	}
	var err error
	h.Hostname, err = os.Hostname()
	must(t, err)
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		h.Namespaces[ns], err = os.Readlink("/proc/self/ns/" + ns)
		must(t, err)
	}
	dir := tempDir(t, s.prefix)
	writeFile(t, dir+"/secret", secret)
	h.Files = []string{dir + "/secret"}
	h.Abstract = "@" + s.prefix + t.Name()
	for _, address := range [][2]string{{"unix", h.Abstract}, {"tcp", "127.0.0.1:0"}} {
		l, err := net.Listen(address[0], address[1])
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		if address[0] == "tcp" {
			h.Listeners = append(h.Listeners, l.Addr().String())
		}
	}
	h.Listeners = append(h.Listeners, hostAddresses(t)...)
	ipcObjects(t, &h)
	if s.root() {
		for _, dir := range []string{"/usr/local", "/opt"} {
			path := filepath.Join(dir, s.prefix+"-rootonly")
			must(t, os.WriteFile(path, []byte(secret), 0o600))
			t.Cleanup(func() { must(t, os.Remove(path)) })
			h.RootOnly = append(h.RootOnly, path)
		}
	}
	return h
}

// hostAddresses listens on the host's own addresses beside loopback.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	list, err := net.InterfaceAddrs()
	must(t, err)
	var found []string
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			found = append(found, net.JoinHostPort(n.IP.String(), port))
		}
	}
	return found
}

// ipcObjects makes one of each kind, readable for all.
func ipcObjects(t *testing.T, h *hostile.Host) {
	t.Helper()
	h.Key = 0xca1550 + os.Getpid()
	const mode = unix.IPC_CREAT | 0o666
	for _, x := range []struct {
		get, ctl uintptr
		args     []uintptr
		remove   func(id uintptr) []uintptr
	}{
		{unix.SYS_SHMGET, unix.SYS_SHMCTL, []uintptr{4096, mode}, func(id uintptr) []uintptr { return []uintptr{id, unix.IPC_RMID, 0, 0} }},
		{unix.SYS_SEMGET, unix.SYS_SEMCTL, []uintptr{1, mode}, func(id uintptr) []uintptr { return []uintptr{id, 0, unix.IPC_RMID, 0} }},
		{unix.SYS_MSGGET, unix.SYS_MSGCTL, []uintptr{mode, 0}, func(id uintptr) []uintptr { return []uintptr{id, unix.IPC_RMID, 0, 0} }},
	} {
		id, _, errno := unix.Syscall(x.get, uintptr(h.Key), x.args[0], x.args[1])
		if errno != 0 {
			t.Fatal("System V object:", errno)
		}
		t.Cleanup(func() {
			a := x.remove(id)
			if _, _, errno := unix.Syscall6(x.ctl, a[0], a[1], a[2], a[3], 0, 0); errno != 0 {
				t.Error("System V object:", errno)
			}
		})
	}
	h.Queue = "/" + filepath.Base(h.Files[0]) + h.Abstract[1:9]
	removeQueue := makeQueue(t, h.Queue)
	t.Cleanup(removeQueue)
	h.Queue = h.Queue[1:] // the system call takes the name without its slash
}

// plant puts traps into the workspace: links out of it, device nodes, setuid copies of the test binary.
func (s *suite) plant(t *testing.T, h *hostile.Host, b *box) {
	t.Helper()
	for name, target := range map[string]string{
		"absolute": h.Files[0], "dots": strings.Repeat("../", 20) + h.Files[0][1:], "through-proc": "/proc/1/root" + h.Files[0],
	} {
		must(t, os.Symlink(target, filepath.Join(b.workspace, name)))
		h.Links = append(h.Links, "/workspace/"+name)
	}
	if !s.root() {
		return
	}
	exe, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	for name, id := range map[string]int{"setuid-root": 0, "setuid-owner": owner, "setuid-other": 2} {
		path := filepath.Join(b.workspace, name)
		must(t, os.WriteFile(path, exe, 0o755))
		must(t, os.Chown(path, id, id))
		must(t, unix.Chmod(path, 0o6755))
		h.Setuid = append(h.Setuid, "/workspace/"+name)
	}
	// cap_sys_admin+ep, version 2: of the host's own user namespace.
	path := filepath.Join(b.workspace, "file-capabilities")
	must(t, os.WriteFile(path, exe, 0o755))
	must(t, unix.Setxattr(path, "security.capability", []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	h.Setuid = append(h.Setuid, "/workspace/file-capabilities")
	for name, dev := range map[string]uint64{"zero": unix.Mkdev(1, 5), "kmsg": unix.Mkdev(1, 11)} {
		path := filepath.Join(b.workspace, name)
		must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(dev)))
		must(t, unix.Chmod(path, 0o666))
		h.Devices = append(h.Devices, "/workspace/"+name)
	}
}

// checkHost looks whether an attempt had an effect that the attempt itself did not see.
func checkHost(t *testing.T, h hostile.Host) {
	t.Helper()
	if name, err := os.Hostname(); err != nil || name != h.Hostname {
		t.Errorf("the host is called %s (%v), not %s", name, err, h.Hostname)
	}
	for _, f := range slices.Concat(h.Files, h.RootOnly) {
		if data, err := os.ReadFile(f); err != nil || string(data) != h.Secret {
			t.Errorf("%s was changed: %v", f, err)
		}
	}
}

// testCwdDescriptor: CVE-2024-21626. The supervisor has directories open; a working directory named by a descriptor
// must not lead there.
func (s *suite) testCwdDescriptor(t *testing.T) {
	b := s.start(t)
	dir, err := os.Open("/")
	must(t, err)
	defer dir.Close()
	leak, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0) // not close-on-exec
	must(t, err)
	defer unix.Close(leak)
	for fd := range 64 {
		for _, cwd := range []string{fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprintf("/dev/fd/%d", fd), fmt.Sprintf("/proc/thread-self/fd/%d", fd)} {
			p := b.process(t, "info")
			p.Cwd = cwd
			x, err := b.Exec(t.Context(), p)
			if err != nil {
				continue // refused
			}
			if wait(t, x).Code == 0 {
				b.checkInside(t, cwd)
			}
		}
	}
	runtime.KeepAlive(dir)
}

// checkInside fails the test when a command with that working directory is outside, or sees the host's files from there.
func (b *box) checkInside(t *testing.T, cwd string) {
	t.Helper()
	p := b.process(t, "info")
	p.Cwd = cwd
	var i processInfo
	b.helpJSON(t, &i, p)
	p = b.process(t, "read", strings.Repeat("../", 20)+b.workspace[1:])
	p.Cwd = cwd
	if r := b.run(t, p); !strings.HasPrefix(i.Cwd, "/") || !strings.Contains(r.err, "no such file") {
		t.Errorf("the working directory %s is %q; from there: %+v", cwd, i.Cwd, r)
	}
}

// testProgramDescriptor: a program named by a descriptor of the supervisor, or by a link to one that the last command
// left in the workspace, must not be executed: it lies outside.
func (s *suite) testProgramDescriptor(t *testing.T) {
	b := s.start(t)
	exe, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	outside := filepath.Join(b.dir, helperName)
	must(t, os.WriteFile(outside, exe, 0o755))
	dir, err := os.Open("/")
	must(t, err)
	defer dir.Close()
	for fd := range 64 {
		program := fmt.Sprintf("/proc/self/fd/%d%s", fd, outside)
		link := filepath.Join(b.workspace, fmt.Sprint("link", fd))
		must(t, os.Symlink(program, link))
		for _, path := range []string{program, "/workspace/" + filepath.Base(link)} {
			p := b.process(t)
			p.Args = []string{path}
			if x, err := b.Exec(t.Context(), p); err == nil {
				wait(t, x)
				t.Errorf("%s was executed, a program of the host", path)
			}
		}
	}
	runtime.KeepAlive(dir)
}

// testLinkTargets: a mount's target in the workspace may be a link that the last command left there. Following it would
// put the mount elsewhere.
func (s *suite) testLinkTargets(t *testing.T) {
	for name, link := range map[string][2]string{
		"absolute":  {"cache", "/etc"},
		"relative":  {"cache", "../etc"},
		"parent":    {"dir", "../usr"},
		"proc":      {"cache", "/proc/self"},
		"root":      {"cache", "/"},
		"dots":      {"cache", strings.Repeat("../", 30) + "tmp"},
		"self":      {"cache", "cache"},
		"workspace": {"cache", "."},
	} {
		b, err := s.tryStart(t, func(o *isolation.BuildOptions, b *box) {
			must(t, os.Symlink(link[1], filepath.Join(b.workspace, link[0])))
			mkdir(t, filepath.Join(b.dir, "source"))
			writeFile(t, filepath.Join(b.dir, "source/planted"), "x")
			target := "/workspace/" + link[0]
			if link[0] == "dir" {
				target += "/bin"
			}
			o.Mounts = append(o.Mounts, isolation.Bind{Source: filepath.Join(b.dir, "source"), Target: target})
		})
		if err == nil {
			t.Errorf("%s: a mount at a link was accepted; /etc/passwd is %q", name, b.run(t, b.process(t, "read", "/etc/passwd")).out)
		}
	}
}

// testWorkspaceLinks: the workspace's own root, and the overlay's layers, may hold links; they lead nowhere outside.
func (s *suite) testWorkspaceLinks(t *testing.T) {
	h := s.targets(t)
	b := s.start(t, func(_ *isolation.BuildOptions, b *box) { s.plant(t, &h, b) })
	for _, link := range h.Links {
		if r := b.run(t, b.process(t, "read", link)); r.Code == 0 || strings.Contains(r.out, secret) {
			t.Errorf("%s shows the host: %+v", link, r)
		}
		b.run(t, b.process(t, "write", link, "overwritten")) // whatever happens, not on the host
	}
	checkHost(t, h)
}

// testWatch: while commands enter the sandbox, a process inside looks at each of them as fast as it can. Before execve
// they are the supervisor's own program, perhaps with the supervisor's memory.
func (s *suite) testWatch(t *testing.T) {
	b := s.start(t)
	in, w, err := os.Pipe()
	must(t, err)
	defer in.Close()
	p := b.process(t, "watch")
	p.Stdin = in
	x, out := b.ready(t, p)
	quick := b.process(t, "exit", "0")
	for range repeat(300) { // often enough to meet the moment before execve
		x, err := b.Exec(t.Context(), quick)
		must(t, err)
		wait(t, x)
	}
	must(t, w.Close())
	wait(t, x)
	report := string(<-out.data)
	if !strings.Contains(report, "looks ") || strings.HasPrefix(report, "looks 0") {
		t.Errorf("nobody was watching: %q", report)
	}
	if strings.Contains(report, "found") {
		t.Errorf("the watcher %s", report)
	}
}
