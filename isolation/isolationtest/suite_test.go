//go:build linux

package isolationtest_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest"
	"github.com/caisson-dev/caisson/isolation/isolationtest/hostile"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/isolation/seccomp"
	"github.com/caisson-dev/caisson/quota"
)

func TestMain(m *testing.M) { isolationtest.Main(m) }

// TestUnprivileged runs the suite with the native engine as an ordinary user. (As whoever runs the tests, and so mostly
// as root, it is run by the engine's own package.)
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() == 0 {
		runAs(t, 1001, "-test.run=^TestUnprivileged$", "-test.v="+strconv.FormatBool(testing.Verbose()),
			"-test.short="+strconv.FormatBool(testing.Short()))
		return
	}
	cgroups, err := quota.Probe()
	if err != nil {
		cgroups = nil // not delegated
	}
	isolationtest.Run(t, newNative, isolationtest.Options{
		Seccomp: seccomp.Default(), Cgroups: cgroups, Weaker: []isolation.Control{isolation.ControlIDMap},
	})
}

func newNative(t *testing.T) isolation.Engine {
	t.Helper()
	e, err := native.New(native.Options{})
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

// runAs runs this test binary again as another user.
func runAs(t *testing.T, uid uint32, args ...string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "isolationtest-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.ReadFile("/proc/self/exe") // go test's own directory is closed to others
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "isolationtest.test")
	for _, err := range []error{os.WriteFile(binary, exe, 0o755), os.Chmod(binary, 0o755), os.Chown(dir, int(uid), int(uid)), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(binary, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out []byte
	done := make(chan error)
	go func() { // on a thread of its own, which ends with it
		if err := testenv.OpenTUN(dir); err != nil {
			t.Logf("the TUN device stays as it is: %v", err)
		}
		var err error
		out, err = c.CombinedOutput()
		done <- err
	}()
	err = <-done
	t.Logf("as uid %d:\n%s", uid, out)
	if err != nil {
		t.Error(err)
	}
}

// TestHostileOutside proves that the attempts can succeed: without a sandbox, as a user that nobody else is, the
// program must report these holes.
func TestHostileOutside(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", errors.New("only root can become a user that has no other process"))
	}
	const lonely = 61234 // some attempts would harm other processes of the same user
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	args, err := hostile.Args(hostile.Host{
		Hostname: host, PID: os.Getpid(), Secret: "root:", Files: []string{"/etc/passwd"}, Writable: []string{"/tmp"},
		Namespaces: map[string]string{"net": network},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = "hostile"
	c.Dir = "/tmp"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: lonely, Gid: lonely}}
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r hostile.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	holes := map[string]bool{}
	for _, o := range r.Holes() {
		holes[o.Name] = true
		t.Logf("%s: %s", o.Name, o.Detail)
	}
	for _, name := range []string{
		"file/host", "file/write_anywhere", "kernel/hostname", "dev/extra", "sys/listing", "mount/host_paths", "mount/flags",
		"cred/no_new_privs", "cred/seccomp", "ns/identity_map", "ns/host_net", "kernel/keyctl", "arch/modify_ldt",
	} {
		if !holes[name] && !(name == "arch/modify_ldt" && runtime.GOARCH != "amd64") {
			t.Errorf("%s was refused without any sandbox", name)
		}
	}
}
