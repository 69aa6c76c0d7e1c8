package files

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/files/internal/document"
)

// LockConfig configures the gate lock.
type LockConfig struct {
	Missing gates.Severity `json:"missing,omitempty"` // dependencies without any lock file; "": block
	Stale   gates.Severity `json:"stale,omitempty"`   // dependencies changed and their lock file not; "": block
	Alone   gates.Severity `json:"alone,omitempty"`   // a lock file changed and no dependencies; "": block
	Ignored []string       `json:"ignored,omitempty"` // globs of manifests and lock files that are not looked at
}

// Validate names the first value that makes no sense.
func (c LockConfig) Validate() error {
	_, err := Lock(c)
	return err
}

const lockVersion = 1

// ecosystem is a kind of manifest with the files that lock what it asks for.
type ecosystem struct {
	name      string
	manifests []string // names of files
	locks     []string
	above     bool   // the lock file may lie in a directory above: workspaces
	remedy    string // the command that writes the lock file
	keys      []string
	text      func(data []byte) []string // of a manifest that is no document: its lines about dependencies
}

var ecosystems = []ecosystem{
	{name: "Go", manifests: []string{"go.mod"}, locks: []string{"go.sum"}, remedy: "go mod tidy", text: goRequirements},
	{name: "npm", manifests: []string{"package.json"}, above: true, remedy: "npm install --package-lock-only, or what your package manager has for it",
		locks: []string{"package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb"},
		keys:  []string{"dependencies", "devDependencies", "optionalDependencies", "peerDependencies", "bundleDependencies", "overrides", "resolutions", "pnpm.overrides"}},
	{name: "Cargo", manifests: []string{"Cargo.toml"}, above: true, remedy: "cargo update --workspace", locks: []string{"Cargo.lock"},
		keys: []string{"dependencies", "dev-dependencies", "build-dependencies", "target.*.dependencies", "target.*.dev-dependencies", "target.*.build-dependencies", "workspace.dependencies", "patch", "replace"}},
	{name: "Python", manifests: []string{"pyproject.toml"}, above: true, remedy: "uv lock, poetry lock or pdm lock", locks: []string{"uv.lock", "poetry.lock", "pdm.lock", "pylock.toml"},
		keys: []string{"project.dependencies", "project.optional-dependencies", "dependency-groups", "tool.poetry.dependencies", "tool.poetry.dev-dependencies", "tool.poetry.group", "tool.uv.dev-dependencies", "tool.uv.sources", "tool.uv.override-dependencies", "tool.pdm.dev-dependencies"}},
	{name: "Pipenv", manifests: []string{"Pipfile"}, remedy: "pipenv lock", locks: []string{"Pipfile.lock"}, text: meaningfulLines},
	{name: "Bundler", manifests: []string{"Gemfile", "gems.rb"}, remedy: "bundle lock", locks: []string{"Gemfile.lock", "gems.locked"}, text: meaningfulLines},
	{name: "Composer", manifests: []string{"composer.json"}, remedy: "composer update --lock", locks: []string{"composer.lock"},
		keys: []string{"require", "require-dev", "replace", "conflict", "provide", "repositories"}},
}

// Lock returns the gate that holds dependency manifests and their lock files together.
func Lock(c LockConfig) (gates.Gate, error) {
	if err := fill("lock", level{&c.Missing, gates.SeverityBlock}, level{&c.Stale, gates.SeverityBlock}, level{&c.Alone, gates.SeverityBlock}); err != nil {
		return nil, err
	}
	lists, err := globs("lock", c.Ignored)
	if err != nil {
		return nil, err
	}
	return gate{"lock", gates.DigestOf("lock", lockVersion, c), func(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
		l := lockLook{LockConfig: c, change: change, ignored: lists[0], reader: gates.NewReader(ctx, change, gates.DefaultBounds), changed: map[string]*gates.Entry{}}
		err := each(ctx, change, func(e *gates.Entry) { l.changed[e.Path] = e })
		for i := 0; err == nil && i < len(ecosystems); i++ {
			err = l.ecosystem(&ecosystems[i])
		}
		return l.list.Verdict(len(change.Entries)), err
	}}, nil
}

type lockLook struct {
	LockConfig
	change  *gates.Change
	ignored gates.Globs
	reader  *gates.Reader
	changed map[string]*gates.Entry
	list    gates.List
}

// ecosystem compares the manifests of one kind with their lock files.
func (l *lockLook) ecosystem(k *ecosystem) error {
	touched := map[string]bool{} // lock files whose manifests ask for something else than before
	var locks []*gates.Entry
	for i := range l.change.Entries {
		e := &l.change.Entries[i]
		name := path.Base(e.Path)
		if _, ignored := l.ignored.Match(e.Path); ignored || vendored(e.Path) {
			continue
		}
		if slices.Contains(k.locks, name) && e.Kind != gates.KindMode {
			locks = append(locks, e)
		}
		if slices.Contains(k.manifests, name) {
			if err := l.manifest(k, e, touched); err != nil {
				return err
			}
		}
	}
	for _, e := range locks {
		if !touched[e.Path] {
			l.list.Add(gates.Finding{Rule: "alone", Path: e.Path, Severity: l.Alone,
				Message: "the lock file changes and the dependencies that it locks do not", Remedy: "put it back, or change the manifest with it; on purpose: name it in gates.lock.ignored"})
		}
	}
	return nil
}

// vendored are copies of other projects, which nobody installs from where they lie.
func vendored(p string) bool {
	return slices.ContainsFunc(strings.Split(path.Dir(p), "/"), func(e string) bool { return e == "node_modules" || e == "vendor" || e == "testdata" })
}

// manifest judges one changed manifest, and notes which lock file may change with it.
func (l *lockLook) manifest(k *ecosystem, e *gates.Entry, touched map[string]bool) error {
	if e.Kind == gates.KindMode {
		return nil
	}
	differs, asks, err := l.requirements(k, e)
	if err != nil || !differs {
		return err
	}
	found := false
	for dir := path.Dir(e.Path); ; dir = path.Dir(dir) {
		for _, name := range k.locks {
			lock := path.Join(dir, name)
			change := l.changed[lock]
			switch {
			case change != nil:
				touched[lock] = true
				found = found || change.Kind != gates.KindDeleted || !asks
			case !found && l.exists(lock):
				l.list.Add(gates.Finding{Rule: "stale", Path: e.Path, Severity: l.Stale,
					Message: fmt.Sprintf("its dependencies change and %s does not", lock), Remedy: k.remedy})
				found = true
			}
		}
		if found || !k.above || dir == "." || dir == "/" {
			break
		}
	}
	if !found && asks {
		l.list.Add(gates.Finding{Rule: "missing", Path: e.Path, Severity: l.Missing,
			Message: "asks for dependencies, and no lock file (" + strings.Join(k.locks, ", ") + ") says which versions those are", Remedy: k.remedy})
	}
	return nil
}

func (l *lockLook) exists(p string) bool {
	if l.change.Lookup == nil {
		return false
	}
	t, ok := l.change.Lookup(p)
	return ok && t == gates.TypeFile
}

// requirements says whether what a manifest asks for differs from before, and whether it asks for anything now.
func (l *lockLook) requirements(k *ecosystem, e *gates.Entry) (differs, asks bool, err error) {
	var was, is any
	if e.Kind != gates.KindAdded && e.OldType == gates.TypeFile {
		data, err := l.reader.Old(e.Path)
		if err != nil {
			return false, false, unread(&l.list, err)
		}
		if was, err = k.read(path.Base(e.Path), data); err != nil {
			was = string(data) // what was no manifest differs from every one
		}
	}
	if e.Kind != gates.KindDeleted && e.Type == gates.TypeFile {
		data, err := l.reader.New(e.Path)
		if err != nil {
			return false, false, unread(&l.list, err)
		}
		if is, err = k.read(path.Base(e.Path), data); err != nil {
			l.list.Add(gates.Finding{Rule: "unreadable", Path: e.Path, Severity: gates.SeverityBlock,
				Message: fmt.Sprintf("is no manifest of %s: %v", k.name, err), Remedy: "correct it"})
			return false, false, nil
		}
	}
	requirements, _ := is.([]any)
	return !sameRequirements(was, is), len(requirements) > 0, nil
}

// sameRequirements takes an absent manifest for one that asks for nothing.
func sameRequirements(was, is any) bool {
	if was == nil {
		was = []any{}
	}
	if is == nil {
		is = []any{}
	}
	return document.Equal(was, is)
}

// read returns what a manifest asks for, as a list that can be compared; empty when it asks for nothing.
func (k *ecosystem) read(name string, data []byte) (any, error) {
	out := []any{}
	if k.text != nil {
		for _, line := range k.text(data) {
			out = append(out, line)
		}
		return out, nil
	}
	doc, err := document.Parse(name, data)
	if err != nil {
		return nil, err
	}
	for _, key := range k.keys {
		p, err := document.ParsePath(key)
		if err != nil {
			return nil, err
		}
		values := document.Select(doc, p)
		slices.SortFunc(values, func(a, b document.Value) int { return slices.Compare(a.At, b.At) })
		for _, v := range values {
			if !empty(v.Value) {
				out = append(out, []any{v.At.String(), v.Value})
			}
		}
	}
	return out, nil
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// goRequirements are the requirements of a go.mod, in no order: not the module's own name, not what is locked elsewhere.
func goRequirements(data []byte) []string {
	var out []string
	block := ""
	for line := range bytes.Lines(data) {
		text, _, _ := bytes.Cut(line, []byte("//"))
		words := strings.Fields(string(text))
		switch {
		case len(words) == 0:
			continue
		case block != "" && words[0] == ")":
			block = ""
			continue
		case block != "":
			words = append([]string{block}, words...)
		case len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		}
		if slices.Contains([]string{"require", "replace", "exclude"}, words[0]) && !localReplace(words) {
			out = append(out, strings.Join(words, " "))
		}
	}
	slices.Sort(out)
	return out
}

// localReplace is a directory in the place of a module: no sum is kept of it.
func localReplace(words []string) bool {
	target := words[len(words)-1]
	return words[0] == "replace" && (strings.HasPrefix(target, "./") || strings.HasPrefix(target, "../") || strings.HasPrefix(target, "/"))
}

// meaningfulLines are those that are neither empty nor a comment.
func meaningfulLines(data []byte) []string {
	var out []string
	for line := range bytes.Lines(data) {
		if text := strings.TrimSpace(string(line)); text != "" && !strings.HasPrefix(text, "#") {
			out = append(out, text)
		}
	}
	return out
}
