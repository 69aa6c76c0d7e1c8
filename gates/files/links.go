package files

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
)

// LinksConfig configures the gate links.
type LinksConfig struct {
	Outside  gates.Severity `json:"outside,omitempty"`  // links that leave the workspace; "": block
	System   gates.Severity `json:"system,omitempty"`   // those of them into the host's programs, as virtual environments have; "": warn
	Broken   gates.Severity `json:"broken,omitempty"`   // links to nothing, and circles; "": warn
	Replaced gates.Severity `json:"replaced,omitempty"` // links in the place of a directory; "": block
}

// Validate names the first value that makes no sense.
func (c LinksConfig) Validate() error { return c.fill() }

func (c *LinksConfig) fill() error {
	return fill("links", level{&c.Outside, gates.SeverityBlock}, level{&c.System, gates.SeverityWarn},
		level{&c.Broken, gates.SeverityWarn}, level{&c.Replaced, gates.SeverityBlock})
}

const linksVersion = 1

// Links returns the gate that follows every new symbolic link, in the workspace as it will be: through other links, old and
// new.
func Links(c LinksConfig) (gates.Gate, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	return gate{"links", gates.DigestOf("links", linksVersion, c), func(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
		l := linkLook{LinksConfig: c, change: change, resolve: change.Resolver(), there: map[string]bool{}}
		for _, e := range change.Entries {
			l.there[e.Path] = e.Kind != gates.KindDeleted
		}
		err := each(ctx, change, l.entry)
		return l.list.Verdict(len(change.Entries)), err
	}}, nil
}

type linkLook struct {
	LinksConfig
	change  *gates.Change
	resolve func(dir, target string) (string, bool)
	there   map[string]bool
	list    gates.List
}

func (l *linkLook) entry(e *gates.Entry) {
	if e.Kind == gates.KindDeleted || e.Type != gates.TypeSymlink {
		return
	}
	find := func(s gates.Severity, rule, message, remedy string) {
		l.list.Add(gates.Finding{Rule: rule, Path: e.Path, Message: message, Remedy: remedy, Severity: s})
	}
	if e.OldType == gates.TypeDir {
		find(l.Replaced, "replaced", "a link in the place of a directory: what is written there goes elsewhere from now on", "make it a directory again")
	}
	end, outside := l.resolve(path.Dir(e.Path), e.Link)
	switch {
	case outside && end == e.Link && !path.IsAbs(end) && !strings.HasPrefix(path.Clean(end), ".."):
		find(l.Broken, "circle", fmt.Sprintf("a link to %q that leads in a circle, or through too many links", e.Link), "remove it, or point it at a file")
	case outside:
		severity := l.Outside
		if isSystem(end) {
			severity = l.System
		}
		find(severity, "outside", fmt.Sprintf("a link to %q, which leads out of the workspace to %q", e.Link, end), "make it point inside, by a relative path")
	case end != "" && !l.exists(end):
		find(l.Broken, "broken", fmt.Sprintf("a link to %q, where nothing is", e.Link), "remove it, or point it at a file")
	}
}

// exists says whether something will be at p.
func (l *linkLook) exists(p string) bool {
	if there, changed := l.there[p]; changed {
		return there
	}
	if l.change.Lookup == nil {
		return false
	}
	_, ok := l.change.Lookup(p)
	return ok
}

// systemTrees hold the host's programs, which only root writes.
var systemTrees = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/dev/null"}

func isSystem(p string) bool {
	return slices.ContainsFunc(systemTrees, func(t string) bool { return p == t || strings.HasPrefix(p, t+"/") })
}
