package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/caisson-dev/caisson/gates"
)

// gateVersion changes when the same script would get another verdict.
const gateVersion = 5

// scriptsGate judges the shell scripts of a change as Analyze judges command lines.
type scriptsGate struct {
	c      Config
	digest string
}

// Gate returns the gate that judges the shell scripts that a change adds or modifies. What they are denied for blocks, what
// would be asked about is information; what a script had before the change is not found again. c.Open, c.Env and c.Dir
// have no meaning here.
func Gate(c Config) gates.Gate {
	c.Open, c.Env, c.Dir = nil, nil, ""
	c = c.filled()
	key := struct {
		Mode      Mode
		Allow     []string
		MaxBytes  int
		Cwd, Home string
	}{c.Mode, c.Allow, c.MaxBytes, c.Cwd, c.Home}
	return &scriptsGate{c: c, digest: gates.DigestOf("command", gateVersion, key)}
}

// Name implements gates.Gate.
func (g *scriptsGate) Name() string { return "command" }

// Digest implements gates.Gate.
func (g *scriptsGate) Digest() string { return g.digest }

// Check implements gates.Gate.
func (g *scriptsGate) Check(ctx context.Context, c *gates.Change) (gates.Verdict, error) {
	var list gates.List
	r := gates.NewReader(ctx, c, gates.DefaultBounds)
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.Type != gates.TypeFile || e.Binary || e.Kind == gates.KindDeleted || e.Kind == gates.KindMode {
			continue
		}
		if e.Mode&0o111 == 0 && !scriptName(e.Path) { // no kernel starts it, and whoever names it to a shell is judged then
			continue
		}
		if err := g.entry(e, r, &list); err != nil {
			f, unread := gates.Unread(err)
			if !unread {
				return gates.Verdict{}, err
			}
			list.Add(f)
		}
	}
	return list.Verdict(len(c.Entries)), nil
}

func (g *scriptsGate) entry(e *gates.Entry, r *gates.Reader, list *gates.List) error {
	head, err := r.Head(e.Path, int64(g.c.MaxBytes)+1)
	if err != nil || !isScript(e.Path, head) {
		return err
	}
	if len(head) > g.c.MaxBytes {
		list.Add(gates.Finding{Rule: "long-script", Path: e.Path, Message: "the script is too long to be judged", Remedy: "read it", Severity: gates.SeverityWarn})
		return nil
	}
	var known []Finding
	if e.Kind == gates.KindModified {
		old, err := r.OldHead(e.Path, int64(g.c.MaxBytes)+1)
		if err != nil && !errors.As(err, new(*gates.ReadError)) {
			return err
		}
		known = Analyze(string(old), g.c).Findings
	}
	for _, f := range Analyze(string(head), g.c).Findings {
		had := slices.ContainsFunc(known, func(k Finding) bool { return k.Rule == f.Rule && k.Text == f.Text })
		if !had {
			severity := gates.SeverityInfo
			if f.Verdict == Deny {
				severity = gates.SeverityBlock
			}
			list.Add(gates.Finding{Rule: f.Rule, Path: e.Path, Line: int(f.Line), Message: fmt.Sprintf("%s: %q", f.Message, f.Text), Remedy: f.Safer,
				Severity: severity})
		}
	}
	return nil
}

// isScript reports whether a file is meant to be run by a shell whose language this is: by its first line, else by its name.
func isScript(name string, head []byte) bool {
	if bytes.HasPrefix(head, []byte("#!")) {
		return shellScript(head)
	}
	return scriptName(name)
}

func scriptName(name string) bool {
	return slices.Contains([]string{".sh", ".bash", ".ksh", ".dash"}, path.Ext(name))
}
