package snapshottest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// view is what a feature shows: the workspace and HOME.
type view [2]plain.Listing

func listPair(workspace, home string) (v view, err error) {
	if v[0], err = plain.List(workspace); err != nil {
		return v, err
	}
	v[1], err = plain.List(home)
	return v, err
}

// differ describes how o differs, "" if it does not.
func (v view) differ(o view, how plain.Compared) string {
	var b strings.Builder
	for i, name := range []string{"workspace", "home"} {
		if d := v[i].Differ(o[i], how); d != "" {
			fmt.Fprintf(&b, "%s: - expected, + found\n%s\n", name, d)
		}
	}
	return b.String()
}

// applied is what a workspace holds after a promote of what shows.
func applied(workspace plain.Listing, c *snapshot.Change, shows plain.Listing) plain.Listing {
	out := maps.Clone(workspace)
	for i := range c.Entries {
		path := c.Entries[i].Path
		if n, ok := shows[path]; ok {
			out[path] = n
		} else {
			delete(out, path)
		}
	}
	return out
}

// digest sums a view up.
func (v view) digest(how plain.Compared) string {
	h := sha256.New()
	for _, l := range v {
		for _, path := range slices.Sorted(maps.Keys(l)) {
			n := l[path]
			if how == plain.Promoted && n.Mode&unix.S_IFMT == unix.S_IFSOCK {
				continue
			}
			fmt.Fprintf(h, "%q %v\n", path, n.Reduce(how))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// kinds says what a change from a to b has to hold.
func kinds(a, b plain.Listing) map[string]snapshot.Kind {
	out := map[string]snapshot.Kind{}
	for path, o := range a {
		n, ok := b[path]
		if !ok {
			out[path] = snapshot.Deleted
			continue
		}
		isLink := n.Mode&unix.S_IFMT == unix.S_IFLNK
		switch {
		case n.Mode&unix.S_IFMT != o.Mode&unix.S_IFMT:
			out[path] = snapshot.TypeOnly
		case n.Link != o.Link:
			out[path] = snapshot.LinkOnly
		case n.Sum != o.Sum, n.Xattrs != o.Xattrs, n.Rdev != o.Rdev:
			out[path] = snapshot.Modified
		case n.Mode != o.Mode && !isLink:
			out[path] = snapshot.ModeOnly
		}
	}
	for path := range b {
		if _, ok := a[path]; !ok {
			out[path] = snapshot.Added
		}
	}
	return out
}

// joined lists files that are as before but have become hard links of each other: all but the first of a group. A change
// has them if both names lie in what was compared, which going back to an older layer they may not.
func joined(a, b plain.Listing, out map[string]snapshot.Kind) map[string]bool {
	links := map[string]bool{}
	object := func(path string) string { return cmp.Or(a[path].Group, path) }
	standing := map[string]string{}
	for _, path := range slices.SortedFunc(maps.Keys(b), tree.ComparePaths) {
		group := b[path].Group
		if _, changed := out[path]; changed || group == "" {
			continue
		}
		first, ok := standing[group]
		if !ok {
			standing[group] = path
		} else if object(first) != object(path) {
			links[path] = true
		}
	}
	return links
}
