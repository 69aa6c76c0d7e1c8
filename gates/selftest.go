package gates

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// fixture is a change that a gate must accept (rule "") or must refuse by a rule.
type fixture struct {
	name    string
	rule    string
	entries []Entry
}

func added(p string, t FileType, mode fs.FileMode, link string) Entry {
	return Entry{Path: p, Kind: KindAdded, Type: t, Mode: mode, Link: link}
}

// pathsFixtures are the known-good and known-bad changes of the paths gate.
var pathsFixtures = []fixture{
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

// Selftest proves of every built-in gate that it accepts what is good and can turn red: with the gate's
// defaults, each known-good fixture passes and each known-bad one fails by its rule. The error names those
// that do not, joined.
func Selftest(ctx context.Context) error {
	g, err := Paths(PathsConfig{})
	if err != nil {
		return fmt.Errorf("selftest: %w", err)
	}
	var errs []error
	for _, f := range pathsFixtures {
		if err := f.prove(ctx, g); err != nil {
			errs = append(errs, fmt.Errorf("selftest: gate %s: %s: %w", g.Name(), f.name, err))
		}
	}
	return errors.Join(errs...)
}

func (f fixture) prove(ctx context.Context, g Gate) error {
	c := &Change{Entries: f.entries, Digest: "selftest"}
	vs := Run(ctx, []Configured{{Gate: g, Mode: ModeMandatory}}, c)
	v := vs[0]
	byRule := slices.ContainsFunc(v.Findings, func(x Finding) bool { return x.Rule == f.rule && x.Severity == SeverityBlock })
	switch {
	case v.Status == Error:
		return errors.New(v.Reason)
	case f.rule == "" && (Blocked(vs) || v.Status != Pass):
		return fmt.Errorf("refused: %+v", v.Findings)
	case f.rule != "" && (!Blocked(vs) || v.Status != Fail || !byRule):
		return fmt.Errorf("not refused by rule %s: %+v", f.rule, v.Findings)
	}
	return nil
}
