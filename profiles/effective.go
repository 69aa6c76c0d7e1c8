package profiles

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/quota"
)

// digest is over the values alone: not over names, files, the order of keys, or that of lists that are sets.
func (p *Profile) digest() string {
	values := map[string]any{}
	for _, k := range keys() {
		v := k.kind.get(p)
		switch set := v.(type) {
		case []string:
			v = sorted(set)
		case []isolation.Control:
			v = sorted(set)
		case []Mount:
			v = untrusted(set)
		case map[string][]string:
			v = each(set, sorted)
		case map[string]NetworkRule:
			v = each(set, NetworkRule.sorted)
		case map[string]StepPolicy:
			v = each(set, StepPolicy.sorted)
		}
		values[k.path] = v
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b) // sorts the keys of maps
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(values); err != nil {
		panic(err) // only texts, numbers, and lists and maps of them
	}
	sum := sha256.Sum256(b.Bytes())
	return "sha256:" + hex.EncodeToString(sum[:])
}

// each maps a map's values.
func each[T any](m map[string]T, f func(T) T) map[string]T {
	out := make(map[string]T, len(m))
	for name, v := range m {
		out[name] = f(v)
	}
	return out
}

func (r NetworkRule) sorted() NetworkRule {
	r.Allow, r.Deny, r.TLS = sorted(r.Allow), sorted(r.Deny), sorted(r.TLS)
	return r
}

func (s StepPolicy) sorted() StepPolicy {
	if s.Rule != nil {
		r := s.Rule.sorted()
		s.Rule = &r
	}
	return s
}

// untrusted leaves out who named a mount, which is no value.
func untrusted(mounts []Mount) []Mount {
	mounts = slices.Clone(mounts)
	for i := range mounts {
		mounts[i].Trusted = false
	}
	return mounts
}

func sorted[T cmp.Ordered](s []T) []T {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// Validate checks an effective profile's values against each other. The error is an *Error without a source.
func (p *Profile) Validate() error {
	for _, k := range keys() {
		if !k.maybe && k.kind.get(p) == nil {
			return &Error{Key: k.path, Message: "is not set"}
		}
	}
	// The gate takes an empty list for its own, and then this one would not be what holds.
	for _, globs := range []struct {
		key  string
		list []string
	}{{"protected", p.Protected}, {"gates.paths.watched", p.Gates.Paths.Watched}} {
		if len(globs.list) == 0 {
			return &Error{Key: globs.key, Message: "must not be empty", Remedy: "gates.paths.mode says what a finding does"}
		}
	}
	var limit *quota.LimitError
	if err := p.Limits.Validate(); errors.As(err, &limit) {
		return &Error{Key: "limits." + limit.Field, Message: limit.Value + " " + limit.Reason}
	} else if err != nil {
		return &Error{Key: "limits", Message: err.Error()}
	}
	if err := p.checkNetwork(); err != nil {
		return err
	}
	if err := p.Gates.check(); err != nil {
		return err
	}
	if denied := without(p.AllowWeaker, p.Controls.Waivable); len(denied) > 0 {
		return &Error{Key: "allow_weaker", Message: fmt.Sprintf("the profile %s does not let %s be waived", p.Name, oneOf(denied)),
			Remedy: "use a profile whose controls.waivable names it"}
	}
	nonroot := slices.Contains(p.Controls.Required, isolation.ControlNonRoot) && !slices.Contains(p.AllowWeaker, isolation.ControlNonRoot)
	if uid, gid := p.IDs(); nonroot && (uid == 0 || gid == 0) {
		return &Error{Key: "user", Message: p.User + " is root inside, and the control nonroot is required",
			Remedy: "use another id, or --allow-weaker nonroot"}
	}
	return nil
}

// Values returns what p says below a key, as a profile would have it: by the rest of the key's path.
func (p *Profile) Values(prefix string) map[string]string {
	out := map[string]string{}
	for _, k := range keys() {
		if rest, ok := strings.CutPrefix(k.path, prefix+"."); ok {
			if v := k.kind.get(p); v != nil {
				n := k.kind.encode(v)
				n.Style |= yaml.FlowStyle
				text, err := yaml.Marshal(n)
				if err != nil {
					panic(err) // a tree of our own
				}
				out[rest] = strings.Join(strings.Fields(string(text)), " ") // in one line
			}
		}
	}
	return out
}

// IDs returns the command's uid and gid inside; without a gid of its own it is the uid's number.
func (p *Profile) IDs() (uid, gid uint32) {
	u, g, both := strings.Cut(p.User, ":")
	if !both {
		g = u
	}
	// Both were checked where they were read.
	uid, _ = id(u)
	gid, _ = id(g)
	return uid, gid
}

// Vars returns the variables that pass_env and env give to a command, env winning; host is the caller's environment.
func (p *Profile) Vars(host []string) map[string]string {
	vars := map[string]string{}
	for _, kv := range host {
		if name, v, ok := strings.Cut(kv, "="); ok && slices.Contains(p.PassEnv, name) {
			vars[name] = v
		}
	}
	for name, v := range p.Env {
		vars[name] = v
	}
	return vars
}

// CacheMounts returns the caches that are directories of this host as read-only mounts, their sources resolved.
// home is the caller's; "~/x" appears as /home/user/x, other paths as they are.
func (p *Profile) CacheMounts(home string) []Mount {
	var mounts []Mount
	for _, c := range p.Caches {
		source, target := c, c
		if rest, ok := strings.CutPrefix(c, "~/"); ok {
			if !filepath.IsAbs(home) {
				continue
			}
			source, target = filepath.Join(home, rest), "/home/user/"+rest
		}
		resolved, err := filepath.EvalSymlinks(source)
		if err != nil {
			continue
		}
		if info, err := os.Stat(resolved); err == nil && info.IsDir() {
			mounts = append(mounts, Mount{Source: resolved, Target: target, ReadOnly: true, Trusted: true})
		}
	}
	return mounts
}

// WriteText writes the policy as a profile file, with the origin of each value beside it. Read back on its own, with
// nothing below that differs, it gives the same digest.
func (e *Effective) WriteText(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode, HeadComment: "effective policy, " + e.Digest}
	for _, head := range [][2]string{{"name", e.Name}, {"description", e.Description}} {
		if head[1] != "" {
			root.Content = append(root.Content, textNode(head[0]), textNode(head[1]))
		}
	}
	levels := map[string]*yaml.Node{"": root}
	for _, k := range keys() {
		v := k.kind.get(&e.Profile)
		if v == nil {
			continue
		}
		above, last := parent(k.path)
		name, content := textNode(last), k.kind.encode(v)
		e.comment(k.path, name, content)
		level := nested(levels, above)
		level.Content = append(level.Content, name, content)
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return fmt.Errorf("writing the profile: %w", err)
	}
	return encoder.Close()
}

// comment puts the origin on the line where a value begins, and on that of each variable.
func (e *Effective) comment(path string, name, content *yaml.Node) {
	switch {
	case content.Kind == yaml.MappingNode && len(content.Content) > 0:
		for variable, value := range pairs(content) {
			value.LineComment = e.Origins[path+"."+variable.Value]
		}
	case content.Kind == yaml.SequenceNode && len(content.Content) > 0:
		name.LineComment = e.Origins[path]
	default:
		content.LineComment = e.Origins[path]
	}
}

// Learned is the text of a profile file that differs from e in who may be reached: by steps of a name that rules has, and, as "",
// by those without one. It extends e, or, where e is of a file that no name leads to, says again what that file says.
func (e *Effective) Learned(rules map[string][]string) string {
	p := e.Profile
	first := entriesRule(rules[""])
	p.Network.Mode, p.Network.Allow, p.Steps = first.Mode, first.Allow, map[string]StepPolicy{}
	if e.says("steps") {
		maps.Copy(p.Steps, e.Steps)
	}
	for name, entries := range rules {
		if name != "" {
			p.Steps[name] = StepPolicy{Rule: entriesRule(entries)}
		}
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode("extends"), textNode(cmp.Or(e.base, e.Name))}}
	levels := map[string]*yaml.Node{"": root}
	for _, k := range keys() {
		learned := k.path == "network.mode" || k.path == "network.allow" || k.path == "steps" && len(p.Steps) > 0
		v := k.kind.get(&p)
		if v == nil || !learned && !e.says(k.path) {
			continue
		}
		above, last := parent(k.path)
		level := nested(levels, above)
		level.Content = append(level.Content, textNode(last), k.kind.encode(v))
	}
	for name, content := range pairs(root) {
		if name.Value != "steps" {
			inLine(content)
			continue
		}
		for _, step := range pairs(content) {
			inLine(step)
		}
	}
	text, err := yaml.Marshal(root)
	if err != nil {
		panic(err) // a tree of our own
	}
	return string(text)
}

// Said reports whether somebody has set a key: a file, the environment or a flag, and not a built-in profile.
func (e *Effective) Said(key string) bool {
	origin, ok := e.Origins[key]
	return ok && !strings.HasPrefix(origin, builtinOrigin)
}

// says reports whether the file of e that only its path names has a key.
func (e *Effective) says(key string) bool {
	return e.file != "" && slices.ContainsFunc(strings.Split(e.Origins[key], ", "), func(origin string) bool {
		return strings.HasPrefix(origin, e.file+":")
	})
}

func entriesRule(entries []string) *NetworkRule {
	if len(entries) == 0 {
		return &NetworkRule{Mode: string(egress.ModeNone), Allow: []string{}}
	}
	return &NetworkRule{Mode: string(egress.ModeAllow), Allow: entries}
}

// inLine has a value written in one line, and what lists hold in quotes.
func inLine(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		n.Style |= yaml.FlowStyle
	}
	for _, c := range n.Content {
		if inLine(c); n.Kind == yaml.SequenceNode && c.Kind == yaml.ScalarNode {
			c.Style = yaml.DoubleQuotedStyle
		}
	}
}

// nested returns the mapping for a level of the file, made at its first use.
func nested(levels map[string]*yaml.Node, path string) *yaml.Node {
	if n, ok := levels[path]; ok {
		return n
	}
	above, last := parent(path)
	n := &yaml.Node{Kind: yaml.MappingNode}
	up := nested(levels, above)
	up.Content = append(up.Content, textNode(last), n)
	levels[path] = n
	return n
}

// Schema returns the JSON Schema (2020-12) of a profile file, for editors. Parse is stricter where a schema cannot say it.
func Schema() []byte {
	object := func(about string) (level, properties map[string]any) {
		properties = map[string]any{}
		level = map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
		if about != "" {
			level["description"] = about
		}
		return level, properties
	}
	root, top := object("Policy of a caisson sandbox")
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "caisson profile"
	name := map[string]any{"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}
	top["name"], top["extends"], top["description"] = name, name, map[string]any{"type": "string"}
	levels := map[string]map[string]any{"": top}
	for _, k := range keys() {
		prefix := ""
		parts := strings.Split(k.path, ".")
		for _, part := range parts[:len(parts)-1] {
			up := levels[prefix]
			if prefix += "." + part; levels[prefix] == nil {
				up[part], levels[prefix] = object("")
			}
		}
		shape := k.kind.schema()
		shape["description"] = k.about
		levels[prefix][parts[len(parts)-1]] = shape
	}
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // only maps, lists and texts
	}
	return data
}
