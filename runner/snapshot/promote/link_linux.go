package promote

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// standing finds, for each group of hard links, a member that the change leaves alone: the others are linked to it.
func standing(c *tree.Change) map[string]string {
	all := map[string]string{}
	for path, first := range c.Linked() {
		_, found := slices.BinarySearchFunc(c.Entries, path, func(e tree.Entry, p string) int { return tree.ComparePaths(e.Path, p) })
		if !found {
			all[first] = path
		}
	}
	return all
}

// link makes a hard link instead of a copy, if another member of the group is there: in the stage, or in the base. The
// base's can serve only while it has no other links: those are no part of the group.
func (s *stager) link(e *tree.Entry, first string, dir int, name string) (bool, error) {
	if staged, ok := s.ready[first]; ok {
		// The cursor of the stage is in use for dir.
		at := &beneath.Cursor{Root: s.stage}
		defer at.Close()
		parent, base, err := at.Parent(staged)
		if err != nil {
			return false, err
		}
		return true, unix.Linkat(parent, base, dir, name, 0)
	}
	standing, ok := s.standing[first]
	if !ok {
		return false, nil
	}
	var st unix.Stat_t
	parent, base, err := s.base.Parent(standing)
	if err == nil {
		err = beneath.StatAt(parent, base, &st)
	}
	if err == nil && tree.TypeOf(&st) == e.Type && st.Nlink == 1 {
		return true, unix.Linkat(parent, base, dir, name, 0)
	}
	if err != nil && !beneath.Gone(err) {
		return false, err
	}
	note(s.report, e, "is no hard link of "+tree.Quote(standing)+" any more")
	return false, nil
}
