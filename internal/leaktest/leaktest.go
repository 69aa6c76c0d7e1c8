//go:build linux

// Package leaktest finds what sandboxes may leave behind on a host: mounts, cgroups, network namespaces, loop
// devices, processes and temporary directories.
package leaktest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Find describes everything on this host that belongs to a sandbox and has one of the words in its name, one
// line each. The calling process and its ancestors are not counted.
func Find(words ...string) ([]string, error) {
	match := func(s string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
	}
	var found []string
	var errs []error
	for _, kind := range []struct {
		name string
		list func(func(string) bool) ([]string, error)
	}{
		{"mount", mounts}, {"cgroup", cgroups}, {"network namespace", namespaces}, {"loop device", loops},
		{"process", processes}, {"temporary directory", temporary},
	} {
		list, err := kind.list(match)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind.name, err))
		}
		for _, x := range list {
			found = append(found, kind.name+" "+x)
		}
	}
	return found, errors.Join(errs...)
}

// Check fails the test, when it ends, for everything that Find finds then.
func Check(t testing.TB, words ...string) {
	t.Helper()
	t.Cleanup(func() {
		found, err := Find(words...)
		if err != nil {
			t.Error("leak check:", err)
		}
		for _, x := range found {
			t.Error("left behind:", x)
		}
	})
}

// mounts looks at mount point, root, source and options.
func mounts(match func(string) bool) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range bytes.Lines(data) {
		if s := strings.TrimSpace(string(line)); match(s) {
			found = append(found, s)
		}
	}
	return found, nil
}

func cgroups(match func(string) bool) ([]string, error) {
	const root = "/sys/fs/cgroup"
	return walk(root, func(p string) bool { return match(strings.TrimPrefix(p, root)) })
}

// walk lists the directories for which match holds. What disappears meanwhile is not there.
func walk(root string, match func(string) bool) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENODEV):
			return nil
		case err != nil:
			return err
		case d.IsDir() && match(p):
			found = append(found, p)
		}
		return nil
	})
	return found, err
}

// namespaces looks at those that have a name; the others live as long as a process or a mount.
func namespaces(match func(string) bool) ([]string, error) {
	return glob("/run/netns/*", match)
}

func loops(match func(string) bool) ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has just gone
		}
		// A unit's image can have been removed, and its mount is in no table: the device's own name is what is left of it.
		name := loopName("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f))))
		if match(string(data)) || match(name) {
			found = append(found, f+": "+strings.TrimSpace(string(data)))
		}
	}
	return found, nil
}

// loopName is what whoever made a loop device called it; "" when that cannot be asked.
func loopName(device string) string {
	f, err := os.Open(device)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.File_name[:])
}

func temporary(match func(string) bool) ([]string, error) {
	found, err := glob(filepath.Join(os.TempDir(), "*"), match)
	return slices.DeleteFunc(found, func(p string) bool {
		info, err := os.Lstat(p)
		return err != nil || !info.IsDir()
	}), err
}

func glob(pattern string, match func(string) bool) ([]string, error) {
	files, err := filepath.Glob(pattern)
	return slices.DeleteFunc(files, func(f string) bool { return !match(filepath.Base(f)) }), err
}

// processes looks at the program's name, not at arguments: an editor may have any path there; and at the cgroup.
func processes(match func(string) bool) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own := ancestors()
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || slices.Contains(own, pid) {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has ended
		}
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		if match(string(comm)) || match(string(cgroup)) {
			found = append(found, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	return found, nil
}

// ancestors returns the process ids of this process and those above it.
func ancestors() []int {
	var pids []int
	for pid := os.Getpid(); pid > 0; {
		pids = append(pids, pid)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		// The name in parentheses may hold anything; state and parent follow it.
		rest := string(stat[bytes.LastIndexByte(stat, ')')+1:])
		var state string
		if _, err := fmt.Sscan(rest, &state, &pid); err != nil {
			break
		}
	}
	return pids
}
