package egress

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Rule is a parsed Policy. It does not change, and is safe for concurrent use.
type Rule struct {
	mode   Mode
	allow  []entry
	deny   []entry
	tls    []entry // where TLS must be spoken
	limits Limits
	learn  bool
	watch  bool
	also   []*Rule // that must allow it too
}

// entry is one line of a rule.
type entry struct {
	text   string // as it was written, with the group it came by
	name   string // a name, or with suffix what names end with
	suffix bool
	prefix netip.Prefix // valid: addresses instead of names
	host   bool         // the host's loopback
	ports  []portRange  // none: every port
	tls    bool
	denial bool // it stands in the list of denials
}

type portRange struct{ low, high uint16 }

// None is the rule that allows nothing.
func None() *Rule { return &Rule{mode: ModeNone, limits: Limits{}.withDefaults()} }

// Parse compiles a policy. Errors: *SyntaxError for an entry; others for the mode and the limits.
func Parse(p Policy) (*Rule, error) {
	r := &Rule{mode: p.Mode, limits: p.Limits.withDefaults()}
	if p.Mode == "" {
		r.mode = ModeNone
	}
	if !slices.Contains([]Mode{ModeNone, ModeAllow, ModeOpen}, r.mode) {
		return nil, fmt.Errorf("network %q: one of none, allow, open", p.Mode)
	}
	if err := p.Limits.check(); err != nil {
		return nil, err
	}
	g := groups{own: p.Groups}
	var err error
	if r.allow, err = g.entries("allow", p.Allow, nil); err != nil {
		return nil, err
	}
	if r.deny, err = g.entries("deny", p.Deny, nil); err != nil {
		return nil, err
	}
	for i := range r.deny {
		r.deny[i].denial = true
	}
	r.tls, err = g.entries("tls", p.TLS, nil)
	return r, err
}

// Learning is the rule that allows besides what no entry denies and the public internet has. What r would have refused
// is allowed by the rule "learn".
func (r *Rule) Learning() *Rule {
	l := *r
	l.learn = true
	return &l
}

// Watching is the rule that allows what r does, and has names known that r would not, so that it is seen which of their ports
// are wanted: each stands for nobody, because all connections to it are refused.
func (r *Rule) Watching() *Rule {
	w := *r
	w.watch = true
	return &w
}

// All is the rule that allows what all of them allow; without any, None. Its limits are the least of theirs.
func All(rules ...*Rule) *Rule {
	var distinct []*Rule
	for _, r := range rules {
		if !slices.Contains(distinct, r) {
			distinct = append(distinct, r)
		}
	}
	switch len(distinct) {
	case 0:
		return None()
	case 1:
		return distinct[0]
	}
	both := *distinct[0]
	both.also = append(slices.Clone(both.also), distinct[1:]...)
	for _, r := range distinct[1:] {
		l := &both.limits
		*l = Limits{Bytes: min(l.Bytes, r.limits.Bytes), Connections: min(l.Connections, r.limits.Connections),
			Rate: min(l.Rate, r.limits.Rate), Idle: min(l.Idle, r.limits.Idle)}
	}
	return &both
}

// Learns reports whether the rule is one of Learning.
func (r *Rule) Learns() bool { return r.learn }

// Mode is the rule's mode.
func (r *Rule) Mode() Mode { return r.mode }

// Limits are the rule's, with defaults.
func (r *Rule) Limits() Limits { return r.limits }

// entries parses a list; inside says which groups it is part of.
func (g *groups) entries(list string, texts []string, inside []string) ([]entry, error) {
	var out []entry
	for i, text := range texts {
		fail := func(format string, args ...any) error {
			return &SyntaxError{List: list, Index: i, Text: text, Reason: fmt.Sprintf(format, args...)}
		}
		if isGroup(text) {
			if slices.Contains(inside, text) || len(inside) > maxNesting {
				return nil, fail("a group that contains itself: %s", strings.Join(append(inside, text), " → "))
			}
			members, ok := g.find(text)
			if !ok {
				return nil, fail("there is no group of this name; groups: %s", strings.Join(g.names(), ", "))
			}
			more, err := g.entries("group "+text, members, append(slices.Clone(inside), text))
			if err != nil {
				return nil, err
			}
			for j := range more {
				more[j].text = text + " → " + more[j].text
			}
			out = append(out, more...)
			continue
		}
		e, err := parseEntry(text)
		if err != nil {
			return nil, fail("%v", err)
		}
		out = append(out, e)
	}
	return out, nil
}

// CheckEntry says what is wrong with an entry, or a group's name; whether there is such a group is for Parse to say.
func CheckEntry(text string) error {
	if isGroup(text) {
		return nil
	}
	if _, err := parseEntry(text); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	return nil
}

// parseEntry parses what is no group.
func parseEntry(text string) (entry, error) {
	e := entry{text: text}
	rest, protocol, marked := cutProtocol(text)
	if marked {
		if protocol != "tls" {
			return e, fmt.Errorf("/%s: only /tls can be asked for", protocol)
		}
		e.tls = true
	}
	host, ports, err := cutPorts(rest)
	if err != nil {
		return e, err
	}
	if ports != "" {
		if e.ports, err = parsePorts(ports); err != nil {
			return e, err
		}
	} else if marked {
		return e, errors.New("/tls stands behind a port")
	}
	if host == "host" {
		if len(e.ports) != 1 || e.ports[0].low != e.ports[0].high {
			return e, errors.New("host needs one port: host:PORT")
		}
		if e.tls {
			return e, errors.New("/tls stands behind a name, which TLS is checked for")
		}
		e.host, e.name = true, HostName
		return e, nil
	}
	if strings.ContainsAny(host, "/:") || looksLikeAddr(host) {
		if e.prefix, err = parsePrefix(host); err == nil && e.tls {
			err = errors.New("/tls stands behind a name, which TLS is checked for")
		}
		return e, err
	}
	if below, ok := strings.CutPrefix(host, "*."); ok {
		e.suffix, host = true, below
	}
	e.name, err = parseName(host)
	switch {
	case err != nil:
	case e.name == HostName:
		err = errors.New("write host:PORT")
	case !e.suffix && len(e.ports) == 0 && !strings.Contains(e.name, "."):
		err = errors.New("neither a group nor a name with a dot; a name of one part needs a port")
	}
	return e, err
}

// cutProtocol cuts /tls off, which follows a port; a CIDR's slash does not.
func cutProtocol(text string) (rest, protocol string, ok bool) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return text, "", false
	}
	tail := text[i+1:]
	if tail == "" || strings.Trim(tail, "abcdefghijklmnopqrstuvwxyz") != "" {
		return text, "", false
	}
	return text[:i], tail, true
}

// cutPorts splits an entry into host and ports.
func cutPorts(text string) (host, ports string, err error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		host, rest, ok := strings.Cut(inner, "]")
		if !ok || rest != "" && rest[0] != ':' || rest == ":" {
			return "", "", errors.New("[ADDRESS]:PORTS wanted")
		}
		return host, strings.TrimPrefix(rest, ":"), nil
	}
	if strings.Count(text, ":") != 1 { // none, or an IPv6 address
		return text, "", nil
	}
	host, ports, _ = strings.Cut(text, ":")
	if ports == "" {
		return "", "", errors.New("no port behind the colon")
	}
	return host, ports, nil
}

func looksLikeAddr(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := parseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, errors.New("no CIDR")
	case p != p.Masked():
		return p, fmt.Errorf("bits beyond the mask; %s is meant?", p.Masked())
	case p.Addr().Is4In6():
		return p, errors.New("an IPv4 address within an IPv6 one")
	}
	return p, nil
}

func parsePorts(text string) ([]portRange, error) {
	var out []portRange
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		a, err := parsePort(low)
		if err != nil {
			return nil, err
		}
		b, err := parsePort(high)
		if err != nil {
			return nil, err
		}
		if a > b {
			return nil, fmt.Errorf("the range %s is empty", part)
		}
		out = append(out, portRange{a, b})
	}
	return out, nil
}

func (e *entry) matchesPort(port uint16) bool {
	return len(e.ports) == 0 || slices.ContainsFunc(e.ports, func(r portRange) bool { return r.low <= port && port <= r.high })
}

func (e *entry) matchesName(name string) bool {
	switch {
	case e.prefix.IsValid():
		return false
	case name == HostName: // no name of the world's: host:PORT alone means it, and a denial of everything around it
		return e.host || e.denial && e.suffix && strings.HasSuffix(name, "."+e.name)
	case e.suffix:
		return strings.HasSuffix(name, "."+e.name)
	}
	return name == e.name
}

func (e *entry) matches(t target) bool {
	if !e.matchesPort(t.port) {
		return false
	}
	if t.name != "" {
		return e.matchesName(t.name)
	}
	return e.prefix.IsValid() && e.prefix.Contains(t.addr) && (e.denial || public(t.addr) || namesSpecial(e.prefix, t.addr))
}

func find(list []entry, t target) *entry {
	for i := range list {
		if list[i].matches(t) {
			return &list[i]
		}
	}
	return nil
}

// The built-in groups: one file each, one entry per line, # begins a comment.
//
//go:embed groups/*.txt
var groupFiles embed.FS

// maxNesting is how deep groups may name groups.
const maxNesting = 8

// groups finds groups by name, the user's own first.
type groups struct{ own map[string][]string }

// isGroup reports whether an entry is a group's name: one word, with neither dot nor port.
func isGroup(text string) bool {
	return text != "" && text != "host" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" && !numeric(text)
}

func (g *groups) find(name string) ([]string, bool) {
	if members, ok := g.own[name]; ok {
		return members, true
	}
	text, err := groupFiles.ReadFile("groups/" + name + ".txt")
	if err != nil {
		return nil, false
	}
	return groupLines(string(text)), true
}

func groupLines(text string) (members []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			members = append(members, line)
		}
	}
	return members
}

// names lists every group.
func (g *groups) names() []string {
	list := slices.Collect(maps.Keys(g.own))
	list = append(list, Groups()...)
	slices.Sort(list)
	return slices.Compact(list)
}

// Groups lists the built-in groups.
func Groups() []string {
	files, err := groupFiles.ReadDir("groups")
	if err != nil {
		return nil
	}
	var list []string
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".txt"))
	}
	return list
}
