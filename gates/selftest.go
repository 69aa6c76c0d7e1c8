package gates

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
)

// Fixture is a change that a gate must accept (Rule "") or must refuse by a rule.
type Fixture struct {
	Name   string
	Rule   string
	Change *Change
}

func added(p string, t FileType, mode fs.FileMode, link string) Entry {
	return Entry{Path: p, Kind: KindAdded, Type: t, Mode: mode, Link: link}
}

// pathsFixtures are the known-good and known-bad changes of the paths gate.
var pathsFixtures = []struct {
	name, rule string
	entries    []Entry
}{
	{"ordinary work", "", []Entry{
		added("src", TypeDir, 0o755, ""), added("src/main.go", TypeFile, 0o644, ""), added("build.sh", TypeFile, 0o755, ""),
		added("Makefile", TypeFile, 0o644, ""), added("current", TypeSymlink, 0o777, "src/main.go"), added("src/up", TypeSymlink, 0o777, "../build.sh"),
		{Path: "README", Kind: KindDeleted, OldType: TypeFile},
	}},
	{"a git hook", "protected", []Entry{added(".git/hooks/post-checkout", TypeFile, 0o755, "")}},
	{"a git hook by another case", "protected", []Entry{added("vendor/x/.GiT/config", TypeFile, 0o644, "")}},
	{"an environment file", "protected", []Entry{added(".envrc", TypeFile, 0o644, "")}},
	{"a link in the place of .git", "protected", []Entry{added(".git", TypeSymlink, 0o777, "evil")}},
	{"a link in the place of .vscode", "protected-link", []Entry{added(".vscode", TypeSymlink, 0o777, "evil")}},
	{"an agent's hooks deleted", "protected", []Entry{{Path: ".claude/settings.json", Kind: KindDeleted, OldType: TypeFile}}},
	{"a repository without .git", "git-repository", []Entry{added("x/HEAD", TypeFile, 0o644, ""), added("x/refs/heads", TypeDir, 0o755, ""), added("x/config", TypeFile, 0o644, "")}},
	{"a link to the host", "link", []Entry{added("notes", TypeSymlink, 0o777, "/etc/passwd")}},
	{"a link upwards", "link", []Entry{added("a/b", TypeSymlink, 0o777, "../../.ssh/authorized_keys")}},
	{"a link upwards by another link", "link", []Entry{added("a", TypeSymlink, 0o777, "b/c"), added("b/c", TypeSymlink, 0o777, "../.."), added("x", TypeSymlink, 0o777, "a/etc")}},
	{"a setuid file", "setuid", []Entry{added("su", TypeFile, 0o755|fs.ModeSetuid, "")}},
	{"a setgid file", "setuid", []Entry{{Path: "x", Kind: KindMode, Type: TypeFile, OldType: TypeFile, Mode: 0o755 | fs.ModeSetgid, OldMode: 0o755}}},
	{"a device", "device", []Entry{added("sda", TypeBlock, 0o666, "")}},
	{"a path outside", "path", []Entry{added("../x", TypeFile, 0o644, "")}},
}

// PathsFixtures are the known-good and known-bad changes of the gate paths, for its defaults.
func PathsFixtures() []Fixture {
	out := make([]Fixture, len(pathsFixtures))
	for i, f := range pathsFixtures {
		out[i] = Fixture{f.name, f.rule, &Change{Entries: f.entries, Digest: "selftest"}}
	}
	return out
}

// Prove says why g does not do with the fixture what it must: nil when it does.
func (f Fixture) Prove(ctx context.Context, g Gate) error {
	vs := Run(ctx, []Configured{{Gate: g, Mode: ModeMandatory}}, f.Change)
	v := vs[0]
	byRule := slices.ContainsFunc(v.Findings, func(x Finding) bool { return x.Rule == f.Rule && x.Severity == SeverityBlock })
	switch {
	case v.Status == Error:
		return fmt.Errorf("%s: %s", f.Name, v.Reason)
	case f.Rule == "" && (Blocked(vs) || v.Status != Pass):
		return fmt.Errorf("%s: refused: %+v", f.Name, v.Findings)
	case f.Rule != "" && (!Blocked(vs) || v.Status != Fail || !byRule):
		return fmt.Errorf("%s: not refused by rule %s: %+v", f.Name, f.Rule, v.Findings)
	}
	return nil
}
