package profiles

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// kind is what keys of one type have in common. A value is of the kind's own Go type; nil is one that is not set.
type kind interface {
	node(n *yaml.Node) (any, error)       // a value as a file has it; errors carry the line
	text(texts []string) (any, error)     // a value as a flag (each use one text) or a variable has it
	merge(below, v any) any               // v put over the value below it
	narrower(have, v any) (whyNot string) // empty when v allows nothing that have does not
	get(p *Profile) any
	set(p *Profile, v any)
	encode(v any) *yaml.Node
	schema() map[string]any
	repeats() bool // a flag that is given twice adds
}

// codec is a kind with its type.
type codec[T any] interface {
	node(n *yaml.Node) (T, error)
	text(texts []string) (T, error)
	merge(below, v T) T
	narrower(have, v T) (whyNot string)
	get(p *Profile) (v T, isSet bool)
	set(p *Profile, v T)
	encode(v T) *yaml.Node
	schema() map[string]any
	repeats() bool
}

// of makes a kind of a codec.
type of[T any] struct{ codec[T] }

func (k of[T]) node(n *yaml.Node) (any, error)   { return k.codec.node(n) }
func (k of[T]) text(texts []string) (any, error) { return k.codec.text(texts) }
func (k of[T]) merge(below, v any) any           { return k.codec.merge(as[T](below), as[T](v)) }
func (k of[T]) set(p *Profile, v any)            { k.codec.set(p, as[T](v)) }
func (k of[T]) encode(v any) *yaml.Node          { return k.codec.encode(as[T](v)) }

// narrower: where there is no limit, any is narrower.
func (k of[T]) narrower(have, v any) string {
	if have == nil {
		return ""
	}
	return k.codec.narrower(as[T](have), as[T](v))
}

func (k of[T]) get(p *Profile) any {
	if v, isSet := k.codec.get(p); isSet {
		return v
	}
	return nil
}

// as returns what v is, and the zero value for nil.
func as[T any](v any) T {
	t, _ := v.(T)
	return t
}

// inherit stands, in a list, for everything that the list holds below. Without it a list replaces.
const inherit = "..."

// scalar is a single value of type T, written as text.
type scalar[T any] struct {
	load   func(p *Profile) (T, bool)
	store  func(p *Profile, v T)
	parse  func(s string) (T, error)
	format func(v T) string
	narrow func(have, v T) bool
	shape  map[string]any
}

func (k scalar[T]) node(n *yaml.Node) (v T, err error) {
	s, err := scalarText(n)
	if err != nil {
		return v, err
	}
	// YAML 1.1 reads 0512 as octal, YAML 1.2 and people read it as decimal.
	if n.Tag == "!!int" && len(s) > 1 && s[0] == '0' {
		return v, mistake(n.Line, "%s is octal for some readers and decimal for others; write it without leading zeros", s)
	}
	if v, err = k.parse(s); err != nil {
		return v, mistake(n.Line, "%s", err)
	}
	return v, nil
}

func (k scalar[T]) text(texts []string) (T, error) { return k.parse(texts[len(texts)-1]) }
func (k scalar[T]) merge(_, v T) T                 { return v }
func (k scalar[T]) get(p *Profile) (T, bool)       { return k.load(p) }
func (k scalar[T]) set(p *Profile, v T)            { k.store(p, v) }
func (k scalar[T]) schema() map[string]any         { return k.shape }
func (k scalar[T]) repeats() bool                  { return false }

func (k scalar[T]) narrower(have, v T) string {
	if k.narrow(have, v) {
		return ""
	}
	return fmt.Sprintf("says %s, where the trusted side says %s", k.format(v), k.format(have))
}

func (k scalar[T]) encode(v T) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: k.format(v)}
}

// list is a set of words. The order has no meaning, but is kept for people.
type list[T ~string] struct {
	field func(p *Profile) *[]T
	item  func(s string) (T, error)
	grows bool // more is narrower: what is required, what is protected
	shape map[string]any
}

func (k list[T]) node(n *yaml.Node) ([]T, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, mistake(n.Line, "must be a list, such as [a, b]")
	}
	v := make([]T, 0, len(n.Content))
	for _, c := range n.Content {
		s, err := scalarText(c)
		if err != nil {
			return nil, err
		}
		x, err := k.word(s)
		if err != nil {
			return nil, mistake(c.Line, "%s", err)
		}
		v = append(v, x)
	}
	return v, nil
}

func (k list[T]) word(s string) (T, error) {
	if s == inherit {
		return inherit, nil
	}
	return k.item(s)
}

// text adds to what files say; each text may hold several words with commas between. An empty one is a mistake, such as a
// variable of a shell that is not set: left out, it would make a limit none.
func (k list[T]) text(texts []string) ([]T, error) {
	v := []T{inherit}
	for _, s := range strings.Split(strings.Join(texts, ","), ",") {
		if s = strings.TrimSpace(s); s == "" {
			return nil, fmt.Errorf("an empty element in %q", strings.Join(texts, ","))
		}
		x, err := k.word(s)
		if err != nil {
			return nil, err
		}
		v = append(v, x)
	}
	return v, nil
}

func (k list[T]) merge(below, v []T) []T {
	merged := make([]T, 0, len(v))
	for _, x := range v {
		if x == inherit {
			merged = append(merged, below...)
		} else {
			merged = append(merged, x)
		}
	}
	return unique(merged)
}

func unique[T comparable](s []T) []T {
	kept := make([]T, 0, len(s))
	for _, x := range s {
		if !slices.Contains(kept, x) {
			kept = append(kept, x)
		}
	}
	return kept
}

func (k list[T]) narrower(have, v []T) string {
	if k.grows {
		if gone := without(have, v); len(gone) > 0 {
			return "drops " + oneOf(gone)
		}
	} else if more := without(v, have); len(more) > 0 {
		return "adds " + oneOf(more)
	}
	return ""
}

// without returns the elements of a that b does not have.
func without[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

func (k list[T]) get(p *Profile) ([]T, bool) { return *k.field(p), *k.field(p) != nil }
func (k list[T]) set(p *Profile, v []T)      { *k.field(p) = v }
func (k list[T]) repeats() bool              { return true }

func (k list[T]) encode(v []T) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, x := range v {
		n.Content = append(n.Content, textNode(string(x)))
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func (k list[T]) schema() map[string]any {
	return map[string]any{"type": "array", "items": map[string]any{"anyOf": []any{k.shape, map[string]any{"const": inherit}}}}
}

// vars is a map of environment variables. Maps merge: a variable replaces the one of the same name below.
type vars struct{}

func (vars) node(n *yaml.Node) (map[string]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, mistake(n.Line, "must be a map, such as {LANG: C.UTF-8}")
	}
	v := make(map[string]string, len(n.Content)/2)
	for name, value := range pairs(n) {
		if _, twice := v[name.Value]; twice {
			return nil, mistake(name.Line, "%s is set twice", name.Value)
		}
		if _, err := varName(name.Value); err != nil {
			return nil, mistake(name.Line, "%s", err)
		}
		s, err := scalarText(value)
		if err != nil {
			return nil, err
		}
		if strings.ContainsRune(s, 0) {
			return nil, mistake(value.Line, "%s holds a NUL byte", name.Value)
		}
		v[name.Value] = s
	}
	return v, nil
}

func (vars) text(texts []string) (map[string]string, error) {
	v := make(map[string]string, len(texts))
	for _, t := range texts {
		name, value, ok := strings.Cut(t, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=VALUE", t)
		}
		if _, err := varName(name); err != nil {
			return nil, err
		}
		v[name] = value
	}
	return v, nil
}

func (vars) merge(below, v map[string]string) map[string]string {
	merged := map[string]string{}
	maps.Copy(merged, below)
	maps.Copy(merged, v)
	return merged
}

func (vars) narrower(have, v map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if value, ok := have[name]; !ok || value != v[name] {
			return "sets " + name
		}
	}
	return ""
}

func (vars) get(p *Profile) (map[string]string, bool) { return p.Env, p.Env != nil }
func (vars) set(p *Profile, v map[string]string)      { p.Env = v }
func (vars) repeats() bool                            { return true }

func (vars) encode(v map[string]string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		n.Content = append(n.Content, textNode(name), textNode(v[name]))
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func (vars) schema() map[string]any {
	return map[string]any{
		"type":                 "object",
		"propertyNames":        map[string]any{"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
		"additionalProperties": map[string]any{"type": []string{"string", "number", "boolean"}},
	}
}

// quantity is a limit: less is narrower.
func quantity[T interface {
	~int64
	String() string
}](field func(p *Profile) *T, parse func(string) (T, error)) kind {
	return of[T]{scalar[T]{
		load:   func(p *Profile) (T, bool) { return *field(p), *field(p) != 0 },
		store:  func(p *Profile, v T) { *field(p) = v },
		parse:  positive(parse),
		format: T.String,
		narrow: func(have, v T) bool { return v <= have },
		shape:  map[string]any{"type": []string{"string", "number"}},
	}}
}

// optional is a limit that need not be there: to set it is narrower.
func optional[T interface {
	~int64
	String() string
}](field func(p *Profile) **T, parse func(string) (T, error)) kind {
	return of[T]{scalar[T]{
		load: func(p *Profile) (v T, ok bool) {
			if f := *field(p); f != nil {
				return *f, true
			}
			return v, false
		},
		store:  func(p *Profile, v T) { *field(p) = &v },
		parse:  positive(parse),
		format: T.String,
		narrow: func(have, v T) bool { return v <= have },
		shape:  map[string]any{"type": []string{"string", "number"}},
	}}
}

// positive refuses zero where it is written: somebody who writes it means unlimited, and it is not.
func positive[T ~int64](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := parse(s)
		if err == nil && v == 0 {
			err = errors.New("zero is no limit, and nothing is unlimited")
		}
		return v, err
	}
}
