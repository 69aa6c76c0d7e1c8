package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/viper"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// LoadOptions says where policy comes from.
type LoadOptions struct {
	Name string // a profile's name; empty with an empty File: CAISSON_PROFILE, else "default"
	File string // of --profile; trusted unless it lies in the workspace. It extends Name when it says nothing else

	// Workspace is the directory whose .caisson.yaml may narrow; files below it are never trusted. Empty: none.
	Workspace string

	// Flags are the texts of flags by name without dashes ("memory": {"512m"}), in the order given. FlagValues makes it.
	Flags map[string][]string
	Env   []string // KEY=VALUE, the caller's environment

	UserDir, SystemDir string // directories of NAME.yaml; empty: none. DefaultDirs gives the usual ones
}

// WorkspaceFile is the name of the file in a workspace that may narrow.
const WorkspaceFile = ".caisson.yaml"

// Load returns the policy that holds. Mistakes are *Error, joined when there are several; a name that does not exist
// matches ErrNotFound.
func Load(o LoadOptions) (*Effective, error) {
	if o.Name == "" && o.File == "" {
		o.Name, o.File = SplitRef(cmp.Or(lookup(o.Env, "CAISSON_PROFILE"), "default"))
	}
	files, err := o.files()
	if err != nil {
		return nil, err
	}
	variables, err := o.variables()
	flags, err2 := o.flags()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}

	l := newLayers()
	for _, d := range files.trusted {
		l.apply(d)
	}
	mounts := as[[]Mount](l.get("mounts"))
	if len(files.narrowing) > 0 {
		limit := newLayers()
		for _, d := range slices.Concat(files.trusted, []*document{variables, flags}) {
			limit.apply(d)
		}
		if err := l.narrow(files, limit); err != nil {
			return nil, err
		}
	}
	l.apply(variables)
	l.apply(flags)

	e := l.effective(files.trusted[len(files.trusted)-1])
	if e.base = e.Name; o.File != "" && len(files.trusted) > 1 && files.trusted[len(files.trusted)-1].source == o.File {
		e.base, e.file = files.trusted[len(files.trusted)-2].name, o.File
	}
	for i, m := range e.Mounts {
		e.Mounts[i].Trusted = slices.ContainsFunc(mounts, func(t Mount) bool { return t.Source == m.Source })
	}
	if err := e.Validate(); err != nil {
		return nil, e.locate(err)
	}
	return e, nil
}

// locate tells a mistake of an effective value where the value comes from.
func (e *Effective) locate(err error) error {
	var where *Error
	if errors.As(err, &where) {
		where.Source = cmp.Or(e.places[where.at], e.Origins[where.Key])
	}
	return err
}

// layers is what has been put together so far. Viper keeps the values: a file's by MergeConfigMap, a variable's and a
// flag's by Set, which no file can reach. Keys are flat; the delimiter is one that no key contains.
type layers struct {
	v       *viper.Viper
	origins map[string]string
	places  map[string]string // likewise of what stands in maps and lists of words
}

func newLayers() *layers {
	return &layers{v: viper.NewWithOptions(viper.KeyDelimiter("\x1f")), origins: map[string]string{}, places: map[string]string{}}
}

func (l *layers) get(path string) any { return l.v.Get(path) }

// apply puts a document over what is there.
func (l *layers) apply(d *document) {
	merged := make(map[string]any, len(d.values))
	for _, k := range keys() {
		v, ok := d.values[k.path]
		if !ok {
			continue
		}
		merged[k.path] = k.kind.merge(l.get(k.path), v.v)
		if d.final {
			l.v.Set(k.path, merged[k.path])
		}
		l.originate(k.path, v)
	}
	if !d.final {
		// The map is flat and no value is a map of Viper's own, so nothing can be lost here.
		_ = l.v.MergeConfigMap(merged)
	}
}

func (l *layers) originate(path string, v value) {
	origin := v.origin
	if old := l.origins[path]; old != "" && inherits(v.v) {
		origin = old + ", " + origin
	}
	l.origins[path] = origin
	if m := reflect.ValueOf(v.v); m.Kind() == reflect.Map {
		for _, name := range m.MapKeys() {
			at := path + "." + name.String()
			l.origins[at] = v.place(name.String())
			l.places[at] = l.origins[at]
		}
	}
	if words, ok := v.v.([]string); ok {
		for _, word := range words {
			l.places[path+"."+word] = v.place(word)
		}
	}
}

// place is where a name of a map, or a word of a list, stands.
func (v *value) place(word string) string {
	if line := v.lines[word]; line > 0 && v.line > 0 {
		return fmt.Sprintf("%s:%d", strings.TrimSuffix(v.origin, fmt.Sprintf(":%d", v.line)), line)
	}
	return v.origin
}

// inherits says whether a value keeps what is below it.
func inherits(v any) bool {
	switch v := v.(type) {
	case map[string]string:
		return len(v) > 0
	case map[string]NetworkRule, map[string]StepPolicy, map[string][]string:
		return true
	case []Secret:
		return slices.ContainsFunc(v, func(s Secret) bool { return s.Name == inherit })
	case []Mount:
		return slices.ContainsFunc(v, func(m Mount) bool { return m.Source == inherit })
	}
	return strings.Contains(fmt.Sprintf("%q", v), `"`+inherit+`"`)
}

// narrow applies the files of the untrusted side. limit is all that the trusted side allows, flags included; what the
// flags say still comes on top of the result, which therefore stays within limit.
func (l *layers) narrow(f *fileSet, limit *layers) error {
	var errs []error
	for _, d := range f.narrowing {
		if d.extends != "" && !slices.ContainsFunc(f.trusted, func(t *document) bool { return t.name == d.extends }) {
			errs = append(errs, &Error{Source: d.source, Line: d.line, Key: "extends",
				Message: "a profile inside the workspace cannot choose " + d.extends + " as its base",
				Remedy:  "say --profile " + d.extends + " on the command line"})
		}
		for _, k := range keys() {
			v, ok := d.values[k.path]
			if !ok {
				continue
			}
			if why := k.kind.narrower(limit.get(k.path), k.kind.merge(l.get(k.path), v.v)); why != "" {
				errs = append(errs, &Error{Source: d.source, Line: v.line, Key: k.path,
					Message: why + "; a profile inside the workspace may only narrow",
					Remedy:  "say it with a flag, or in a profile outside the workspace"})
			}
		}
		l.apply(d)
	}
	return join(errs)
}

// effective reads the values back; top is the most specific trusted file.
func (l *layers) effective(top *document) *Effective {
	e := &Effective{Origins: l.origins, places: l.places}
	e.Name, e.Description, e.Extends = top.name, top.about, top.extends
	for _, k := range keys() {
		if v := l.get(k.path); v != nil {
			k.kind.set(&e.Profile, v)
		}
	}
	e.Digest = e.digest()
	return e
}

// lookup returns a variable of env; an empty one counts as not set.
func lookup(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// variables reads the CAISSON_* that stand for flags.
func (o *LoadOptions) variables() (*document, error) {
	d := &document{values: map[string]value{}, final: true}
	var errs []error
	for _, k := range keys() {
		s := ""
		if k.env() != "" {
			s = lookup(o.Env, k.env())
		}
		if s == "" {
			continue
		}
		origin := "env " + k.env()
		v, err := k.kind.text([]string{s})
		if err != nil {
			errs = append(errs, &Error{Source: origin, Key: k.path, Message: err.Error()})
			continue
		}
		d.values[k.path] = value{v: v, origin: origin}
	}
	return d, errors.Join(errs...)
}

// flags reads the flags.
func (o *LoadOptions) flags() (*document, error) {
	d := &document{values: map[string]value{}, final: true}
	var errs []error
	known := map[string]bool{}
	for _, k := range keys() {
		known[k.flag] = true
		texts := o.Flags[k.flag]
		if k.flag == "" || len(texts) == 0 {
			continue
		}
		origin := "flag --" + k.flag
		values, err := fromFlag(k, texts)
		if err != nil {
			errs = append(errs, &Error{Source: origin, Key: k.path, Message: err.Error()})
			continue
		}
		for path, v := range values {
			d.values[path] = value{v: v, origin: origin}
		}
	}
	if err := implyAllow(d, o.Flags["network"]); err != nil {
		errs = append(errs, err)
	}
	for name := range o.Flags {
		if !known[name] {
			errs = append(errs, &Error{Source: "flag --" + name, Message: "no profile key has this flag"})
		}
	}
	return d, errors.Join(errs...)
}

// implyAllow has --allow mean --network allow, where no mode was given.
func implyAllow(d *document, mode []string) error {
	allow, ok := d.values["network.allow"]
	switch {
	case !ok:
	case len(mode) == 0:
		d.values["network.mode"] = value{v: string(egress.ModeAllow), origin: allow.origin}
	case mode[len(mode)-1] == string(egress.ModeNone):
		return &Error{Source: allow.origin, Key: "network.allow", Message: "with --network none nothing is allowed", Remedy: "leave one of the two out"}
	}
	return nil
}

// fromFlag returns what a flag says, by key. -e says two things: NAME=VALUE sets, NAME alone passes on.
func fromFlag(k key, texts []string) (map[string]any, error) {
	if k.path != "env" {
		v, err := k.kind.text(texts)
		return map[string]any{k.path: v}, err
	}
	var set []string
	pass := []string{inherit}
	for _, t := range texts {
		if strings.Contains(t, "=") {
			set = append(set, t)
		} else if name, err := varName(t); err != nil {
			return nil, err
		} else {
			pass = append(pass, name)
		}
	}
	values := map[string]any{}
	if len(set) > 0 {
		v, err := k.kind.text(set)
		if err != nil {
			return nil, err
		}
		values["env"] = v
	}
	if len(pass) > 1 {
		values["pass_env"] = pass
	}
	return values, nil
}

// DefaultDirs returns where profiles of the user and of the system lie, given the caller's environment.
func DefaultDirs(env []string) (user, system string) {
	config := lookup(env, "XDG_CONFIG_HOME")
	if home := lookup(env, "HOME"); !filepath.IsAbs(config) && filepath.IsAbs(home) {
		config = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(config) {
		user = filepath.Join(config, "caisson", "profiles")
	}
	return user, "/etc/caisson/profiles"
}

// SplitRef tells a profile's name from a file: a reference with a path separator or the ending .yaml or .yml is a file.
func SplitRef(ref string) (name, file string) {
	if strings.ContainsRune(ref, filepath.Separator) || strings.HasSuffix(ref, ".yaml") || strings.HasSuffix(ref, ".yml") {
		return "", ref
	}
	return ref, ""
}
