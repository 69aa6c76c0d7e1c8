package gates

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// PathsConfig configures the paths gate. The zero value is the strictest sensible one: built-in lists,
// setuid, devices and links block, executables are told.
type PathsConfig struct {
	Mode Mode `json:"mode,omitempty" yaml:"mode"`
	// Protected and Watched are doublestar globs relative to the workspace: a change of a protected path
	// blocks, that of a watched one warns. Empty means DefaultProtected and DefaultWatched.
	Protected []string `json:"protected,omitempty" yaml:"protected"`
	Watched   []string `json:"watched,omitempty" yaml:"watched"`
	// AllowProtected is the user's explicit word, as globs over the path as it is written: the finding stays,
	// as information.
	AllowProtected []string `json:"allow_protected,omitempty" yaml:"-"`

	Setuid      Severity `json:"setuid,omitempty" yaml:"setuid"`           // setuid or setgid files
	Devices     Severity `json:"devices,omitempty" yaml:"devices"`         // device nodes
	Links       Severity `json:"links,omitempty" yaml:"links"`             // symbolic links that leave the workspace
	Executables Severity `json:"executables,omitempty" yaml:"executables"` // files that become executable
}

// Validate names the first value that makes no sense.
func (c PathsConfig) Validate() error {
	_, err := c.normal()
	return err
}

// normal fills in the defaults and checks.
func (c PathsConfig) normal() (PathsConfig, error) {
	c.Mode = cmp.Or(c.Mode, ModeMandatory)
	if _, err := ParseMode(string(c.Mode)); err != nil {
		return c, fmt.Errorf("gate paths: %w", err)
	}
	if len(c.Protected) == 0 {
		c.Protected = DefaultProtected()
	}
	if len(c.Watched) == 0 {
		c.Watched = DefaultWatched()
	}
	for _, list := range [][]string{c.Protected, c.Watched, c.AllowProtected} {
		for _, p := range list {
			if err := checkPattern(p); err != nil {
				return c, fmt.Errorf("gate paths: %w", err)
			}
		}
	}
	for _, s := range []struct {
		value *Severity
		def   Severity
	}{{&c.Setuid, SeverityBlock}, {&c.Devices, SeverityBlock}, {&c.Links, SeverityBlock}, {&c.Executables, SeverityInfo}} {
		*s.value = cmp.Or(*s.value, s.def)
		if _, err := ParseSeverity(string(*s.value)); err != nil {
			return c, fmt.Errorf("gate paths: %w", err)
		}
	}
	return c, nil
}

// pathsVersion changes when the same configuration would give another answer.
const pathsVersion = 2

// paths is the gate.
type paths struct {
	config    PathsConfig
	digest    string
	protected *matcher
	parents   *matcher
	watched   *matcher
	why       map[string]string
}

// Paths returns the gate that looks at names, types, modes and link targets, never at content: protected
// paths, links that leave the workspace, setuid files, device nodes, new executables, names that deceive.
func Paths(c PathsConfig) (Gate, error) {
	c, err := c.normal()
	if err != nil {
		return nil, err
	}
	g := &paths{config: c, why: reasons()}
	for _, m := range []struct {
		into *(*matcher)
		from []string
	}{{&g.protected, c.Protected}, {&g.parents, parents(c.Protected)}, {&g.watched, c.Watched}} {
		if *m.into, err = newMatcher(m.from); err != nil {
			return nil, fmt.Errorf("gate paths: %w", err)
		}
	}
	c.Mode = "" // what a failure does is not part of the answer
	g.digest = DigestOf("paths", pathsVersion, c)
	return g, nil
}

func (g *paths) Name() string   { return "paths" }
func (g *paths) Digest() string { return g.digest }

// look is one run of the gate.
type look struct {
	*paths
	links    links
	folded   links
	aliases  *matcher
	aliasOf  map[string]string
	list     List
	gitParts map[string]bool // directories that hold objects or refs, as a git repository does
}

func (g *paths) Check(ctx context.Context, c *Change) (Verdict, error) {
	same := func(p string) string { return p }
	l := &look{paths: g, links: newLinks(c, same), folded: newLinks(c, fold), gitParts: map[string]bool{}}
	l.aliasOf = l.links.aliases(g.config.Protected)
	var err error
	if l.aliases, err = newMatcher(slices.Sorted(maps.Keys(l.aliasOf))); err != nil {
		return Verdict{}, err
	}
	for i := range c.Entries {
		l.noteGitParts(fold(c.Entries[i].Path))
	}
	for i := range c.Entries {
		if i%1024 == 0 && ctx.Err() != nil {
			return Verdict{}, context.Cause(ctx)
		}
		l.entry(&c.Entries[i])
	}
	return l.list.Verdict(len(c.Entries)), nil
}

// entry applies every rule to one entry.
func (l *look) entry(e *Entry) {
	if e.Path == "." && e.Type == TypeDir && (e.Kind == KindMode || e.Kind == KindModified) {
		return // the workspace's own directory, as after chmod -R
	}
	if !proper(e.Path) {
		l.find(SeverityBlock, "path", e.Path, "not a path inside the workspace", "discard the change")
		return
	}
	l.protect(e)
	if e.Kind == KindDeleted {
		return
	}
	if deceives(e.Path) {
		l.find(SeverityWarn, "name", e.Path, "its name holds control or invisible characters", "rename it")
	}
	switch e.Type {
	case TypeSymlink:
		l.link(e)
	case TypeChar, TypeBlock:
		l.find(l.config.Devices, "device", e.Path, "a device node", "remove it in the sandbox")
	case TypeFifo, TypeSocket:
		l.find(SeverityWarn, "special", e.Path, "a "+string(e.Type)+": programs that read it may wait for ever", "remove it in the sandbox")
	case TypeFile:
		l.file(e)
	case TypeDir:
	default:
		l.find(SeverityBlock, "type", e.Path, fmt.Sprintf("a file of the unknown type %q", e.Type), "discard the change")
	}
}

// proper says whether p can only mean a place inside the workspace.
func proper(p string) bool {
	return p != "" && p != "." && p == path.Clean(p) && !path.IsAbs(p) && p != ".." && !strings.HasPrefix(p, "../") && !strings.ContainsRune(p, 0)
}

// deceives says whether a terminal may show p as something else. Joiners and variation selectors, which
// ordinary names in many languages and with emoji have, do not count.
func deceives(p string) bool {
	return strings.ContainsFunc(p, func(r rune) bool {
		return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x200b || r == 0x2060 || r == 0xfeff
	})
}

// protect applies the lists.
func (l *look) protect(e *Entry) {
	folded := fold(e.Path)
	if pattern, ok := l.protected.find(folded); ok {
		l.refuse(e, "protected", pattern, l.reason(pattern))
		return
	}
	if alias, ok := l.aliases.find(folded); ok {
		pattern := l.aliasOf[alias]
		l.refuse(e, "protected", pattern, "a link of the workspace leads here; "+l.reason(pattern))
		return
	}
	if e.Type == TypeSymlink && e.Kind != KindDeleted {
		if pattern, ok := l.parents.find(folded); ok {
			l.refuse(e, "protected-link", pattern, "a link in the place of a directory with protected files")
			return
		}
	}
	if path.Base(folded) == "head" && e.Kind != KindDeleted && e.Type != TypeDir && l.gitParts[path.Dir(folded)] {
		l.refuse(e, "git-repository", "", "makes its directory a git repository, whose config git obeys when somebody enters it")
		return
	}
	if pattern, ok := l.watched.find(folded); ok {
		l.find(SeverityWarn, "watched", e.Path, l.reason(pattern), "look at it before you promote")
	}
}

func (l *look) reason(pattern string) string {
	return cmp.Or(l.why[pattern], "the profile protects "+pattern)
}

// refuse is a finding that the user's explicit word turns into information.
func (l *look) refuse(e *Entry, rule, pattern, why string) {
	if l.allowed(e.Path) {
		l.find(SeverityInfo, rule, e.Path, why+"; allowed by the user", "")
		return
	}
	verb := "would be changed"
	if e.Kind == KindAdded || e.Kind == KindDeleted {
		verb = "would be " + string(e.Kind)
	}
	remedy := "to promote it all the same: --allow-protected " + shellQuote(escapeGlob(e.Path))
	if pattern != "" {
		why += " (" + pattern + ")"
	}
	l.find(SeverityBlock, rule, e.Path, verb+"; "+why, remedy)
}

// allowed matches the path as it is: a user who allows .git/config does not mean .GIT/config.
func (l *look) allowed(p string) bool {
	return slices.ContainsFunc(l.config.AllowProtected, func(pattern string) bool { return matchExact(pattern, p) })
}

// noteGitParts remembers which directories hold objects or refs.
func (l *look) noteGitParts(folded string) {
	if !strings.Contains(folded, "objects") && !strings.Contains(folded, "refs") {
		return
	}
	dir := ""
	for e := range strings.SplitSeq(folded, "/") {
		if e == "objects" || e == "refs" {
			l.gitParts[cmp.Or(dir, ".")] = true
		}
		dir = path.Join(dir, e)
	}
}

// link judges where a symbolic link leads.
func (l *look) link(e *Entry) {
	if e.Link == "" {
		l.find(SeverityBlock, "link", e.Path, "a link without a target", "discard the change")
		return
	}
	end, outside := l.links.resolve(path.Dir(e.Path), e.Link)
	if !outside {
		if other, leaves := l.folded.resolve(path.Dir(fold(e.Path)), fold(e.Link)); leaves {
			end, outside = other, true // on a filesystem that ignores case
		}
	}
	if !outside {
		if pattern, ok := l.protected.find(fold(end)); ok {
			l.find(SeverityWarn, "link", e.Path, fmt.Sprintf("a link to %q, a protected path (%s)", end, pattern), "look at it before you promote")
		}
		return
	}
	severity := l.config.Links
	if severity == SeverityBlock && within(end, systemTrees) {
		severity = SeverityWarn
	}
	message := fmt.Sprintf("a link to %q, which leaves the workspace", e.Link)
	if end != e.Link {
		message += fmt.Sprintf(" for %q", end)
	}
	l.find(severity, "link", e.Path, message, "make it point inside, by a relative path")
}

func within(p string, trees []string) bool {
	return slices.ContainsFunc(trees, func(t string) bool { return p == t || strings.HasPrefix(p, t+"/") })
}

// file judges a regular file's mode.
func (l *look) file(e *Entry) {
	if e.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		l.find(l.config.Setuid, "setuid", e.Path, "a setuid or setgid file", "remove the bit in the sandbox: chmod ug-s")
	}
	const executable = 0o111
	was := e.OldMode&executable != 0 && e.OldType == TypeFile && e.Kind != KindAdded
	if e.Mode&executable != 0 && !was {
		l.find(l.config.Executables, "executable", e.Path, "becomes executable", "if it should not: chmod a-x in the sandbox")
	}
}

// find records a finding.
func (l *look) find(s Severity, rule, p, message, remedy string) {
	l.list.Add(Finding{Rule: rule, Path: p, Message: message, Remedy: remedy, Severity: s})
}

// shellQuote makes s one word of a shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
