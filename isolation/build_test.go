package isolation

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/quota"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func options() BuildOptions {
	return BuildOptions{
		ID: "01j", Hostname: "caisson",
		Root: Rootfs{Layers: []Layer{{Path: "/state/roots/a"}}, Binds: []Bind{{Source: "/usr", Target: "/usr"}}},
		Mounts: []Bind{
			{Source: "/srv/cache", Target: "/home/user/.cache", Map: MapOwner, Owner: 1001, Group: 1001},
			{Source: "/srv/out", Target: "/out", Writable: true},
		},
		Stacks: []Stack{
			{Target: "/workspace", Lower: []Layer{{Path: "/src/app", Map: MapOwner}}, Upper: "/state/u", Work: "/state/w"},
			{Target: "/home/user", Lower: []Layer{{Path: "/state/h/l"}}, Upper: "/state/h/u", Work: "/state/h/w"},
		},
		IDs:     IDs{Base: 1 << 30, Size: 65536, Owner: 1001, OwnerGroup: 100, Inside: 1000},
		Limits:  quota.Limits{CPUs: 1500, Memory: 512 << 20, Pids: 256, Tmp: 64 << 20},
		Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno},
		Args:    []string{"make"}, Env: []string{"PATH=/bin"}, UID: 1000, GID: 1000,
	}
}

// TestBuildGolden holds the specs of a privileged and of an unprivileged sandbox, and that Build is deterministic.
func TestBuildGolden(t *testing.T) {
	single := options()
	single.IDs = IDs{Single: true, Owner: 1001, OwnerGroup: 1001, Inside: 1000}
	single.Weaker = []Control{ControlCgroups}
	for name, o := range map[string]BuildOptions{"root": options(), "unprivileged": single} {
		s, err := Build(o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(s.OCI, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		again, err := Build(o)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := json.MarshalIndent(again.OCI, "", "  "); err != nil || !bytes.Equal(b, got) {
			t.Errorf("%s: a second Build differs (%v)", name, err)
		}
		file := filepath.Join("testdata", "spec_"+name+".json")
		if *update {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.TrimSpace(want), got) {
			t.Errorf("%s differs (go test -run Golden -update rewrites it):\n%s", file, got)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*BuildOptions){
		"no id":             func(o *BuildOptions) { o.ID = "" },
		"an id with a path": func(o *BuildOptions) { o.ID = "../x" },
		"no root":           func(o *BuildOptions) { o.Root.Layers = nil },
		"no filter":         func(o *BuildOptions) { o.Seccomp = nil },
		"no /tmp":           func(o *BuildOptions) { o.Limits.Tmp = 0 },
		"uid 0":             func(o *BuildOptions) { o.IDs.Inside = 0 },
		"no upper":          func(o *BuildOptions) { o.Stacks[0].Upper = "" },
		"a stack at /":      func(o *BuildOptions) { o.Stacks[0].Target = "/" },
		"a relative mount":  func(o *BuildOptions) { o.Mounts[0].Target = "x" },
		"an unclean mount":  func(o *BuildOptions) { o.Mounts[0].Target = "/workspace/../etc" },
		"a relative source": func(o *BuildOptions) { o.Mounts[0].Source = "x" },
	} {
		o := options()
		spoil(&o)
		if _, err := Build(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestExchange checks the idmapped workspace's map: the owner and 1000 change places, everybody else stays, no two ids on
// disk meet, and every id below 65535 has a place.
func TestExchange(t *testing.T) {
	const base, size = 1 << 30, 65536
	for _, owner := range []uint32{0, 1, 999, 1000, 1001, 65534, 65535, 65536, 100000, 1<<32 - 2} {
		ids := IDs{Base: base, Size: size, Owner: owner, OwnerGroup: owner, Inside: 1000}
		uid, gid := ids.MountMappings(MapOwner, owner, owner)
		if len(uid) == 0 || len(uid) != len(gid) || len(uid) > 5 {
			t.Fatalf("owner %d: %v", owner, uid)
		}
		place := map[uint32]uint32{}
		taken := map[uint32]bool{}
		for _, m := range uid {
			for i := range m.Size {
				disk, host := m.ContainerID+i, m.HostID+i
				if _, twice := place[disk]; twice || taken[host] || host < base || host >= base+size {
					t.Fatalf("owner %d: id %d at %d: %v", owner, disk, host, uid)
				}
				place[disk], taken[host] = host, true
			}
		}
		if place[owner] != base+1000 {
			t.Errorf("owner %d is at %d", owner, place[owner])
		}
		for disk := range uint32(size - 1) {
			want := base + disk
			switch {
			case disk == owner:
				want = base + 1000
			case disk == 1000 && owner < size:
				want = base + owner
			case disk == 1000:
				want = base + size - 1
			}
			if got, ok := place[disk]; !ok || got != want {
				t.Fatalf("owner %d: id %d is at %d, want %d", owner, disk, got, want)
			}
		}
	}
}

func TestNoMountMappings(t *testing.T) {
	for _, ids := range []IDs{{Single: true}, {Direct: true, Base: 1, Size: 2}} {
		if uid, gid := ids.MountMappings(MapOwner, 5, 5); uid != nil || gid != nil {
			t.Errorf("%+v maps %v %v", ids, uid, gid)
		}
	}
	if uid, _ := (IDs{Base: 1, Size: 65536}).MountMappings(MapNone, 5, 5); uid != nil {
		t.Errorf("MapNone maps %v", uid)
	}
}

func TestHostIDs(t *testing.T) {
	for _, c := range []struct {
		ids      IDs
		uid, gid uint32
	}{
		{IDs{Base: 1 << 30, Size: 65536, Owner: 7, OwnerGroup: 8, Inside: 1000}, 1<<30 + 1000, 1<<30 + 1000},
		{IDs{Base: 1 << 30, Size: 65536, Owner: 7, OwnerGroup: 8, Inside: 1000, Direct: true}, 7, 8},
		{IDs{Single: true, Owner: 7, OwnerGroup: 8, Inside: 1000}, 7, 8},
	} {
		if uid, gid := c.ids.Host(1000, 1000); uid != c.uid || gid != c.gid {
			t.Errorf("%+v: %d %d", c.ids, uid, gid)
		}
	}
}

func TestRequire(t *testing.T) {
	f := Features{{Control: ControlUserNS, Support: Available}, {Control: ControlCgroups, Support: Unsupported, Detail: "why", Remedy: "how"}}
	missing, err := f.Require([]Control{ControlUserNS, ControlCgroups}, []Control{ControlCgroups}, nil)
	if err != nil || len(missing) != 1 || missing[0] != ControlCgroups {
		t.Errorf("waived: %v, %v", missing, err)
	}
	_, err = f.Require([]Control{ControlUserNS, ControlCgroups}, nil, nil)
	var u *UnsupportedError
	if !errors.As(err, &u) || !errors.Is(err, ErrUnsupported) || u.Control != ControlCgroups || u.Remedy != "how" {
		t.Errorf("required: %v", err)
	}
	// What was not probed is not enforced.
	if _, err := f.Require([]Control{ControlSeccomp}, nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("unknown: %v", err)
	}
}

// TestShortage: the remedy of all that is missing has the command that works.
func TestShortage(t *testing.T) {
	const scope = "systemd-run --scope"
	cgroups := &UnsupportedError{Control: ControlCgroups, Reason: "denied", Remedy: "be root"}
	scoped := &UnsupportedError{Control: ControlCgroups, Reason: "denied", Remedy: "be root", Scope: scope}
	disk := &UnsupportedError{Control: ControlDiskQuota, Reason: "no loop"}
	userns := &UnsupportedError{Control: ControlUserNS, Reason: "EPERM", Remedy: "sysctl"}
	all := Controls()
	for name, c := range map[string]struct {
		missing         []*UnsupportedError
		waived, allowed []Control
		cause, remedy   string
	}{
		"one that nothing goes without": {[]*UnsupportedError{userns}, nil, all, "cannot enforce userns: EPERM", "sysctl"},
		"one": {[]*UnsupportedError{cgroups}, nil, all, "cannot enforce cgroups: denied",
			"to run without cgroups, which is weaker: caisson run --allow-weaker cgroups …; to have cgroups: be root"},
		"two": {[]*UnsupportedError{disk, cgroups, cgroups}, nil, all, "cannot enforce cgroups: denied; cannot enforce disk_quota: no loop",
			"to run without cgroups and disk_quota, which is weaker: caisson run --allow-weaker cgroups,disk_quota …; to have cgroups: be root"},
		"one besides what is waived": {[]*UnsupportedError{disk}, []Control{ControlCgroups}, all, "cannot enforce disk_quota: no loop",
			"to run without disk_quota, which is weaker: caisson run --allow-weaker cgroups,disk_quota …"},
		"a scope": {[]*UnsupportedError{scoped, disk}, nil, all, "cannot enforce cgroups: denied; cannot enforce disk_quota: no loop",
			"to run without cgroups and disk_quota, which is weaker: caisson run --allow-weaker cgroups,disk_quota …; to have cgroups: be root; " +
				"to have cgroups: systemd-run --scope caisson run --allow-weaker disk_quota …"},
		"a scope is enough": {[]*UnsupportedError{scoped}, nil, nil, "cannot enforce cgroups: denied",
			"to have cgroups: be root; to have cgroups: systemd-run --scope caisson run …"},
		"not to be waived": {[]*UnsupportedError{cgroups, disk}, nil, nil, "cannot enforce cgroups: denied; cannot enforce disk_quota: no loop",
			"to have cgroups: be root"},
		"first the others": {[]*UnsupportedError{cgroups, userns}, nil, all, "cannot enforce userns: EPERM; cannot enforce cgroups: denied",
			"to have userns: sysctl; to have cgroups: be root; then, to run without cgroups, which is weaker: caisson run --allow-weaker cgroups …"},
	} {
		e := Shortage(c.missing, c.waived, c.allowed)
		if e.Error() != c.cause || e.Remedy() != c.remedy || !errors.Is(e, ErrUnsupported) {
			t.Errorf("%s: %v\n%s", name, e, e.Remedy())
		}
	}
}

func TestParseControl(t *testing.T) {
	for _, c := range Controls() {
		if got, err := ParseControl(string(c)); err != nil || got != c {
			t.Errorf("%s: %v, %v", c, got, err)
		}
	}
	if _, err := ParseControl("firewall"); err == nil {
		t.Error("an unknown control was parsed")
	}
}
