// Package profiles is policy in files: what a sandbox may use, see and give back.
//
// A profile is YAML, decoded strictly: an unknown or repeated key, a wrong type, an alias or a second
// document is an error with its line. Load puts the sources together, lowest first: the built-in default,
// what a profile extends, the system's file, the user's file, the file named by --profile, the variables
// CAISSON_*, the flags. A file inside the workspace is the untrusted side's: it may only narrow what all
// the others allow.
//
// One table, in keys.go, says for every key its flag, its variable, its type and what narrower means for it.
package profiles

import (
	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// Profile is policy. Parse fills what a file sets; in an Effective every value is set.
type Profile struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Extends     string `json:"extends,omitempty"`

	Engine  string       `json:"engine"` // "native"
	Rootfs  string       `json:"rootfs"` // "host", "dir:/path", "tar:/path"
	User    string       `json:"user"`   // "uid" or "uid:gid", inside; see IDs
	Network Network      `json:"network"`
	Limits  quota.Limits `json:"limits"`

	Rules map[string]NetworkRule `json:"rules"` // that steps name
	Steps map[string]StepPolicy  `json:"steps"`

	Controls    Controls            `json:"controls"`
	AllowWeaker []isolation.Control `json:"allow_weaker"` // required controls that may be missing

	Env      map[string]string `json:"env"`
	PassEnv  []string          `json:"pass_env"` // variables of the host's environment
	Mounts   []Mount           `json:"mounts"`
	Caches   []string          `json:"caches"` // host directories, mounted read-only where they exist; see CacheMounts
	HostRoot HostRoot          `json:"host_root"`

	Gates     Gates    `json:"gates"`
	Protected []string `json:"protected"` // globs that are never promoted without an explicit word
	Promote   string   `json:"promote"`   // what happens to an accepted change: "none", "patch", "branch", "apply"
	Author    string   `json:"author"`    // NAME <EMAIL>, of commits

	DiskTotal    quota.Bytes     `json:"disk_total"`               // of all features of a state directory
	NoInodeLimit bool            `json:"no_inode_limit,omitempty"` // limits.inodes: none
	Checkpoints  Checkpoints     `json:"checkpoints"`
	Retention    Retention       `json:"retention"`
	TTL          *quota.Duration `json:"ttl,omitempty"`  // that a feature stays live after its start; nil: for ever
	Idle         *quota.Duration `json:"idle,omitempty"` // that it stays live when nothing runs in it
	Base         string          `json:"base"`           // "overlay", "copy"
	Driver       string          `json:"driver"`         // "auto", "overlay", "copy"
}

// Checkpoints says when a long step gets checkpoints by itself: after Every or Files changed files, whichever is first, once
// nothing has changed for Debounce.
type Checkpoints struct {
	Off      *bool          `json:"off"`
	Every    quota.Duration `json:"every"`
	Files    quota.Count    `json:"files"`
	Debounce quota.Duration `json:"debounce"`
}

// Retention says which checkpoints of a feature are kept: those that all of the rules keep, and whatever happens the last
// good one, promoted ones, labelled ones and the one that the current state lies on.
type Retention struct {
	Count  quota.Count    `json:"count"`
	Age    quota.Duration `json:"age"`
	Bytes  *quota.Bytes   `json:"bytes,omitempty"` // nil: the disk limit is the only one
	Export string         `json:"export"`          // what is done with the others: "none", "zstd"
}

// Network is the rule that holds for a step that names none, and what all rules share. Its limits are the whole feature's,
// too.
type Network struct {
	NetworkRule
	Groups  map[string][]string `json:"groups"`  // of the user's own
	Proxy   string              `json:"proxy"`   // "host", "none"
	Secrets []Secret            `json:"secrets"` // names of them, never what they are
}

// NetworkRule says who may be reached. What an entry is, package egress says.
type NetworkRule struct {
	Mode   string        `json:"mode"` // "none", "allow", "open"
	Allow  []string      `json:"allow"`
	Deny   []string      `json:"deny"`
	TLS    []string      `json:"tls"`
	Limits NetworkLimits `json:"limits,omitzero"`
}

// NetworkLimits bound a rule; zero is the default.
type NetworkLimits struct {
	Bytes       quota.Bytes    `json:"bytes,omitempty"`       // sent and received
	Connections quota.Count    `json:"connections,omitempty"` // at once
	Rate        quota.Bytes    `json:"rate,omitempty"`        // per second, each way
	Idle        quota.Duration `json:"idle,omitempty"`
}

// StepPolicy is what holds for steps of one name: a named rule, or one of its own. The zero value is the profile's rule.
type StepPolicy struct {
	Network string       `json:"network,omitempty"` // of Profile.Rules, or "none"
	Rule    *NetworkRule `json:"rule,omitempty"`
}

// Secret is a credential of the host that is added, outside, as a header to requests in plain HTTP to one host. Inside
// there is a variable Name with a placeholder.
type Secret struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // env:NAME or file:PATH
	Host   string `json:"host"`  // NAME[:PORT] or host:PORT
	Header string `json:"header"`
	Format string `json:"format,omitempty"` // around the secret: "Bearer %s"
}

// Controls says what an engine has to enforce.
type Controls struct {
	Required []isolation.Control `json:"required"` // missing: refuse, unless waived by AllowWeaker
	Wanted   []isolation.Control `json:"wanted"`   // missing: go on, and say so
	Waivable []isolation.Control `json:"waivable"` // what AllowWeaker may name, also from a flag
}

// Mount shows a host path inside.
type Mount struct {
	Source   string `json:"source"` // absolute host path, or beginning with ~/
	Target   string `json:"target"` // absolute, inside
	ReadOnly bool   `json:"readonly"`

	// Trusted says that a trusted file names the source, which CheckMount then takes as the owner's word.
	Trusted bool `json:"trusted,omitempty"`
}

// HostRoot is the allow-list of the root filesystem "host".
type HostRoot struct {
	Paths []string `json:"paths"`
	Etc   []string `json:"etc"` // below /etc; globs
}

// CommandGate configures the gate "command", which judges steps before they begin.
type CommandGate struct {
	Mode  gates.Mode `json:"mode"`
	List  string     `json:"list"`   // "block", "allow"
	Allow []string   `json:"allow"`  // for list allow: exact command words, after resolution
	OnAsk string     `json:"on_ask"` // "refuse", "allow"
}

// Effective is the policy that holds for a task, and where each value comes from.
type Effective struct {
	Profile
	// Origins maps a key's path ("limits.memory", "env.LANG") to "built-in default",
	// "/etc/caisson/profiles/x.yaml:12", "flag --memory" or "env CAISSON_MEMORY".
	Origins map[string]string `json:"origins"`
	Digest  string            `json:"digest"` // "sha256:…" over the canonical JSON of the values alone

	// What another profile has to extend, and, if e is of a file that only its path names, that file, which stands on it.
	base, file string
	places     map[string]string // where names of maps and words of lists stand, by key and word
}
