// Package egress is a sandbox's only way out: a TUN device in its network namespace, a userspace TCP/IP stack in the
// supervisor, and a rule that says who may be reached.
//
// There is no route to anything but the gateway, so nothing has to be closed: what the rule does not name does not exist.
// Only names that the rule allows resolve, each to a synthetic address that stands for that name, so that the name of a
// connection is known without asking the client. What the client says all the same (SNI, Host) must agree with it, and
// what the name resolves to outside is looked at before it is dialled.
//
// A rule is parsed and matched by the same code for `profile try`, for DNS and for connections.
package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// Addresses inside. Names get theirs from 198.18.0.0/15, which RFC 2544 keeps for tests, and a unique local prefix.
var (
	Gateway4 = netip.MustParseAddr("198.18.0.1")
	Gateway6 = netip.MustParseAddr("fd63:6169:7373::1")
	Sandbox4 = netip.MustParsePrefix("198.18.0.2/15")
	Sandbox6 = netip.MustParsePrefix("fd63:6169:7373::2/64")
)

// Mode is what a rule begins with.
type Mode string

// The modes.
const (
	ModeNone  Mode = "none"  // nothing; the default
	ModeAllow Mode = "allow" // what the rule names
	ModeOpen  Mode = "open"  // the public internet
)

// Policy is a rule as profiles hold it. Entries of Allow and Deny are
//
//	NAME[:PORTS]       a host name
//	*.NAME[:PORTS]     every name below it, not itself
//	ADDRESS[:PORTS]    an address or CIDR; IPv6 with ports in brackets: [2001:db8::/32]:443
//	host:PORT          the host's loopback, inside host.caisson.internal:PORT
//	GROUP              a word of Groups or of the built-in ones: go, npm, pypi, …
//
// PORTS is a list of ports and ranges, 80,8000-8999, with /tls behind it where TLS must be spoken, as on 443 always.
// Without PORTS every port is meant. Deny wins over Allow. An empty Allow is nothing.
type Policy struct {
	Mode   Mode                `json:"mode" yaml:"mode"`
	Allow  []string            `json:"allow,omitempty" yaml:"allow,omitempty"`
	Deny   []string            `json:"deny,omitempty" yaml:"deny,omitempty"`
	TLS    []string            `json:"tls,omitempty" yaml:"tls,omitempty"`       // entries of names: TLS must be spoken there
	Groups map[string][]string `json:"groups,omitempty" yaml:"groups,omitempty"` // the user's own
	Limits Limits              `json:"limits,omitzero" yaml:"limits,omitempty"`
}

// Limits bound what goes through. Zero means the default, never unlimited.
type Limits struct {
	Bytes       int64         `json:"bytes,omitempty" yaml:"bytes,omitempty"`             // sent and received
	Connections int           `json:"connections,omitempty" yaml:"connections,omitempty"` // at once
	Rate        int64         `json:"rate,omitempty" yaml:"rate,omitempty"`               // bytes per second, each way
	Idle        time.Duration `json:"idle_ns,omitempty" yaml:"idle,omitempty"`            // until a silent connection is closed
}

// The defaults of Limits.
const (
	DefaultBytes       = 10 << 30
	DefaultConnections = 1024
	DefaultRate        = 4 << 30
	DefaultIdle        = 10 * time.Minute
)

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	if l.Connections == 0 {
		l.Connections = DefaultConnections
	}
	if l.Rate == 0 {
		l.Rate = DefaultRate
	}
	if l.Idle == 0 {
		l.Idle = DefaultIdle
	}
	return l
}

func (l Limits) check() error {
	if l.Bytes < 0 || l.Connections < 0 || l.Rate < 0 || l.Idle < 0 {
		return errors.New("a limit of the network is negative")
	}
	return nil
}

// SyntaxError is an entry that is no entry.
type SyntaxError struct {
	List   string // "allow", "deny", or "group NAME"
	Index  int    // from 0
	Text   string
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s, entry %d: %q: %s", e.List, e.Index+1, e.Text, e.Reason)
}

// Verdict is the answer to one destination.
type Verdict struct {
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty"`   // the entry that decided, or the mode
	Reason  string `json:"reason,omitempty"` // of a refusal
	Remedy  string `json:"remedy,omitempty"` // the entry that would allow it
}

// Event is one decision, and what came of it. Lists of these are the network log. What a step does again and again is
// told once, and once more when the step ends, with how often.
type Event struct {
	At       time.Time      `json:"at"`
	Step     int            `json:"step,omitempty"`
	Name     string         `json:"name,omitempty"`   // "" for an address
	Addr     netip.AddrPort `json:"addr,omitzero"`    // as the sandbox sees it
	Dialled  netip.AddrPort `json:"dialled,omitzero"` // outside
	Port     uint16         `json:"port,omitempty"`
	Protocol string         `json:"protocol"`      // tcp, tls, http, dns, udp, icmp; "" of RuleUnlisted and RuleUnseen
	Out      int64          `json:"out,omitempty"` // bytes
	In       int64          `json:"in,omitempty"`
	Duration time.Duration  `json:"duration_ns,omitempty"`
	Verdict  string         `json:"verdict"` // allowed, refused, failed, cut
	Rule     string         `json:"rule,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Remedy   string         `json:"remedy,omitempty"`
	Count    int            `json:"count,omitempty"` // how many this stands for; 0: one. Bytes are of all, times of the last
}

// What Event.Rule says besides entries and modes.
const (
	RuleLearn       = "learn"              // only a rule that learns allows it
	RuleBytes       = "limits.bytes"       // Limits, of the step or the feature
	RuleConnections = "limits.connections" // likewise
	RuleIdle        = "limits.idle"        // likewise
	RuleUnlisted    = "unlisted"           // Count refusals and failures that are too many to be told, to nobody in particular
	RuleUnseen      = "unseen"             // Count attempts of a step that had no network at all; no Gateway tells these
)

// What Event.Verdict says.
const (
	VerdictAllowed = "allowed"
	VerdictRefused = "refused"
	VerdictFailed  = "failed" // allowed, but nobody answered
	VerdictCut     = "cut"    // was allowed, and was ended by a new rule or a limit
)

// Options is what a Gateway works with.
type Options struct {
	TUN     *os.File // of OpenTUN; the gateway closes it
	Rule    *Rule    // nil: None
	Step    int
	Total   Limits // of the feature, over all rules
	Outside Outside
	Headers []Header
	Events  func(Event) // called from several goroutines; must not block
}

// Publish shows a port of the sandbox on the host.
type Publish struct {
	Host netip.AddrPort // port 0: any
	Port uint16         // inside
}

// Usage is what went through a gateway.
type Usage struct {
	Out, In     int64 // bytes
	Connections int   // now
}
