// Package document reads JSON, YAML and TOML into one form that can be compared: the order of keys, comments, quoting and
// layout are no part of it.
package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"path"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"gopkg.in/yaml.v3"
)

// maxDepth is how deep a document may nest.
const maxDepth = 100

// Number is a number in a form in which equal ones are equal: JSON's 1, 1.0 and 1e0 are the same.
type Number string

// Known says whether Parse reads files of this name.
func Known(name string) bool { return format(name) != "" }

func format(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".json":
		return "json"
	case ".yaml", ".yml":
		return "yaml"
	case ".toml":
		return "toml"
	}
	return ""
}

// Parse reads a document by the ending of its name. Maps are map[string]any, lists []any, leaves nil, bool, string, Number,
// or text for what only one of the formats has (a date). A file of several YAML documents is a list of them. What two programs
// could read differently is an error: repeated keys, more after the end.
func Parse(name string, data []byte) (doc any, err error) {
	defer func() {
		if p := recover(); p != nil { // of a parser that is not ours
			err = fmt.Errorf("it cannot be read: %v", p)
		}
	}()
	switch format(name) {
	case "json":
		return parseJSON(data)
	case "yaml":
		return parseYAML(data)
	case "toml":
		var v map[string]any
		if err := toml.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		return normal(v, 0)
	}
	return nil, fmt.Errorf("%s is no JSON, YAML or TOML", path.Base(name))
}

func parseYAML(data []byte) (any, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var docs []any
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		n, err := normal(v, 0)
		if err != nil {
			return nil, err
		}
		docs = append(docs, n)
	}
	if len(docs) == 1 {
		return docs[0], nil
	}
	return docs, nil
}

// normal brings what a parser gives into our form.
func normal(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			n, err := normal(x, depth+1)
			if err != nil {
				return nil, err
			}
			out[k] = n
		}
		return out, nil
	case map[any]any: // YAML, with keys that are no text
		plain := make(map[string]any, len(v))
		for k, x := range v {
			key := fmt.Sprint(k)
			if _, twice := plain[key]; twice {
				return nil, fmt.Errorf("the key %s is there twice, as text and as something else", key)
			}
			plain[key] = x
		}
		return normal(plain, depth)
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			n, err := normal(x, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = n
		}
		return out, nil
	}
	return leaf(v), nil
}

func leaf(v any) any {
	switch v := v.(type) {
	case nil, bool, string:
		return v
	case int:
		return Number(strconv.Itoa(v))
	case int64:
		return Number(strconv.FormatInt(v, 10))
	case uint64:
		return Number(strconv.FormatUint(v, 10))
	case float64:
		return float(v)
	case json.Number:
		if n, ok := new(big.Int).SetString(v.String(), 10); ok {
			return Number(n.String())
		}
		if f, err := v.Float64(); err == nil {
			return float(f)
		}
		return Number(v)
	}
	return fmt.Sprintf("%T %v", v, v) // a date: never equal to a text
}

func float(f float64) Number {
	const exact = 1 << 53
	if f == float64(int64(f)) && -exact < f && f < exact {
		return Number(strconv.FormatInt(int64(f), 10))
	}
	return Number(strconv.FormatFloat(f, 'g', -1, 64))
}

// parseJSON refuses repeated keys, of which programs take the first or the last.
func parseJSON(data []byte) (any, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := jsonValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the end")
	}
	return v, nil
}

func jsonValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		return jsonObject(d, depth)
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := jsonValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return leaf(t), nil
}

func jsonObject(d *json.Decoder, depth int) (any, error) {
	object := map[string]any{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if _, twice := object[key]; twice || !ok {
			return nil, fmt.Errorf("the key %q is there twice", key)
		}
		if object[key], err = jsonValue(d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}
