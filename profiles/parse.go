package profiles

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxFile bounds a profile file. The largest reasonable one is a few KiB.
const maxFile = 64 << 10

// document is one source of values: a file, the variables, or the flags.
type document struct {
	source    string // "built-in default", a path
	name      string // of the profile; "" when the file does not say
	about     string
	extends   string
	line      int  // of extends
	final     bool // flags and variables, which no file overrides
	untrusted bool // lies in the workspace
	values    map[string]value
}

// value is what a document says for one key.
type value struct {
	v      any // of the key's kind
	origin string
	line   int
	lines  map[string]int // of a map or a list: where each name or word stands
}

// parse reads one profile strictly. Every mistake that it finds is in the error.
func parse(source string, data []byte) (*document, error) {
	root, err := soleMapping(source, data, "write {} for a profile that changes nothing")
	if err != nil {
		return nil, err
	}
	d := &document{source: source, values: map[string]value{}}
	p := parser{doc: d, grammar: fileGrammar()}
	p.mapping("", root)
	if len(p.errs) > 0 {
		return nil, join(p.errs)
	}
	return d, nil
}

// grammar is the table keys as a file nests it.
type grammar struct {
	keys   map[string]key
	levels map[string][]string // "limits" → cpus, memory …; "" → the top
}

var fileGrammar = sync.OnceValue(func() grammar {
	g := grammar{keys: map[string]key{}, levels: map[string][]string{"": {"name", "description", "extends"}}}
	for _, k := range keys() {
		g.keys[k.path] = k
		for level := k.path; level != ""; {
			above, last := parent(level)
			if !slices.Contains(g.levels[above], last) {
				g.levels[above] = append(g.levels[above], last)
			}
			level = above
		}
	}
	return g
})

// parent splits the last part off a key's path.
func parent(path string) (above, last string) {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// soleMapping decodes the one document of a file, which must be a mapping without aliases; instead is said of an empty one.
func soleMapping(source string, data []byte, instead string) (*yaml.Node, error) {
	fail := func(line int, format string, args ...any) error {
		e := mistake(line, format, args...)
		e.Source = source
		return e
	}
	if len(data) > maxFile {
		return nil, fail(0, "longer than %d bytes", maxFile)
	}
	if line := notText(data); line > 0 {
		return nil, fail(line, "not UTF-8 text")
	}
	var doc, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && doc.Kind == 0:
		return nil, fail(0, "empty; %s", instead)
	case err != nil:
		line, msg := yamlError(err)
		return nil, fail(line, "%s", msg)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, fail(more.Line, "a second document; a file holds one")
	} else if !errors.Is(err, io.EOF) {
		line, msg := yamlError(err)
		return nil, fail(line, "%s", msg)
	}
	root := doc.Content[0]
	if err := selfContained(root); err != nil {
		err.Source = source
		return nil, err
	}
	if root.Kind != yaml.MappingNode {
		if root.Tag == "!!null" {
			return nil, fail(0, "empty; %s", instead)
		}
		return nil, fail(root.Line, "must be keys and values, such as limits: {memory: 1g}")
	}
	return root, nil
}

// yamlError takes the line out of yaml.v3's text, which is the only place where it is. The text has none when it would
// be the first, and its parser, unlike its scanner, counts from zero.
func yamlError(err error) (line int, message string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	line = 1
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, text, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, message = n, text
			if strings.HasPrefix(text, "did not find expected") {
				line++
			}
		}
	}
	return line, "not YAML: " + message
}

// notText returns the line of the first byte that no text has, or 0.
func notText(data []byte) (line int) {
	line = 1
	for i, r := range string(data) {
		switch {
		case r == '\n':
			line++
		case r == utf8.RuneError && !bytes.HasPrefix(data[i:], []byte("\uFFFD")), r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return line
		}
	}
	return 0
}

// selfContained refuses anchors, aliases, merge keys and explicit types: a policy says things where they stand, and
// what cannot be repeated cannot be multiplied either.
func selfContained(n *yaml.Node) *Error {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge":
		return mistake(n.Line, "anchors, aliases and merge keys are not allowed; write the value out, or use extends")
	case n.Style&yaml.TaggedStyle != 0:
		return mistake(n.Line, "the type %s is not allowed", n.Tag)
	}
	for _, c := range n.Content {
		if err := selfContained(c); err != nil {
			return err
		}
	}
	return nil
}

// parser fills a document from a tree and collects mistakes.
type parser struct {
	grammar
	doc  *document
	errs []error
}

// mapping reads the keys of one level; prefix is the level's own path.
func (p *parser) mapping(prefix string, n *yaml.Node) {
	seen := map[string]int{}
	for name, content := range pairs(n) {
		path := strings.TrimPrefix(prefix+"."+name.Value, ".")
		first, twice := seen[name.Value]
		seen[name.Value] = name.Line
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(p.levels[prefix], name.Value):
			p.unknown(prefix, name)
		case twice:
			p.fail(path, mistake(name.Line, "set twice, first in line %d", first))
		case p.levels[path] != nil:
			if content.Kind != yaml.MappingNode {
				p.fail(path, mistake(content.Line, "must hold keys: %s", oneOf(p.levels[path])))
				continue
			}
			p.mapping(path, content)
		default:
			p.leaf(path, name.Line, content)
		}
	}
}

func (p *parser) leaf(path string, line int, n *yaml.Node) {
	k, ok := p.keys[path]
	if !ok {
		p.head(path, line, n)
		return
	}
	v, err := k.kind.node(n)
	if err != nil {
		p.fail(path, err)
		return
	}
	lines := map[string]int{}
	switch n.Kind {
	case yaml.MappingNode:
		for name := range pairs(n) {
			lines[name.Value] = name.Line
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			lines[c.Value] = c.Line
		}
	}
	p.doc.values[path] = value{v: v, origin: fmt.Sprintf("%s:%d", p.doc.source, line), line: line, lines: lines}
}

// head reads what describes the profile and is no policy.
func (p *parser) head(path string, line int, n *yaml.Node) {
	s, err := scalarText(n)
	if err != nil {
		p.fail(path, err)
		return
	}
	if err := checkName(s); err != nil && path != "description" {
		p.fail(path, mistake(n.Line, "%s", err))
		return
	}
	switch path {
	case "name":
		p.doc.name = s
	case "description":
		p.doc.about = s
	case "extends":
		p.doc.extends, p.doc.line = s, line
	}
}

func (p *parser) unknown(prefix string, name *yaml.Node) {
	path := strings.TrimPrefix(prefix+"."+name.Value, ".")
	candidates := slices.Clone(p.levels[prefix])
	if prefix != "" {
		for i, c := range candidates {
			candidates[i] = prefix + "." + c
		}
	}
	for _, k := range keys() {
		candidates = append(candidates, k.path)
	}
	e := mistake(name.Line, "unknown key%s", didYouMean(name.Value, candidates))
	e.Remedy = "caisson profile schema lists the keys"
	p.fail(path, e)
}

// fail completes a mistake with where it was made.
func (p *parser) fail(path string, err error) {
	for _, err := range flatten(err) {
		var e *Error
		if !errors.As(err, &e) {
			e = mistake(0, "%s", err)
		}
		e.Source, e.Key = p.doc.source, path
		p.errs = append(p.errs, e)
	}
}

// pairs walks over a mapping's keys and values.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// scalarText returns a single value as it is written, whatever YAML would make of it: "no" stays "no", 1.10 stays 1.10.
func scalarText(n *yaml.Node) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", mistake(n.Line, "must be a single value")
	case n.Tag == "!!null":
		return "", mistake(n.Line, `has no value; write "" for an empty one`)
	}
	return n.Value, nil
}

// textNode is a scalar that is read back as the same text, quoted where it has to be.
func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

// checkName refuses whatever could be a path.
func checkName(s string) error {
	ok := s != "" && len(s) <= 64 && s[0] != '.' && s[0] != '-'
	for _, r := range s {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	}
	if !ok {
		return fmt.Errorf("%q is not a profile's name: up to 64 letters, digits, -, _ and ., beginning with a letter or digit", s)
	}
	return nil
}

// Parse reads one profile; name is for errors and stands for the profile's name when the file gives none. Values that
// the file does not set are zero. The errors are *Error, joined when there are several.
func Parse(name string, data []byte) (*Profile, error) {
	d, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	p := &Profile{Name: d.name, Description: d.about, Extends: d.extends}
	if p.Name == "" {
		p.Name = name
	}
	for _, k := range keys() {
		if v, ok := d.values[k.path]; ok {
			k.kind.set(p, k.kind.merge(nil, v.v))
		}
	}
	return p, nil
}
