// Package builtin has every gate that comes with caisson: what each is for, its place in the pipeline, its configuration, and
// the fixtures that prove that it accepts what is good and can turn red. It is where a new gate is added: see docs/gates.md.
package builtin

import (
	"slices"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/gates/files"
	"github.com/caisson-dev/caisson/gates/secrets"
)

// Settings are what every gate has.
type Settings struct {
	Mode     gates.Mode
	Severity gates.Severity // the worst that its findings count as; "": as bad as they are
	Timeout  time.Duration  // 0: gates.DefaultTimeout
}

// Config configures the gates. The zero value has each with its defaults, and asks none.
type Config struct {
	Settings map[string]Settings // by the gate's name

	Command   command.Config
	Paths     gates.PathsConfig
	Links     files.LinksConfig
	Exec      files.ExecConfig
	Size      files.SizeConfig
	Scope     files.ScopeConfig
	Immutable files.ImmutableConfig
	Secrets   secrets.Config
	Lock      files.LockConfig
}

// Info describes a gate.
type Info struct {
	Name  string      `json:"gate"`
	Phase gates.Phase `json:"phase"`
	About string      `json:"about"` // one line
	// Rules are what it finds, each with a word on it. Those of command and secrets are many, and not listed.
	Rules []Rule `json:"rules,omitempty"`

	make     func(c Config) (gates.Gate, error)
	fixtures func() ([]gates.Fixture, Config)
	// incremental gates judge each entry by itself, and by nothing else that can change.
	incremental bool
}

// Rule is one thing that a gate finds.
type Rule struct {
	Name  string `json:"rule"`
	About string `json:"about"`
}

// All lists the gates, by name. What they look at is a change; command has besides the steps of a task, which whoever runs
// them shows to its package.
func All() []Info {
	return []Info{
		{Name: "command", Phase: gates.PhaseStatic, About: "the commands of steps before they begin, and the shell scripts that a change brings", make: func(c Config) (gates.Gate, error) { return command.Gate(c.Command), nil }, fixtures: commandFixtures, incremental: true},
		{Name: "exec", Phase: gates.PhaseStatic, About: "what can run: new executables, machine code, setuid files, shebangs", make: func(c Config) (gates.Gate, error) { return files.Exec(c.Exec) }, fixtures: execFixtures, incremental: true,
			Rules: []Rule{{"executable", "a file became executable"}, {"program", "machine code is new or changed"}, {"setuid", "a file is setuid or setgid"}, {"shebang", "a script is for an unknown interpreter"}, {"unread", "a file could not be read"}}},
		{Name: "immutable", Phase: gates.PhaseStatic, About: "paths, and values in YAML, JSON and TOML files, that stay as they are", make: func(c Config) (gates.Gate, error) { return files.Immutable(c.Immutable) }, fixtures: immutableFixtures,
			Rules: []Rule{{"path", "a path was changed, deleted or replaced"}, {"key", "a value in a file was changed, added or deleted"}, {"unreadable", "a file with such values is no document any more"}, {"unread", "a file could not be read"}}},
		{Name: "links", Phase: gates.PhaseStatic, About: "symbolic links: where they lead in the workspace as it will be", make: func(c Config) (gates.Gate, error) { return files.Links(c.Links) }, fixtures: linksFixtures,
			Rules: []Rule{{"outside", "a link leads out of the workspace"}, {"broken", "a link leads to nothing"}, {"circle", "links lead to each other"}, {"replaced", "a link is in the place of a directory"}}},
		{Name: "lock", Phase: gates.PhaseStatic, About: "dependency manifests and their lock files change together", make: func(c Config) (gates.Gate, error) { return files.Lock(c.Lock) }, fixtures: lockFixtures,
			Rules: []Rule{{"stale", "dependencies changed and their lock file did not"}, {"alone", "a lock file changed and no dependencies"}, {"missing", "there are dependencies and no lock file"}, {"unreadable", "a manifest is none"}, {"unread", "a file could not be read"}}},
		{Name: "paths", Phase: gates.PhaseStatic, About: "names, types and modes: files that the host trusts, links, setuid files, devices", make: func(c Config) (gates.Gate, error) { return gates.Paths(c.Paths) }, fixtures: func() ([]gates.Fixture, Config) { return gates.PathsFixtures(), Config{} },
			Rules: []Rule{{"protected", "a path that the host runs or trusts"}, {"protected-link", "a link in the place of a directory with such paths"}, {"git-repository", "a directory became a git repository"}, {"watched", "a path that is worth a look"},
				{"link", "a link leaves the workspace"}, {"setuid", "a file is setuid or setgid"}, {"device", "a device node"}, {"special", "a fifo or socket"}, {"executable", "a file became executable"}, {"name", "a name that deceives"}, {"path", "no path of the workspace"}, {"type", "an unknown type of file"}}},
		{Name: "scope", Phase: gates.PhaseStatic, About: "changed paths against what may change: allowed, forbidden and protected globs", make: func(c Config) (gates.Gate, error) { return files.Scope(c.Scope) }, fixtures: scopeFixtures,
			Rules: []Rule{{"outside", "a path is in no allowed glob"}, {"forbidden", "a path is in a forbidden glob"}, {"protected", "a path is in a protected glob"}}},
		{Name: "secrets", Phase: gates.PhaseStatic, About: "credentials, by the rules of gitleaks", make: func(c Config) (gates.Gate, error) { return secrets.Gate(c.Secrets) }, fixtures: secretsFixtures, incremental: true},
		{Name: "size", Phase: gates.PhaseStatic, About: "how much changes: files, bytes, binaries", make: func(c Config) (gates.Gate, error) { return files.Size(c.Size) }, fixtures: sizeFixtures,
			Rules: []Rule{{"files", "too many files change"}, {"bytes", "too many bytes change"}, {"file", "a file is too large"}, {"binary", "a file is no text"}}},
	}
}

// Find returns the gate called name.
func Find(name string) (Info, bool) {
	all := All()
	i := slices.IndexFunc(all, func(g Info) bool { return g.Name == name })
	if i < 0 {
		return Info{}, false
	}
	return all[i], true
}

// Names lists the names of All.
func Names() []string {
	var names []string
	for _, g := range All() {
		names = append(names, g.Name)
	}
	return names
}

// Configured returns one gate with its configuration, ready for a pipeline. The error says which value makes no sense.
func (g Info) Configured(c Config) (gates.Configured, error) {
	gate, err := g.make(c)
	if err != nil {
		return gates.Configured{}, err
	}
	s := c.Settings[g.Name]
	return gates.Configured{Gate: gate, Mode: s.Mode, Severity: s.Severity, Timeout: s.Timeout, Phase: g.Phase, Incremental: g.incremental}, nil
}

// Configure returns the gates of c, in the order of All: those that it gives a mode. One that is off is there, too, so that
// its verdict can say so.
func Configure(c Config) ([]gates.Configured, error) {
	var out []gates.Configured
	for _, g := range All() {
		if c.Settings[g.Name].Mode == "" {
			continue
		}
		configured, err := g.Configured(c)
		if err != nil {
			return nil, err
		}
		out = append(out, configured)
	}
	return out, nil
}

// Validate names the first value of c that makes no sense, also of gates that are off.
func (c Config) Validate() error {
	for _, g := range All() {
		if _, err := g.make(c); err != nil {
			return err
		}
	}
	return nil
}
