package profiles

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// stepVerdict says whether a step of a profile may reach a destination.
func stepVerdict(t *testing.T, e *Effective, step, destination string) egress.Verdict {
	t.Helper()
	p, err := e.StepRule(step)
	if err != nil {
		t.Fatal(err)
	}
	r, err := egress.Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	return r.Try(destination)
}

// TestBuiltinSteps: fetch reaches the registry and nothing else, and nobody else reaches anything.
func TestBuiltinSteps(t *testing.T) {
	for name, destination := range map[string]string{"go": "proxy.golang.org:443", "node": "registry.npmjs.org:443", "python": "pypi.org:443",
		"rust": "index.crates.io:443", "c": "deb.debian.org:80"} {
		e := load(t, LoadOptions{Name: name})
		if v := stepVerdict(t, e, "fetch", destination); !v.Allowed {
			t.Errorf("%s: fetch does not reach %s: %+v", name, destination, v)
		}
		for _, step := range []string{"build", "test", ""} {
			if v := stepVerdict(t, e, step, destination); v.Allowed {
				t.Errorf("%s: %q reaches %s", name, step, destination)
			}
		}
		if v := stepVerdict(t, e, "fetch", "www.example.com:443"); v.Allowed {
			t.Errorf("%s: fetch reaches everybody", name)
		}
		if _, err := e.StepRule("fetsh"); !errors.Is(err, ErrNoStep) || !strings.Contains(err.Error(), "did you mean fetch?") {
			t.Errorf("%s: a step that is not there: %v", name, err)
		}
	}
	if _, err := load(t, LoadOptions{}).StepRule("whatever"); err != nil {
		t.Errorf("without steps of its own a profile takes any name: %v", err)
	}
}

const networkYAML = `network:
  mode: allow
  allow: [corp, 'host:8080']
  deny: [bad.corp.example, bad.example]
  tls: ['git.example:8443']
  groups: {corp: ['*.corp.example:443', inner], inner: [10.1.0.0/16]}
  limits: {bytes: 10m, connections: 5, rate: 1m, idle: 30s}
  secrets: [{name: TOKEN, value: 'env:HOST_TOKEN', host: 'host:8080', header: Authorization, format: 'Bearer %s'}]
rules:
  registry: {allow: [go]}
  world: {mode: open, allow: [bad.example], deny: [corp], limits: {bytes: 1g}}
steps:
  fetch: {network: registry}
  look: {network: world}
  build: {network: none}
  database: {network: {allow: ['host:5432', bad.example]}}
  plain: {}
`

func TestRules(t *testing.T) {
	root := tree(t, map[string]string{"user/x.yaml": networkYAML,
		"user/y.yaml": "extends: x\nrules: {registry: {allow: ['...', npm]}}\nsteps: {build: {network: registry}}\n"})
	o := options(root)
	o.Name = "x"
	e := load(t, o)
	for _, c := range []struct {
		step, destination string
		allowed           bool
	}{
		{"", "git.corp.example:443", true}, {"", "git.corp.example:80", false}, {"", "bad.corp.example:443", false},
		{"", "10.1.2.3:22", true}, {"", "host.caisson.internal:8080", true}, {"plain", "10.1.2.3:22", true},
		{"fetch", "proxy.golang.org:443", true}, {"fetch", "git.corp.example:443", false},
		{"look", "www.example.com:80", true}, {"look", "git.corp.example:443", false}, {"look", "10.1.2.3:22", false},
		{"look", "bad.example:80", false}, {"database", "bad.example:80", false}, // what the profile denies, no rule allows
		{"build", "proxy.golang.org:443", false},
		{"database", "host.caisson.internal:5432", true}, {"database", "host.caisson.internal:8080", false},
	} {
		if v := stepVerdict(t, e, c.step, c.destination); v.Allowed != c.allowed {
			t.Errorf("%q to %s: %+v", c.step, c.destination, v)
		}
	}
	for _, step := range []string{"", "fetch", "look", "database"} {
		if p, err := e.StepRule(step); err != nil || !slices.Equal(p.TLS, []string{"git.example:8443"}) {
			t.Errorf("TLS must be spoken by %q at %q (%v)", step, p.TLS, err)
		}
	}
	if l := e.NetworkTotal(); l != (egress.Limits{Bytes: 10 << 20, Connections: 5, Rate: 1 << 20, Idle: 30 * time.Second}) {
		t.Errorf("limits %+v", l)
	}
	if got := e.Origins["rules.registry"]; !strings.HasSuffix(got, "x.yaml:10") {
		t.Errorf("the rule is said to come from %s", got)
	}
	o.Name = "y"
	e = load(t, o)
	for _, step := range []string{"fetch", "build"} {
		for _, destination := range []string{"proxy.golang.org:443", "registry.npmjs.org:443"} {
			if v := stepVerdict(t, e, step, destination); !v.Allowed {
				t.Errorf("extended, %s to %s: %+v", step, destination, v)
			}
		}
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back Effective
	if err := json.Unmarshal(text, &back); err != nil || back.digest() != e.Digest {
		t.Errorf("through JSON the digest is %s, not %s (%v)", back.digest(), e.Digest, err)
	}
	var b strings.Builder
	if err := e.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	again := load(t, LoadOptions{File: tree(t, map[string]string{"z.yaml": b.String()}) + "/z.yaml"})
	if again.Digest != e.Digest {
		t.Errorf("another digest after reading back\n%s", b.String())
	}
}

func TestSecret(t *testing.T) {
	root := tree(t, map[string]string{"user/x.yaml": networkYAML, "token": "from a file\n"})
	o := options(root)
	o.Name = "x"
	s := load(t, o).Network.Secrets[0]
	h, err := s.Added([]string{"HOST_TOKEN=secret", "HOME=" + root})
	if err != nil || h.Host != egress.HostName || h.Port != 8080 || h.Name != "Authorization" {
		t.Fatalf("%+v, %v", h, err)
	}
	if v, err := h.Value(); err != nil || v != "Bearer secret" {
		t.Errorf("%q, %v", v, err)
	}
	if strings.Contains(s.Placeholder(), "secret"+"=") || s.Placeholder() != "caisson-secret-TOKEN" {
		t.Errorf("placeholder %q", s.Placeholder())
	}
	if h, err = s.Added(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Value(); err == nil {
		t.Error("a variable that is not there gives a secret")
	}
	s.Value, s.Format = "file:~/token", ""
	if h, err = s.Added([]string{"HOME=" + root}); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Value(); err != nil || v != "from a file" {
		t.Errorf("%q, %v", v, err)
	}
}

// TestNetworkMistakes: each is told with its line.
func TestNetworkMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"network:\n  allow: [go,\n    'a..b']":                                                 "x.yaml:3: network.allow: ",
		"network:\n  mode: allow\n  allow: [nosuch]":                                           "x.yaml:3: network.allow: entry 1: \"nosuch\": there is no group",
		"network:\n  groups:\n    corp: [nosuch]\n  allow: [corp]":                             "x.yaml:3: network.groups: ",
		"network:\n  mode: allow\n  allow:\n  - a.example\n  - nosuch":                         "x.yaml:5: network.allow: entry 2: \"nosuch\": there is no group",
		"rules:\n  r: {mode: allow,\n    allow: ['010.0.0.1']}":                                "x.yaml:3: rules: ",
		"rules:\n  r: {mode: allow, allow: [nosuch]}":                                          "x.yaml:2: rules.r: allow, entry 1",
		"rules:\n  r:\n    mood: allow":                                                        "x.yaml:3: rules: unknown key; did you mean mode?",
		"rules:\n  none: {mode: open}":                                                         "x.yaml:2: rules: the rule none is there already",
		"rules: [a]":                                                                           "x.yaml:1: rules: must be a map",
		"steps:\n  f: {network: nosuch}":                                                       "x.yaml:2: steps.f: there is no rule \"nosuch\"",
		"steps:\n  f: registry":                                                                "x.yaml:2: steps: must be {network: RULE}",
		"steps:\n  f: {net: none}":                                                             "x.yaml:2: steps: unknown key",
		"network:\n  secrets: [{name: A, value: hunter2, host: a.example, header: X-A}]":       "x.yaml:2: network.secrets: in entry 1, value: must be env:NAME or file:PATH",
		"network:\n  secrets: [{name: A, value: 'env:A', host: a.example, header: Host}]":      "x.yaml:2: network.secrets: in entry 1, \"Host\" is no header",
		"network:\n  secrets: [{name: A, value: 'env:A', host: 'a_!:1', header: X-A}]":         "x.yaml:2: network.secrets: in entry 1, host ",
		"network:\n  secrets: [{name: A, value: 'env:A', host: 'a.example:443', header: X-A}]": "x.yaml:2: network.secrets: in entry 1, host \"a.example\": on port 443",
		"network:\n  secrets: [{name: A, value: 'env:A', host: 'a.example:0', header: X-A}]":   "x.yaml:2: network.secrets: in entry 1, host: \"0\" is no port",
		"network:\n  limits: {bytes: 0}":                                                       "x.yaml:2: network.limits.bytes: zero is no limit",
	} {
		root := tree(t, map[string]string{"user/x.yaml": text + "\n"})
		o := options(root)
		o.Name = "x"
		_, err := Load(o)
		if err == nil || !strings.Contains(strings.TrimPrefix(err.Error(), root+"/user/"), want) {
			t.Errorf("%s\ngives %v\nwant  %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a secret written into a profile is repeated: %v", err)
		}
	}
}

func TestAllowFlag(t *testing.T) {
	e := load(t, LoadOptions{Flags: map[string][]string{"allow": {"a.example:80,443", "go"}}})
	if e.Network.Mode != "allow" || !slices.Equal(e.Network.Allow, []string{"a.example:80,443", "go"}) || e.Origins["network.mode"] != "flag --allow" {
		t.Errorf("%+v from %s", e.Network, e.Origins["network.mode"])
	}
	e = load(t, LoadOptions{Flags: map[string][]string{"allow": {"host:80"}, "network": {"open"}}, Env: []string{"CAISSON_NETWORK=none"}})
	if e.Network.Mode != "open" {
		t.Errorf("%+v", e.Network)
	}
	e = load(t, LoadOptions{Flags: map[string][]string{"allow": {"host:80"}}, Env: []string{"CAISSON_NETWORK=none"}})
	if e.Network.Mode != "allow" {
		t.Errorf("a flag is more than a variable: %+v", e.Network)
	}
	for _, flags := range []map[string][]string{{"allow": {"go"}, "network": {"none"}}, {"allow": {"nosuch"}}, {"allow": {"a b"}}, {"allow": {""}}} {
		_, err := Load(LoadOptions{Flags: flags})
		if err == nil || !strings.Contains(err.Error(), "flag --allow: network.allow: ") {
			t.Errorf("%v: %v", flags, err)
		}
	}
}

// TestLearned: what is learnt is a profile that holds in the place of the one that was run under.
func TestLearned(t *testing.T) {
	root := tree(t, map[string]string{"user/named.yaml": networkYAML, "t2.yaml": "extends: named\nlimits: {memory: 300m}\nenv: {A: '1'}\n" +
		"network: {limits: {bytes: 1m}}\nsteps: {more: {network: {mode: open}}}\n"})
	rules := map[string][]string{"": {"host:80", "a.example:443"}, "fetch": {"10.0.0.1:80"}, "build": nil}
	for name, change := range map[string]func(o *LoadOptions){
		"built-in": func(o *LoadOptions) { o.Name = "go" },
		"by name":  func(o *LoadOptions) { o.Name = "named" },
		"by path":  func(o *LoadOptions) { o.File = root + "/t2.yaml" },
	} {
		o := options(root)
		change(&o)
		e := load(t, o)
		text := e.Learned(rules)
		o.Name, o.File = "", tree(t, map[string]string{"learned.yaml": text})+"/learned.yaml"
		again := load(t, o)
		want := e.Profile
		want.Network.Mode, want.Network.Allow = "allow", rules[""]
		want.Steps = maps.Clone(e.Steps)
		want.Steps["fetch"] = StepPolicy{Rule: &NetworkRule{Mode: "allow", Allow: rules["fetch"]}}
		want.Steps["build"] = StepPolicy{Rule: &NetworkRule{Mode: "none", Allow: []string{}}}
		if again.Digest != want.digest() {
			t.Errorf("%s: another policy\n%s", name, text)
		}
	}
	o := options(root)
	o.Name = "go"
	if text := load(t, o).Learned(rules); text != `extends: go
network: {mode: allow, allow: ["host:80", "a.example:443"]}
steps:
    build: {network: {mode: none, allow: []}}
    fetch: {network: {mode: allow, allow: ["10.0.0.1:80"]}}
` {
		t.Errorf("it is not the smallest:\n%s", text)
	}
}
