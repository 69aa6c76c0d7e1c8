package document

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPath(t *testing.T) {
	for _, s := range []string{"a", "a.b", "scripts.*", `tool."a.b".c`, `"*".x`, `""`, "0.a-b_c", "target.cfg(unix).x", `"a\"b"`} {
		p, err := ParsePath(s)
		if err != nil || p.String() != s {
			t.Errorf("%s: %s, %v", s, p, err)
		}
	}
	for _, s := range []string{"", ".", "a.", ".a", "a..b", `"a`, `"a"b`, `"\x"`, "a\x00b", strings.Repeat("a.", 200) + "a"} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("%q is taken for %q", s, p)
		}
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "]\n"
	}
	for name, text := range map[string]string{
		"a.json": "{} {}", "b.json": `{"a": 1, "a": 1}`, "c.json": deep, "d.json": "", "e.json": `{"a": 1,}`, "f.json": "// x\n{}",
		"a.yaml": "a: 1\na: 2\n", "b.yaml": bomb, "c.yaml": "1: a\n\"1\": b\n", "d.yml": "a: [", "e.yaml": deep,
		"a.toml": "a = 1\na = 2\n", "b.toml": "a", "x.ini": "a=1",
	} {
		if v, err := Parse(name, []byte(text)); err == nil {
			t.Errorf("%s is %.80v", name, v)
		}
	}
}

func TestEqual(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{`{"a": 1, "b": [true, null]}`, "{\"b\":[true,null],\n\"a\":1.0}", true},
		{`9007199254740993`, `9007199254740992`, false}, {`1e999999999`, `1e999999999`, true}, {`1e400`, `1e401`, false},
		{`"1"`, `1`, false}, {`[]`, `{}`, false}, {`[[], {}]`, `[[], {}]`, true}, {`null`, `false`, false}, {`-0`, `0`, true},
	} {
		a, err := Parse("a.json", []byte(c.a))
		b, err2 := Parse("b.json", []byte(c.b))
		if err != nil || err2 != nil || Equal(a, b) != c.equal {
			t.Errorf("%s and %s: %v, %v %v", c.a, c.b, Equal(a, b), err, err2)
		}
	}
}

// FuzzParse: nothing crashes, what JSON is taken is JSON, and a document that has no NaN is equal to itself.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a": [1, "x", null, {"b": 1e5}]}`, "a: &x {b: 1}\nc: *x\n---\n- 2020-01-01\n", "[a.b]\nc = 2020-01-01T00:00:00Z\nd = [1, 2.5, nan]\n", "<<: {a: 1}\n", "? [a]\n: b\n", "!!binary aGk="} {
		for kind := range 3 {
			f.Add(kind, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, kind int, data []byte) {
		name := []string{"a.json", "a.yaml", "a.toml"}[uint(kind)%3]
		a, err := Parse(name, data)
		if err != nil {
			return
		}
		if name == "a.json" && !json.Valid([]byte(strings.TrimPrefix(string(data), "\ufeff"))) {
			t.Errorf("%q is no JSON", data)
		}
		b, err := Parse(name, data)
		if err != nil || !Equal(a, b) && !hasNaN(a) {
			t.Errorf("%q: %v and %v, %v", data, a, b, err)
		}
		p := Path{star, star}
		for _, v := range Select(a, p) {
			Line(data, v.At)
			if back, err := ParsePath(v.At.String()); err == nil && back.String() != v.At.String() {
				t.Errorf("%q is read as %q", v.At, back)
			}
		}
	})
}
