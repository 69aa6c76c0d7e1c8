package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxWalk bounds how many entries are looked at for sockets. A warm directory cache gives about a million in a second.
const maxWalk = 300_000

// MountCheck is what a mount's source is checked against.
type MountCheck struct {
	StateDir  string // of this caisson
	Workspace string
	Home      string // stands for ~ in a source
}

// MountError says why a mount is refused.
type MountError struct {
	Source string // as it was given
	Reason string
	Remedy string
}

func (e *MountError) Error() string { return "cannot mount " + e.Source + ": " + e.Reason }

// CheckMount returns the resolved source of m, which is what to mount, or a *MountError when it must not be shown inside:
// it does not exist; it is, or holds, a socket or the state directory; it is / or lies in /proc, /sys, /dev or /run.
// All but the first are allowed when m is Trusted. A writable mount never overlaps the workspace, which nothing but
// promote writes. A socket that is made later is not found; a mount is worth the trust that its directory deserves.
func CheckMount(m Mount, o MountCheck) (source string, err error) {
	refuse := func(reason, remedy string) (string, error) {
		return "", &MountError{Source: m.Source, Reason: reason, Remedy: remedy}
	}
	path := m.Source
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if !filepath.IsAbs(o.Home) {
			return refuse("HOME is not set", "write the path out")
		}
		path = filepath.Join(o.Home, rest)
	}
	source, err = filepath.EvalSymlinks(path)
	if err != nil {
		return refuse(reasonOf(err), "create it, or leave the mount out")
	}
	if !m.ReadOnly && (overlaps(source, o.Workspace)) {
		return refuse("it would make the workspace "+o.Workspace+" writable", "mount it read-only; the workspace is at /workspace")
	}
	if m.Trusted {
		return source, nil
	}
	const remedy = "if this is what you want, name it under mounts: in a profile of yours"
	switch {
	case source == "/":
		return refuse("it is the whole host", remedy)
	case below(source, "/proc", "/sys", "/dev", "/run"):
		return refuse("it lies in "+source[:strings.IndexByte(source[1:]+"/", '/')+1]+", which controls the host", remedy)
	case overlaps(source, o.StateDir):
		return refuse("it holds or lies in caisson's own state, "+o.StateDir, remedy)
	}
	if socket, err := findSocket(source); err != nil {
		return refuse(err.Error(), remedy)
	} else if socket != "" {
		return refuse("a socket gives access to who listens there: "+socket, remedy)
	}
	return source, nil
}

// overlaps says whether one of two paths is, or holds, the other. An empty one overlaps nothing.
func overlaps(source, other string) bool {
	if other == "" {
		return false
	}
	if resolved, err := filepath.EvalSymlinks(other); err == nil {
		other = resolved
	}
	return below(source, other) || below(other, source)
}

func reasonOf(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// findSocket returns the first socket at or below root. A directory that cannot be read or a tree that is too large to
// look through is an error, because it may hold one.
func findSocket(root string) (socket string, err error) {
	seen := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		seen++
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil // gone meanwhile
		case err != nil:
			return fmt.Errorf("it cannot be searched for sockets: %s: %s", path, reasonOf(err))
		case d.Type()&os.ModeSocket != 0:
			socket = path
			return fs.SkipAll
		case seen > maxWalk:
			return fmt.Errorf("it is too large to be searched for sockets (more than %d entries)", maxWalk)
		}
		return nil
	})
	return socket, err
}
