package native

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGoldenPlans holds every step of PID 1's and of a command's set-up, privileged and not, in order.
func TestGoldenPlans(t *testing.T) {
	for _, root := range []bool{false, true} {
		name := "unprivileged"
		if root {
			name = "root"
		}
		t.Run(name, func(t *testing.T) {
			if root {
				testenv.Need(t, "root", needRoot())
			}
			e := testEngine(t)
			e.root, e.lastCap, e.lstat = root, 3, fakeProc
			e.ignored = func() []unix.Signal { return []unix.Signal{unix.SIGHUP} }
			spec := goldenSpec(t, root)
			st := &starter{mounter: mounter{e: e, ids: spec.IDs}, s: spec, netns: -1, lifeline: [2]int{3, 4}, errors: [2]int{5, 6}}
			defer func() { st.lifeline, st.errors = [2]int{-1, -1}, [2]int{-1, -1}; st.release() }()
			p, err := st.planned(st.plan)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "start_"+name, p.String())
			box := &sandbox{e: e, spec: spec}
			filter, err := e.filter(spec.OCI.Linux.Seccomp)
			if err != nil {
				t.Fatal(err)
			}
			x := &plan{}
			proc := &isolation.Process{Args: []string{"make", "all"}, Env: []string{"PATH=/usr/bin:/bin:."}, Cwd: "/workspace", UID: 1000, GID: 1000}
			box.enter(x, proc, nil, &sharedPID{})
			box.become(x, proc, [3]any{}, filter)
			golden(t, "exec_"+name, x.String())
			change := &exchange{mounter: mounter{e: e, ids: spec.IDs}, b: box, stacks: spec.Stacks,
				kept: []submount{{0, "vendor", true}, {1, ".netrc", false}}}
			defer change.mounter.release()
			if err := change.makeTrees(); err != nil {
				t.Fatal(err)
			}
			x = &plan{}
			if err := change.plan(x); err != nil {
				t.Fatal(err)
			}
			golden(t, "exchange_"+name, x.String())
		})
	}
}

// fakeProc is a /proc of every kind of entry, whatever this kernel has.
func fakeProc(name string) (os.FileInfo, error) {
	return fs.Stat(fstest.MapFS{
		"proc/acpi/x": {}, "proc/kcore": {}, "proc/keys": {}, "proc/sys/x": {},
	}, strings.TrimPrefix(name, "/"))
}

func goldenSpec(t *testing.T, root bool) *isolation.Spec {
	ids := isolation.IDs{Base: 1 << 30, Size: 65536, Inside: 1000}
	if !root {
		ids = isolation.IDs{Single: true, Owner: 1001, OwnerGroup: 1001, Inside: 1000}
	}
	s, err := isolation.Build(isolation.BuildOptions{
		ID: "golden", Hostname: "caisson", Root: skeleton(t),
		Mounts: []isolation.Bind{{Source: "/usr/share", Target: "/workspace/vendor", Map: isolation.MapOwner}},
		Stacks: []isolation.Stack{stack(t, testIDs(), "/workspace"), stack(t, testIDs(), "/home/user")},
		IDs:    ids, Limits: quota.Limits{Tmp: 64 << 20}, Weaker: []isolation.Control{isolation.ControlCgroups},
		Seccomp: testFilter, Args: []string{"make"}, UID: 1000, GID: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var unstable = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/[^" ]*/(\d+)/`), "/tmp/$1/"},
	{regexp.MustCompile(`/proc/self/fd/\d{2,}`), "/proc/self/fd/N"},
	{regexp.MustCompile(`(keep .* \$\d+) \d+`), "$1 N"},
	{regexp.MustCompile(`(limit RLIMIT_NOFILE \d+ \d+) \{.*\}`), "$1 {soft hard}"},
	{regexp.MustCompile(`(close descriptors (?:0 )?)\d{3,}`), "${1}N"},
	{regexp.MustCompile(`\{\d+ instructions\}`), "{filter}"},
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	for _, u := range unstable {
		got = u.re.ReplaceAllString(got, u.to)
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -run Golden -update rewrites it):\n%s", file, got)
	}
}

// TestPlanRefs checks that references are taken only where the assembly resolves them.
func TestPlanRefs(t *testing.T) {
	p := &plan{}
	r := p.add("first", 1)
	p.add("second", 1, 0, r)
	defer func() {
		if recover() == nil {
			t.Error("a reference as argument 1 was compiled")
		}
	}()
	s, err := p.compile()
	if err == nil {
		s.free()
	}
}
