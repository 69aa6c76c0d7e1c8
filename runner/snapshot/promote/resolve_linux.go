package promote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// summed is the largest file of which a conflict tells the digest, in bytes.
const summed = 64 << 20

// Resolve returns what is to be promoted of a change whose conflicts are resolved by name: the difference of the workspace as
// it is now to the feature's state, at the paths of the change, without those that stay ours and all that is below them. What
// only others changed stays as they made it, unless it is below something that the feature deleted or replaced: Resolved.Notes
// has those. Promoting the result is refused when the workspace has changed again.
//
// Without conflicts and a choice it is the change itself. Errors are *tree.ConflictError, with the conflicts that o does not
// name, and *tree.ChoiceError.
func Resolve(ctx context.Context, t Target, c *tree.Change, o tree.Choice) (*tree.Change, error) {
	list, err := Conflicts(ctx, t, c)
	if err != nil || len(list)+len(o.Ours)+len(o.Theirs) == 0 {
		return c, err
	}
	if err := t.describe(list, c); err != nil {
		return nil, err
	}
	chosen, err := choose(list, o)
	if err != nil {
		return nil, err
	}
	layers := []tree.Root{{Path: t.Workspace, Base: true}}
	if t.Seen == nil {
		layers = t.Old.Layers()[len(t.Old.Layers())-1:]
	}
	ws, err := tree.OpenView(layers)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	all, err := tree.Compare(ctx, ws, t.New, tree.CompareOptions{})
	if err != nil {
		return nil, err
	}
	// What others did while we compared would look as if it had been there to be replaced.
	again, err := Conflicts(ctx, t, c)
	if err != nil {
		return nil, err
	}
	if again = slices.DeleteFunc(again, func(x tree.Conflict) bool { return chosen[x.Path] != "" }); len(again) > 0 {
		return nil, t.refuse(again, c)
	}
	r := &resolver{of: c, chosen: chosen, resolved: &tree.Resolved{}}
	if t.Bases != nil {
		r.resolved.Generation = t.Bases.Generation()
	}
	for _, x := range list {
		r.resolved.Paths = append(r.resolved.Paths, tree.Resolution{Conflict: x, Side: chosen[x.Path]})
	}
	return r.resolve(all)
}

// choose finds the side of every conflict: that of a glob that matches it, or else of one that matches something above it.
func choose(list []tree.Conflict, o tree.Choice) (map[string]string, error) {
	near, far := map[string]string{}, map[string]string{}
	for _, side := range []struct {
		name  string
		globs []string
	}{{tree.Theirs, o.Theirs}, {tree.Ours, o.Ours}} {
		for _, g := range side.globs {
			match, err := dirs.Matcher([]string{g}, nil)
			if err != nil {
				return nil, &tree.ChoiceError{Path: g, Reason: "is not a glob"}
			}
			found := false
			for _, x := range list {
				if !match(x.Path) {
					continue
				}
				found = true
				to := far
				if doublestar.MatchUnvalidated(g, x.Path) {
					to = near
				}
				if to[x.Path] != "" && to[x.Path] != side.name {
					return nil, &tree.ChoiceError{Path: x.Path, Reason: "is named for both sides"}
				}
				to[x.Path] = side.name
			}
			if !found {
				return nil, &tree.ChoiceError{Path: g, Reason: "names no conflict"}
			}
		}
	}
	var open []tree.Conflict
	for _, x := range list {
		near[x.Path] = cmp.Or(near[x.Path], far[x.Path])
		switch {
		case near[x.Path] == "":
			open = append(open, x)
		case near[x.Path] == tree.Theirs && x.Reason == tree.RenamedAway:
			return nil, &tree.ChoiceError{Path: x.Path, Reason: "the feature's side is not there to be taken: " + x.Reason}
		}
	}
	if len(open) > 0 {
		return nil, &tree.ConflictError{Conflicts: open}
	}
	return near, nil
}

// resolver selects from all that differs.
type resolver struct {
	of       *tree.Change
	chosen   map[string]string // side, by path of a conflict
	resolved *tree.Resolved

	own   map[string]bool // the paths of the change
	stays map[string]bool // directories of the workspace above what stays
}

// ours reports whether a path stays as the workspace has it: the nearest conflict at it or above it decides.
func (r *resolver) ours(path string) bool {
	for at := path; at != ""; at = parentOf(at) {
		if side := r.chosen[at]; side != "" {
			return side == tree.Ours
		}
	}
	return false
}

func (r *resolver) resolve(all *tree.Change) (*tree.Change, error) {
	r.own, r.stays = map[string]bool{}, map[string]bool{}
	for i := range r.of.Entries {
		r.own[r.of.Entries[i].Path] = true
	}
	needed := map[string]bool{} // directories that are not in the workspace and that what comes lies in
	for i := range all.Entries {
		e := &all.Entries[i]
		stays := e.OldType != "" && r.ours(e.Path)
		comes := e.Type != "" && r.own[e.Path] && !r.ours(e.Path)
		for at := parentOf(e.Path); at != "" && (stays || comes); at = parentOf(at) {
			r.stays[at], needed[at] = r.stays[at] || stays, needed[at] || comes
		}
	}
	going := "" // what is deleted or replaced with all that is below it
	var failed error
	out := all.Select(func(e *tree.Entry) bool {
		if going != "" && tree.Below(e.Path, going) {
			if !r.own[e.Path] && e.Type == "" {
				r.resolved.Notes = append(r.resolved.Notes, tree.Note{Path: e.Path, Text: "only the workspace has it; it goes with " + tree.Quote(going)})
			}
			return true
		}
		keep, err := r.keep(e, needed[e.Path])
		if err != nil && failed == nil {
			failed = err
		}
		if keep && e.OldType == tree.Dir && e.Type != tree.Dir {
			going = e.Path
		}
		return keep
	})
	if failed != nil {
		return nil, failed
	}
	out.From, out.To, out.Resolved = r.of.From, r.of.To, r.resolved
	return out, nil
}

// keep decides about an entry that lies below nothing that goes. needed says that something that comes lies in it.
func (r *resolver) keep(e *tree.Entry, needed bool) (bool, error) {
	switch {
	case needed && e.Kind == tree.Added:
		return true, nil
	case needed && e.OldType != tree.Dir && e.Kind != tree.Added && (!r.own[e.Path] || r.ours(e.Path)):
		return false, &tree.ChoiceError{Path: e.Path, Reason: "cannot stay as it is in the workspace: it is no directory there, and something below it is promoted"}
	case !r.own[e.Path], r.ours(e.Path):
		return false, nil
	case e.OldType != tree.Dir || e.Type == tree.Dir || !r.stays[e.Path]:
		return true, nil
	case e.Type != "":
		return false, &tree.ChoiceError{Path: e.Path, Reason: "cannot become a " + string(e.Type) + ": something below it stays as it is in the workspace"}
	}
	r.resolved.Notes = append(r.resolved.Notes, tree.Note{Path: e.Path, Text: "is not deleted: something below it stays as it is in the workspace"})
	return false, nil
}

// refuse is the refusal of a promote.
func (t *Target) refuse(list []tree.Conflict, c *tree.Change) error {
	if err := t.describe(list, c); err != nil {
		return err
	}
	return &tree.ConflictError{Conflicts: list}
}

// describe tells what the three sides of each conflict have.
func (t *Target) describe(list []tree.Conflict, c *tree.Change) error {
	layers := []tree.Root{{Path: t.Workspace, Base: true}}
	ws, err := tree.OpenView(layers)
	if err != nil {
		return err
	}
	defer ws.Close()
	for i := range list {
		x := &list[i]
		if x.Ours, _, err = side(ws, x.Path); err != nil {
			return err
		}
		if x.Theirs, _, err = side(t.New, x.Path); err != nil {
			return err
		}
		if x.Base, err = t.began(x, c); err != nil {
			return err
		}
		for _, s := range []*tree.Side{x.Ours, x.Theirs} {
			s.Kind = became(x.Base, s)
		}
	}
	return nil
}

// began is the side that the feature began with: kept in a copy of the workspace, or in a base layer of a promote.
func (t *Target) began(x *tree.Conflict, c *tree.Change) (*tree.Side, error) {
	base, root, err := side(t.Old, x.Path)
	if err != nil {
		return nil, err
	}
	at, found := slices.BinarySearchFunc(c.Entries, x.Path, func(e tree.Entry, path string) int { return tree.ComparePaths(e.Path, path) })
	switch {
	case t.Seen != nil, base.Type != "" && root < len(t.Old.Layers())-1:
		return base, nil
	case base.Type == "" && found && c.Entries[at].OldType == "":
		// There was nothing, unless others removed it before the change was read.
		if !slices.ContainsFunc(c.Found(), func(y tree.Conflict) bool { return y.Path == x.Path }) {
			return base, nil
		}
	}
	return nil, nil
}

// side describes a path in a view, and tells the layer that shows it.
func side(v *tree.View, path string) (*tree.Side, int, error) {
	st, err := v.Lstat(path)
	if beneath.Gone(err) {
		return &tree.Side{}, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	s := &tree.Side{Type: st.Type, Mode: tree.Octal(st.Mode), Link: st.Link}
	if st.Type != tree.File {
		return s, st.Root, nil
	}
	s.Size = st.Size
	if st.Size > summed {
		return s, st.Root, nil
	}
	f, err := v.Open(path)
	if beneath.Gone(err) {
		return s, st.Root, nil // replaced a moment ago
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, summed)); err != nil {
		return nil, 0, err
	}
	s.SHA256 = hex.EncodeToString(h.Sum(nil))
	return s, st.Root, nil
}

// became names what a side made of the base, which may not be known.
func became(base, s *tree.Side) tree.Kind {
	switch {
	case base == nil && s.Type == "":
		return tree.Deleted
	case base == nil:
		return tree.Modified
	case *base == *s:
		return ""
	case base.Type == "":
		return tree.Added
	case s.Type == "":
		return tree.Deleted
	case base.Type != s.Type:
		return tree.TypeOnly
	case base.Link != s.Link:
		return tree.LinkOnly
	case base.Size == s.Size && base.SHA256 == s.SHA256:
		return tree.ModeOnly
	}
	return tree.Modified
}
