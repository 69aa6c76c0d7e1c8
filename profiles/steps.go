package profiles

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// stepMap are the named steps; one replaces its namesake below.
type stepMap struct{}

func (stepMap) node(n *yaml.Node) (map[string]StepPolicy, error) {
	return named(n, "steps, such as {fetch: {network: registry}}", func(_ string, n *yaml.Node) (s StepPolicy, err error) {
		if n.Kind != yaml.MappingNode {
			return s, mistake(n.Line, "must be {network: RULE}")
		}
		for name, content := range pairs(n) {
			switch {
			case name.Value != "network":
				return s, mistake(name.Line, "unknown key %q%s", name.Value, didYouMean(name.Value, []string{"network"}))
			case s != StepPolicy{}:
				return s, mistake(name.Line, "network is set twice")
			}
			if s, err = stepNetwork(content); err != nil {
				return s, err
			}
		}
		return s, nil
	})
}

// stepNetwork is the name of a rule, or a rule.
func stepNetwork(n *yaml.Node) (s StepPolicy, err error) {
	if n.Kind == yaml.MappingNode {
		r, err := ruleNode(n)
		r.Mode = orNone(r.Mode)
		return StepPolicy{Rule: &r}, err
	}
	if s.Network, err = scalarText(n); err == nil && checkName(s.Network) != nil {
		err = mistake(n.Line, "%q is not the name of a rule", s.Network)
	}
	return s, err
}

func orNone(mode string) string {
	if mode == "" {
		return string(egress.ModeNone)
	}
	return mode
}

func (stepMap) merge(below, v map[string]StepPolicy) map[string]StepPolicy {
	merged := over(below, v)
	for name, s := range merged {
		if s.Rule != nil { // "..." has nothing to stand for
			r := ruleMap{}.merge(nil, map[string]NetworkRule{name: *s.Rule})[name]
			merged[name] = StepPolicy{Rule: &r}
		}
	}
	return merged
}

func (stepMap) narrower(have, v map[string]StepPolicy) string {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		h, ok := have[name]
		s := v[name]
		closed := s.Network == string(egress.ModeNone) || s.Rule != nil && s.Rule.Mode == string(egress.ModeNone)
		switch {
		case closed, ok && s.Rule == nil && h.Rule == nil && s.Network == h.Network:
		case ok && s.Rule != nil && h.Rule != nil:
			if why := s.Rule.wider(*h.Rule); why != "" {
				return "in " + name + ", " + why
			}
		default:
			return "gives " + name + " another rule"
		}
	}
	return ""
}

func (stepMap) text([]string) (map[string]StepPolicy, error) { return nil, errNoFlag }
func (stepMap) get(p *Profile) (map[string]StepPolicy, bool) { return p.Steps, p.Steps != nil }
func (stepMap) set(p *Profile, v map[string]StepPolicy)      { p.Steps = v }
func (stepMap) repeats() bool                                { return true }

func (stepMap) encode(v map[string]StepPolicy) *yaml.Node {
	return encodeNamed(v, func(s StepPolicy) *yaml.Node {
		n := &yaml.Node{Kind: yaml.MappingNode}
		if s.Rule != nil {
			n.Content = append(n.Content, textNode("network"), s.Rule.node())
		} else if s.Network != "" {
			n.Content = append(n.Content, textNode("network"), textNode(s.Network))
		} else {
			n.Style = yaml.FlowStyle
		}
		return n
	})
}

func (stepMap) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "object", "additionalProperties": false,
		"properties": map[string]any{"network": networkOrName()}}}
}

// networkOrName is the schema of what a step says of its network.
func networkOrName() map[string]any {
	return map[string]any{"anyOf": []any{map[string]any{"type": "string"}, ruleSchema()}}
}

// secretList are the headers that are added outside. One replaces its namesake below.
type secretList struct{}

var secretKeys = []string{"name", "value", "host", "header", "format"}

func (secretList) node(n *yaml.Node) ([]Secret, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, mistake(n.Line, "must be a list of {%s}", strings.Join(secretKeys, ", "))
	}
	v := make([]Secret, 0, len(n.Content))
	for i, c := range n.Content {
		if c.Kind == yaml.ScalarNode && c.Value == inherit {
			v = append(v, Secret{Name: inherit})
			continue
		}
		s, err := secretNode(c)
		if bad, ok := errors.AsType[*Error](err); ok { // a bare value behind "secrets:" would be taken for one, and hidden
			bad.Message = fmt.Sprintf("in entry %d, %s", i+1, bad.Message)
		}
		if err != nil {
			return nil, err
		}
		v = append(v, s)
	}
	return v, nil
}

func secretNode(n *yaml.Node) (s Secret, err error) {
	if n.Kind != yaml.MappingNode {
		return s, mistake(n.Line, "must be {%s}", strings.Join(secretKeys, ", "))
	}
	fields := map[string]*string{"name": &s.Name, "value": &s.Value, "host": &s.Host, "header": &s.Header, "format": &s.Format}
	for name, value := range pairs(n) {
		to := fields[name.Value]
		if to == nil {
			return s, mistake(name.Line, "unknown key %q%s", name.Value, didYouMean(name.Value, secretKeys))
		}
		if *to != "" {
			return s, mistake(name.Line, "%s is set twice", name.Value)
		}
		if *to, err = scalarText(value); err != nil {
			return s, err
		}
	}
	if err := s.check(); err != nil {
		return s, mistake(n.Line, "%s", err)
	}
	return s, nil
}

func (s *Secret) check() error {
	if _, err := varName(s.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	kind, from, _ := strings.Cut(s.Value, ":")
	var err error
	switch kind {
	case "env":
		_, err = varName(from)
	case "file":
		_, err = hostPath(from)
	default:
		err = errors.New("must be env:NAME or file:PATH, of the host; the secret itself does not belong here")
	}
	if err != nil {
		return fmt.Errorf("value: %w", err)
	}
	if s.Format != "" && (strings.Count(s.Format, "%") != 1 || !strings.Contains(s.Format, "%s")) {
		return fmt.Errorf("format: %q has not one %%s, where the secret goes", s.Format)
	}
	_, err = s.Added(nil)
	return err
}

// Placeholder is what the sandbox sees in the variable of a secret.
func (s *Secret) Placeholder() string { return "caisson-secret-" + s.Name }

// Added is the secret as the gateway adds it; host is the caller's environment, and the home directory that ~/ means is there.
func (s *Secret) Added(host []string) (egress.Header, error) {
	name, port, _ := strings.Cut(s.Host, ":")
	h := egress.Header{Host: name, Name: s.Header, Port: 80, Value: func() (string, error) { return s.read(host) }}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("host: %q is no port", port)
		}
		h.Port = uint16(n)
	}
	if name == "host" {
		h.Host = egress.HostName
	}
	return h, h.Check()
}

// read gets the secret when it is needed.
func (s *Secret) read(host []string) (text string, err error) {
	if name, ok := strings.CutPrefix(s.Value, "env:"); ok {
		if text = lookup(host, name); text == "" {
			return "", fmt.Errorf("the variable %s is not set", name)
		}
	} else {
		path := strings.TrimPrefix(s.Value, "file:")
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			path = lookup(host, "HOME") + "/" + rest
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text = strings.TrimSpace(string(data))
	}
	if s.Format != "" {
		text = strings.Replace(s.Format, "%s", text, 1)
	}
	return text, nil
}

func (secretList) merge(below, v []Secret) (merged []Secret) {
	merged = []Secret{}
	for _, s := range v {
		added := []Secret{s}
		if s.Name == inherit {
			added = below
		}
		for _, a := range added {
			merged = append(slices.DeleteFunc(merged, func(o Secret) bool { return o.Name == a.Name }), a)
		}
	}
	return merged
}

func (secretList) narrower(have, v []Secret) string {
	if more := without(v, have); len(more) > 0 {
		return "cannot add " + more[0].Name // a bare value behind "secrets:" would be taken for one, and hidden
	}
	return ""
}

func (secretList) text([]string) ([]Secret, error) { return nil, errNoFlag }
func (secretList) get(p *Profile) ([]Secret, bool) {
	return p.Network.Secrets, p.Network.Secrets != nil
}
func (secretList) set(p *Profile, v []Secret) { p.Network.Secrets = v }
func (secretList) repeats() bool              { return true }

func (secretList) encode(v []Secret) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, s := range v {
		m := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
		for _, f := range [][2]string{{"name", s.Name}, {"value", s.Value}, {"host", s.Host}, {"header", s.Header}, {"format", s.Format}} {
			if f[1] != "" {
				m.Content = append(m.Content, textNode(f[0]), textNode(f[1]))
			}
		}
		n.Content = append(n.Content, m)
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func (secretList) schema() map[string]any {
	properties := map[string]any{}
	for _, name := range secretKeys {
		properties[name] = map[string]any{"type": "string", "minLength": 1}
	}
	secret := map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "required": secretKeys[:4]}
	return map[string]any{"type": "array", "items": map[string]any{"anyOf": []any{secret, map[string]any{"const": inherit}}}}
}
