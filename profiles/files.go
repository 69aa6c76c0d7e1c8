package profiles

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	gatefiles "github.com/caisson-dev/caisson/gates/files"
)

//go:embed builtin/*.yaml
var builtin embed.FS

// builtinOrigin is what the origin of a built-in profile's values begins with.
const builtinOrigin = "built-in "

// maxChain bounds how many files one profile may stand on.
const maxChain = 16

// The levels of trusted files, most specific first. A file extends only what lies at its own level or below: what
// the system's profiles mean does not depend on the user's.
const (
	levelFile = iota - 1
	levelUser
	levelSystem
	levelBuiltin
)

// fileSet is what Load reads.
type fileSet struct {
	trusted   []*document // lowest first, never empty
	narrowing []*document // from inside the workspace, lowest first
}

// files finds the documents that o names and everything they stand on.
func (o *LoadOptions) files() (*fileSet, error) {
	var start *document
	var err error
	level := levelFile
	if o.File != "" {
		start, err = o.read(o.File)
		if err == nil && start.name == "" {
			start.name = strings.TrimSuffix(filepath.Base(o.File), filepath.Ext(o.File))
		}
	} else {
		start, level, err = o.find(o.Name, levelUser)
	}
	if err != nil {
		return nil, err
	}
	set, err := o.chain(start, level)
	if err != nil || o.Workspace == "" {
		return set, err
	}
	narrowing, err := readFile(filepath.Join(o.Workspace, WorkspaceFile), true)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotADirectory) {
		return set, nil
	}
	if err != nil {
		return nil, err
	}
	set.narrowing = append([]*document{narrowing}, set.narrowing...)
	return set, nil
}

// chain follows extends from d downwards.
func (o *LoadOptions) chain(d *document, level int) (*fileSet, error) {
	set := &fileSet{}
	var sources []string
	for {
		if slices.Contains(sources, d.source) {
			return nil, &Error{Source: sources[0], Key: "extends", Message: "a circle: " + strings.Join(append(sources, d.source), " → ")}
		}
		if sources = append(sources, d.source); len(sources) > maxChain {
			return nil, &Error{Source: sources[0], Key: "extends", Message: fmt.Sprintf("stands on more than %d files", maxChain)}
		}
		if d.untrusted {
			set.narrowing = append([]*document{d}, set.narrowing...)
		} else {
			set.trusted = append([]*document{d}, set.trusted...)
		}
		if level == levelBuiltin && d.name == "default" {
			return set, nil
		}
		var err error
		if d, level, err = o.parent(d, level); err != nil {
			return nil, err
		}
	}
}

// parent returns what d stands on: what it extends, else its namesake at a lower level, else the default. The
// untrusted side does not choose: narrow refuses an extends that is not in the chain anyway.
func (o *LoadOptions) parent(d *document, level int) (*document, int, error) {
	extends := d.extends
	if d.untrusted {
		extends = ""
	}
	if level == levelFile && extends == "" {
		extends = o.Name
	}
	if extends != "" && (extends != d.name || level == levelFile) {
		return o.extended(d, extends, max(level, levelUser))
	}
	if level < levelBuiltin && level != levelFile {
		namesake, at, err := o.find(d.name, level+1)
		if err == nil || !errors.Is(err, ErrNotFound) {
			return namesake, at, err
		}
	}
	if extends != "" {
		return nil, 0, &Error{Source: d.source, Line: d.line, Key: "extends", Message: "a profile cannot extend itself"}
	}
	return o.find("default", max(level, levelUser))
}

// extended finds what d extends and says where that is written when it is not there.
func (o *LoadOptions) extended(d *document, name string, level int) (*document, int, error) {
	found, at, err := o.find(name, level)
	var missing notFoundError
	if errors.As(err, &missing) && d.extends == name {
		missing.mistake.Source, missing.mistake.Line, missing.mistake.Key = d.source, d.line, "extends"
	}
	return found, at, err
}

// find returns the most specific profile called name, at level from or below, and its level.
func (o *LoadOptions) find(name string, from int) (*document, int, error) {
	if err := checkName(name); err != nil {
		return nil, 0, &Error{Message: err.Error(), Remedy: "a file is named with its path, such as ./x.yaml"}
	}
	for level := from; level < levelBuiltin; level++ {
		dir := o.dir(level)
		if dir == "" {
			continue
		}
		d, err := o.read(filepath.Join(dir, name+".yaml"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotADirectory) {
			continue
		}
		if err == nil && d.name != "" && d.name != name {
			err = &Error{Source: d.source, Key: "name", Message: fmt.Sprintf("is %q in a file for %q", d.name, name)}
		}
		if err != nil {
			return nil, level, err
		}
		d.name = name
		return d, level, nil
	}
	if slices.Contains(Builtin(), name) {
		d, err := loadBuiltin(name)
		return d, levelBuiltin, err
	}
	names := o.names()
	e := &Error{Message: fmt.Sprintf("%s %q; there are %s%s", ErrNotFound, name, strings.Join(names, ", "), didYouMean(name, names)),
		Remedy: "caisson profile ls"}
	return nil, 0, notFoundError{e}
}

func (o *LoadOptions) dir(level int) string {
	return map[int]string{levelUser: o.UserDir, levelSystem: o.SystemDir}[level]
}

// read reads a trusted file, or an untrusted one when it lies in the workspace.
func (o *LoadOptions) read(path string) (*document, error) {
	inside, err := o.inWorkspace(path)
	if err != nil {
		return nil, err
	}
	return readFile(path, inside)
}

// inWorkspace says whether path is named through the workspace, or leads there: either way the untrusted side decides
// what is read.
func (o *LoadOptions) inWorkspace(path string) (bool, error) {
	if o.Workspace == "" {
		return false, nil
	}
	workspaces, err := spellings(o.Workspace)
	if err != nil {
		return false, err
	}
	paths, err := spellings(path)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(paths, func(p string) bool { return below(p, workspaces...) }), nil
}

// spellings returns path made absolute, as it is written and with its links resolved (when it exists).
func spellings(path string) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if resolved, err := filepath.EvalSymlinks(abs); err == nil {
		return []string{abs, resolved}, nil
	}
	return []string{abs}, nil
}

// readFile reads and parses one file. For the untrusted side the last component must not be a link.
func readFile(path string, untrusted bool) (*document, error) {
	data, err := readText(path, untrusted)
	if err != nil {
		return nil, err
	}
	d, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	d.untrusted = untrusted
	return d, nil
}

// readText reads one file of at most maxFile bytes, and one more when it is longer.
func readText(path string, untrusted bool) ([]byte, error) {
	f, err := openFile(path, untrusted)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, &Error{Source: path, Message: "is not a regular file"}
	case !untrusted && writableByAll(info):
		return nil, &Error{Source: path, Message: "can be written by everybody", Remedy: "chmod o-w " + path}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return data, nil
}

// Builtin returns the names of the built-in profiles, sorted.
func Builtin() []string {
	return []string{"build", "c", "default", "go", "node", "python", "rust", "strict"}
}

func loadBuiltin(name string) (*document, error) {
	data, err := builtin.ReadFile("builtin/" + name + ".yaml")
	if err != nil {
		return nil, err
	}
	source := builtinOrigin + name
	d, err := parse(source, data)
	if err != nil {
		return nil, err
	}
	if d.name = name; name == "default" {
		// These lists belong to the gates, which are useful without profiles, too.
		d.values["protected"] = value{v: gates.DefaultProtected()}
		d.values["gates.paths.watched"] = value{v: gates.DefaultWatched()}
		d.values["gates.exec.interpreters"] = value{v: gatefiles.DefaultInterpreters()}
		d.values["gates.size.allowed"] = value{v: globsOf(gatefiles.DefaultBinaries())}
	}
	for path, v := range d.values {
		v.origin, v.lines = source, nil
		d.values[path] = v
	}
	return d, nil
}

// names returns every profile name that can be said, sorted.
func (o *LoadOptions) names() []string {
	names := Builtin()
	for _, dir := range []string{o.UserDir, o.SystemDir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // a directory that is not there holds no profiles
		}
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), ".yaml"); ok && checkName(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Info is a profile that can be named.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Extends     string `json:"extends,omitempty"`
	Source      string `json:"source"`          // "built-in default" or the file's path
	Error       string `json:"error,omitempty"` // why the file cannot be loaded
}

// List returns every profile that o's directories and the program hold, by name; among equal names the one that wins
// comes first. A file that cannot be loaded is listed with the reason.
func List(o LoadOptions) []Info {
	var infos []Info
	for _, name := range o.names() {
		for level := levelUser; level <= levelBuiltin; level++ {
			d, at, err := o.find(name, level)
			if errors.Is(err, ErrNotFound) {
				break
			}
			if err != nil {
				infos = append(infos, Info{Name: name, Source: filepath.Join(o.dir(at), name+".yaml"), Error: err.Error()})
			} else {
				infos = append(infos, Info{Name: name, Description: d.about, Extends: d.extends, Source: d.source})
			}
			level = at
		}
	}
	return infos
}
