// Package secrets is the gate that finds credentials in a change.
//
// It has the rules of gitleaks, in gitleaks' own format, and a matcher of its own: gitleaks as a library takes 2 ms of every
// start of the program (its archive formats and their packages initialise themselves), writes to the global viper, and cannot
// be stopped in the middle of a file. What is different, because whoever wrote the change is not trusted: a comment
// "gitleaks:allow" and configuration files in the workspace count for nothing, and the paths that gitleaks leaves out (vendored
// code, pictures, lock files) are left out only for the rules that go by the name beside a value. The module gitleakstest
// compares the two, and has all differences.
//
// Archives are not unpacked. What is encoded in letters (base64, hexadecimal, percent signs, escapes) and UTF-16 are read. No
// value is ever part of a finding, not even in part.
package secrets

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
)

// Config configures the gate.
type Config struct {
	Found    gates.Severity `json:"found,omitempty"`    // a secret that the change brings; "": block
	Before   gates.Severity `json:"before,omitempty"`   // one that the same file had before; "": info
	Allowed  []string       `json:"allowed,omitempty"`  // gates.Globs of files that are not looked at
	Disabled []string       `json:"disabled,omitempty"` // rules, by their names
}

// Validate names the first value that makes no sense.
func (c Config) Validate() error {
	_, err := Gate(c)
	return err
}

// version changes with the rules, too.
const version = 2

// genericRule is the rule that knows no kind of secret, only names beside them.
const genericRule = "generic-api-key"

const remedy = "take it out, and make a new one at once: whoever ran the task has seen it; what is no secret goes into gates.secrets.allowed"

type gate struct {
	Config
	allowed gates.Globs
	digest  string
}

// Gate returns the gate.
func Gate(c Config) (gates.Gate, error) {
	c.Found, c.Before = cmp.Or(c.Found, gates.SeverityBlock), cmp.Or(c.Before, gates.SeverityInfo)
	for _, s := range []gates.Severity{c.Found, c.Before} {
		if _, err := gates.ParseSeverity(string(s)); err != nil {
			return nil, fmt.Errorf("gate secrets: %w", err)
		}
	}
	g := gate{Config: c, digest: gates.DigestOf("secrets", version, c)}
	var err error
	if g.allowed, err = gates.ParseGlobs(c.Allowed); err != nil {
		return nil, fmt.Errorf("gate secrets: %w", err)
	}
	if len(c.Disabled) == 0 {
		return g, nil
	}
	s, err := load()
	if err != nil {
		return nil, err
	}
	for _, id := range c.Disabled {
		if !slices.ContainsFunc(s.rules, func(r rule) bool { return r.ID == id }) {
			return nil, fmt.Errorf("gate secrets: there is no rule %q", id)
		}
	}
	return g, nil
}

func (g gate) Name() string   { return "secrets" }
func (g gate) Digest() string { return g.digest }

func (g gate) Check(ctx context.Context, c *gates.Change) (gates.Verdict, error) {
	rules, err := load()
	if err != nil {
		return gates.Verdict{}, err
	}
	l := look{gate: g, rules: rules, reader: gates.NewReader(ctx, c, gates.DefaultBounds)}
	for i := range c.Entries {
		if err := l.entry(ctx, &c.Entries[i]); err != nil {
			return gates.Verdict{}, err
		}
	}
	return l.list.Verdict(len(c.Entries)), nil
}

type look struct {
	gate
	rules  *ruleset
	reader *gates.Reader
	list   gates.List
}

func (l *look) entry(ctx context.Context, e *gates.Entry) error {
	if e.Type != gates.TypeFile || e.Kind == gates.KindDeleted || e.Kind == gates.KindMode {
		return context.Cause(ctx)
	}
	if _, ok := l.allowed.Match(e.Path); ok {
		return nil
	}
	l.names(e)
	data, err := l.reader.New(e.Path)
	if err != nil {
		return l.unread(e, err)
	}
	text := plain(data)
	found, err := l.rules.scan(ctx, e.Path, text)
	if err != nil || len(found) == 0 {
		return err
	}
	before, err := l.before(ctx, e)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(m match) bool { return slices.Contains(l.Disabled, m.rule.ID) })
	line, counted := 1, 0
	for i := range found {
		m := &found[i]
		line += bytes.Count(text[counted:m.start], []byte("\n"))
		counted = m.start
		if better(text, found, i) {
			continue
		}
		f := gates.Finding{Rule: m.rule.ID, Path: e.Path, Line: line, Severity: l.Found,
			Message: m.rule.Description, Remedy: remedy}
		if before[m.rule.ID+"\x00"+m.secret] {
			f.Severity, f.Message = l.Before, "It was there before. "+f.Message
		}
		l.list.Add(f)
	}
	return nil
}

// better says whether a rule that knows the kind of secret has found what the i'th match has, in the same line and near it.
func better(text []byte, found []match, i int) bool {
	const neighbours = 64
	m := &found[i]
	if m.rule.ID != genericRule {
		return false
	}
	for j := max(0, i-neighbours); j < min(len(found), i+neighbours); j++ {
		o := &found[j]
		low, high := min(o.start, m.start), max(o.start, m.start)
		if o.rule.ID != genericRule && high-low <= nearBytes && strings.Contains(o.secret, m.secret) && bytes.IndexByte(text[low:high], '\n') < 0 {
			return true
		}
	}
	return false
}

// names applies the rules about names of files.
func (l *look) names(e *gates.Entry) {
	for i := range l.rules.rules {
		r := &l.rules.rules[i]
		if r.regex == nil && r.path != nil && !slices.Contains(l.Disabled, r.ID) && r.path().MatchString(e.Path) {
			l.list.Add(gates.Finding{Rule: r.ID, Path: e.Path, Message: r.Description, Severity: l.Found, Remedy: "take it out"})
		}
	}
}

// before returns the secrets that the file had before, where that can be read: as rule, NUL, secret.
func (l *look) before(ctx context.Context, e *gates.Entry) (map[string]bool, error) {
	if e.Kind == gates.KindAdded || e.OldType != gates.TypeFile {
		return nil, nil
	}
	data, err := l.reader.Old(e.Path)
	if err != nil {
		return nil, context.Cause(ctx) // then everything is new
	}
	found, err := l.rules.scan(ctx, e.Path, plain(data))
	out := make(map[string]bool, len(found))
	for _, m := range found {
		out[m.rule.ID+"\x00"+m.secret] = true
	}
	return out, err
}

// unread is a finding: what cannot be looked at may be anything.
func (l *look) unread(e *gates.Entry, err error) error {
	f, ok := gates.Unread(err)
	if !ok {
		return err
	}
	l.list.Add(f)
	return nil
}
