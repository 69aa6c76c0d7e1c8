package gates

import (
	"path"
	"strings"
)

// maxLinks is how many links the kernel follows in one path.
const maxLinks = 40

// links answers where a path leads in the workspace as it will be, without touching a disk: the links of the
// change first, then those of the workspace below.
type links struct {
	changed map[string]string // the links of the change; for all else that it names ""
	below   func(string) (string, bool)
}

// newLinks reads the links of a change, its paths as view shows them.
func newLinks(c *Change, view func(string) string) links {
	l := links{changed: make(map[string]string, len(c.Entries)), below: c.Readlink}
	for _, e := range c.Entries {
		target := ""
		if e.Kind != KindDeleted && e.Type == TypeSymlink {
			target = view(e.Link)
		}
		l.changed[view(e.Path)] = target
	}
	return l
}

// Resolver returns a function that walks the target of a link in directory dir (slash-separated; "." is the workspace) as
// the kernel would, in the workspace as it will be. The end is a path of the workspace, or with outside where the way
// leaves it: an absolute path, or one that begins with "..". A circle leaves, too, and ends with the target itself.
func (c *Change) Resolver() func(dir, target string) (end string, outside bool) {
	return newLinks(c, func(p string) string { return p }).resolve
}

// at returns the target of the link at p, if there will be one.
func (l links) at(p string) (string, bool) {
	if target, ok := l.changed[p]; ok {
		return target, target != ""
	}
	if l.below == nil {
		return "", false
	}
	return l.below(p)
}

// resolve walks target from directory dir ("" is the workspace) as the kernel would. It returns the path in
// the workspace where it ends, or, with outside, where it leaves: an absolute path, or one that begins with
// "..". A circle of links is taken for leaving.
func (l links) resolve(dir, target string) (end string, outside bool) {
	at := split(dir)
	todo := split(target)
	if path.IsAbs(target) {
		return path.Clean(target), true
	}
	for left := maxLinks; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return path.Join(append([]string{".."}, todo...)...), true
			}
			at = at[:len(at)-1]
			continue
		}
		here := append(at[:len(at):len(at)], next)
		link, ok := l.at(strings.Join(here, "/"))
		if !ok {
			at = here
			continue
		}
		if left--; left < 0 {
			return target, true
		}
		if path.IsAbs(link) {
			return path.Join(append([]string{link}, todo...)...), true
		}
		todo = append(split(link), todo...)
	}
	return strings.Join(at, "/"), false
}

func split(p string) []string {
	if p == "" || p == "." {
		return nil
	}
	return strings.Split(p, "/")
}

// aliases returns patterns for the places where links of the workspace itself put what patterns protect: with
// a link .husky → scripts/hooks, a change of scripts/hooks is one of .husky.
func (l links) aliases(patterns []string) map[string]string {
	out := map[string]string{}
	if l.below == nil {
		return out
	}
	known := map[string]bool{}
	below := func(p string) (string, bool) {
		if link, seen := known[p]; seen && !link {
			return "", false
		}
		target, ok := l.below(p)
		known[p] = ok
		return target, ok
	}
	workspace := links{below: below}
	for _, p := range patterns {
		for _, simple := range expand(p) {
			name, tree := strings.CutSuffix(strings.TrimPrefix(simple, "**/"), "/**")
			if !isLiteral(strings.ReplaceAll(name, "/", "")) {
				continue
			}
			end, outside := workspace.resolve("", name)
			if outside || end == name || end == "" {
				continue
			}
			alias := escapeGlob(end)
			if tree {
				alias += "/**"
			}
			out[alias] = p
		}
	}
	return out
}

func escapeGlob(p string) string {
	var b strings.Builder
	for i := range len(p) {
		if strings.IndexByte(`*?[]{}\`, p[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(p[i])
	}
	return b.String()
}
