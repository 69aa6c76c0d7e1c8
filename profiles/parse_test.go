package profiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/quota"
)

func TestParseValues(t *testing.T) {
	p, err := Parse("x", []byte(`
name: mine
extends: build
limits: {cpus: 1.5, memory: 1.5g, pids: 99, timeout: 1h30m, disk: 10g}
network:
  mode: none
env: {A: no, B: 1.10, C: "", D: true, E: 0755}
mounts:
  - {source: ~/data, target: /data}
  - {source: /opt/x/, target: /x, readonly: false}
caches: []
`))
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "mine" || p.Extends != "build" {
		t.Errorf("name %q, extends %q", p.Name, p.Extends)
	}
	if p.Limits.CPUs != 1500 || p.Limits.Memory != 1536*quota.MiB || *p.Limits.Disk != 10*quota.GiB || p.Limits.Tmp != 0 {
		t.Errorf("limits %+v", p.Limits)
	}
	want := "map[A:no B:1.10 C: D:true E:0755]"
	if got := fmt.Sprint(p.Env); got != want {
		t.Errorf("env is %s, want the texts as they are written: %s", got, want)
	}
	if got := fmt.Sprint(p.Mounts); got != "[{~/data /data true false} {/opt/x /x false false}]" {
		t.Errorf("mounts %s", got)
	}
	if p.Caches == nil || p.PassEnv != nil {
		t.Error("an empty list must differ from one that is not there")
	}
}

// Each case is a file and the error's texts; a number is the line.
func TestParseMistakes(t *testing.T) {
	cases := map[string]struct {
		file string
		want string
	}{
		"unknown key":         {"name: x\nlimits:\n  cpus: 1\n  memroy: 1g\n", "x.yaml:4: limits.memroy: unknown key; did you mean limits.memory?"},
		"unknown at the top":  {"engin: native\n", "x.yaml:1: engin: unknown key; did you mean engine?"},
		"at the wrong level":  {"memory: 1g\n", "x.yaml:1: memory: unknown key; did you mean limits.memory?"},
		"nothing like it":     {"zzzzzzzz: 1\n", "x.yaml:1: zzzzzzzz: unknown key"},
		"in a mount":          {"mounts:\n- {source: /a, targt: /b}\n", "x.yaml:2: mounts: unknown key \"targt\"; did you mean target?"},
		"twice":               {"engine: native\nuser: 5\nengine: native\n", "x.yaml:3: engine: set twice, first in line 1"},
		"level twice":         {"limits: {cpus: 1}\nlimits: {cpus: 2}\n", "x.yaml:2: limits: set twice, first in line 1"},
		"variable twice":      {"env:\n  A: 1\n  A: 2\n", "x.yaml:3: env: A is set twice"},
		"list for a value":    {"limits:\n  cpus: [1]\n", "x.yaml:2: limits.cpus: must be a single value"},
		"value for a list":    {"caches: ~/go\n", "x.yaml:1: caches: must be a list"},
		"value for a level":   {"limits: 5\n", "x.yaml:1: limits: must hold keys: cpus, memory"},
		"value for a map":     {"env: [A=1]\n", "x.yaml:1: env: must be a map"},
		"null":                {"engine:\n", "x.yaml:1: engine: has no value"},
		"null level":          {"limits:\n", "x.yaml:1: limits: must hold keys"},
		"null variable":       {"env: {A: }\n", "x.yaml:1: env: has no value"},
		"octal":               {"limits: {pids: 0512}\n", "x.yaml:1: limits.pids: 0512 is octal for some"},
		"octal, new":          {"limits: {pids: 0o512}\n", "limits.pids: 0o512 is octal"},
		"zero":                {"limits: {memory: 0}\n", "x.yaml:1: limits.memory: zero is no limit"},
		"negative":            {"limits: {memory: -1}\n", "x.yaml:1: limits.memory: "},
		"infinite":            {"limits: {memory: .inf}\n", "x.yaml:1: limits.memory: "},
		"no unit":             {"limits: {timeout: 600}\n", "x.yaml:1: limits.timeout: "},
		"yes is no boolean":   {"mounts: [{source: /a, target: /b, readonly: yes}]\n", `readonly must be true or false, not "yes"`},
		"relative source":     {"mounts: [{source: a, target: /b}]\n", `source "a" must begin with`},
		"dots in source":      {"mounts: [{source: /a/../etc, target: /b}]\n", `must not have .. in it`},
		"our target":          {"mounts: [{source: /a, target: /workspace/}]\n", "target /workspace is taken"},
		"proc target":         {"mounts: [{source: /a, target: /x/../proc/sys}]\n", "target /proc/sys is taken"},
		"no target":           {"mounts: [{source: /a}]\n", `target "" is not an absolute`},
		"bad control":         {"controls:\n  required:\n  - userns\n  - secomp\n", `x.yaml:4: controls.required: unknown control "secomp"; did you mean seccomp?`},
		"bad word":            {"network: {mode: host}\n", `"host" must be one of none, allow, open`},
		"false for none":      {"promote: no\n", `"no" must be one of none, patch, branch, apply`},
		"bad engine":          {"engine: docker\n", `"docker" must be one of native`},
		"bad user":            {"user: root\n", `"root" is not an id`},
		"user too large":      {"user: 65536\n", "is not an id from 0 to 65535"},
		"reserved variable":   {"env: {CAISSON_TASK: 1}\n", "CAISSON_TASK is set by caisson itself"},
		"bad variable":        {"pass_env: [A=B]\n", `"A=B" is not the name of a variable`},
		"bad glob":            {"protected: ['a[']\n", "x.yaml:1: protected: gate paths: "},
		"absolute pattern":    {"protected: [/etc/x]\n", "x.yaml:1: protected: gate paths: "},
		"bad glob of /etc":    {"host_root: {etc: ['a[']}\n", `"a[" is not a glob`},
		"relative cache":      {"caches: [go/pkg]\n", `"go/pkg" must begin with / or ~/`},
		"path as a name":      {"extends: ../x\n", `x.yaml:1: extends: "../x" is not a profile's name`},
		"anchor":              {"env: &a {A: 1}\n", "x.yaml:1: anchors, aliases and merge keys"},
		"merge key":           {"env:\n  <<: {A: 1}\n", "x.yaml:2: anchors, aliases and merge keys"},
		"explicit type":       {"user: !!str 5\n", "x.yaml:1: the type !!str is not allowed"},
		"two documents":       {"engine: native\n---\nengine: native\n", "a second document"},
		"empty":               {"", "x.yaml: empty"},
		"comment only":        {"# nothing\n", "x.yaml: empty"},
		"null document":       {"---\n", "x.yaml: empty"},
		"list":                {"- a\n", "x.yaml:1: must be keys and values"},
		"not YAML":            {"a: b: c\n", "x.yaml:1: not YAML: "},
		"not YAML, later":     {"user: 5\n\nengine: b: c\n", "x.yaml:3: not YAML: "},
		"not YAML, unclosed":  {"user: 5\ncaches: [a\nengine: c\n", "x.yaml:2: not YAML: "},
		"not YAML, too many":  {"user: 5\nengine: b\n}\n", "x.yaml:3: not YAML: "},
		"tab":                 {"limits:\n\tcpus: 1\n", "x.yaml:2: not YAML: "},
		"binary":              {"\x00\x01", "x.yaml:1: not UTF-8 text"},
		"invalid UTF-8":       {"user: 5\nname: \xff\n", "x.yaml:2: not UTF-8 text"},
		"escape":              {"user: 5\n\n# \x1b[2J\n", "x.yaml:3: not UTF-8 text"},
		"complex key":         {"? [a, b]\n: c\n", "x.yaml:1: unknown key"},
		"too long":            {"description: " + strings.Repeat("x", maxFile) + "\n", "x.yaml: longer than"},
		"name is no text":     {"name: [x]\n", "x.yaml:1: name: must be a single value"},
		"control in a rootfs": {"rootfs: \"a\\nb\"\n", "control characters"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x.yaml", []byte(c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%T is not an *Error", err)
			}
		})
	}
}

func TestParseReportsEveryMistakeInOrder(t *testing.T) {
	_, err := Parse("x", []byte("zzzzzz: 1\nlimits: {cpus: x, memory: 1g}\nengine: [a]\n"))
	var lines []int
	for _, e := range flatten(err) {
		var mistake *Error
		if errors.As(e, &mistake) {
			lines = append(lines, mistake.Line)
		}
	}
	if fmt.Sprint(lines) != "[1 2 3]" {
		t.Errorf("lines %v in %v", lines, err)
	}
}

func TestAliasBombIsCheap(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	if _, err := Parse("x", []byte(bomb)); err == nil {
		t.Error("accepted")
	}
	if _, err := Parse("x", []byte(strings.Repeat("[", maxFile))); err == nil {
		t.Error("accepted")
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"memory", "memroy", 1}, {"pids", "pid", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if distance(c.a, c.b) != distance(c.b, c.a) {
			t.Errorf("distance(%q, %q) is not symmetric", c.a, c.b)
		}
	}
}

func TestSchemaIsJSONAndKnowsEveryKey(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys() {
		level := schema
		for _, part := range strings.Split(k.path, ".") {
			if level["additionalProperties"] != false {
				t.Errorf("%s: a level accepts unknown keys", k.path)
			}
			next, ok := level["properties"].(map[string]any)[part].(map[string]any)
			if !ok {
				t.Fatalf("no %s in the schema", k.path)
			}
			level = next
		}
		if level["description"] == "" || level["type"] == nil {
			t.Errorf("%s: %v", k.path, level)
		}
	}
}

// Whatever is accepted can be loaded, written and read back with the same meaning.
func FuzzParse(f *testing.F) {
	for _, name := range Builtin() {
		data, _ := builtin.ReadFile("builtin/" + name + ".yaml")
		f.Add(data)
	}
	f.Add([]byte("env: {A: 'x: #y', B: \"\\u0085\"}\nmounts: ['...', {source: /a b, target: '/#c'}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("fuzz", data)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Message == "" {
				t.Fatalf("%#v is not an *Error", err)
			}
			return
		}
		if len(p.Name) == 0 {
			t.Fatal("a profile without a name")
		}
		p.digest()
	})
}
