package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/quota"
)

// networkKeys say who may be reached.
func networkKeys() []key {
	return append(ruleKeys(),
		key{path: "network.groups", about: "groups of your own: NAME: [entry, …]; they go before the built-in ones",
			kind: kept(of[map[string][]string]{groupMap{}})},
		key{path: "network.proxy", about: "host: connections go through the proxies that your environment names; none: directly",
			kind: kept(word(func(p *Profile) *string { return &p.Network.Proxy }, "none", "host"))},
		key{path: "network.secrets", about: "headers that are added outside: {name, value, host, header, format}",
			kind: of[[]Secret]{secretList{}}},
		key{path: "rules", about: "network rules that steps name: NAME: {mode, allow, deny, tls, limits}",
			kind: of[map[string]NetworkRule]{ruleMap{}}},
		key{path: "steps", about: "named steps: NAME: {network: RULE}, of rules, or none",
			kind: of[map[string]StepPolicy]{stepMap{}}})
}

// ruleKeys are what one rule can say, at the place of the rule that holds for steps without a name.
func ruleKeys() []key {
	rule := func(p *Profile) *NetworkRule { return &p.Network.NetworkRule }
	return []key{
		{path: "network.mode", flag: "network", about: "none, allow (what the rule names), open (the public internet)",
			kind: word(func(p *Profile) *string { return &rule(p).Mode }, "none", "allow", "open")},
		{path: "network.allow", flag: "allow", noEnv: true, about: "who may be reached: NAME[:PORT], *.NAME, CIDR, host:PORT, a group; implies --network allow",
			kind: entries(false, func(p *Profile) *[]string { return &rule(p).Allow })},
		{path: "network.deny", about: "who may not, whatever is allowed",
			kind: entries(true, func(p *Profile) *[]string { return &rule(p).Deny })},
		{path: "network.tls", about: "names where TLS must be spoken, besides port 443",
			kind: entries(true, func(p *Profile) *[]string { return &rule(p).TLS })},
		{path: "network.limits.bytes", maybe: true, about: "bytes sent and received",
			kind: quantity(func(p *Profile) *quota.Bytes { return &rule(p).Limits.Bytes }, quota.ParseBytes)},
		{path: "network.limits.connections", maybe: true, about: "connections at once",
			kind: quantity(func(p *Profile) *quota.Count { return &rule(p).Limits.Connections }, quota.ParseCount)},
		{path: "network.limits.rate", maybe: true, about: "bytes per second, each way",
			kind: quantity(func(p *Profile) *quota.Bytes { return &rule(p).Limits.Rate }, quota.ParseBytes)},
		{path: "network.limits.idle", maybe: true, about: "how long a connection may be silent",
			kind: quantity(func(p *Profile) *quota.Duration { return &rule(p).Limits.Idle }, quota.ParseDuration)},
	}
}

// entryList is a list of entries of a rule, in which a comma belongs to an entry.
type entryList struct{ list[string] }

func entries(grows bool, field func(p *Profile) *[]string) kind {
	return of[[]string]{entryList{list[string]{field: field, grows: grows, shape: map[string]any{"type": "string", "minLength": 1},
		item: func(s string) (string, error) { return s, egress.CheckEntry(s) }}}}
}

func (k entryList) text(texts []string) ([]string, error) {
	v := []string{inherit}
	for _, s := range texts {
		x, err := k.word(s)
		if err != nil {
			return nil, err
		}
		v = append(v, x)
	}
	return v, nil
}

// policy is a rule as the gateway takes it.
func (p *Profile) policy(r *NetworkRule) egress.Policy {
	return p.Bound(egress.Policy{Mode: egress.Mode(r.Mode), Allow: r.Allow, Deny: r.Deny, TLS: r.TLS, Limits: r.Limits.egress()})
}

// Bound is a policy with what the profile says for every rule: what is denied, where TLS must be spoken, and, unless it has
// its own, the groups.
func (p *Profile) Bound(policy egress.Policy) egress.Policy {
	policy.Deny = unique(slices.Concat(policy.Deny, p.Network.Deny))
	policy.TLS = unique(slices.Concat(policy.TLS, p.Network.TLS))
	if policy.Groups == nil {
		policy.Groups = p.Network.Groups
	}
	return policy
}

func (l NetworkLimits) egress() egress.Limits {
	return egress.Limits{Bytes: int64(l.Bytes), Connections: int(l.Connections), Rate: int64(l.Rate), Idle: time.Duration(l.Idle)}
}

// NetworkTotal bounds what a feature sends and receives under all rules together.
func (p *Profile) NetworkTotal() egress.Limits { return p.Network.Limits.egress() }

// StepRule is the rule of a step: of the one with that name in steps, else the profile's own. ErrNoStep for a name that
// the profile, which has others, does not have.
func (p *Profile) StepRule(step string) (egress.Policy, error) {
	s, ok := p.Steps[step]
	switch {
	case step != "" && !ok && len(p.Steps) > 0:
		names := slices.Sorted(maps.Keys(p.Steps))
		return egress.Policy{}, fmt.Errorf("%w: %q; the profile %s has %s%s", ErrNoStep, step, p.Name, strings.Join(names, ", "), didYouMean(step, names))
	case !ok:
		return p.policy(&p.Network.NetworkRule), nil
	}
	return p.ruleOf(s)
}

// ruleOf is the rule that a step names, or has.
func (p *Profile) ruleOf(s StepPolicy) (egress.Policy, error) {
	switch {
	case s.Rule != nil:
		return p.policy(s.Rule), nil
	case s.Network == "":
		return p.policy(&p.Network.NetworkRule), nil
	case s.Network == string(egress.ModeNone):
		return p.policy(&NetworkRule{Mode: s.Network, Limits: p.Network.Limits}), nil
	}
	r, ok := p.Rules[s.Network]
	if !ok {
		return egress.Policy{}, fmt.Errorf("there is no rule %q%s", s.Network, didYouMean(s.Network, slices.Collect(maps.Keys(p.Rules))))
	}
	return p.policy(&r), nil
}

// ErrNoStep is a step's name that a profile does not have.
var ErrNoStep = errors.New("no such step")

// checkNetwork compiles every rule, to find what no single value shows: a group that is not there.
func (p *Profile) checkNetwork() error {
	check := func(key string, r egress.Policy) error {
		_, err := egress.Parse(r)
		if err == nil {
			return nil
		}
		wrong := &Error{Key: key, Message: err.Error()}
		if bad, ok := errors.AsType[*egress.SyntaxError](err); ok && key == "network" {
			wrong.Key, wrong.Message = "network.groups", err.Error()
			wrong.at = "network.groups." + strings.TrimPrefix(bad.List, "group ")
			if !strings.HasPrefix(bad.List, "group ") {
				wrong.Key, wrong.Message = "network."+bad.List, strings.TrimPrefix(err.Error(), bad.List+", ")
				wrong.at = wrong.Key + "." + bad.Text
			}
		}
		return wrong
	}
	if err := check("network", p.policy(&p.Network.NetworkRule)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.Rules)) {
		r := p.Rules[name]
		if err := check("rules."+name, p.policy(&r)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Steps)) {
		r, err := p.StepRule(name)
		if err != nil {
			return &Error{Key: "steps." + name, Message: err.Error()}
		}
		if err := check("steps."+name, r); err != nil {
			return err
		}
	}
	return nil
}

// named reads a mapping of names.
func named[T any](n *yaml.Node, what string, read func(name string, n *yaml.Node) (T, error)) (map[string]T, error) {
	if n.Kind != yaml.MappingNode {
		return nil, mistake(n.Line, "must be a map of %s", what)
	}
	v := map[string]T{}
	for name, content := range pairs(n) {
		if err := checkName(name.Value); name.Kind != yaml.ScalarNode || err != nil {
			return nil, mistake(name.Line, "%q is no name", name.Value)
		}
		if _, twice := v[name.Value]; twice {
			return nil, mistake(name.Line, "%s is set twice", name.Value)
		}
		x, err := read(name.Value, content)
		if err != nil {
			return nil, err
		}
		v[name.Value] = x
	}
	return v, nil
}

// encodeNamed is the other way.
func encodeNamed[T any](v map[string]T, write func(T) *yaml.Node) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		n.Content = append(n.Content, textNode(name), write(v[name]))
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func over[T any](below, v map[string]T) map[string]T {
	merged := map[string]T{}
	maps.Copy(merged, below)
	maps.Copy(merged, v)
	return merged
}

// groupMap are the user's own groups; one replaces its namesake below.
type groupMap struct{}

func (groupMap) node(n *yaml.Node) (map[string][]string, error) {
	items := entries(false, nil)
	return named(n, "groups, such as {corp: [git.corp.example]}", func(_ string, n *yaml.Node) ([]string, error) {
		v, err := items.node(n)
		return as[[]string](v), err
	})
}

func (groupMap) text([]string) (map[string][]string, error)             { return nil, errNoFlag }
func (groupMap) merge(below, v map[string][]string) map[string][]string { return over(below, v) }
func (groupMap) narrower(_, _ map[string][]string) string               { return "" } // kept says it
func (groupMap) get(p *Profile) (map[string][]string, bool) {
	return p.Network.Groups, p.Network.Groups != nil
}
func (groupMap) set(p *Profile, v map[string][]string) { p.Network.Groups = v }
func (groupMap) repeats() bool                         { return true }
func (groupMap) encode(v map[string][]string) *yaml.Node {
	return encodeNamed(v, list[string]{}.encode)
}

func (groupMap) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "array", "items": map[string]any{"type": "string"}}}
}

var errNoFlag = errors.New("this belongs into a profile")

// ruleMap are the named rules. What a file says of one is put over what the files below say of it.
type ruleMap struct{}

func (ruleMap) node(n *yaml.Node) (map[string]NetworkRule, error) {
	return named(n, "rules, such as {registry: {mode: allow, allow: [go]}}", func(name string, n *yaml.Node) (NetworkRule, error) {
		if name == string(egress.ModeNone) {
			return NetworkRule{}, mistake(n.Line, "the rule none is there already")
		}
		return ruleNode(n)
	})
}

// ruleNode reads one rule with the keys of the profile's own.
func ruleNode(n *yaml.Node) (NetworkRule, error) {
	d := &document{values: map[string]value{}}
	p := parser{doc: d, grammar: grammar{keys: map[string]key{}, levels: map[string][]string{}}}
	for _, k := range ruleKeys() {
		k.path = strings.TrimPrefix(k.path, "network.")
		p.keys[k.path] = k
		above, last := parent(k.path)
		p.levels[above] = append(p.levels[above], last)
	}
	p.levels[""] = append(p.levels[""], "limits")
	if n.Kind != yaml.MappingNode {
		return NetworkRule{}, mistake(n.Line, "must be a rule, such as {mode: allow, allow: [go]}")
	}
	p.mapping("", n)
	if len(p.errs) > 0 {
		return NetworkRule{}, join(p.errs)
	}
	var scratch Profile
	for path, v := range d.values {
		p.keys[path].kind.set(&scratch, v.v)
	}
	r := scratch.Network.NetworkRule
	if r.Mode == "" && r.Allow != nil {
		r.Mode = string(egress.ModeAllow)
	}
	return r, nil
}

// in is a profile with nothing but a rule, for the keys to work on.
func (r NetworkRule) in() *Profile { return &Profile{Network: Network{NetworkRule: r}} }

func (ruleMap) merge(below, v map[string]NetworkRule) map[string]NetworkRule {
	merged := over(below, nil)
	for name, r := range v {
		under, upper, both := below[name].in(), r.in(), below[name].in()
		for _, k := range ruleKeys() {
			if x := k.kind.get(upper); x != nil {
				k.kind.set(both, k.kind.merge(k.kind.get(under), x))
			}
		}
		both.Network.Mode = cmp.Or(both.Network.Mode, string(egress.ModeNone))
		merged[name] = both.Network.NetworkRule
	}
	return merged
}

func (ruleMap) narrower(have, v map[string]NetworkRule) string {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		h, ok := have[name]
		if r := v[name]; !ok && r.Mode != string(egress.ModeNone) {
			return "adds the rule " + name
		} else if why := r.wider(h); ok && why != "" {
			return "in " + name + ", " + why
		}
	}
	return ""
}

// wider says what a rule allows that have does not; "" for nothing. Each is taken as it holds, with what it leaves out: a list
// that is not there is an empty one, and not one without bounds.
func (r NetworkRule) wider(have NetworkRule) string {
	for _, k := range ruleKeys() {
		if why := k.kind.narrower(k.kind.get(have.whole().in()), k.kind.get(r.whole().in())); why != "" {
			return k.path[len("network."):] + " " + why
		}
	}
	return ""
}

// whole is the rule with every key set.
func (r NetworkRule) whole() NetworkRule {
	r.Mode = cmp.Or(r.Mode, string(egress.ModeNone))
	for _, list := range []*[]string{&r.Allow, &r.Deny, &r.TLS} {
		*list = append([]string{}, *list...)
	}
	l := &r.Limits
	l.Bytes, l.Connections = cmp.Or(l.Bytes, egress.DefaultBytes), cmp.Or(l.Connections, egress.DefaultConnections)
	l.Rate, l.Idle = cmp.Or(l.Rate, egress.DefaultRate), cmp.Or(l.Idle, quota.Duration(egress.DefaultIdle))
	return r
}

func (ruleMap) text([]string) (map[string]NetworkRule, error) { return nil, errNoFlag }
func (ruleMap) get(p *Profile) (map[string]NetworkRule, bool) { return p.Rules, p.Rules != nil }
func (ruleMap) set(p *Profile, v map[string]NetworkRule)      { p.Rules = v }
func (ruleMap) repeats() bool                                 { return true }
func (ruleMap) encode(v map[string]NetworkRule) *yaml.Node    { return encodeNamed(v, NetworkRule.node) }

func (ruleMap) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": ruleSchema()}
}

func (r NetworkRule) node() *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode}
	levels := map[string]*yaml.Node{"network": root}
	for _, k := range ruleKeys() {
		if v := k.kind.get(r.in()); v != nil {
			above, last := parent(k.path)
			level := nested(levels, above)
			level.Content = append(level.Content, textNode(last), k.kind.encode(v))
		}
	}
	return root
}

func ruleSchema() map[string]any {
	properties, limits := map[string]any{}, map[string]any{}
	for _, k := range ruleKeys() {
		shape := k.kind.schema()
		shape["description"] = k.about
		if name, ok := strings.CutPrefix(k.path, "network.limits."); ok {
			limits[name] = shape
		} else {
			properties[k.path[len("network."):]] = shape
		}
	}
	object := func(p map[string]any) map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "properties": p}
	}
	properties["limits"] = object(limits)
	return object(properties)
}
