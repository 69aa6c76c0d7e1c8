package profiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// narrowerAndWider has, for every key, what the trusted side says, and what is narrower (or the same) and wider than it.
// The texts are YAML values.
var narrowerAndWider = map[string][3]string{
	"engine":         {"native", "", ""},
	"rootfs":         {"dir:/x", "dir:/x", "host"},
	"user":           {"1000", "1000", "1001"},
	"network.mode":   {"allow", "none", "open"},
	"network.allow":  {"[go, b.example]", "[go]", "[go, c.example]"},
	"network.deny":   {"[go, b.example]", "[go, b.example, 10.0.0.0/8]", "[go]"},
	"network.tls":    {"['b.example:8443']", "['b.example:8443', c.example]", "[]"},
	"network.groups": {"{corp: [git.example]}", "{corp: [git.example]}", "{corp: [git.example, a.example]}"},
	"network.proxy":  {"host", "host", "none"},
	"network.secrets": {"[{name: A, value: 'env:A', host: 'host:80', header: X-A}, {name: B, value: 'file:/b', host: b.example, header: X-B, format: 'Bearer %s'}]",
		"[{name: A, value: 'env:A', host: 'host:80', header: X-A}]", "[{name: A, value: 'env:A', host: 'host:81', header: X-A}]"},
	"network.limits.bytes":       {"1g", "1m", "2g"},
	"network.limits.connections": {"10", "9", "11"},
	"network.limits.rate":        {"1m", "1k", "2m"},
	"network.limits.idle":        {"1m", "59s", "61s"},
	"rules":                      {"{r: {mode: allow, allow: [go, npm]}}", "{r: {mode: allow, allow: [go], limits: {bytes: 1m}}, s: {mode: none}}", "{r: {mode: allow, allow: [go, pypi]}}"},
	"steps":                      {"{f: {network: {mode: open, deny: [go]}}}", "{f: {network: {mode: open, deny: [go, npm]}}, g: {network: none}}", "{f: {network: {mode: open, deny: []}}}"},
	"limits.cpus":                {"2", "1.5", "2.001"},
	"limits.memory":              {"1g", "512m", "1025m"},
	"limits.pids":                {"100", "99", "101"},
	"limits.timeout":             {"10m", "599s", "601s"},
	"limits.output":              {"1m", "1048575", "1048577"},
	"limits.tmp":                 {"1m", "512k", "2m"},
	"limits.disk":                {"1g", "512m", "2g"},
	"limits.inodes":              {"1000", "999", "1001"},
	"disk_total":                 {"2g", "1g", "3g"},
	"checkpoints.off":            {"false", "false", "true"},
	"checkpoints.every":          {"30s", "10s", "31s"},
	"checkpoints.files":          {"50", "49", "51"},
	"checkpoints.debounce":       {"5s", "1s", "6s"},
	"retention.count":            {"10", "10", "9"},
	"retention.age":              {"10h", "10h", "9h"},
	"retention.bytes":            {"1g", "1g", "512m"},
	"retention.export":           {"zstd", "zstd", "none"},
	"ttl":                        {"8h", "1h", "9h"},
	"idle":                       {"8h", "1h", "9h"},
	"base":                       {"overlay", "overlay", "copy"},
	"driver":                     {"auto", "auto", "copy"},
	"controls.required":          {"[userns, seccomp]", "[seccomp, userns, fds]", "[userns]"},
	"controls.wanted":            {"[userns]", "[userns, fds]", "[]"},
	"controls.waivable":          {"[userns, fds]", "[fds]", "[userns, fds, idmap]"},
	"allow_weaker":               {"[userns, fds]", "[fds]", "[userns, fds, idmap]"},
	"env":                        {"{A: x}", "{A: x}", "{A: y}"},
	"pass_env":                   {"[A, B]", "[B]", "[C]"},
	"mounts":                     {"[{source: /a, target: /x, readonly: false}]", "[{source: /a, target: /x}]", "[{source: /b, target: /x}]"},
	"caches":                     {"[~/a, ~/b]", "[]", "[~/c]"},
	"host_root.paths":            {"[/usr, /opt]", "[/usr]", "[/usr, /root]"},
	"host_root.etc":              {"[a, b]", "[a]", "[shadow]"},
	"gates.enabled":              {"true", "true", "false"},
	"gates.rollback":             {"smart", "full", "keep"},
	"gates.unnamed":              {"full", "full", "keep"},
	"gates.on_block":             {"reject", "reject", "wait"},
	"gates.feedback.timeout":     {"10m", "599s", "601s"},
	"gates.feedback.escalate":    {"pause", "stop", "none"},
	"gates.command.mode":         {"warn", "block", "off"},
	"gates.command.list":         {"allow", "allow", "block"},
	"gates.command.allow":        {"[go, ls]", "[go]", "[go, sh]"},
	"gates.command.on_ask":       {"refuse", "refuse", "allow"},
	"gates.exec.mode":            {"warn", "block", "off"},
	"gates.exec.severity":        {"warn", "block", "info"},
	"gates.exec.timeout":         {"30s", "10s", "31s"},
	"gates.immutable.mode":       {"warn", "block", "off"},
	"gates.immutable.severity":   {"warn", "block", "info"},
	"gates.immutable.timeout":    {"30s", "10s", "31s"},
	"gates.links.mode":           {"warn", "block", "off"},
	"gates.links.severity":       {"warn", "block", "info"},
	"gates.links.timeout":        {"30s", "10s", "31s"},
	"gates.lock.mode":            {"warn", "block", "off"},
	"gates.lock.severity":        {"warn", "block", "info"},
	"gates.lock.timeout":         {"30s", "10s", "31s"},
	"gates.scope.mode":           {"warn", "block", "off"},
	"gates.scope.severity":       {"warn", "block", "info"},
	"gates.scope.timeout":        {"30s", "10s", "31s"},
	"gates.secrets.mode":         {"warn", "block", "off"},
	"gates.secrets.severity":     {"warn", "block", "info"},
	"gates.secrets.timeout":      {"30s", "10s", "31s"},
	"gates.size.mode":            {"warn", "block", "off"},
	"gates.size.severity":        {"warn", "block", "info"},
	"gates.size.timeout":         {"30s", "10s", "31s"},
	"gates.paths.severity":       {"warn", "block", "info"},
	"gates.paths.timeout":        {"30s", "10s", "31s"},
	"gates.exec.executables":     {"warn", "block", "info"},
	"gates.exec.programs":        {"warn", "block", "info"},
	"gates.exec.setuid":          {"warn", "block", "info"},
	"gates.exec.shebangs":        {"warn", "block", "info"},
	"gates.links.outside":        {"warn", "block", "info"},
	"gates.links.system":         {"warn", "block", "info"},
	"gates.links.broken":         {"warn", "block", "info"},
	"gates.links.replaced":       {"warn", "block", "info"},
	"gates.lock.missing":         {"warn", "block", "info"},
	"gates.lock.stale":           {"warn", "block", "info"},
	"gates.lock.alone":           {"warn", "block", "info"},
	"gates.secrets.found":        {"warn", "block", "info"},
	"gates.secrets.before":       {"warn", "block", "info"},
	"gates.size.binaries":        {"warn", "block", "info"},
	"gates.exec.allowed":         {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.lock.ignored":         {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.scope.allowed":        {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.scope.task":           {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.secrets.allowed":      {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.size.allowed":         {"[a, b]", `["...", "!a/c"]`, "[a, b, c]"},
	"gates.immutable.paths":      {"[a, b]", `["...", c]`, `["...", "!a"]`},
	"gates.scope.forbidden":      {"[a, b]", `["...", c]`, `["...", "!a"]`},
	"gates.scope.protected":      {"[a, b]", `["...", c]`, `["...", "!a"]`},
	"gates.exec.interpreters":    {"[sh, bash]", "[sh]", "[sh, evil]"},
	"gates.secrets.disabled":     {"[jwt, aws-access-token]", "[jwt]", "[jwt, private-key]"},
	"gates.immutable.keys":       {"{a.json: [x, y]}", "{b.json: [z]}", "{a.json: [x]}"},
	"gates.size.files":           {"10", "9", "11"},
	"gates.size.bytes":           {"10m", "9m", "11m"},
	"gates.size.file":            {"10m", "9m", "11m"},
	"gates.paths.mode":           {"block", "mandatory", "warn"},
	"gates.paths.setuid":         {"warn", "block", "info"},
	"gates.paths.devices":        {"warn", "block", "off"},
	"gates.paths.links":          {"warn", "block", "info"},
	"gates.paths.executables":    {"info", "warn", "off"},
	"gates.paths.watched":        {"[a]", "[a, b]", "[b]"},
	"protected":                  {"[a, b]", "[a, b, c]", "[a]"},
	"promote":                    {"branch", "patch", "apply"},
	"author":                     {"a <a@b>", "a <a@b>", "b <a@b>"},
}

// yamlFor writes a file that sets one key.
func yamlFor(path, value string) string {
	text := ""
	for i, part := range strings.Split(path, ".") {
		text += "\n" + strings.Repeat("  ", i) + part + ":"
	}
	return text + " " + value + "\n"
}

func TestEveryKeyNarrowsAndNeverWidens(t *testing.T) {
	for _, k := range keys() {
		c, ok := narrowerAndWider[k.path]
		if !ok {
			t.Errorf("%s: no case", k.path)
			continue
		}
		if c[1] == "" {
			continue // one word only: nothing to narrow
		}
		with := func(text string) (*Effective, error) {
			return Load(options(tree(t, map[string]string{"user/default.yaml": yamlFor(k.path, c[0]), "workspace/.caisson.yaml": text})))
		}
		e, err := with(yamlFor(k.path, c[1]))
		if err != nil {
			t.Errorf("%s: %s within %s: %v", k.path, c[1], c[0], err)
		} else if !strings.Contains(e.Origins[k.path], WorkspaceFile+":") {
			t.Errorf("%s comes from %s", k.path, e.Origins[k.path])
		}
		_, err = with(yamlFor(k.path, c[2]))
		var mistake *Error
		line := 1 + len(strings.Split(k.path, "."))
		if !errors.As(err, &mistake) || mistake.Key != k.path || mistake.Line != line || filepath.Base(mistake.Source) != WorkspaceFile {
			t.Errorf("%s: %s is wider than %s: %v, want line %d", k.path, c[2], c[0], err, line)
		}
	}
}

// TestRulesNarrow: what a rule leaves out is empty, or the default, and not without bounds.
func TestRulesNarrow(t *testing.T) {
	const trusted = `rules: {world: {mode: open}, later: {mode: allow}, bounded: {mode: open, limits: {bytes: 1m}}, shut: {limits: {bytes: 1m}}}
steps: {inline: {network: {mode: open}}, denied: {network: {mode: open, deny: [10.0.0.0/8], tls: [a.example], limits: {bytes: 1m}}}}
`
	const denied = "steps: {denied: {network: {mode: open, deny: [10.0.0.0/8], tls: [a.example], limits: {bytes: 1k}}}}"
	for text, want := range map[string]string{
		"rules: {world: {mode: open, allow: ['host:80']}}":                                  "in world, allow adds host:80",
		"rules: {later: {allow: ['host:80']}}":                                              "in later, allow adds host:80",
		"rules: {shut: {mode: allow}}":                                                      "in shut, mode says allow",
		"steps: {inline: {network: {mode: open, allow: [10.0.0.1]}}}":                       "in inline, allow adds 10.0.0.1",
		"steps: {denied: {network: {mode: open}}}":                                          "in denied, deny drops 10.0.0.0/8",
		strings.Replace(denied, "tls: [a.example], ", "", 1):                                "in denied, tls drops a.example",
		strings.Replace(denied, ", limits: {bytes: 1k}", "", 1):                             "in denied, limits.bytes says 10g",
		"rules: {world: {limits: {bytes: 11g}}}":                                            "in world, limits.bytes says 11g",
		"rules: {world: {limits: {connections: 1025}}}":                                     "in world, limits.connections says 1025",
		"rules: {bounded: {limits: {idle: 11m}}}":                                           "in bounded, limits.idle says 11m",
		"steps: {inline: {network: {mode: open, limits: {rate: 5g}}}}":                      "in inline, limits.rate says 5g",
		"network: {limits: {bytes: 11g}}":                                                   "network.limits.bytes: says 11g",
		"network: {limits: {connections: 1025}}":                                            "network.limits.connections: says 1025",
		"network: {limits: {rate: 5g}}":                                                     "network.limits.rate: says 5g",
		"network: {limits: {idle: 11m}}":                                                    "network.limits.idle: says 11m",
		"network: {limits: {bytes: 1g, connections: 10, rate: 1g, idle: 1m}}":               "",
		"rules: {world: {deny: [a.example], limits: {bytes: 1g}}}":                          "",
		"rules: {later: {mode: none}, bounded: {limits: {idle: 1m}}}":                       "",
		"steps: {inline: {network: {mode: allow}}, denied: {network: none}}":                "",
		"steps: {inline: {network: {mode: open, deny: ['*.a.example'], tls: [b.example]}}}": "",
		denied: "",
	} {
		_, err := Load(options(tree(t, map[string]string{"user/default.yaml": trusted, "workspace/.caisson.yaml": text + "\n"})))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\ngives %v\nwant  %s", text, err, want)
		}
	}
	defaults := egress.Limits{Bytes: egress.DefaultBytes, Connections: egress.DefaultConnections, Rate: egress.DefaultRate, Idle: egress.DefaultIdle}
	if l := load(t, LoadOptions{}).NetworkTotal(); l != defaults {
		t.Errorf("the default profile says other limits than hold without any: %+v", l)
	}
}

// No limit of inodes is wider than any, and any is narrower than none.
func TestInodesNone(t *testing.T) {
	with := func(trusted, workspace string) (*Effective, error) {
		return Load(options(tree(t, map[string]string{"user/default.yaml": "limits: {inodes: " + trusted + "}\n", "workspace/.caisson.yaml": "limits: {inodes: " + workspace + "}\n"})))
	}
	if e, err := with("none", "10000"); err != nil || e.NoInodeLimit || *e.Limits.Inodes != 10000 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := with("10000", "none"); err == nil || !strings.Contains(err.Error(), "says none, where the trusted side says 10000") {
		t.Error(err)
	}
	e := load(t, LoadOptions{Flags: map[string][]string{"disk": {"1g"}, "inodes": {"none"}}})
	if e.Limits.Inodes != nil || !e.NoInodeLimit {
		t.Errorf("%+v", e.Limits)
	}
	var text strings.Builder
	if err := e.WriteText(&text); err != nil || !strings.Contains(text.String(), "inodes: none") {
		t.Errorf("%v\n%s", err, text.String())
	}
	for _, flags := range []map[string][]string{{"inodes": {"0"}}, {"inodes": {"-1"}}, {"disk": {"none"}}, {"checkpoint-every": {"1ms"}}, {"ttl": {"0s"}}} {
		if _, err := Load(LoadOptions{Flags: flags}); err == nil {
			t.Errorf("%v is taken", flags)
		}
	}
}

func TestDigestOfEngineNeedsNoCase(t *testing.T) {
	if len(keys()) != len(narrowerAndWider) {
		t.Errorf("%d keys, %d cases", len(keys()), len(narrowerAndWider))
	}
}

func TestWorkspaceAddsWithDots(t *testing.T) {
	root := tree(t, map[string]string{"workspace/.caisson.yaml": "controls: {required: ['...', disk_quota]}\nprotected: ['...', deploy/**]\nlimits: {disk: 1g}\n"})
	e := load(t, options(root))
	if n := len(e.Controls.Required); n != 21 || e.Limits.Disk == nil {
		t.Errorf("%d controls required", n)
	}
}

func TestWorkspaceTricks(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"every mistake": {"limits: {memory: 9g}\nallow_weaker: [userns]\npass_env: [SECRET]\n", "allow_weaker: adds userns"},
		"new variable":  {"env: {LD_PRELOAD: /workspace/x.so}\n", "env: sets LD_PRELOAD"},
		"another base":  {"extends: build\n", ".caisson.yaml:1: extends: a profile inside the workspace cannot choose build"},
		"gone base":     {"extends: nothing\n", "cannot choose nothing"},
		"unknown key":   {"\nmemory: 1g\n", ".caisson.yaml:2: memory: unknown key"},
		"empty":         {"", "empty"},
		"too large":     {strings.Repeat("# \n", maxFile), "longer than"},
		"gate off":      {"gates: {paths: {mode: off}}\n", "gates.paths.mode: says off, where the trusted side says block"},
		"promote":       {"promote: apply\n", "promote: says apply"},
		"unprotect":     {"controls: {required: []}\n", "controls.required: drops userns"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(options(tree(t, map[string]string{"workspace/.caisson.yaml": c.file})))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
	for name, file := range map[string]string{"nothing": "{}\n", "its own base": "extends: default\n", "a name": "name: theirs\ndescription: d\n"} {
		e := load(t, options(tree(t, map[string]string{"workspace/.caisson.yaml": file})))
		if e.Name != "default" || e.Digest != load(t, LoadOptions{}).Digest {
			t.Errorf("%s: changed something", name)
		}
	}
}

// TestUsersWordIsLast: a flag within the trusted side's own policy is not narrowed away.
func TestUsersWordIsLast(t *testing.T) {
	root := tree(t, map[string]string{"workspace/.caisson.yaml": "limits: {memory: 1g, pids: 10}\n"})
	o := options(root)
	o.Flags = map[string][]string{"memory": {"4g"}}
	if e := load(t, o); e.Limits.Memory.String() != "4g" || e.Limits.Pids != 10 {
		t.Errorf("%+v", e.Limits)
	}
	o.Flags = map[string][]string{"memory": {"512m"}}
	if _, err := Load(o); err == nil {
		t.Error("the workspace said more than the flag, and nobody minded")
	}
}

// TestTaskInTheWorkspaceGetsNoMoreTime: than the profile has, and one outside gets what it asks for.
func TestTaskInTheWorkspaceGetsNoMoreTime(t *testing.T) {
	const task = "steps: [{run: a, timeout: 2h}, {run: b, timeout: 1s}, {run: c}]\n"
	root := tree(t, map[string]string{"workspace/task.yaml": task, "outside/task.yaml": task})
	o := options(root)
	p := load(t, o)
	for dir, want := range map[string][]time.Duration{"workspace": {10 * time.Minute, time.Second, 0}, "outside": {2 * time.Hour, time.Second, 0}} {
		got, err := o.LoadTask(filepath.Join(root, dir, "task.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Steps {
			if wall := got.Steps[i].Wall(&p.Profile); wall != want[i] {
				t.Errorf("%s: step %d gets %s, want %s", dir, i+1, wall, want[i])
			}
		}
	}
}

// TestFilesInTheWorkspaceAreUntrusted: however they are reached.
func TestFilesInTheWorkspaceAreUntrusted(t *testing.T) {
	root := tree(t, map[string]string{
		"workspace/wide.yaml": "limits: {memory: 9g}\n", "workspace/narrow.yaml": "limits: {memory: 1g}\n",
		"workspace/sub/build.yaml": "extends: build\n", "outside/wide.yaml": "limits: {memory: 9g}\n", "user/ok.yaml": "{}\n",
	})
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(root+"/workspace", root+"/alias"))
	must(os.Symlink(root+"/outside", root+"/workspace/out"))
	must(os.Symlink(root+"/workspace/wide.yaml", root+"/user/linked.yaml"))
	t.Chdir(root + "/workspace")
	for name, change := range map[string]func(o *LoadOptions){
		"by its path":          func(o *LoadOptions) { o.File = root + "/workspace/wide.yaml" },
		"by a relative path":   func(o *LoadOptions) { o.File = "./wide.yaml" },
		"through an alias":     func(o *LoadOptions) { o.File = root + "/alias/wide.yaml" },
		"through its own link": func(o *LoadOptions) { o.File = root + "/workspace/out/wide.yaml" },
		"workspace by alias":   func(o *LoadOptions) { o.File, o.Workspace = root+"/workspace/wide.yaml", root+"/alias" },
		"link in the user dir": func(o *LoadOptions) { o.Name = "linked" },
		"user dir inside":      func(o *LoadOptions) { o.Name, o.UserDir = "wide", root+"/workspace" },
		"extends":              func(o *LoadOptions) { o.File = root + "/workspace/sub/build.yaml" },
	} {
		o := options(root)
		change(&o)
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), "the workspace") {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := options(root)
	o.File = root + "/workspace/narrow.yaml"
	if e := load(t, o); e.Limits.Memory.String() != "1g" || e.Name != "default" {
		t.Errorf("%s %+v", e.Name, e.Limits)
	}
	o.File, o.Name = root+"/workspace/sub/build.yaml", "build" // the user chose the base, so the file may say so
	load(t, o)
	o.File, o.Name = root+"/outside/wide.yaml", ""
	load(t, o)
}
