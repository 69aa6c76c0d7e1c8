package runner_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// driver is what the benches' profiles say. Tests that are not about a driver hold for each: TestCopies.
var driver = "auto"

// What a user sees of checkpoints is the same where layers are copies; only what others do to the workspace does not show, which
// the tests of resume rest on.
func TestCopies(t *testing.T) {
	driver = snapshot.DriverCopy
	defer func() { driver = "auto" }()
	for name, test := range map[string]func(*testing.T){
		"checkpoints of a task": TestCheckpointsOfATask, "rollback": TestRollback, "foreign checkpoint": TestForeignCheckpoint,
		"fork": TestForkHasItsOwnLife, "detached": TestDetached, "under a holder": TestCheckpointUnderAHolder,
		"rollback while live": TestRollbackOfALiveFeature,
		"automatic":           TestAutomaticCheckpoints, "copy": TestCopy, "copy planted link": TestCopyPlantedLink, "repair": TestRepair,
		"retention": TestRetention, "retention while live": TestRetentionOfALiveFeature, "reboot": TestAfterAReboot,
		"disk": TestDiskVerdicts, "promote": TestPromoteAtTheEnd, "gate": TestGateRefuses, "conflict": TestConflict,
		"two features": TestTwoFeaturesOnOneWorkspace, "outside": TestChangeStaysOutside, "growth": TestNoGrowth,
		"killed": TestKillAnywhere, "killed in a promote": TestKilledPromote, "killed in anything": TestKilledChurn, "killed with checkpoints": TestKilledWithCheckpoints,
	} {
		// On an emulated machine the driver has its own suite, and here only what a live sandbox adds.
		if testing.Short() && !slices.Contains([]string{"rollback while live", "under a holder", "copy planted link", "promote"}, name) {
			continue
		}
		t.Run(name, test)
	}
}

// noOverlay is an engine on a host whose kernel refuses overlays.
type noOverlay struct {
	isolation.Engine
	why error
}

func (noOverlay) Root() bool                          { return true }
func (e noOverlay) CanOverlay(dir, base string) error { return e.why }

// Where there is no overlay a profile that says nothing gets copies, and the result says so; one that says overlay is refused,
// and nothing stays of the attempt.
func TestAutoDriver(t *testing.T) {
	for _, why := range []error{syscall.ENODEV, syscall.EPERM} {
		b := newNative(t, runner.Options{})
		engine, err := native.New(native.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		c, err := quota.Probe()
		if err != nil {
			t.Fatal(err)
		}
		b = &bench{state: b.state, workspace: b.workspace, profile: b.profile}
		b.open(t, runner.Options{Engine: noOverlay{engine, why}, Cgroups: c})
		defer func() { _ = b.Close() }()
		res, out, errs := run(t, b, b.sh("cat file; echo new > file"))
		if out != "old\n" || res.Layers == nil || res.Layers.Driver != snapshot.DriverCopy || res.Layers.Reason != why.Error() {
			t.Fatalf("%q %s %+v", out, errs, res.Layers)
		}
		f, err := b.Feature(t.Context(), res.Feature)
		if err != nil || f.Driver != snapshot.DriverCopy {
			t.Fatal(f, err)
		}
		r := b.sh("true")
		r.Profile = loadProfile(t, map[string][]string{"disk": {"50m"}, "driver": {"overlay"}})
		_, err = b.Run(t.Context(), r)
		if e := wantError(t, err, runner.CodeUnsupported, runner.ExitRefused); !errors.Is(e, isolation.ErrUnsupported) || e.Remedy == "" {
			t.Fatalf("%+v", e)
		}
		if list, err := b.Features(t.Context(), true); err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
	}
}

// A question that failed is no answer: nothing is copied because of it, and nothing stays of the attempt.
func TestAutoDriverInTrouble(t *testing.T) {
	c, err := quota.Probe()
	if err != nil {
		t.Fatal(err)
	}
	for _, why := range []error{syscall.EIO, syscall.ENOSPC, syscall.EMFILE} {
		b := newNative(t, runner.Options{})
		engine, err := native.New(native.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		b = &bench{state: b.state, workspace: b.workspace, profile: b.profile}
		b.open(t, runner.Options{Engine: noOverlay{engine, fmt.Errorf("trying: %w", why)}, Cgroups: c})
		defer func() { _ = b.Close() }()
		if res, err := b.Run(t.Context(), b.sh("true")); !errors.Is(err, why) {
			t.Errorf("%v: %+v, %v", why, res, err)
		}
		if list, err := b.Features(t.Context(), true); err != nil || len(list) != 0 {
			t.Error(list, err)
		}
	}
}

// asked is an engine that notes what it is asked about overlays.
type asked struct {
	*native.Engine
	about *[]string
}

func (e asked) CanOverlay(dir, base string) error {
	*e.about = append(*e.about, base)
	return e.Engine.CanOverlay(dir, base)
}

// What one mount can do says nothing about another one of the same type; of an overlay nothing is remembered at all.
func TestOverlayIsAskedForEachMount(t *testing.T) {
	b := newNative(t, runner.Options{})
	c, err := quota.Probe()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	var about []string
	b = &bench{state: b.state, workspace: b.workspace, profile: b.profile}
	b.open(t, runner.Options{Engine: asked{engine.(*native.Engine), &about}, Cgroups: c})
	defer func() { _ = b.Close() }()
	one, other := mounted(t, "tmpfs", "size=1m"), mounted(t, "tmpfs", "size=1m")
	for _, d := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(one, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	overlay := mounted(t, "overlay", fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", one, one, one))
	for i, test := range []struct {
		workspace string
		asks      int
	}{{one, 1}, {one, 0}, {other, 1}, {one, 0}, {other, 0}, {overlay, 1}, {overlay, 1}} {
		about, b.workspace = nil, test.workspace
		if err := os.Chown(b.workspace, 12345, 12345); err != nil { // an overlay of root's would be refused: it cannot be idmapped
			t.Fatal(err)
		}
		if res, out, errs := run(t, b, b.sh("true")); res.Verdict != runner.VerdictOK || len(about) != test.asks {
			t.Errorf("%d: %s %s%s: asked about %q, want %d", i, res.Verdict, out, errs, about, test.asks)
		}
	}
}

// mounted is a file system mounted for the test.
func mounted(t *testing.T, kind, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
