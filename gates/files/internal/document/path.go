package document

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Path names values in a document: keys, indices of lists from 0, and * for each of either.
type Path []string

// star is the wildcard; a key that is an asterisk is written in quotes.
const star = "\x00*"

// ParsePath reads a path: elements with dots between them, in double quotes where they hold a dot or are an asterisk.
func ParsePath(s string) (Path, error) {
	var p Path
	for rest := s; ; {
		var element string
		quoted := strings.HasPrefix(rest, `"`)
		if quoted {
			text, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, fmt.Errorf("%q: a quote that is not closed", s)
			}
			if element, err = strconv.Unquote(text); err != nil {
				return nil, fmt.Errorf("%q: %w", s, err)
			}
			rest = rest[len(text):]
		} else {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				i = len(rest)
			}
			element, rest = rest[:i], rest[i:]
		}
		switch {
		case element == "" && !quoted, strings.ContainsRune(element, 0):
			return nil, fmt.Errorf("%q is no path of keys, such as scripts.*", s)
		case element == "*" && !quoted:
			element = star
		}
		p = append(p, element)
		if rest == "" {
			return p, nil
		}
		if rest[0] != '.' || len(p) > maxDepth {
			return nil, fmt.Errorf("%q is no path of keys, such as scripts.*", s)
		}
		rest = rest[1:]
	}
}

// String writes a path as ParsePath reads it.
func (p Path) String() string {
	parts := make([]string, len(p))
	for i, e := range p {
		switch {
		case e == star:
			parts[i] = "*"
		case e == "" || e == "*" || strings.ContainsAny(e, ".\"\\") || strconv.Quote(e) != `"`+e+`"`:
			parts[i] = strconv.Quote(e)
		default:
			parts[i] = e
		}
	}
	return strings.Join(parts, ".")
}

// Value is one value that a path names.
type Value struct {
	At    Path
	Value any
}

// Select returns the values that p names, in no order. What is not there is not listed.
func Select(doc any, p Path) []Value {
	return appendSelected(nil, nil, doc, p)
}

func appendSelected(out []Value, at Path, v any, rest Path) []Value {
	if len(rest) == 0 {
		return append(out, Value{slices.Clone(at), v})
	}
	down := func(key string, x any) { out = appendSelected(out, append(at[:len(at):len(at)], key), x, rest[1:]) }
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			if rest[0] == star || rest[0] == key {
				down(key, x)
			}
		}
	case []any:
		for i, x := range v {
			if index := strconv.Itoa(i); rest[0] == star || rest[0] == index {
				down(index, x)
			}
		}
	}
	return out
}

// Differences lists, sorted, where the values that p names differ between two documents: changed, there no more, or new.
func Differences(old, now any, p Path) []Path {
	was, is := map[string]Value{}, map[string]Value{}
	for _, v := range Select(old, p) {
		was[v.At.String()] = v
	}
	for _, v := range Select(now, p) {
		is[v.At.String()] = v
	}
	var out []Path
	for at, v := range was {
		if x, ok := is[at]; !ok || !Equal(v.Value, x.Value) {
			out = append(out, v.At)
		}
	}
	for at, v := range is {
		if _, ok := was[at]; !ok {
			out = append(out, v.At)
		}
	}
	slices.SortFunc(out, func(a, b Path) int { return slices.Compare(a, b) })
	return out
}

// Equal compares values of Parse. A NaN is equal to nothing.
func Equal(a, b any) bool { return reflect.DeepEqual(a, b) && !hasNaN(a) }

func hasNaN(v any) bool {
	switch v := v.(type) {
	case Number:
		return v == "NaN"
	case []any:
		return slices.ContainsFunc(v, hasNaN)
	case map[string]any:
		for _, x := range v {
			if hasNaN(x) {
				return true
			}
		}
	}
	return false
}

// Line guesses in which line of a text, from 1, the value at p stands: where its keys follow each other. 0: it cannot tell.
func Line(data []byte, p Path) int {
	lines := strings.Split(string(data), "\n")
	at, found := 0, 0
	for _, key := range p {
		if _, err := strconv.Atoi(key); err == nil {
			continue
		}
		i := slices.IndexFunc(lines[at:], func(line string) bool { return hasKey(line, key) })
		if i < 0 {
			break
		}
		at += i
		found = at + 1
	}
	return found
}

// hasKey says whether key stands in a line as a word of its own.
func hasKey(line, key string) bool {
	for rest := line; ; {
		before, after, ok := strings.Cut(rest, key)
		if !ok {
			return false
		}
		if (before == "" || strings.ContainsAny(before[len(before)-1:], " \t\"'.[{,")) && (after == "" || strings.ContainsAny(after[:1], " \t\"':=.]")) {
			return true
		}
		if key == "" {
			return false
		}
		rest = after
	}
}
