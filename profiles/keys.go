package profiles

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// key is one thing that a profile can say. The table keys is all there is: the parser, the flags, the variables,
// the merging, the narrowing, the schema and the effective view read it.
type key struct {
	path  string // in a file, with a dot for each level
	flag  string // without dashes; empty: no flag and no variable
	short string
	noEnv bool // several values do not fit into one variable
	maybe bool // an effective profile need not have it
	about string
	kind  kind
}

// env is the variable that stands for a flag: CAISSON_PIDS_LIMIT for --pids-limit.
func (k key) env() string {
	if k.flag == "" || k.noEnv {
		return ""
	}
	return "CAISSON_" + strings.ToUpper(strings.ReplaceAll(k.flag, "-", "_"))
}

// keys is made at its first use, so that a program that loads no profile does not pay for it.
var keys = sync.OnceValue(func() []key {
	table := []key{
		{path: "engine", flag: "engine", about: "what makes the sandbox",
			kind: word(func(p *Profile) *string { return &p.Engine }, "native")},
		{path: "rootfs", flag: "rootfs", about: "root filesystem: host, dir:PATH, tar:PATH",
			kind: fixed(func(p *Profile) *string { return &p.Rootfs }, plain)},
		{path: "user", flag: "user", short: "u", about: "uid[:gid] of the command, inside",
			kind: fixed(func(p *Profile) *string { return &p.User }, userSpec)},
	}
	return slices.Concat(table, networkKeys(), limitKeys(), controlKeys(), insideKeys(), changeKeys(), commandKeys(), gateKeys(), followKeys(), featureKeys())
})

func limitKeys() []key {
	return []key{
		{path: "limits.cpus", flag: "cpus", about: "CPUs, such as 1.5",
			kind: quantity(func(p *Profile) *quota.CPUs { return &p.Limits.CPUs }, quota.ParseCPUs)},
		{path: "limits.memory", flag: "memory", short: "m", about: "memory without swap, such as 512m",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.Limits.Memory }, quota.ParseBytes)},
		{path: "limits.pids", flag: "pids-limit", about: "processes and threads",
			kind: quantity(func(p *Profile) *quota.Count { return &p.Limits.Pids }, quota.ParseCount)},
		{path: "limits.timeout", flag: "timeout", about: "wall time of a step, such as 90s or 1h30m",
			kind: quantity(func(p *Profile) *quota.Duration { return &p.Limits.Timeout }, quota.ParseDuration)},
		{path: "limits.output", flag: "output-limit", about: "bytes of stdout and stderr together",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.Limits.Output }, quota.ParseBytes)},
		{path: "limits.tmp", flag: "tmp-size", about: "size of /tmp; what is in it counts as memory",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.Limits.Tmp }, quota.ParseBytes)},
		{path: "limits.disk", flag: "disk", maybe: true, about: "bytes that a feature may hold: changes, checkpoints, home",
			kind: optional(func(p *Profile) **quota.Bytes { return &p.Limits.Disk }, quota.ParseBytes)},
		{path: "limits.inodes", flag: "inodes", maybe: true, about: "files that a feature may hold, or none for no limit",
			kind: inodes()},
		{path: "disk_total", flag: "disk-total", about: "bytes that all features of a state directory may hold together",
			kind: quantity(func(p *Profile) *quota.Bytes { return &p.DiskTotal }, quota.ParseBytes)},
	}
}

func controlKeys() []key {
	controls := func(grows bool, field func(p *Profile) *[]isolation.Control) kind {
		names := strings.Split(oneOf(isolation.Controls()), ", ")
		return of[[]isolation.Control]{list[isolation.Control]{field: field, item: controlNamed, grows: grows,
			shape: map[string]any{"type": "string", "enum": names}}}
	}
	return []key{
		{path: "controls.required", about: "an engine that cannot enforce one of these is refused",
			kind: controls(true, func(p *Profile) *[]isolation.Control { return &p.Controls.Required })},
		{path: "controls.wanted", about: "enforced where possible; the result says when not",
			kind: controls(true, func(p *Profile) *[]isolation.Control { return &p.Controls.Wanted })},
		{path: "controls.waivable", about: "what allow_weaker and --allow-weaker may name",
			kind: controls(false, func(p *Profile) *[]isolation.Control { return &p.Controls.Waivable })},
		{path: "allow_weaker", flag: "allow-weaker", about: "required controls that may be missing",
			kind: controls(false, func(p *Profile) *[]isolation.Control { return &p.AllowWeaker })},
	}
}

// insideKeys say what of the host is seen inside.
func insideKeys() []key {
	return []key{
		{path: "env", flag: "env", short: "e", noEnv: true, about: "variables: NAME=VALUE, or NAME to pass the host's on",
			kind: of[map[string]string]{vars{}}},
		{path: "pass_env", about: "names of host variables that are passed on",
			kind: words(func(p *Profile) *[]string { return &p.PassEnv }, varName)},
		{path: "mounts", flag: "volume", short: "v", noEnv: true, about: "host paths inside: SOURCE:TARGET[:ro|rw]; read-only unless rw",
			kind: of[[]Mount]{mountList{}}},
		{path: "caches", about: "host directories mounted read-only where they exist; ~/x appears as /home/user/x",
			kind: words(func(p *Profile) *[]string { return &p.Caches }, hostPath)},
		{path: "host_root.paths", about: "what rootfs host shows of the host",
			kind: words(func(p *Profile) *[]string { return &p.HostRoot.Paths }, absolute)},
		{path: "host_root.etc", about: "files of /etc that rootfs host shows; globs",
			kind: words(func(p *Profile) *[]string { return &p.HostRoot.Etc }, glob)},
	}
}

// changeKeys say what may happen to a change.
func changeKeys() []key {
	return []key{
		{path: "protected", about: "globs that are never promoted without an explicit word",
			kind: growing(func(p *Profile) *[]string { return &p.Protected }, workspaceGlob)},
		{path: "promote", flag: "promote", about: "what happens to an accepted change",
			kind: word(func(p *Profile) *string { return &p.Promote }, "none", "patch", "branch", "apply")},
		{path: "author", about: "who commits, when a change is promoted as a branch: NAME <EMAIL>",
			kind: fixed(func(p *Profile) *string { return &p.Author }, author)},
	}
}

// commandKeys say which commands may begin.
func commandKeys() []key {
	return []key{
		{path: "gates.command.mode", about: "what becomes of a step whose command the gate command does not let pass",
			kind: word(func(p *Profile) *gates.Mode { return &p.Gates.Command.Mode },
				gates.ModeMandatory, gates.ModeBlock, gates.ModeWarn, gates.ModeOff)},
		{path: "gates.command.list", about: "block: what the rules know is refused; allow: only gates.command.allow may run, and the rules hold too",
			kind: word(func(p *Profile) *string { return &p.Gates.Command.List }, "allow", "block")},
		{path: "gates.command.allow", about: "the command words that may run, exactly as they are after resolution",
			kind: words(func(p *Profile) *[]string { return &p.Gates.Command.Allow }, plain)},
		{path: "gates.command.on_ask", about: "what happens to what a person should decide when there is no terminal to ask at",
			kind: word(func(p *Profile) *string { return &p.Gates.Command.OnAsk }, "refuse", "allow")},
	}
}

// word is one of a closed vocabulary, given from the narrowest to the widest.
func word[T ~string](field func(p *Profile) *T, vocabulary ...T) kind {
	k := text(field, func(s string) (T, error) {
		if slices.Contains(vocabulary, T(s)) {
			return T(s), nil
		}
		return "", fmt.Errorf("%q must be one of %s", s, oneOf(vocabulary))
	})
	k.narrow = func(have, v T) bool { return slices.Index(vocabulary, v) <= slices.Index(vocabulary, have) }
	k.shape["enum"] = vocabulary
	return of[T]{k}
}

// fixed is a text that a file in the workspace cannot change.
func fixed(field func(p *Profile) *string, parse func(string) (string, error)) kind {
	return of[string]{text(field, parse)}
}

func text[T ~string](field func(p *Profile) *T, parse func(string) (T, error)) scalar[T] {
	return scalar[T]{
		load:   func(p *Profile) (T, bool) { return *field(p), *field(p) != "" },
		store:  func(p *Profile, v T) { *field(p) = v },
		parse:  parse,
		format: func(v T) string { return string(v) },
		narrow: func(have, v T) bool { return v == have },
		shape:  map[string]any{"type": "string"},
	}
}

// words is a list in which less is narrower.
func words(field func(p *Profile) *[]string, item func(string) (string, error)) kind {
	return of[[]string]{list[string]{field: field, item: item, shape: map[string]any{"type": "string", "minLength": 1}}}
}

// growing is a list in which more is narrower.
func growing(field func(p *Profile) *[]string, item func(string) (string, error)) kind {
	return of[[]string]{list[string]{field: field, item: item, grows: true, shape: map[string]any{"type": "string", "minLength": 1}}}
}

func controlNamed(s string) (isolation.Control, error) {
	c, err := isolation.ParseControl(s)
	if err != nil {
		if hint := didYouMean(s, strings.Split(oneOf(isolation.Controls()), ", ")); hint != "" {
			err = fmt.Errorf("unknown control %q%s", s, hint)
		}
	}
	return c, err
}

func plain(s string) (string, error) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%q is empty or has control characters", s)
	}
	return s, nil
}

func userSpec(s string) (string, error) {
	uid, gid, both := strings.Cut(s, ":")
	if _, err := id(uid); err != nil {
		return "", err
	}
	if both {
		if _, err := id(gid); err != nil {
			return "", err
		}
	}
	return s, nil
}

// ParseAuthor reads NAME <EMAIL>, as git writes it.
func ParseAuthor(s string) (name, email string, err error) {
	name, rest, ok := strings.Cut(s, "<")
	email, after, ok2 := strings.Cut(rest, ">")
	name, email = strings.TrimSpace(name), strings.TrimSpace(email)
	if !ok || !ok2 || after != "" || name == "" || email == "" || strings.ContainsAny(name+email, "<>") {
		return "", "", fmt.Errorf("%q is not NAME <EMAIL>", s)
	}
	return name, email, nil
}

func author(s string) (string, error) {
	if _, err := plain(s); err != nil {
		return "", err
	}
	_, _, err := ParseAuthor(s)
	return s, err
}

// id reads a user or group id of a sandbox's range of 65536.
func id(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%q is not an id from 0 to 65535", s)
	}
	return uint32(n), nil
}

// varName checks a variable's name. CAISSON_* are set by caisson, and a task must be able to believe them.
func varName(s string) (string, error) {
	for i, r := range s {
		if r != '_' && (r|0x20 < 'a' || r|0x20 > 'z') && (i == 0 || r < '0' || r > '9') {
			return "", fmt.Errorf("%q is not the name of a variable", s)
		}
	}
	switch {
	case s == "":
		return "", errors.New("a variable needs a name")
	case strings.HasPrefix(s, "CAISSON_"):
		return "", fmt.Errorf("%s is set by caisson itself", s)
	}
	return s, nil
}

// hostPath checks the path of something on the host: absolute or in the caller's home, and without "..".
func hostPath(s string) (string, error) {
	if _, err := plain(s); err != nil {
		return "", err
	}
	if !filepath.IsAbs(s) && !strings.HasPrefix(s, "~/") {
		return "", fmt.Errorf("%q must begin with / or ~/ (or ./ for a flag)", s)
	}
	if slices.Contains(strings.Split(s, "/"), "..") {
		return "", fmt.Errorf("%q must not have .. in it", s)
	}
	return filepath.Clean(s), nil
}

func absolute(s string) (string, error) {
	if !strings.HasPrefix(s, "/") {
		return "", fmt.Errorf("%q must begin with /", s)
	}
	return hostPath(s)
}

func glob(s string) (string, error) {
	if _, err := plain(s); err != nil {
		return "", err
	}
	if !doublestar.ValidatePattern(s) {
		return "", fmt.Errorf("%q is not a glob", s)
	}
	return s, nil
}

// workspaceGlob is a pattern that the gate accepts.
func workspaceGlob(s string) (string, error) {
	if _, err := plain(s); err != nil {
		return "", err
	}
	return s, gates.PathsConfig{Protected: []string{s}, Watched: []string{s}}.Validate()
}

// below says whether p is one of dirs or below one. All are clean and absolute.
func below(p string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool {
		return p == d || strings.HasPrefix(p, path.Join(d, "/")+"/") || d == "/"
	})
}

// flagText collects the texts of one flag for Load, which reads them with everything else; Set only checks.
type flagText struct {
	key   key
	texts []string
}

func (f *flagText) String() string { return strings.Join(f.texts, ",") }

// Type names the value in a flag's help.
func (f *flagText) Type() string {
	if f.key.kind.repeats() {
		return "list"
	}
	return "value"
}

// Set takes one use of the flag: the last one counts, or each when they add.
func (f *flagText) Set(s string) error {
	if _, err := fromFlag(f.key, []string{s}); err != nil {
		return err
	}
	if !f.key.kind.repeats() {
		f.texts = nil
	}
	f.texts = append(f.texts, s)
	return nil
}

// AddFlags registers the flag of every key that has one. --promote without a value means apply.
func AddFlags(fs *pflag.FlagSet) {
	for _, k := range keys() {
		if k.flag == "" {
			continue
		}
		f := fs.VarPF(&flagText{key: k}, k.flag, k.short, k.about)
		if k.flag == "promote" {
			f.NoOptDefVal = "apply"
		}
	}
}

// FlagValues returns what was given to the flags of AddFlags, for LoadOptions.Flags.
func FlagValues(fs *pflag.FlagSet) map[string][]string {
	values := map[string][]string{}
	fs.Visit(func(f *pflag.Flag) {
		if t, ok := f.Value.(*flagText); ok {
			values[f.Name] = t.texts
		}
	})
	return values
}
