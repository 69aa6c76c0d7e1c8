package layer

import (
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Marks is what overlayfs wrote into a directory's or a file's extended attributes.
type Marks struct {
	Opaque, Origin, Metacopy, Redirected bool

	Redirect string
	User     bool // there are attributes of the user, too
}

// ReadMarks reads overlayfs' marks of a file or directory; prefix is that of their names.
func ReadMarks(fd int, prefix string) (Marks, error) {
	var m Marks
	var buf [1024]byte
	names, err := beneath.ListXattrs(fd, buf[:])
	if err != nil {
		return m, err
	}
	for _, name := range names {
		m.User = m.User || beneath.IsUserXattr(name)
		mark, ours := strings.CutPrefix(name, prefix)
		if !ours {
			continue
		}
		switch mark {
		case "origin":
			m.Origin = true
		case "opaque":
			value, err := beneath.GetXattr(fd, name)
			if err != nil {
				return m, err
			}
			m.Opaque = value == "y" // "x": only holds whiteouts in attributes
		case "redirect":
			if m.Redirect, err = beneath.GetXattr(fd, name); err != nil {
				return m, err
			}
			m.Redirected = true
		case "metacopy":
			m.Metacopy = true
		}
	}
	m.Redirected = m.Redirected && !m.Opaque
	return m, nil
}

// ValidRedirect reports a name, or a path from the root.
func ValidRedirect(s string) bool {
	path, absolute := strings.CutPrefix(s, "/")
	if !absolute && strings.Contains(path, "/") {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
