package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// mountList is the list of mounts. A mount replaces one below at the same target.
type mountList struct{}

func (mountList) node(n *yaml.Node) ([]Mount, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, mistake(n.Line, "must be a list of {source, target, readonly}")
	}
	v := make([]Mount, 0, len(n.Content))
	for _, c := range n.Content {
		if c.Kind == yaml.ScalarNode && c.Value == inherit {
			v = append(v, Mount{Source: inherit})
			continue
		}
		m, err := mountNode(c)
		if err != nil {
			return nil, err
		}
		v = append(v, m)
	}
	return v, nil
}

func mountNode(n *yaml.Node) (Mount, error) {
	m := Mount{ReadOnly: true}
	if n.Kind != yaml.MappingNode {
		return m, mistake(n.Line, "must be {source, target, readonly}")
	}
	seen := map[string]bool{}
	for name, value := range pairs(n) {
		if seen[name.Value] {
			return m, mistake(name.Line, "%s is set twice", name.Value)
		}
		seen[name.Value] = true
		s, err := scalarText(value)
		if err != nil {
			return m, err
		}
		switch name.Value {
		case "source":
			m.Source = s
		case "target":
			m.Target = s
		case "readonly":
			if value.Tag != "!!bool" {
				return m, mistake(value.Line, "readonly must be true or false, not %q", s)
			}
			m.ReadOnly = value.Value[0] == 't' || value.Value[0] == 'T'
		default:
			return m, mistake(name.Line, "unknown key %q%s", name.Value, didYouMean(name.Value, []string{"source", "target", "readonly"}))
		}
	}
	if err := m.check(); err != nil {
		return m, mistake(n.Line, "%s", err)
	}
	return m, nil
}

// text reads Docker's SOURCE:TARGET[:ro|rw]. Unlike Docker's, a mount is read-only unless it says rw: what is
// mounted is not a copy, and nothing that the sandbox writes there can be discarded.
func (mountList) text(texts []string) ([]Mount, error) {
	v := []Mount{{Source: inherit}}
	for _, t := range texts {
		parts := strings.Split(t, ":")
		m := Mount{ReadOnly: true}
		switch {
		case len(parts) == 3 && parts[2] == "rw":
			m.ReadOnly = false
		case len(parts) == 2, len(parts) == 3 && parts[2] == "ro":
		default:
			return nil, fmt.Errorf("%q is not SOURCE:TARGET or SOURCE:TARGET:ro or :rw", t)
		}
		m.Source, m.Target = parts[0], parts[1]
		if m.Source == "." || m.Source == ".." || strings.HasPrefix(m.Source, "./") || strings.HasPrefix(m.Source, "../") {
			abs, err := filepath.Abs(m.Source)
			if err != nil {
				return nil, err
			}
			m.Source = abs
		}
		if err := m.check(); err != nil {
			return nil, err
		}
		v = append(v, m)
	}
	return v, nil
}

// ours are the mount points that caisson itself fills.
var ours = []string{"/", "/workspace", "/home", "/home/user", "/tmp", "/proc", "/sys", "/dev"}

// check looks at the words alone; CheckMount looks at the host.
func (m *Mount) check() error {
	if _, err := hostPath(m.Source); err != nil {
		return fmt.Errorf("source %w", err)
	}
	m.Source = filepath.Clean(m.Source)
	if !strings.HasPrefix(m.Target, "/") || strings.ContainsRune(m.Target, 0) {
		return fmt.Errorf("target %q is not an absolute path", m.Target)
	}
	m.Target = filepath.Clean(m.Target)
	if slices.Contains(ours, m.Target) || below(m.Target, "/proc", "/sys", "/dev") {
		return fmt.Errorf("target %s is taken by the sandbox itself", m.Target)
	}
	return nil
}

func (mountList) merge(below, v []Mount) []Mount {
	var all []Mount
	for _, m := range v {
		if m.Source == inherit {
			all = append(all, below...)
		} else {
			all = append(all, m)
		}
	}
	merged := make([]Mount, 0, len(all))
	for _, m := range all {
		merged = slices.DeleteFunc(merged, func(old Mount) bool { return old.Target == m.Target })
		merged = append(merged, m)
	}
	return merged
}

func (mountList) narrower(have, v []Mount) string {
	for _, m := range v {
		same := func(h Mount) bool {
			return h.Source == m.Source && h.Target == m.Target && (m.ReadOnly || !h.ReadOnly)
		}
		if !slices.ContainsFunc(have, same) {
			return "adds " + m.Source + " at " + m.Target
		}
	}
	return ""
}

func (mountList) get(p *Profile) ([]Mount, bool) { return p.Mounts, p.Mounts != nil }
func (mountList) set(p *Profile, v []Mount)      { p.Mounts = v }
func (mountList) repeats() bool                  { return true }

func (mountList) encode(v []Mount) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, m := range v {
		readonly := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(m.ReadOnly)}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle, Content: []*yaml.Node{
			textNode("source"), textNode(m.Source), textNode("target"), textNode(m.Target), textNode("readonly"), readonly,
		}})
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func (mountList) schema() map[string]any {
	path := map[string]any{"type": "string", "minLength": 1}
	mount := map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"source", "target"},
		"properties": map[string]any{
			"source": path, "target": path, "readonly": map[string]any{"type": "boolean", "default": true},
		},
	}
	return map[string]any{"type": "array", "items": map[string]any{"anyOf": []any{mount, map[string]any{"const": inherit}}}}
}

// maxWalk bounds how many entries are looked at for sockets. A warm directory cache gives about a million in a second.
const maxWalk = 300_000

// MountCheck is what a mount's source is checked against.
type MountCheck struct {
	StateDir  string // of this caisson
	Workspace string
	Home      string // stands for ~ in a source
}

// MountError says why a mount is refused.
type MountError struct {
	Source string // as it was given
	Reason string
	Remedy string
}

func (e *MountError) Error() string { return "cannot mount " + e.Source + ": " + e.Reason }

// CheckMount returns the resolved source of m, which is what to mount, or a *MountError when it must not be shown inside:
// it does not exist; it is, or holds, a socket or the state directory; it is / or lies in /proc, /sys, /dev or /run.
// All but the first are allowed when m is Trusted. A writable mount never overlaps the workspace, which nothing but
// promote writes. A socket that is made later is not found; a mount is worth the trust that its directory deserves.
func CheckMount(m Mount, o MountCheck) (source string, err error) {
	refuse := func(reason, remedy string) (string, error) {
		return "", &MountError{Source: m.Source, Reason: reason, Remedy: remedy}
	}
	path := m.Source
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if !filepath.IsAbs(o.Home) {
			return refuse("HOME is not set", "write the path out")
		}
		path = filepath.Join(o.Home, rest)
	}
	source, err = filepath.EvalSymlinks(path)
	if err != nil {
		return refuse(reasonOf(err), "create it, or leave the mount out")
	}
	if !m.ReadOnly && (overlaps(source, o.Workspace)) {
		return refuse("it would make the workspace "+o.Workspace+" writable", "mount it read-only; the workspace is at /workspace")
	}
	if m.Trusted {
		return source, nil
	}
	const remedy = "if this is what you want, name it under mounts: in a profile of yours"
	switch {
	case source == "/":
		return refuse("it is the whole host", remedy)
	case below(source, "/proc", "/sys", "/dev", "/run"):
		return refuse("it lies in "+source[:strings.IndexByte(source[1:]+"/", '/')+1]+", which controls the host", remedy)
	case overlaps(source, o.StateDir):
		return refuse("it holds or lies in caisson's own state, "+o.StateDir, remedy)
	}
	if socket, err := findSocket(source); err != nil {
		return refuse(err.Error(), remedy)
	} else if socket != "" {
		return refuse("a socket gives access to who listens there: "+socket, remedy)
	}
	return source, nil
}

// overlaps says whether one of two paths is, or holds, the other. An empty one overlaps nothing.
func overlaps(source, other string) bool {
	if other == "" {
		return false
	}
	if resolved, err := filepath.EvalSymlinks(other); err == nil {
		other = resolved
	}
	return below(source, other) || below(other, source)
}

func reasonOf(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// findSocket returns the first socket at or below root. A directory that cannot be read or a tree that is too large to
// look through is an error, because it may hold one.
func findSocket(root string) (socket string, err error) {
	seen := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		seen++
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil // gone meanwhile
		case err != nil:
			return fmt.Errorf("it cannot be searched for sockets: %s: %s", path, reasonOf(err))
		case d.Type()&os.ModeSocket != 0:
			socket = path
			return fs.SkipAll
		case seen > maxWalk:
			return fmt.Errorf("it is too large to be searched for sockets (more than %d entries)", maxWalk)
		}
		return nil
	})
	return socket, err
}
