package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// mountRoot is where every distribution mounts cgroups, and where containerd's library looks for them.
const mountRoot = "/sys/fs/cgroup"

func probe() (*Cgroups, error) {
	own, ownV2, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return nil, unavailable("own cgroup unknown: "+err.Error(), "")
	}
	switch cgroups.Mode() {
	case cgroups.Unified:
		return probeV2(mountRoot, ownV2)
	case cgroups.Hybrid:
		// The controllers may be on either side; a hierarchy of version 2 without them is of no use here.
		if hasControllers(mountRoot + "/unified") {
			return probeV2(mountRoot+"/unified", ownV2)
		}
		return probeV1(mountRoot, own, ModeHybrid)
	case cgroups.Legacy:
		return probeV1(mountRoot, own, ModeV1)
	default:
		return nil, unavailable("no cgroup filesystem is mounted at "+mountRoot, "")
	}
}

// probeV1 finds a base in the hierarchy of every controller. own are the process's own paths by controller.
func probeV1(root string, own map[string]string, mode Mode) (*Cgroups, error) {
	var trees []tree
	devices := map[uint64]int{} // of a hierarchy → index in trees: several controllers may share one
	for _, name := range v1Controllers {
		top := root + "/" + name
		device, err := hierarchyDevice(top)
		if err != nil {
			if name == "cpuacct" {
				continue // then CPU time is unknown; nothing else needs it
			}
			return nil, unavailable(fmt.Sprintf("no hierarchy with the controller %s: %v", name, err), "")
		}
		if i, ok := devices[device]; ok {
			trees[i].controllers = append(trees[i].controllers, name)
			continue
		}
		below, err := baseV1(top, own[name])
		if err != nil {
			return nil, unavailable(fmt.Sprintf("no group of the controller %s is ours to use: %v", name, err), "")
		}
		devices[device] = len(trees)
		trees = append(trees, tree{base: top + below, below: below, controllers: []string{name}})
	}
	return &Cgroups{mode: mode, trees: trees, ops: newV1(root, trees)}, nil
}

// hierarchyDevice identifies the hierarchy of version 1 that is mounted on a directory.
func hierarchyDevice(dir string) (uint64, error) {
	var kind unix.Statfs_t
	if err := unix.Statfs(dir, &kind); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if kind.Type != unix.CGROUP_SUPER_MAGIC {
		return 0, fmt.Errorf("nothing is mounted on %s", dir)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return st.Dev, nil
}

// baseV1 returns where in a hierarchy groups can be made, relative to its top: the top itself, when it or the parent of
// all groups in it is writable, else the process's own group. In a container the mount may show only that, as the top.
func baseV1(top, own string) (string, error) {
	err := writable(top)
	if err == nil || writable(top+"/"+parentName) == nil {
		return "", nil
	}
	if own = path.Clean(own); own != "/" && writable(top+own) == nil {
		return own, nil
	}
	return "", err
}

// hasControllers says that a node of version 2 can limit what we limit.
func hasControllers(dir string) bool {
	return len(missingControllers(dir+"/cgroup.controllers")) == 0
}

// missingControllers returns those that we need and that a file with a list of controllers lacks.
func missingControllers(file string) []string {
	data, _ := os.ReadFile(file) // without the file all are missing
	have := strings.Fields(string(data))
	var missing []string
	for _, c := range v2Controllers {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	return missing
}

// probeV2 tries the top of the hierarchy, then the delegated subtree that the process is in.
func probeV2(top, own string) (*Cgroups, error) {
	dir := path.Clean(top + own)
	if _, err := os.Stat(dir); err != nil {
		dir = top // a container without a cgroup namespace of its own sees its own group as the top
	}
	candidates := []string{top}
	if path.Base(dir) == supervisorName {
		candidates = append(candidates, path.Dir(dir)) // a caisson before us prepared it
	}
	candidates = append(candidates, dir)
	var reasons []string
	for _, base := range slices.Compact(candidates) {
		err := enable(base, base == dir)
		if err == nil {
			t := tree{base: base, below: strings.TrimPrefix(base, top), controllers: v2Controllers}
			return &Cgroups{mode: ModeV2, trees: []tree{t}, ops: &v2{t}}, nil
		}
		var u *UnavailableError
		if errors.As(err, &u) {
			return nil, u
		}
		reasons = append(reasons, err.Error())
	}
	none := unavailable("no group is ours to use: "+strings.Join(reasons, "; "), "")
	if _, err := os.Stat("/run/systemd/system"); err == nil { // the documented test for systemd
		none.Scope = userScope
	}
	return nil, none
}

// enable makes a node of version 2 give its controllers to its children.
func enable(base string, ours bool) error {
	if err := writable(base); err != nil {
		return err
	}
	if err := writable(base + "/cgroup.procs"); err != nil {
		return err // entering a child takes write permission to the common ancestor's
	}
	if missing := missingControllers(base + "/cgroup.controllers"); len(missing) > 0 {
		return fmt.Errorf("%s lacks the controllers %s", base, strings.Join(missing, ", "))
	}
	control := base + "/cgroup.subtree_control"
	if len(missingControllers(control)) == 0 {
		return nil
	}
	all := "+" + strings.Join(v2Controllers, " +")
	err := write(control, all)
	if err == nil || !errors.Is(err, unix.EBUSY) || !ours {
		return err
	}
	return vacate(base, func() error { return write(control, all) })
}

// supervisorName is the leaf into which our own processes move where a delegated subtree must be empty at its top.
const supervisorName = "supervisor"

// vacate moves the processes of a delegated node into a leaf, and repeats enable until no process is left or born there.
// Only our own process is moved, unless the node says that everything in it is its owner's to manage; and never a
// process 1 that is not us.
func vacate(base string, enable func() error) error {
	const turns = 20
	var err error
	for range turns {
		pids, perr := nodeProcs(base)
		if perr != nil {
			return perr
		}
		if foreign := foreignTo(base, pids); len(foreign) > 0 {
			return unavailable(fmt.Sprintf("%s is also the group of processes %v, and a group with processes cannot limit children", base, foreign),
				fmt.Sprintf("move them first: mkdir %[1]s/init && for p in $(cat %[1]s/cgroup.procs); do echo $p >%[1]s/init/cgroup.procs; done", base))
		}
		leaf := base + "/" + supervisorName
		if merr := os.Mkdir(leaf, 0o755); merr != nil && !errors.Is(merr, fs.ErrExist) {
			return merr
		}
		for _, pid := range pids {
			if werr := write(leaf+"/cgroup.procs", strconv.Itoa(pid)); werr != nil && !errors.Is(werr, unix.ESRCH) {
				return werr
			}
		}
		if err = enable(); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return err
}

// foreignTo returns those of the processes in a node that are not ours to move.
func foreignTo(base string, pids []int) []int {
	delegated := false
	for _, name := range []string{"user.delegate", "trusted.delegate"} { // set by systemd
		value := make([]byte, 8)
		if n, err := unix.Getxattr(base, name, value); err == nil && string(value[:n]) == "1" {
			delegated = true
		}
	}
	var foreign []int
	for _, pid := range pids {
		if pid != os.Getpid() && (pid <= 1 || !delegated) {
			foreign = append(foreign, pid)
		}
	}
	return foreign
}

func writable(file string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.W_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}
