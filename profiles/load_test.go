package profiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// tree writes files below a new directory: "user/x.yaml" → content.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// options are those of a machine that has the directories user, system and workspace below root.
func options(root string) LoadOptions {
	return LoadOptions{
		UserDir: filepath.Join(root, "user"), SystemDir: filepath.Join(root, "system"), Workspace: filepath.Join(root, "workspace"),
	}
}

func load(t *testing.T, o LoadOptions) *Effective {
	t.Helper()
	e, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDefault(t *testing.T) {
	e := load(t, LoadOptions{})
	want := quota.Limits{CPUs: 2 * quota.CPU, Memory: 2 * quota.GiB, Pids: 512, Output: 256 * quota.MiB, Tmp: 512 * quota.MiB}
	want.Timeout, _ = quota.ParseDuration("10m")
	if l := e.Limits; l.Disk == nil || *l.Disk != quota.GiB || l.Inodes == nil || *l.Inodes != 200_000 || e.DiskTotal != 10*quota.GiB {
		t.Errorf("disk: %+v, %s", l, e.DiskTotal)
	}
	got := e.Limits
	got.Disk, got.Inodes = nil, nil
	if got != want {
		t.Errorf("limits %+v", e.Limits)
	}
	all := slices.DeleteFunc(isolation.Controls(), func(c isolation.Control) bool { return c == isolation.ControlNetworkRules })
	if !slices.Equal(e.Controls.Required, all) {
		t.Errorf("required %v, want %v", e.Controls.Required, all)
	}
	if !slices.Equal(e.Controls.Waivable, isolation.Controls()) || len(e.AllowWeaker) != 0 {
		t.Errorf("waivable %v, waived %v", e.Controls.Waivable, e.AllowWeaker)
	}
	if e.Name != "default" || e.Engine != "native" || e.Rootfs != "host" || e.Network.Mode != "none" || e.Promote != "none" {
		t.Errorf("%+v", e.Profile)
	}
	if !slices.Equal(e.Protected, gates.DefaultProtected()) || e.Gates.Paths.Mode != gates.ModeBlock {
		t.Errorf("gates %+v %v", e.Gates, e.Protected)
	}
	for _, k := range keys() {
		if e.Origins[k.path] != "built-in default" && !k.maybe {
			t.Errorf("%s comes from %q", k.path, e.Origins[k.path])
		}
	}
	if uid, gid := e.IDs(); uid != 1000 || gid != 1000 {
		t.Errorf("ids %d:%d", uid, gid)
	}
}

func TestBuiltins(t *testing.T) {
	base, build, strict := load(t, LoadOptions{}), load(t, LoadOptions{Name: "build"}), load(t, LoadOptions{Name: "strict"})
	if build.Limits.Memory != 8*quota.GiB || build.Limits.Pids != 4096 || !slices.Contains(build.Caches, "~/go/pkg/mod") {
		t.Errorf("build: %+v", build.Profile)
	}
	for _, pair := range [][2]int64{
		{int64(strict.Limits.CPUs), int64(base.Limits.CPUs)}, {int64(strict.Limits.Memory), int64(base.Limits.Memory)},
		{int64(strict.Limits.Pids), int64(base.Limits.Pids)}, {int64(strict.Limits.Timeout), int64(base.Limits.Timeout)},
		{int64(strict.Limits.Output), int64(base.Limits.Output)}, {int64(strict.Limits.Tmp), int64(base.Limits.Tmp)},
		{int64(*strict.Limits.Disk), int64(*base.Limits.Disk)}, {int64(*strict.Limits.Inodes), int64(*base.Limits.Inodes)},
	} {
		if pair[0] >= pair[1] {
			t.Errorf("strict has a limit of %d, default %d", pair[0], pair[1])
		}
	}
	if !slices.Contains(strict.Controls.Required, isolation.ControlUserNS) {
		t.Error("strict does without user namespaces")
	}
}

// TestStrictWaivesNothing: not from a flag, a variable, a file or the workspace.
func TestStrictWaivesNothing(t *testing.T) {
	root := tree(t, map[string]string{"user/mine.yaml": "extends: strict\nallow_weaker: [userns]\n"})
	for name, change := range map[string]func(o *LoadOptions){
		"flag":     func(o *LoadOptions) { o.Flags = map[string][]string{"allow-weaker": {"cgroups"}} },
		"variable": func(o *LoadOptions) { o.Env = []string{"CAISSON_ALLOW_WEAKER=cgroups"} },
		"file":     func(o *LoadOptions) { o.Name = "mine" },
	} {
		o := options(root)
		o.Name = "strict"
		change(&o)
		_, err := Load(o)
		var e *Error
		if !errors.As(err, &e) || e.Key != "allow_weaker" || e.Source == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := load(t, LoadOptions{Flags: map[string][]string{"allow-weaker": {"cgroups,userns", "idmap"}}})
	if oneOf(e.AllowWeaker) != "cgroups, userns, idmap" || e.Origins["allow_weaker"] != "built-in default, flag --allow-weaker" {
		t.Errorf("default: %v from %s", e.AllowWeaker, e.Origins["allow_weaker"])
	}
}

// TestPrecedence takes the sources away one by one, the strongest first.
func TestPrecedence(t *testing.T) {
	root := tree(t, map[string]string{
		"file.yaml":          "extends: mine\nlimits:\n  memory: 3g\n",
		"user/mine.yaml":     "# user's\nlimits: {memory: 4g}\n",
		"system/mine.yaml":   "limits: {memory: 5g}\n",
		"user/default.yaml":  "limits: {memory: 6g}\n",
		"system/build.yaml":  "limits: {memory: 7g}\n",
		"system/mine2.yaml":  "extends: build\n",
		"workspace/ordinary": "",
	})
	o := options(root)
	o.Workspace = ""
	o.Flags = map[string][]string{"memory": {"1g"}}
	o.Env = []string{"CAISSON_MEMORY=2g"}
	o.File = filepath.Join(root, "file.yaml")
	check := func(want, origin string) {
		t.Helper()
		e := load(t, o)
		if e.Limits.Memory.String() != want || e.Origins["limits.memory"] != origin {
			t.Errorf("memory %s from %s, want %s from %s", e.Limits.Memory, e.Origins["limits.memory"], want, origin)
		}
	}
	check("1g", "flag --memory")
	o.Flags = nil
	check("2g", "env CAISSON_MEMORY")
	o.Env = []string{"CAISSON_MEMORY="}
	check("3g", root+"/file.yaml:3")
	o.File, o.Name = "", "mine"
	check("4g", root+"/user/mine.yaml:2")
	o.UserDir = ""
	check("5g", root+"/system/mine.yaml:1")
	o.Name = "default"
	check("2g", "built-in default")
	o.UserDir = filepath.Join(root, "user")
	check("6g", root+"/user/default.yaml:1")
	o.Name = "build" // the system's build stands on the built-in one, not on the user's default
	check("7g", root+"/system/build.yaml:1")
	o.Name, o.Env = "", []string{"CAISSON_PROFILE=mine2"}
	check("7g", root+"/system/build.yaml:1")
	o.Env = []string{"CAISSON_PROFILE=" + root + "/file.yaml"}
	check("3g", root+"/file.yaml:3")
}

func TestFileStandsOnName(t *testing.T) {
	root := tree(t, map[string]string{"x.yaml": "limits: {pids: 7}\n"})
	e := load(t, LoadOptions{Name: "build", File: root + "/x.yaml"})
	if e.Limits.Memory != 8*quota.GiB || e.Limits.Pids != 7 || e.Name != "x" {
		t.Errorf("%s: %+v", e.Name, e.Limits)
	}
}

func TestMergeRules(t *testing.T) {
	root := tree(t, map[string]string{
		"user/base.yaml": "env: {A: 1, B: 1}\ncaches: [~/a, ~/b]\npass_env: [X]\nmounts: [{source: /a, target: /m}, {source: /b, target: /n}]\n",
		"user/top.yaml":  "extends: base\nenv: {B: 2, C: 2}\ncaches: []\npass_env: ['...', Y, X]\nmounts: ['...', {source: /c, target: /m}]\n",
	})
	o := options(root)
	o.Name = "top"
	e := load(t, o)
	if fmt.Sprint(e.Env) != "map[A:1 B:2 C:2]" {
		t.Errorf("maps merge: %v", e.Env)
	}
	if e.Caches == nil || len(e.Caches) != 0 {
		t.Errorf("an empty list replaces: %v", e.Caches)
	}
	if fmt.Sprint(e.PassEnv) != "[X Y]" {
		t.Errorf("... keeps, and nothing is there twice: %v", e.PassEnv)
	}
	if fmt.Sprint(e.Mounts) != "[{/b /n true true} {/c /m true true}]" {
		t.Errorf("a mount replaces one at the same target: %v", e.Mounts)
	}
	base, top := root+"/user/base.yaml", root+"/user/top.yaml"
	for key, want := range map[string]string{
		"env.A": base + ":1", "env.B": top + ":2", "caches": top + ":3", "pass_env": "built-in default, " + base + ":3, " + top + ":4",
	} {
		// base.yaml replaces pass_env, so the built-in default is no part of it.
		want = strings.TrimPrefix(want, "built-in default, ")
		if e.Origins[key] != want {
			t.Errorf("%s comes from %q, want %q", key, e.Origins[key], want)
		}
	}
}

func TestFlags(t *testing.T) {
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	AddFlags(fs)
	dir := t.TempDir()
	err := fs.Parse([]string{"-m", "1g", "--memory=512m", "-e", "A=b=c,d", "-e", "LANG", "-v", dir + ":/x", "-v", dir + ":/y:rw", "--promote", "-u", "5:6"})
	if err != nil {
		t.Fatal(err)
	}
	e := load(t, LoadOptions{Flags: FlagValues(fs), Env: []string{"LANG=de", "OTHER=x"}})
	if e.Limits.Memory != 512*quota.MiB || e.Promote != "apply" || e.User != "5:6" {
		t.Errorf("%+v", e.Profile)
	}
	if uid, gid := e.IDs(); uid != 5 || gid != 6 {
		t.Errorf("ids %d:%d", uid, gid)
	}
	if got := e.Vars([]string{"LANG=de", "OTHER=x"}); fmt.Sprint(got) != "map[A:b=c,d LANG:de]" {
		t.Errorf("variables %v", got)
	}
	if e.Origins["env.A"] != "flag --env" || e.Origins["pass_env"] != "built-in default, flag --env" {
		t.Errorf("origins %v", e.Origins)
	}
	want := []Mount{{Source: dir, Target: "/x", ReadOnly: true}, {Source: dir, Target: "/y"}}
	if !slices.Equal(e.Mounts, want) {
		t.Errorf("mounts %v", e.Mounts)
	}
	for _, args := range [][]string{
		{"--memory", "much"}, {"-e", "1A=x"}, {"-e", "CAISSON_X=1"}, {"-v", "/a"}, {"-v", "volume:/x"}, {"-v", "/a:/b:z"},
		{"--network", "host"}, {"--allow-weaker", "everything"}, {"--timeout", "0s"},
	} {
		fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
		AddFlags(fs)
		if err := fs.Parse(args); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestVariablesNameThemselves(t *testing.T) {
	_, err := Load(LoadOptions{Env: []string{"CAISSON_MEMORY=x", "CAISSON_PIDS_LIMIT=-1", "CAISSON_STATE=/x"}})
	for _, want := range []string{"env CAISSON_MEMORY: limits.memory: ", "env CAISSON_PIDS_LIMIT: limits.pids: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	_, err = Load(LoadOptions{Flags: map[string][]string{"memory": {"x"}, "nonsense": {"y"}}})
	for _, want := range []string{"flag --memory: limits.memory: ", "flag --nonsense: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

func TestExtendsMistakes(t *testing.T) {
	files := map[string]string{
		"user/self.yaml": "\nextends: self\n", "user/a.yaml": "extends: b\n", "user/b.yaml": "extends: a\n",
		"user/gone.yaml": "extends: biuld\n", "system/up.yaml": "extends: a\n", "user/other.yaml": "name: another\n",
		"user/default.yaml": "extends: default\n", "user/bad.yaml": "limits: {cpus: x}\n", "user/bare.yaml": "protected: []\n", "user/low.yaml": "limits: {memory: 1k}\n",
	}
	for i := range 20 {
		files[fmt.Sprintf("user/deep%d.yaml", i)] = fmt.Sprintf("extends: deep%d\n", i+1)
	}
	root := tree(t, files)
	for name, want := range map[string]string{
		"self":    root + "/user/self.yaml:2: extends: a profile cannot extend itself",
		"a":       "/user/b.yaml → " + root + "/user/a.yaml",
		"gone":    root + `/user/gone.yaml:1: extends: no such profile "biuld"`,
		"up":      `no such profile "a"`, // the system's files do not stand on the user's
		"other":   `name: is "another" in a file for "other"`,
		"deep0":   "stands on more than 16 files",
		"bad":     root + "/user/bad.yaml:1: limits.cpus: ",
		"bare":    root + "/user/bare.yaml:1: protected: must not be empty",
		"low":     root + "/user/low.yaml:1: limits.memory: 1k is less than",
		"biuld":   "did you mean build?",
		"../x":    "is not a profile's name",
		"a/b":     "is not a profile's name",
		"..":      "is not a profile's name",
		"a\x00b":  "is not a profile's name",
		".hidden": "is not a profile's name",
	} {
		o := options(root)
		o.Name = name
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant %s", name, err, want)
		}
	}
	o := options(root)
	o.Name = "biuld"
	if _, err := Load(o); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
	o.Name = "default" // extends its namesake one level down
	load(t, o)
}

func TestTrustedFileMustBeAPlainFile(t *testing.T) {
	root := tree(t, map[string]string{"open.yaml": "{}\n"})
	if err := os.Chmod(root+"/open.yaml", 0o666); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		root + "/open.yaml": "can be written by everybody", root: "is not a regular file", root + "/gone.yaml": "no such file",
	} {
		if _, err := Load(LoadOptions{File: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDigest(t *testing.T) {
	root := tree(t, map[string]string{
		"user/a.yaml": "description: one\npass_env: [X, Y]\nenv: {A: 1, B: 2}\nlimits: {memory: 1024m}\n",
		"user/b.yaml": "limits:\n  memory: 1g\n\nenv: {B: 2, A: 1}\npass_env: [Y, X]\n",
		"user/c.yaml": "limits: {memory: 1g}\nenv: {B: 2, A: 1}\npass_env: [Y]\n",
	})
	digest := func(name string) string {
		o := options(root)
		o.Name = name
		return load(t, o).Digest
	}
	if digest("a") != digest("b") {
		t.Error("the same values, another digest")
	}
	if digest("a") == digest("c") || digest("default") == digest("strict") {
		t.Error("other values, the same digest")
	}
	if d := digest("default"); !strings.HasPrefix(d, "sha256:") || len(d) != 7+64 {
		t.Errorf("digest %s", d)
	}
}

// Every key must count in the digest, or a change of policy could go unseen.
func TestDigestCoversEveryKey(t *testing.T) {
	for path, text := range narrowerAndWider {
		if text[1] == "" {
			continue // has one value only
		}
		root := tree(t, map[string]string{"user/x.yaml": yamlFor(path, text[1]), "user/y.yaml": yamlFor(path, text[2])})
		x, y := options(root), options(root)
		x.Name, y.Name = "x", "y"
		if a, b := load(t, x).Digest, load(t, y).Digest; a == b {
			t.Errorf("%s: %s and %s give the same digest", path, text[1], text[2])
		}
	}
}

func TestWriteTextReadsBack(t *testing.T) {
	e := load(t, LoadOptions{Name: "build", Flags: map[string][]string{
		"env": {"A=x: #y", "B=", "C=no", "D=0755", "E=two\nlines", "HOME"}, "volume": {"/a b:/#c:rw"}, "disk": {"1g"},
		"allow": {"a.example:80,443", "host:8080"},
	}})
	var b strings.Builder
	if err := e.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	root := tree(t, map[string]string{"x.yaml": b.String()})
	again := load(t, LoadOptions{File: root + "/x.yaml"})
	if again.Digest != e.Digest {
		t.Errorf("another digest after reading back\n%s", b.String())
	}
	for _, want := range []string{"memory: 8g # built-in build", "disk: 1g # flag --disk", "caches: # built-in build", e.Digest} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestList(t *testing.T) {
	root := tree(t, map[string]string{
		"user/build.yaml": "description: mine\n", "system/build.yaml": "description: ours\n", "system/bad.yaml": "x: 1\n",
		"user/README": "", "user/.hidden.yaml": "",
	})
	var got []string
	for _, i := range List(options(root)) {
		got = append(got, fmt.Sprintf("%s|%s|%s|%t", i.Name, i.Description, strings.TrimPrefix(i.Source, root), i.Error != ""))
	}
	want := []string{
		"bad||/system/bad.yaml|true", "build|mine|/user/build.yaml|false", "build|ours|/system/build.yaml|false",
		"build|The default with room to compile, and the package caches of the host to read from.|built-in build|false",
	}
	if len(got) != 3+len(Builtin()) || !slices.Equal(got[:4], want) || !strings.HasPrefix(got[5], "default|") {
		t.Errorf("got %q", got)
	}
}

func TestDefaultDirsAndSplitRef(t *testing.T) {
	for env, want := range map[string]string{
		"HOME=/h": "/h/.config/caisson/profiles", "HOME=/h,XDG_CONFIG_HOME=/c": "/c/caisson/profiles", "": "",
		"HOME=/h,XDG_CONFIG_HOME=c": "/h/.config/caisson/profiles", "HOME=h": "",
	} {
		if user, system := DefaultDirs(strings.Split(env, ",")); user != want || system != "/etc/caisson/profiles" {
			t.Errorf("%s: %q %q", env, user, system)
		}
	}
	for ref, want := range map[string]string{"a": "a|", "./a": "|./a", "a.yaml": "|a.yaml", "/x/y": "|/x/y", "a.b": "a.b|"} {
		if name, file := SplitRef(ref); name+"|"+file != want {
			t.Errorf("%s: %q %q", ref, name, file)
		}
	}
}

func TestRootNeedsItsWord(t *testing.T) {
	_, err := Load(LoadOptions{Flags: map[string][]string{"user": {"0"}}})
	if err == nil || !strings.HasPrefix(err.Error(), "flag --user: user: 0 is root") {
		t.Errorf("%v", err)
	}
	load(t, LoadOptions{Flags: map[string][]string{"user": {"0"}, "allow-weaker": {"nonroot"}}})
}

func TestEnvironmentNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, k := range keys() {
		for _, word := range []string{k.flag, k.short, k.env(), k.path} {
			if other := seen[word]; word != "" && other != "" && other != k.path {
				t.Errorf("%s stands for %s and %s", word, other, k.path)
			}
			seen[word] = k.path
		}
	}
}

func BenchmarkLoadDefault(b *testing.B) {
	for b.Loop() {
		if _, err := Load(LoadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
