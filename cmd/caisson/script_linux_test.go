package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
)

// ordinary is the uid and gid of the scripts' ordinary user, who has no entry in /etc/passwd.
const ordinary = 12345

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"caisson": main, "asuser": asUser, "prober": prober})
}

// asUser is the program asuser: it becomes the ordinary user and executes its arguments. With $OPENTUN, a directory, the TUN
// device is everybody's, as it is on most hosts.
func asUser() {
	var err error
	if dir := os.Getenv("OPENTUN"); dir != "" {
		err = testenv.OpenTUN(dir)
	}
	err = errors.Join(err, unix.Setgroups(nil), unix.Setgid(ordinary), unix.Setuid(ordinary))
	path, err2 := exec.LookPath(os.Args[1])
	if err = errors.Join(err, err2); err == nil {
		home := os.Getenv("USERHOME")
		err = unix.Exec(path, os.Args[1:], []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "USERHOME=" + home, "NO_COLOR=1",
		})
	}
	fmt.Fprintln(os.Stderr, "asuser:", err)
	os.Exit(1)
}

// TestScripts runs testdata/script/*.txtar, each with a state directory of its own. Beside testscript's commands
// and the program `asuser CMD…`, which runs CMD as an ordinary user, they have:
//
//	need FEATURE…         what the script cannot do without; see internal/testenv
//	code N CMD…           run CMD, which must exit with N
//	within D code N CMD…  … in less than D
//	listing DIR FILE      write DIR's whole listing to FILE: content, modes, mtimes, xattrs
//	tmpfs DIR OPTIONS     mount a tmpfs until the script ends
//	serve NAME DIR        serve DIR by HTTP on loopback until the script ends, and at /headers how long a request.s headers are; $NAME is the port
//	abstract NAME         listen on an abstract socket of the host until the script ends; $NAME is @ and its name
//	freeport NAME         set $NAME to a port of loopback that nobody has
//	sources NAME DIR      serve what npm, apt and git ask for, until the script ends; $NAME is the port; see cmdSources
//	modules DIR           make DIR a proxy for Go modules, with example.com/m v1.0.0
//	overlaid DIR          mount an overlay, which holds no uppers, over DIR until the script ends, for the ordinary user
//	waitfile PATH         wait until a file exists
//	killbg SIGNAL         send a signal to the newest background command
//	keep NAME FILE        set $NAME to the content of FILE, which may be stdout
//	waitfor PATTERN CMD…  run CMD until its standard output matches
//	tamper SQL            change the store as who tampers with it would
//	chain FILE [all]      check an export of the log as docs/audit.md says
//
// With `[short] skip` a script that is the same on every kernel is left to the host: the virtual machine is slow.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setupScript,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"need": cmdNeed, "code": cmdCode, "within": cmdWithin,
			"listing": cmdListing, "tmpfs": cmdTmpfs, "waitfile": cmdWaitFile, "killbg": cmdKill,
			"serve": cmdServe, "sources": cmdSources, "modules": cmdModules, "freeport": cmdFreePort, "abstract": cmdAbstract, "overlaid": cmdOverlaid, "keep": cmdKeep, "waitfor": cmdWaitFor,
			"tamper": cmdTamper, "chain": cmdChain,
		},
	})
}

type testingKey struct{}

func setupScript(env *testscript.Env) error {
	env.Values[testingKey{}] = env.T()
	home := filepath.Join(env.WorkDir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(home, ordinary, ordinary); err != nil {
			return err
		}
	}
	// The ordinary user reaches the programs and its home.
	programs := filepath.Dir(filepath.SplitList(env.Getenv("PATH"))[0])
	for _, dir := range []string{programs, filepath.Dir(env.WorkDir), env.WorkDir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	env.Setenv("USERHOME", home)
	env.Setenv("BIN", filepath.SplitList(env.Getenv("PATH"))[0])
	env.Setenv("CAISSON_STATE", env.WorkDir+".state") // beside it: many scripts use all of $WORK as workspace
	env.Setenv("NO_COLOR", "1")
	env.Defer(func() {
		stopSupervisor(env)
		_ = os.RemoveAll(env.Getenv("CAISSON_STATE")) // testscript removes only what is below $WORK, and disks are large
	})
	return nil
}

// stopSupervisor ends the background supervisor that a script has started. It must be gone with its script.
func stopSupervisor(env *testscript.Env) {
	t, ok := env.T().(testing.TB)
	state := env.Getenv("CAISSON_STATE")
	if _, err := os.Stat(filepath.Join(state, "daemon.lock")); !ok || err != nil {
		return
	}
	cmd := exec.Command(filepath.Join(filepath.SplitList(env.Getenv("PATH"))[0], "caisson"), "--state-dir", state, "stop", "--all", "--time", "0s")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("caisson stop --all: %v: %s", err, out)
	}
}

// cmdNeed asks caisson's own doctor what this host can do.
func cmdNeed(ts *testscript.TestScript, _ bool, features []string) {
	t, ok := ts.Value(testingKey{}).(testing.TB)
	if !ok {
		ts.Fatalf("testscript's T is no testing.TB")
	}
	if slices.Contains(features, "root") || slices.Contains(features, "unprivileged") {
		var err error
		if os.Geteuid() != 0 {
			err = errors.New("not root")
		}
		testenv.Need(t, "root", err)
	}
	doctor := []string{"caisson", "doctor", "--json"}
	if slices.Contains(features, "unprivileged") {
		doctor = append([]string{"asuser"}, doctor...)
	}
	_ = ts.Exec(doctor[0], doctor[1:]...) // 120 when something is missing: the answer says what
	var d struct {
		Controls []struct{ Control, Support, Detail string }
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &d))
	missing := map[string]error{}
	for _, c := range d.Controls {
		if c.Support != isolation.Available.String() {
			missing[c.Control] = errors.New(c.Detail)
		}
	}
	for _, f := range features {
		switch f {
		case "root":
		case "unprivileged":
			testenv.Need(t, f, missing["userns"])
		case "cgroups", "userns", "overlay", "idmap":
			testenv.Need(t, f, missing[f])
		case "tun":
			testenv.Need(t, f, missing["network_rules"])
		case "loop":
			testenv.Need(t, f, missing["disk_quota"])
		default:
			_, err := exec.LookPath(f)
			testenv.Need(t, f, err)
		}
	}
}

func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: code N CMD…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s: exit code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func cmdWithin(ts *testscript.TestScript, neg bool, args []string) {
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	start := time.Now()
	cmdCode(ts, neg, args[2:])
	if took := time.Since(start); took > limit {
		ts.Fatalf("took %v, more than %v", took, limit)
	}
}

func cmdListing(ts *testscript.TestScript, _ bool, args []string) {
	var b strings.Builder
	root := ts.MkAbs(args[0])
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line, err := describe(path, d)
		fmt.Fprintf(&b, "%q %s\n", strings.TrimPrefix(path, root), line)
		return err
	})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(b.String()), 0o600))
}

// describe is everything about a file that promote and discard must not touch.
func describe(path string, d fs.DirEntry) (string, error) {
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	content := ""
	switch {
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		content = fmt.Sprintf("%x", sha256.Sum256(data))
	case info.Mode()&fs.ModeSymlink != 0:
		if content, err = os.Readlink(path); err != nil {
			return "", err
		}
	}
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return "", err
	}
	return fmt.Sprintf("%o %d:%d %d %v %q %q", st.Mode, st.Uid, st.Gid, st.Nlink, info.ModTime().UnixNano(),
		content, names[:max(n, 0)]), nil
}

func cmdTmpfs(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	var flags uintptr
	options := args[1]
	if rest, ok := strings.CutSuffix(options, ",ro"); ok {
		flags, options = unix.MS_RDONLY, rest
	}
	ts.Check(unix.Mount("tmpfs", dir, "tmpfs", flags, options))
	ts.Defer(func() { ts.Check(unix.Unmount(dir, unix.MNT_DETACH)) })
}

func cmdOverlaid(ts *testscript.TestScript, _ bool, args []string) {
	dir, aside := ts.MkAbs(args[0]), ts.Getenv("WORK")+".aside"
	ts.Check(os.Mkdir(aside, 0o755))
	ts.Check(unix.Mount("tmpfs", aside, "tmpfs", 0, "size=8g,mode=755")) // half of a small machine's memory would be too little to promise a disk of
	ts.Defer(func() { ts.Check(errors.Join(unix.Unmount(aside, unix.MNT_DETACH), os.Remove(aside))) })
	for _, name := range []string{"upper", "work"} {
		ts.Check(os.Mkdir(filepath.Join(aside, name), 0o755))
	}
	ts.Check(os.Chown(filepath.Join(aside, "upper"), ordinary, ordinary))
	ts.Check(unix.Mount("overlay", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work", dir, aside)))
	ts.Defer(func() { ts.Check(unix.Unmount(dir, unix.MNT_DETACH)) })
}

func cmdWaitFile(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Lstat(path); err == nil {
			return
		}
	}
	ts.Fatalf("%s has not appeared", args[0])
}

func cmdKill(ts *testscript.TestScript, _ bool, args []string) {
	all := ts.BackgroundCmds()
	if len(all) == 0 {
		ts.Fatalf("no background command")
	}
	ts.Check(all[len(all)-1].Process.Signal(unix.SignalNum("SIG" + args[0])))
}

func cmdKeep(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

func cmdWaitFor(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...) // what it says counts
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("%s has not come", args[0])
}
