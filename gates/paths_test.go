package gates

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// judgePaths runs the gate and returns each finding as "severity rule path".
func judgePaths(t testing.TB, cfg PathsConfig, c *Change) []string {
	t.Helper()
	g, err := Paths(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v := Run(t.Context(), []Configured{{Gate: g, Mode: ModeBlock}}, c)[0]
	if v.Status == Error {
		t.Fatal(v.Reason)
	}
	var out []string
	for _, f := range v.Findings {
		out = append(out, fmt.Sprintf("%s %s %s", f.Severity, f.Rule, f.Path))
		if f.Message == "" || f.Severity == SeverityBlock && f.Remedy == "" {
			t.Errorf("a finding without words: %+v", f)
		}
	}
	return out
}

func worst(findings []string) string {
	for _, s := range []string{"block", "warn", "info"} {
		if slices.ContainsFunc(findings, func(f string) bool { return strings.HasPrefix(f, s+" ") }) {
			return s
		}
	}
	return ""
}

func TestProtected(t *testing.T) {
	for want, names := range map[string][]string{
		"block": {
			".git", ".git/config", ".git/hooks/pre-commit", "sub/.git", "sub/.git/hooks/x", "a/b/c/.git/modules/x/config",
			".GIT/config", ".Git/hooks/x", ".git./config", ".git /config", "git~1/config", "GIT~1/hooks/x", ".git::$INDEX_ALLOCATION/config",
			".g\u200cit/config", ".gi\u200bt/config", "\ufeff.git/config", ".git\u00ad/config", ".\u200dgit/x",
			".envrc", "sub/.envrc", ".ENVRC", ".envrc.", ".mise.toml", "mise.local.toml", ".config/mise/config.toml",
			".vscode/tasks.json", ".vscode/settings.json", ".V\u017fcode/Ta\u017fKs.json", ".vscode/tas\u212as.json", "sub/.vscode/launch.json", "x.code-workspace",
			".devcontainer/devcontainer.json", ".devcontainer.json", ".idea/workspace.xml", ".run/a.run.xml", ".vimrc", "sub/.exrc", ".nvim.lua", ".dir-locals.el",
			".claude/settings.json", ".claude/settings.local.json", ".claude/hooks/x.sh", ".mcp.json", ".cursor/mcp.json", ".codex/config.toml",
			".gemini/settings.json", ".aider.conf.yml", "opencode.json", ".opencode/plugin/x.ts",
			".husky/pre-commit", ".husky/_/h", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook-local.yaml", ".githooks/x", ".huskyrc.js",
			".gdbinit", ".lldbinit", ".Rprofile", ".irbrc", ".caisson.yaml",
			".bashrc", ".ssh/authorized_keys", ".config/autostart/x.desktop", ".local/bin/ls", ".gitconfig", ".profile",
			".con\ufb01g/git/config", "\xff/.g\u200cit/config",
		},
		"warn": {
			".github/workflows/ci.yml", ".gitlab-ci.yml", "Jenkinsfile", ".npmrc", "sub/.npmrc", ".yarnrc.yml", ".yarn/releases/y.cjs", ".pnp.cjs",
			".cargo/config.toml", ".bazelrc", ".tool-versions", ".gitmodules", ".gitattributes", "sub/.gitattributes", "CLAUDE.md", "AGENTS.md",
			".cursorrules", ".cursor/rules/x.mdc", ".claude/commands/x.md", "x.desktop", "autorun.inf", ".vscode/extensions.json", ".env", ".env.local",
		},
		"": {
			"Makefile", "main.go", "src/git/config", "git/hooks/x", ".gitignore", "a.git", "x.git/y", ".gitkeep", "sub/.bashrc", "package.json", "go.mod",
			"CMakeLists.txt", "build.gradle", "docs/envrc", "vscode/tasks.json", "tasks.json", "sub/.ssh/config", ".editorconfig", "settings.json",
			"HEAD", "refs/x", "mise/readme", "...", ". .", "a:b", "HEAD/x", "Dockerfile", "setup.py", ".eslintrc.js",
		},
	} {
		for _, name := range names {
			entries := []Entry{{Path: name, Kind: KindModified, Type: TypeFile, OldType: TypeFile, Mode: 0o644, OldMode: 0o644}}
			got := judgePaths(t, PathsConfig{}, &Change{Entries: entries})
			got = slices.DeleteFunc(got, func(f string) bool { return strings.HasPrefix(f, "warn name ") })
			if worst(got) != want {
				t.Errorf("%q: %q, want %q", name, got, want)
			}
		}
	}
}

func TestProtectedInEveryKind(t *testing.T) {
	for _, e := range []Entry{
		{Kind: KindAdded, Type: TypeDir, Mode: 0o755}, {Kind: KindDeleted, OldType: TypeDir}, {Kind: KindMode, Type: TypeFile, OldType: TypeFile, Mode: 0o755},
		{Kind: KindType, Type: TypeSymlink, OldType: TypeDir, Link: "x"}, {Kind: KindLink, Type: TypeSymlink, OldType: TypeSymlink, Link: "x"}, {Kind: KindAdded, Type: TypeFifo},
	} {
		e.Path = ".git/hooks"
		if got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{e}}); worst(got) != "block" {
			t.Errorf("%+v: %q", e, got)
		}
	}
}

func TestProtectedParents(t *testing.T) {
	for p, want := range map[string]string{
		".vscode": "block", "sub/.vscode": "block", ".VSCode": "block", ".claude": "block", ".config": "block", ".config/git": "block",
		".github": "block", "vscode": "", "src": "", "sub/.config/git": "", ".git": "block",
	} {
		got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{added(p, TypeSymlink, 0o777, "elsewhere")}})
		if worst(got) != want {
			t.Errorf("link at %s: %q, want %q", p, got, want)
		}
		got = judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{added(p, TypeDir, 0o755, "")}})
		if p != ".git" && p != ".config/git" && worst(got) == "block" {
			t.Errorf("directory %s: %q", p, got)
		}
	}
}

func TestAllowProtected(t *testing.T) {
	c := &Change{Entries: []Entry{
		added(".git/config", TypeFile, 0o644, ""), added(".git", TypeDir, 0o755, ""), added(".GIT/config", TypeFile, 0o644, ""),
		added("sub/.git/x", TypeFile, 0o644, ""), added(".envrc", TypeFile, 0o644, ""),
	}}
	got := judgePaths(t, PathsConfig{AllowProtected: []string{".git/**"}}, c)
	want := []string{"info protected .git/config", "info protected .git", "block protected .GIT/config", "block protected sub/.git/x", "block protected .envrc"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	// What a remedy says is what makes the finding go.
	odd := &Change{Entries: []Entry{added(".idea/[a]*?{x}'", TypeFile, 0o644, "")}}
	g, err := Paths(PathsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := g.Check(t.Context(), odd)
	if err != nil || len(v.Findings) != 1 {
		t.Fatal(v, err)
	}
	_, word, _ := strings.Cut(v.Findings[0].Remedy, "--allow-protected ")
	glob := strings.ReplaceAll(word[1:len(word)-1], `'\''`, "'") // as a shell reads it
	if got := judgePaths(t, PathsConfig{AllowProtected: []string{glob}}, odd); worst(got) != "info" {
		t.Errorf("with %s: %q", word, got)
	}
}

func TestLinks(t *testing.T) {
	base := map[string]string{"data": "/mnt/data", "same": "src", "up": "src/deep/..", ".husky": "tools/hooks", "loop": "loop"}
	readlink := func(p string) (string, bool) { l, ok := base[p]; return l, ok }
	for _, c := range []struct {
		at, target string
		want       string
	}{
		{"l", "file", ""}, {"l", "./file", ""}, {"l", "a//b/", ""}, {"a/l", "../file", ""}, {"a/b/l", "../../x", ""}, {"a/l", "..", ""}, {"l", ".", ""},
		{".dot/l", "../x", ""}, {"...", "x", ""}, {"l", "same/x", ""}, {"l", "up/../x", ""}, {"l", "missing/x", ""}, {"l", "src/x/../..", ""},
		{"l", "..", "block"}, {"l", "../x", "block"}, {"a/l", "../..", "block"}, {"a/l", "../../workspace/x", "block"}, {"l", "a/../../x", "block"},
		{".dot/l", "../../x", "block"}, {"l", "/", "block"}, {"l", "/etc/passwd", "block"}, {"l", "/workspace/x", "block"}, {"l", "//etc", "block"}, {"l", "/usr/../etc/passwd", "block"}, {"l", "/proc/self/cwd", "block"},
		{"l", "data", "block"}, {"l", "data/x", "block"}, {"l", "same/../..", "block"}, {"l", "up/../..", "block"}, {"l", "l", "block"}, {"l", "loop/x", "block"}, {"l", "", "block"},
		{"l", "/usr/bin/python3", "warn"}, {"venv/bin/python", "/usr/bin/python3", "warn"}, {"l", "/dev/null", "warn"}, {"l", "/opt", "warn"}, {"l", "/usrlocal", "block"}, {"l", "/dev/nullx", "block"},
		{"l", ".git/hooks", "warn"}, {"l", "same/../.git/config", "warn"},
	} {
		got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{added(c.at, TypeSymlink, 0o777, c.target)}, Readlink: readlink})
		if worst(got) != c.want {
			t.Errorf("%s -> %q: %q, want %q", c.at, c.target, got, c.want)
		}
	}
}

// Links of one change that only together leave.
func TestLinkChains(t *testing.T) {
	for name, c := range map[string]struct {
		links []string // path, target, …
		want  []string
	}{
		"shallower":         {[]string{"d1/d2/s", "../..", "x", "d1/d2/s/.."}, []string{"block link x"}},
		"in another case":   {[]string{"d1/d2/s", "../..", "x", "D1/d2/S/.."}, []string{"block link x"}},
		"by two":            {[]string{"a", "b", "b", "c/d", "c/d", "..", "x", "a/../etc"}, []string{"block link x"}},
		"by an outside one": {[]string{"a", "/home", "x", "a/user"}, []string{"block link a", "block link x"}},
		"into a system one": {[]string{"a", "/usr", "x", "a/bin", "y", "a/../etc"}, []string{"warn link a", "warn link x", "block link y"}},
		"harmless":          {[]string{"a", "b", "b", "c", "x", "a/y"}, nil},
		"circle":            {[]string{"a", "b", "b", "a"}, []string{"block link a", "block link b"}},
	} {
		var change Change
		for i := 0; i < len(c.links); i += 2 {
			change.Entries = append(change.Entries, added(c.links[i], TypeSymlink, 0o777, c.links[i+1]))
		}
		if got := judgePaths(t, PathsConfig{}, &change); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// A deleted link of the workspace leads nowhere any more.
	c := &Change{
		Entries:  []Entry{{Path: "data", Kind: KindDeleted, OldType: TypeSymlink}, added("x", TypeSymlink, 0o777, "data/y")},
		Readlink: func(p string) (string, bool) { return "/mnt", p == "data" },
	}
	if got := judgePaths(t, PathsConfig{}, c); got != nil {
		t.Errorf("%q", got)
	}
}

// Links that the workspace has already move what is protected.
func TestAliases(t *testing.T) {
	base := map[string]string{".husky": "tools/hooks", ".envrc": "env/dev", "CLAUDE.md": "docs/agents.md", ".vscode": "../elsewhere", "tools/hooks": "../real/h{1}"}
	c := &Change{
		Entries:  []Entry{added("real/h{1}/pre-commit", TypeFile, 0o644, ""), added("env/dev", TypeFile, 0o644, ""), added("real/other", TypeFile, 0o644, "")},
		Readlink: func(p string) (string, bool) { l, ok := base[p]; return l, ok },
	}
	got := judgePaths(t, PathsConfig{}, c)
	if want := []string{"block protected real/h{1}/pre-commit", "block protected env/dev"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestModes(t *testing.T) {
	f := func(k Kind, mode, old fs.FileMode) Entry {
		return Entry{Path: "x", Kind: k, Type: TypeFile, OldType: TypeFile, Mode: mode, OldMode: old}
	}
	for _, c := range []struct {
		e    Entry
		want []string
	}{
		{f(KindAdded, 0o644, 0), nil},
		{f(KindAdded, 0o755, 0), []string{"info executable x"}},
		{f(KindMode, 0o744, 0o644), []string{"info executable x"}},
		{f(KindModified, 0o755, 0o755), nil},
		{f(KindMode, 0o644, 0o755), nil},
		{f(KindMode, 0o755|fs.ModeSetuid, 0o755), []string{"block setuid x"}},
		{f(KindAdded, 0o600|fs.ModeSetgid, 0), []string{"block setuid x"}},
		{f(KindDeleted, 0, 0o755|fs.ModeSetuid), nil},
		{added("x", TypeDir, 0o755|fs.ModeSetgid, ""), nil}, // directories inherit it from a shared workspace
		{added("x", TypeChar, 0, ""), []string{"block device x"}},
		{added("x", TypeBlock, 0, ""), []string{"block device x"}},
		{added("x", TypeFifo, 0, ""), []string{"warn special x"}},
		{added("x", TypeSocket, 0, ""), []string{"warn special x"}},
		{added("x", "door", 0, ""), []string{"block type x"}},
		{added("x", "", 0, ""), []string{"block type x"}},
	} {
		if got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{c.e}}); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.e, got, c.want)
		}
	}
}

func TestBadPaths(t *testing.T) {
	for _, p := range []string{"", ".", "..", "../x", "/x", "a/../b", "a//b", "a/", "./a", "a\x00b"} {
		if got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{added(p, TypeFile, 0o644, "")}}); worst(got) != "block" {
			t.Errorf("%q: %q", p, got)
		}
	}
	// The workspace's own directory can change its mode, but be nothing else.
	for kind, want := range map[Kind]string{KindMode: "", KindModified: "", KindAdded: "block", KindDeleted: "block", KindType: "block"} {
		e := Entry{Path: ".", Kind: kind, Type: TypeDir, OldType: TypeDir}
		if got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{e}}); worst(got) != want {
			t.Errorf("%s: %q", kind, got)
		}
	}
	for _, p := range []string{"a\nb", "a\x1b[2Jb", "a\u202ecod.exe", "a\u200bb"} {
		if got := judgePaths(t, PathsConfig{}, &Change{Entries: []Entry{added(p, TypeFile, 0o644, "")}}); worst(got) != "warn" {
			t.Errorf("%q: %q", p, got)
		}
	}
}

func TestPathsConfig(t *testing.T) {
	for _, bad := range []PathsConfig{
		{Mode: "loud"}, {Links: "fatal"}, {Setuid: "Block"}, {Protected: []string{"["}}, {Watched: []string{"/etc"}},
		{AllowProtected: []string{"../x"}}, {Protected: []string{""}},
	} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is fine?", bad)
		}
		if _, err := Paths(bad); err == nil {
			t.Errorf("%+v makes a gate", bad)
		}
	}
	c := &Change{Entries: []Entry{added("l", TypeSymlink, 0o777, "/etc"), added("conf/Secret.key", TypeFile, 0o755, ""), added(".git/x", TypeFile, 0o644, "")}}
	got := judgePaths(t, PathsConfig{Links: SeverityOff, Executables: SeverityBlock, Protected: []string{"conf/*.KEY"}}, c)
	if want := []string{"block protected conf/Secret.key", "block executable conf/Secret.key"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	digests := map[string]bool{}
	for _, cfg := range []PathsConfig{{}, {Mode: ModeWarn}, {Links: SeverityWarn}, {AllowProtected: []string{".git/**"}}, {Protected: []string{"x"}}} {
		g, err := Paths(cfg)
		if err != nil {
			t.Fatal(err)
		}
		digests[g.Digest()] = true
	}
	if len(digests) != 4 { // the mode is no part of the answer
		t.Errorf("%d digests", len(digests))
	}
}

func TestManyFindings(t *testing.T) {
	var c Change
	for i := range 500 {
		c.Entries = append(c.Entries, added(fmt.Sprintf("bin/%d", i), TypeFile, 0o755, ""))
	}
	c.Entries = append(c.Entries, added("etc", TypeSymlink, 0o777, "/etc"))
	g, err := Paths(PathsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v := Run(t.Context(), []Configured{{Gate: g, Mode: ModeBlock}}, &c)[0]
	if len(v.Findings) != maxListed+1 || v.Dropped != 400 || v.Checked != 501 || v.Status != Fail {
		t.Errorf("%d findings, %d dropped, %d checked, %s", len(v.Findings), v.Dropped, v.Checked, v.Status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Check(ctx, &c); err == nil {
		t.Error("a cancelled check passed")
	}
}

func TestExpand(t *testing.T) {
	for p, want := range map[string]string{
		"a": "a", "{a,b}": "a b", "x{a,}y": "xay xy", "{a,{b,c}d}/{e,f}": "a/e a/f bd/e bd/f cd/e cd/f", "a{b": "a{b", "[{]a,b}": "[{]a,b}", "{a}": "a",
	} {
		if got := strings.Join(expand(p), " "); got != want {
			t.Errorf("expand(%q) = %q", p, got)
		}
	}
}

func FuzzFold(f *testing.F) {
	for _, s := range []string{".GIT", "a/b", ".g\u200cit", "git~1", "a. /b", "\xff", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := fold(s)
		if strings.Count(got, "/") != strings.Count(s, "/") {
			t.Errorf("fold(%q) = %q has another depth", s, got)
		}
		if again := fold(got); again != got && !strings.ContainsAny(s, ":. ") {
			t.Errorf("fold(%q) = %q, then %q", s, got, again)
		}
	})
}

func BenchmarkPaths(b *testing.B) {
	var c Change
	for i := range 100_000 {
		c.Entries = append(c.Entries, added(fmt.Sprintf("src/pkg%d/module/file%d.go", i%300, i), TypeFile, 0o644, ""))
	}
	g, err := Paths(PathsConfig{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := g.Check(b.Context(), &c); err != nil {
			b.Fatal(err)
		}
	}
}
