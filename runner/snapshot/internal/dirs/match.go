package dirs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Matcher selects what one of the doublestar patterns in paths matches, with everything below, and what none of skip
// does. nil paths select everything. The error is doublestar.ErrBadPattern.
func Matcher(paths, skip []string) (func(path string) bool, error) {
	for _, list := range [][]string{paths, skip} {
		for _, p := range list {
			if !doublestar.ValidatePattern(p) {
				return nil, fmt.Errorf("%q: %w", p, doublestar.ErrBadPattern)
			}
		}
	}
	take, leave := patternsOf(paths), patternsOf(skip)
	return func(path string) bool {
		return (paths == nil || take.match(path)) && !leave.match(path)
	}, nil
}

// patterns are globs, those that match one name alone apart: a list of a thousand files costs each path no more than one.
type patterns struct {
	names map[string]bool
	globs []string
}

func patternsOf(list []string) *patterns {
	p := &patterns{names: map[string]bool{}}
	for _, glob := range list {
		if name, ok := literal(glob); ok {
			p.names[name] = true
		} else {
			p.globs = append(p.globs, glob)
		}
	}
	return p
}

// literal is the one name that a valid pattern matches.
func literal(glob string) (string, bool) {
	var name strings.Builder
	for i := 0; i < len(glob); i++ {
		switch glob[i] {
		case '*', '?', '[', '{':
			return "", false
		case '\\':
			i++
		}
		name.WriteByte(glob[i])
	}
	return name.String(), true
}

func (p *patterns) match(path string) bool {
	for i := range len(path) + 1 {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if p.names[path[:i]] || slices.ContainsFunc(p.globs, func(g string) bool { return doublestar.MatchUnvalidated(g, path[:i]) }) {
			return true
		}
	}
	return false
}
