package profiles

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/caisson-dev/caisson/gates"
	gateset "github.com/caisson-dev/caisson/gates/builtin"
	commandgate "github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/gates/files"
	"github.com/caisson-dev/caisson/gates/secrets"
	"github.com/caisson-dev/caisson/quota"
)

// Gates configures the gates.
type Gates struct {
	Following
	Command   CommandGate   `json:"command"`
	Exec      ExecGate      `json:"exec"`
	Immutable ImmutableGate `json:"immutable"`
	Links     LinksGate     `json:"links"`
	Lock      LockGate      `json:"lock"`
	Paths     PathsGate     `json:"paths"`
	Scope     ScopeGate     `json:"scope"`
	Secrets   SecretsGate   `json:"secrets"`
	Size      SizeGate      `json:"size"`
}

// GateSettings are what every gate that looks at a change has.
type GateSettings struct {
	Mode     gates.Mode     `json:"mode"`
	Severity gates.Severity `json:"severity"` // the worst that its findings count as
	Timeout  quota.Duration `json:"timeout"`
}

// Glob is a pattern of a list in which the last one that matches decides, and "!" takes out. See gates.Globs.
type Glob string

// ExecGate configures the gate "exec".
type ExecGate struct {
	GateSettings
	Executables  gates.Severity `json:"executables"`
	Programs     gates.Severity `json:"programs"`
	Setuid       gates.Severity `json:"setuid"`
	Shebangs     gates.Severity `json:"shebangs"`
	Allowed      []Glob         `json:"allowed"`
	Interpreters []string       `json:"interpreters"`
}

// ImmutableGate configures the gate "immutable". With nothing that it keeps it is off, unless it is mandatory: then it fails.
type ImmutableGate struct {
	GateSettings
	Paths []Glob              `json:"paths"`
	Keys  map[string][]string `json:"keys"` // glob of files → paths of values in them
}

// LinksGate configures the gate "links".
type LinksGate struct {
	GateSettings
	Outside  gates.Severity `json:"outside"`
	System   gates.Severity `json:"system"`
	Broken   gates.Severity `json:"broken"`
	Replaced gates.Severity `json:"replaced"`
}

// LockGate configures the gate "lock".
type LockGate struct {
	GateSettings
	Missing gates.Severity `json:"missing"`
	Stale   gates.Severity `json:"stale"`
	Alone   gates.Severity `json:"alone"`
	Ignored []Glob         `json:"ignored"`
}

// PathsGate configures the gate "paths".
type PathsGate struct {
	GateSettings
	Setuid      gates.Severity `json:"setuid"`
	Devices     gates.Severity `json:"devices"`
	Links       gates.Severity `json:"links"` // that leave the workspace
	Executables gates.Severity `json:"executables"`
	Watched     []string       `json:"watched"` // globs that are reported but not refused
}

// ScopeGate configures the gate "scope".
type ScopeGate struct {
	GateSettings
	Allowed   []Glob `json:"allowed"`
	Task      []Glob `json:"task"` // of one task, by --scope; empty: no limit of its own
	Forbidden []Glob `json:"forbidden"`
	Protected []Glob `json:"protected"`
}

// SecretsGate configures the gate "secrets".
type SecretsGate struct {
	GateSettings
	Found    gates.Severity `json:"found"`
	Before   gates.Severity `json:"before"`
	Allowed  []Glob         `json:"allowed"`
	Disabled []string       `json:"disabled"`
}

// SizeGate configures the gate "size".
type SizeGate struct {
	GateSettings
	Files    quota.Count    `json:"files"`
	Bytes    quota.Bytes    `json:"bytes"`
	File     quota.Bytes    `json:"file"`
	Binaries gates.Severity `json:"binaries"`
	Allowed  []Glob         `json:"allowed"` // what may be binary
}

// GateConfig returns the configuration of all gates; allow holds the globs of --allow-protected. A
// task's own scope always blocks.
func (p *Profile) GateConfig(allow []string) gateset.Config {
	g := &p.Gates
	c := gateset.Config{
		Settings: map[string]gateset.Settings{"command": {Mode: g.Command.Mode}},
		Command:  commandgate.Config{Mode: commandgate.Mode(g.Command.List), Allow: g.Command.Allow},
		Exec: files.ExecConfig{Executables: g.Exec.Executables, Programs: g.Exec.Programs, Setuid: g.Exec.Setuid, Shebangs: g.Exec.Shebangs,
			Allowed: plainGlobs(g.Exec.Allowed), Interpreters: g.Exec.Interpreters},
		Immutable: files.ImmutableConfig{Paths: plainGlobs(g.Immutable.Paths), Keys: g.Immutable.Keys},
		Links:     files.LinksConfig{Outside: g.Links.Outside, System: g.Links.System, Broken: g.Links.Broken, Replaced: g.Links.Replaced},
		Lock:      files.LockConfig{Missing: g.Lock.Missing, Stale: g.Lock.Stale, Alone: g.Lock.Alone, Ignored: plainGlobs(g.Lock.Ignored)},
		Paths: gates.PathsConfig{Protected: p.Protected, Watched: g.Paths.Watched, AllowProtected: allow,
			Setuid: g.Paths.Setuid, Devices: g.Paths.Devices, Links: g.Paths.Links, Executables: g.Paths.Executables},
		Scope: files.ScopeConfig{Allowed: plainGlobs(g.Scope.Allowed), Task: plainGlobs(g.Scope.Task), Forbidden: plainGlobs(g.Scope.Forbidden),
			Protected: plainGlobs(g.Scope.Protected), AllowProtected: allow},
		Secrets: secrets.Config{Found: g.Secrets.Found, Before: g.Secrets.Before, Allowed: plainGlobs(g.Secrets.Allowed), Disabled: g.Secrets.Disabled},
		Size:    files.SizeConfig{Files: int64(g.Size.Files), Bytes: int64(g.Size.Bytes), File: int64(g.Size.File), Binaries: g.Size.Binaries, Allowed: plainGlobs(g.Size.Allowed)},
	}
	if !g.On() {
		for _, name := range gateset.Names() {
			c.Settings[name] = gateset.Settings{Mode: gates.ModeOff}
		}
		return c
	}
	for name, s := range g.settings() {
		c.Settings[name] = gateset.Settings{Mode: s.Mode, Severity: s.Severity, Timeout: time.Duration(s.Timeout)}
	}
	if g.Immutable.Mode != gates.ModeMandatory && len(g.Immutable.Paths)+len(g.Immutable.Keys) == 0 {
		c.Settings["immutable"] = gateset.Settings{}
	}
	if m := g.Scope.Mode; len(g.Scope.Task) > 0 && m != gates.ModeMandatory {
		c.Settings["scope"] = gateset.Settings{Mode: gates.ModeBlock, Timeout: time.Duration(g.Scope.Timeout)}
	}
	return c
}

// settings are those of each gate, by its name.
func (g *Gates) settings() map[string]*GateSettings {
	return map[string]*GateSettings{"exec": &g.Exec.GateSettings, "immutable": &g.Immutable.GateSettings, "links": &g.Links.GateSettings, "lock": &g.Lock.GateSettings,
		"paths": &g.Paths.GateSettings, "scope": &g.Scope.GateSettings, "secrets": &g.Secrets.GateSettings, "size": &g.Size.GateSettings}
}

// plainGlobs never returns nil: an empty list is one.
func plainGlobs(list []Glob) []string {
	out := make([]string, len(list))
	for i, g := range list {
		out[i] = string(g)
	}
	return out
}

func globsOf(list []string) []Glob {
	out := make([]Glob, len(list))
	for i, g := range list {
		out[i] = Glob(g)
	}
	return out
}

// gateKeys configure the gates that look at a change.
func gateKeys() []key {
	var out []key
	for _, name := range slices.Sorted(maps.Keys((&Gates{}).settings())) {
		of := func(p *Profile) *GateSettings { return p.Gates.settings()[name] }
		prefix := "gates." + name + "."
		out = append(out,
			key{path: prefix + "mode", about: "what a finding that blocks does to a change",
				kind: word(func(p *Profile) *gates.Mode { return &of(p).Mode }, gates.ModeMandatory, gates.ModeBlock, gates.ModeWarn, gates.ModeOff)},
			key{path: prefix + "severity", about: "the worst that its findings count as",
				kind: word(func(p *Profile) *gates.Severity { return &of(p).Severity }, gates.SeverityBlock, gates.SeverityWarn, gates.SeverityInfo)},
			key{path: prefix + "timeout", about: "the time that it may take; more is a failure",
				kind: quantity(func(p *Profile) *quota.Duration { return &of(p).Timeout }, quota.ParseDuration)})
	}
	return slices.Concat(out, severityKeys(), listKeys(), []key{
		{path: "gates.size.files", about: "how many paths may change",
			kind: quantity(func(p *Profile) *quota.Count { return &p.Gates.Size.Files }, quota.ParseCount)},
		{path: "gates.size.bytes", about: "how large the changed files may be together",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.Gates.Size.Bytes }, quota.ParseBytes)},
		{path: "gates.size.file", about: "how large each may be",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.Gates.Size.File }, quota.ParseBytes)},
	})
}

// severityKeys say how bad each kind of finding is.
func severityKeys() []key {
	var out []key
	for _, k := range []struct {
		path, about string
		field       func(g *Gates) *gates.Severity
	}{
		{"exec.executables", "files that become executable", func(g *Gates) *gates.Severity { return &g.Exec.Executables }},
		{"exec.programs", "new or changed machine code", func(g *Gates) *gates.Severity { return &g.Exec.Programs }},
		{"exec.setuid", "setuid and setgid files", func(g *Gates) *gates.Severity { return &g.Exec.Setuid }},
		{"exec.shebangs", "scripts for unknown interpreters", func(g *Gates) *gates.Severity { return &g.Exec.Shebangs }},
		{"links.outside", "links that leave the workspace", func(g *Gates) *gates.Severity { return &g.Links.Outside }},
		{"links.system", "links to the host's programs", func(g *Gates) *gates.Severity { return &g.Links.System }},
		{"links.broken", "links to nothing, and circles", func(g *Gates) *gates.Severity { return &g.Links.Broken }},
		{"links.replaced", "links in the place of a directory", func(g *Gates) *gates.Severity { return &g.Links.Replaced }},
		{"lock.missing", "dependencies without a lock file", func(g *Gates) *gates.Severity { return &g.Lock.Missing }},
		{"lock.stale", "dependencies that change without their lock file", func(g *Gates) *gates.Severity { return &g.Lock.Stale }},
		{"lock.alone", "lock files that change alone", func(g *Gates) *gates.Severity { return &g.Lock.Alone }},
		{"paths.setuid", "new setuid and setgid bits", func(g *Gates) *gates.Severity { return &g.Paths.Setuid }},
		{"paths.devices", "device nodes", func(g *Gates) *gates.Severity { return &g.Paths.Devices }},
		{"paths.links", "symbolic links that leave the workspace", func(g *Gates) *gates.Severity { return &g.Paths.Links }},
		{"paths.executables", "new executable files", func(g *Gates) *gates.Severity { return &g.Paths.Executables }},
		{"secrets.found", "secrets that the change brings", func(g *Gates) *gates.Severity { return &g.Secrets.Found }},
		{"secrets.before", "secrets that a changed file had before", func(g *Gates) *gates.Severity { return &g.Secrets.Before }},
		{"size.binaries", "new or changed files that are no text", func(g *Gates) *gates.Severity { return &g.Size.Binaries }},
	} {
		out = append(out, key{path: "gates." + k.path, about: k.about, kind: word(func(p *Profile) *gates.Severity { return k.field(&p.Gates) },
			gates.SeverityBlock, gates.SeverityWarn, gates.SeverityInfo, gates.SeverityOff)})
	}
	return out
}

func listKeys() []key {
	lets := func(field func(g *Gates) *[]Glob) kind { return globKind(field, globsLet) }
	keeps := func(field func(g *Gates) *[]Glob) kind { return globKind(field, globsKeep) }
	limits := func(field func(g *Gates) *[]Glob) kind { return globKind(field, globsLimit) }
	return []key{
		{path: "gates.exec.allowed", about: "what may become executable or be a program", kind: lets(func(g *Gates) *[]Glob { return &g.Exec.Allowed })},
		{path: "gates.exec.interpreters", about: "what a shebang may name",
			kind: words(func(p *Profile) *[]string { return &p.Gates.Exec.Interpreters }, plain)},
		{path: "gates.immutable.paths", about: "what stays as it is", kind: keeps(func(g *Gates) *[]Glob { return &g.Immutable.Paths })},
		{path: "gates.immutable.keys", about: "values in YAML, JSON and TOML files that stay as they are", kind: of[map[string][]string]{keyMap{}}},
		{path: "gates.lock.ignored", about: "manifests and lock files that are not looked at", kind: lets(func(g *Gates) *[]Glob { return &g.Lock.Ignored })},
		{path: "gates.paths.watched", about: "globs that are reported but not refused",
			kind: growing(func(p *Profile) *[]string { return &p.Gates.Paths.Watched }, workspaceGlob)},
		{path: "gates.scope.allowed", about: "what may change", kind: lets(func(g *Gates) *[]Glob { return &g.Scope.Allowed })},
		{path: "gates.scope.task", flag: "scope", about: "what this task may change, besides; globs", kind: limits(func(g *Gates) *[]Glob { return &g.Scope.Task })},
		{path: "gates.scope.forbidden", about: "what may not change", kind: keeps(func(g *Gates) *[]Glob { return &g.Scope.Forbidden })},
		{path: "gates.scope.protected", about: "what may not change without --allow-protected", kind: keeps(func(g *Gates) *[]Glob { return &g.Scope.Protected })},
		{path: "gates.secrets.allowed", about: "files that are not looked at", kind: lets(func(g *Gates) *[]Glob { return &g.Secrets.Allowed })},
		{path: "gates.secrets.disabled", about: "rules that are not asked",
			kind: words(func(p *Profile) *[]string { return &p.Gates.Secrets.Disabled }, secretRule)},
		{path: "gates.size.allowed", about: "what may be binary", kind: lets(func(g *Gates) *[]Glob { return &g.Size.Allowed })},
	}
}

func secretRule(s string) (string, error) { return s, secrets.Config{Disabled: []string{s}}.Validate() }

// globSense is what a list of globs means, and so what makes it narrower.
type globSense int

const (
	globsLet   globSense = iota // what is in it is let be
	globsLimit                  // likewise, and an empty list lets everything be
	globsKeep                   // what is in it must not change
)

// globList is a list of globs whose order has a meaning: what is added at its end can only be told to be narrower when it all
// takes out (of what is let be), or all puts in (to what is kept).
type globList struct {
	list[Glob]
	sense globSense
}

func globKind(field func(g *Gates) *[]Glob, sense globSense) kind {
	item := func(s string) (Glob, error) {
		_, err := gates.ParseGlobs([]string{s})
		return Glob(s), err
	}
	return of[[]Glob]{globList{list[Glob]{field: func(p *Profile) *[]Glob { return field(&p.Gates) }, item: item,
		shape: map[string]any{"type": "string", "minLength": 1}}, sense}}
}

// merge keeps repeated globs: the last place of one may be the one that counts.
func (globList) merge(below, v []Glob) []Glob {
	merged := make([]Glob, 0, len(v))
	for _, g := range v {
		if g == inherit {
			merged = append(merged, below...)
		} else {
			merged = append(merged, g)
		}
	}
	return merged
}

func (k globList) narrower(have, v []Glob) string {
	everything := k.sense == globsLimit && len(have) == 0 || k.sense != globsKeep && slices.Equal(have, []Glob{"**"})
	if everything && (len(v) > 0 || len(have) == 0) {
		return ""
	}
	if len(v) < len(have) || !slices.Equal(have, v[:len(have)]) {
		return `does not begin with what the trusted side says; "..." stands for it`
	}
	for _, g := range v[len(have):] {
		if takesOut := strings.HasPrefix(string(g), "!"); takesOut == (k.sense == globsKeep) {
			return "adds " + string(g)
		}
	}
	return ""
}

// keyMap are the keys that stay, by the globs of their files. What a file says of one glob replaces what is below.
type keyMap struct{}

func (keyMap) node(n *yaml.Node) (map[string][]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, mistake(n.Line, "must be a map, such as {package.json: [scripts.*]}")
	}
	texts := list[string]{item: plain}
	v := map[string][]string{}
	for name, content := range pairs(n) {
		if _, twice := v[name.Value]; twice {
			return nil, mistake(name.Line, "%s is set twice", name.Value)
		}
		keys, err := texts.node(content)
		if err != nil {
			return nil, err
		}
		if err := (files.ImmutableConfig{Keys: map[string][]string{name.Value: keys}}).Validate(); err != nil {
			return nil, mistake(name.Line, "%s", err)
		}
		v[name.Value] = keys
	}
	return v, nil
}

func (keyMap) merge(below, v map[string][]string) map[string][]string { return over(below, v) }

func (keyMap) narrower(have, v map[string][]string) string {
	for _, file := range slices.Sorted(maps.Keys(have)) {
		if gone := without(have[file], v[file]); len(gone) > 0 {
			return fmt.Sprintf("drops %s of %s", oneOf(gone), file)
		}
	}
	return ""
}

func (keyMap) text([]string) (map[string][]string, error) { return nil, errNoFlag }
func (keyMap) get(p *Profile) (map[string][]string, bool) {
	return p.Gates.Immutable.Keys, p.Gates.Immutable.Keys != nil
}
func (keyMap) set(p *Profile, v map[string][]string) { p.Gates.Immutable.Keys = v }
func (keyMap) repeats() bool                         { return true }
func (keyMap) encode(v map[string][]string) *yaml.Node {
	return encodeNamed(v, list[string]{}.encode)
}

func (keyMap) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "array", "items": map[string]any{"type": "string", "minLength": 1}}}
}
