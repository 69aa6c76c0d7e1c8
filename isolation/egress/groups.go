package egress

import (
	"embed"
	"maps"
	"slices"
	"strings"
)

// The built-in groups: one file each, one entry per line, # begins a comment.
//
//go:embed groups/*.txt
var groupFiles embed.FS

// maxNesting is how deep groups may name groups.
const maxNesting = 8

// groups finds groups by name, the user's own first.
type groups struct{ own map[string][]string }

// isGroup reports whether an entry is a group's name: one word, with neither dot nor port.
func isGroup(text string) bool {
	return text != "" && text != "host" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" && !numeric(text)
}

func (g *groups) find(name string) ([]string, bool) {
	if members, ok := g.own[name]; ok {
		return members, true
	}
	text, err := groupFiles.ReadFile("groups/" + name + ".txt")
	if err != nil {
		return nil, false
	}
	return groupLines(string(text)), true
}

func groupLines(text string) (members []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			members = append(members, line)
		}
	}
	return members
}

// names lists every group.
func (g *groups) names() []string {
	list := slices.Collect(maps.Keys(g.own))
	list = append(list, Groups()...)
	slices.Sort(list)
	return slices.Compact(list)
}

// Groups lists the built-in groups.
func Groups() []string {
	files, err := groupFiles.ReadDir("groups")
	if err != nil {
		return nil
	}
	var list []string
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".txt"))
	}
	return list
}
