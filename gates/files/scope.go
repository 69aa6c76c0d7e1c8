package files

import (
	"context"
	"path"

	"github.com/caisson-dev/caisson/gates"
)

// ScopeConfig configures the gate scope. All are lists of gates.Globs: the last one that matches decides, "!" takes out.
type ScopeConfig struct {
	Allowed   []string `json:"allowed,omitempty"`   // what may change; nil: everything. Empty means nothing, and is a failure
	Task      []string `json:"task,omitempty"`      // what this task may change, within Allowed; empty: no limit of its own
	Forbidden []string `json:"forbidden,omitempty"` // what may not, whatever is allowed
	Protected []string `json:"protected,omitempty"` // what may not without AllowProtected
	// AllowProtected is the user's explicit word about protected paths, as they are written.
	AllowProtected []string `json:"allow_protected,omitempty"`
}

// Validate names the first glob that is none.
func (c ScopeConfig) Validate() error {
	_, err := Scope(c)
	return err
}

const scopeVersion = 1

// Scope returns the gate that compares changed paths with what may change.
func Scope(c ScopeConfig) (gates.Gate, error) {
	if c.Allowed == nil {
		c.Allowed = []string{"**"}
	}
	lists, err := globs("scope", c.Allowed, c.Task, c.Forbidden, c.Protected, c.AllowProtected)
	if err != nil {
		return nil, err
	}
	l := scopeLists{lists[0], lists[1], lists[2], lists[3], lists[4]}
	return gate{"scope", gates.DigestOf("scope", scopeVersion, c), func(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
		if l.allowed.Empty() {
			return gates.Verdict{}, &gates.Failure{Cause: "gates.scope.allowed is empty: nothing may change", Remedy: "name what may change; ** is everything"}
		}
		return l.check(ctx, change)
	}}, nil
}

type scopeLists struct{ allowed, task, forbidden, protected, word gates.Globs }

func (s scopeLists) check(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
	within := map[string]bool{} // directories above what may change
	for _, e := range change.Entries {
		if _, outside := s.outside(e.Path); !outside {
			for dir := path.Dir(e.Path); dir != "." && dir != "/" && !within[dir]; dir = path.Dir(dir) {
				within[dir] = true
			}
		}
	}
	var list gates.List
	err := each(ctx, change, func(e *gates.Entry) {
		find := func(severity gates.Severity, rule, message, remedy string) {
			list.Add(gates.Finding{Rule: rule, Path: e.Path, Message: message, Remedy: remedy, Severity: severity})
		}
		if glob, ok := s.forbidden.MatchFolded(e.Path); ok {
			find(gates.SeverityBlock, "forbidden", "must not change ("+glob+")", "put it back: caisson rollback --paths")
			return
		}
		if glob, ok := s.protected.MatchFolded(e.Path); ok {
			if _, said := s.word.Match(e.Path); said {
				find(gates.SeverityInfo, "protected", "is protected ("+glob+"); allowed by the user", "")
			} else {
				find(gates.SeverityBlock, "protected", "is protected ("+glob+")", "put it back, or give your word: --allow-protected PATH")
			}
		}
		why, outside := s.outside(e.Path)
		passage := e.Type == gates.TypeDir && (e.Kind == gates.KindAdded || e.Kind == gates.KindModified) && within[e.Path]
		if outside && !passage {
			find(gates.SeverityBlock, "outside", why, "put it back, or widen the scope")
		}
	})
	return list.Verdict(len(change.Entries)), err
}

// outside says why a path is none of those that may change.
func (s scopeLists) outside(p string) (why string, outside bool) {
	for _, l := range []struct {
		globs gates.Globs
		whose string
	}{{s.allowed, "gates.scope.allowed"}, {s.task, "the task's scope"}} {
		if l.globs.Empty() {
			continue
		}
		glob, ok := l.globs.Match(p)
		switch {
		case ok:
		case glob != "":
			return l.whose + " takes it out (" + glob + ")", true
		default:
			return "is in no glob of " + l.whose, true
		}
	}
	return "", false
}
