package files

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/files/internal/document"
)

// ImmutableConfig configures the gate immutable.
type ImmutableConfig struct {
	// Paths are gates.Globs of what stays as it is: not modified, deleted, replaced or made executable. What is not
	// there yet may be added.
	Paths []string `json:"paths,omitempty"`
	// Keys are, for globs of JSON, YAML and TOML files, the paths of values that stay: "scripts.*". Values are compared,
	// not texts: order, comments and layout may change. A key that such a path names may not be added either.
	Keys map[string][]string `json:"keys,omitempty"`
}

// Validate names the first value that makes no sense.
func (c ImmutableConfig) Validate() error {
	_, err := Immutable(c)
	return err
}

const immutableVersion = 1

// maxLines is how many differences of one file are told with their line.
const maxLines = 20

// keyRule is one entry of Keys.
type keyRule struct {
	files gates.Globs
	paths []document.Path
}

// Immutable returns the gate that keeps paths, and values inside files, as they are. With nothing to keep it fails.
func Immutable(c ImmutableConfig) (gates.Gate, error) {
	lists, err := globs("immutable", c.Paths)
	if err != nil {
		return nil, err
	}
	g := immutable{paths: lists[0], parents: lists[0].LiteralParents()}
	for _, file := range slices.Sorted(maps.Keys(c.Keys)) {
		lists, err := globs("immutable", []string{file})
		if err != nil {
			return nil, err
		}
		rule := keyRule{files: lists[0]}
		for _, key := range c.Keys[file] {
			p, err := document.ParsePath(key)
			if err != nil {
				return nil, fmt.Errorf("gate immutable: %w", err)
			}
			rule.paths = append(rule.paths, p)
		}
		if len(rule.paths) == 0 {
			return nil, fmt.Errorf("gate immutable: no keys of %s", file)
		}
		g.keys = append(g.keys, rule)
		maps.Copy(g.parents, rule.files.LiteralParents())
	}
	return gate{"immutable", gates.DigestOf("immutable", immutableVersion, c), g.check}, nil
}

type immutable struct {
	paths   gates.Globs
	parents map[string]string
	keys    []keyRule
}

func (g immutable) check(ctx context.Context, c *gates.Change) (gates.Verdict, error) {
	if g.paths.Empty() && len(g.keys) == 0 {
		return gates.Verdict{}, &gates.Failure{Cause: "nothing is immutable", Remedy: "name it in gates.immutable.paths or gates.immutable.keys, or switch the gate off"}
	}
	l := immutableLook{immutable: g, reader: gates.NewReader(ctx, c, gates.DefaultBounds)}
	err := each(ctx, c, l.entry)
	if err == nil {
		err = l.err
	}
	return l.list.Verdict(len(c.Entries)), err
}

type immutableLook struct {
	immutable
	reader *gates.Reader
	list   gates.List
	err    error
}

const putBack = "put it back: caisson rollback --paths"

func (l *immutableLook) entry(e *gates.Entry) {
	if l.err != nil || e.Kind == gates.KindAdded || e.OldType == "" {
		return
	}
	gone := e.Kind == gates.KindDeleted || e.Type != e.OldType
	if glob, ok := l.paths.MatchFolded(e.Path); ok {
		l.block("path", e.Path, 0, "is immutable ("+glob+") and would be "+done(e))
		return
	}
	if glob, ok := l.parents[e.Path]; ok && gone {
		l.block("path", e.Path, 0, "holds what is immutable ("+glob+") and would be "+done(e))
		return
	}
	for _, rule := range l.keys {
		if glob, ok := rule.files.MatchFolded(e.Path); ok {
			switch {
			case gone && e.OldType == gates.TypeFile:
				l.block("path", e.Path, 0, "has immutable keys ("+glob+") and would be "+done(e))
			case e.Type == gates.TypeFile && e.Kind == gates.KindModified:
				l.compare(e, rule)
			}
		}
	}
}

func done(e *gates.Entry) string {
	switch e.Kind {
	case gates.KindDeleted:
		return "deleted"
	case gates.KindMode:
		return "given another mode"
	case gates.KindType, gates.KindLink:
		return "replaced"
	}
	return "changed"
}

func (l *immutableLook) block(rule, p string, line int, message string) {
	l.list.Add(gates.Finding{Rule: rule, Path: p, Line: line, Message: message, Remedy: putBack, Severity: gates.SeverityBlock})
}

// compare looks at the keys of one file. A file that could not be read before has no keys to compare: it stays as it is.
func (l *immutableLook) compare(e *gates.Entry, rule keyRule) {
	old, err := l.reader.Old(e.Path)
	if err != nil {
		l.err = unread(&l.list, err)
		return
	}
	now, err := l.reader.New(e.Path)
	if err != nil {
		l.err = unread(&l.list, err)
		return
	}
	was, err := document.Parse(e.Path, old)
	if err != nil {
		l.block("unreadable", e.Path, 0, fmt.Sprintf("has immutable keys, which cannot be compared with what was there: %v", err))
		return
	}
	is, err := document.Parse(e.Path, now)
	if err != nil {
		l.block("unreadable", e.Path, 0, fmt.Sprintf("has immutable keys and cannot be read any more: %v", err))
		return
	}
	for _, p := range rule.paths {
		for i, at := range document.Differences(was, is, p) {
			line := 0
			if i < maxLines { // each is a search through the text
				line = document.Line(now, at)
			}
			l.block("key", e.Path, line, fmt.Sprintf("the value of %s is immutable (%s) and would change", at, p))
		}
	}
}
