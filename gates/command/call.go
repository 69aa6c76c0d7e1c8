package command

import (
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// invocation is one command about to run, as far as it could be resolved.
type invocation struct {
	a    *analyzer
	name string   // base name, in small letters
	args []string // without the name
	in   data
	env  map[string]string // assignments before the command
	from source            // the worst source of its words
}

func (c *invocation) text() string { return strings.Join(append([]string{c.name}, c.args...), " ") }

func (c *invocation) deny(rule, message, safer string) {
	c.a.find(Deny, rule, c.said(), message, safer)
}
func (c *invocation) ask(rule, message, safer string) { c.a.find(Ask, rule, c.said(), message, safer) }

// call judges a simple command.
func (a *analyzer) call(c *syntax.CallExpr, in data) data {
	if len(c.Args) == 0 {
		for _, as := range c.Assigns {
			if as.Name != nil {
				a.assign(as)
			}
		}
		return data{known: true}
	}
	env := map[string]string{}
	for _, as := range c.Assigns {
		if as.Name != nil && as.Value != nil {
			env[as.Name.Value] = a.word(as.Value)
			a.dangerousVariable(as.Name.Value, env[as.Name.Value], a.expanded)
			if v := env[as.Name.Value]; as.Name.Value == "HISTFILE" && v == "/dev/null" {
				a.find(Deny, "history", "HISTFILE="+v, "it switches the shell's history off", "")
			}
		}
	}
	if text, ok := a.aliases.get(c.Args[0].Lit()); ok && !slices.Contains(a.calling, "alias "+c.Args[0].Lit()) {
		a.alias(c, text, in) // scripts do not know aliases: the word itself counts too
	}
	a.feeding = in
	argv := a.fields(c.Args...)
	from := a.expanded
	a.source, a.substituted = written(c)
	if len(argv) == 0 {
		return data{known: true}
	}
	if names := defaulted(c); len(names) > 0 && !a.unset(names, true) {
		defer a.unset(names, false)
		a.isolated(func() data { return a.call(c, in) })
	}
	return a.run(argv, in, env, from)
}

// written is a command as it stands in the text, and whether a word of it is computed by another command.
func written(c *syntax.CallExpr) (text string, substituted bool) {
	var b strings.Builder
	for _, w := range c.Args {
		syntax.Walk(w, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.CmdSubst:
				substituted = true
				return false
			case *syntax.ProcSubst:
				return false
			case *syntax.ParamExp:
				if n.Param != nil {
					b.WriteString("$" + n.Param.Value + " ")
				}
			}
			return true
		})
	}
	return b.String(), substituted
}

// alias expands an alias as text, as shells do.
func (a *analyzer) alias(c *syntax.CallExpr, text string, in data) data {
	a.calling = append(a.calling, "alias "+c.Args[0].Lit())
	defer func() { a.calling = a.calling[:len(a.calling)-1] }()
	if strings.Contains(text, unknownText) {
		a.find(Ask, "unresolved", c.Args[0].Lit(), "an alias that cannot be resolved", "write the command itself")
		return data{}
	}
	for _, arg := range a.fields(c.Args[1:]...) {
		q, err := syntax.Quote(original(strings.ReplaceAll(arg, unknownText, "?")), syntax.LangBash)
		if err != nil {
			return data{}
		}
		text += " " + readable(q)
	}
	return a.parse(text, in)
}

// run judges resolved words.
func (a *analyzer) run(argv []string, in data, env map[string]string, from source) data {
	if a.running >= maxDepth {
		a.find(Deny, "too-deep", argv[0], "commands within commands within commands", "say it directly")
		return data{}
	}
	if !a.spend(runCost + len(argv)*nodeCost) {
		return data{}
	}
	a.running++
	defer func() { a.running-- }()
	word := argv[0]
	c := &invocation{a: a, name: strings.ToLower(path.Base(word)), args: argv[1:], in: in, env: env, from: from}
	if a.c.Mode == ModeAllow && a.doubts == 0 && !slices.Contains(a.c.Allow, original(word)) {
		c.deny("not-allowed", "the command is not on the list of allowed ones", "")
	}
	if strings.Contains(word, "=") && !strings.Contains(word, "/") && len(argv) > 1 { // meant as an assignment, or for a tool that takes it so
		a.run(argv[1:], in, env, from)
	}
	switch {
	case from >= fromNetwork && hasUnknown(word):
		c.deny("remote-command", "the command comes from the network", "look at it first")
		return data{}
	case hasUnknown(word):
		return a.unresolved(c, word)
	case strings.ContainsAny(word, "*?[") && word != "[" && word != "[[":
		return a.matching(c, word)
	case word == "":
		return data{}
	case word[0] == '-' && len(behindOptions(argv)) > 0: // time's options, where it is no keyword
		return a.run(behindOptions(argv), in, env, from)
	}
	if from >= fromNetwork && !slices.Contains(telling, c.name) {
		c.ask("remote-command", "words of the command come from the network", "look at them first")
	}
	if out, done := a.function(c, word, in); done {
		return out
	}
	if file := a.abs(word); strings.Contains(word, "/") {
		if path.Dir(file) == "/etc/init.d" {
			return a.run(append([]string{"service", path.Base(file)}, c.args...), in, env, from)
		}
		if tool, ok := a.programs[file]; ok {
			c.name = tool
		} else if !toolPath(file) {
			return a.executes(c, file)
		}
	}
	c.name = unversioned(c.name)
	if sub, ok := strings.CutPrefix(c.name, "git-"); ok && gitRules[sub] != nil {
		c.name, c.args = "git", append([]string{sub}, c.args...)
	}
	if w, ok := wrappers[c.name]; ok {
		if out, done := a.unwrap(c, w); done {
			return out
		}
	}
	a.judge(c)
	return c.output()
}

// judge applies the rules.
func (a *analyzer) judge(c *invocation) {
	if rule, ok := rules()[c.name]; ok {
		rule(c)
	} else {
		c.stranger()
	}
	c.subscripts()
	c.devices()
	if (slices.Contains(passing, c.name) || slices.Contains([]string{"cp", "mv", "ln", "git", "diff", "comm", "cmp"}, c.name)) && slices.ContainsFunc(c.args, func(p string) bool { return a.spend(nodeCost) && privatePath(a.abs(p), a.c.Home) && !speaksOf(p) }) {
		c.ask("secrets", "it reads credentials", "leave them where they are")
	}
	if strings.HasPrefix(c.name, "mkfs") || strings.HasPrefix(c.name, "newfs") || slices.Contains([]string{"mke2fs", "mkntfs", "mkdosfs", "mkexfatfs", "mkudffs"}, c.name) {
		mkfs(c)
	}
}

// speaksOf reports whether a word is text in which a path of somebody's home stands: no shell expands a ~ there.
func speaksOf(word string) bool {
	return strings.Contains(word, " ~/") && !strings.Contains(word, "..")
}

// telling are commands that say, compare or keep their words, and do nothing else that words can ask them for.
var telling = []string{"[", ":", "basename", "dirname", "echo", "egrep", "exit", "expr", "false", "fgrep", "grep", "jq", "logger", "mkdir", "printf", "return", "seq", "sleep", "test", "true"}

// function runs what was defined under a name. done: no program of that name can be meant as well.
func (a *analyzer) function(c *invocation, name string, in data) (out data, done bool) {
	body, ok := a.funcs.get(name)
	if !ok {
		return data{}, false
	}
	if slices.Contains(a.calling, name) {
		if a.parallel > 0 {
			c.deny("fork-bomb", "a function that comes to call itself again and again at the same time", "")
		}
		return data{}, false
	}
	saved := a.params
	a.called[name] = true
	a.calling, a.params = append(a.calling, name), slices.Concat([]string{}, c.args)
	out = a.stmt(body, in)
	a.params, a.calling = saved, a.calling[:len(a.calling)-1]
	// It may not have been defined after all, or be passed over: then the program counts.
	return out, rules()[c.name] == nil
}

// matching is a command that is named by a pattern: whatever it may come to be counts.
func (a *analyzer) matching(c *invocation, word string) data {
	out, n := data{}, 0
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(rules())), slices.Sorted(maps.Keys(wrappers))) {
		if ok, err := path.Match(c.name, name); err != nil || !ok {
			continue
		}
		if n++; n > maxItems {
			break
		}
		a.isolated(func() data {
			out = a.run(append([]string{name}, c.args...), c.in, c.env, c.from)
			return out
		})
	}
	c.ask("unresolved", "which command the pattern stands for cannot be told beforehand", "write the command's name")
	return out
}

// unresolved is a command whose name is not known.
func (a *analyzer) unresolved(c *invocation, word string) data {
	switch {
	case c.in.from == fromNetwork && a.piping > 0:
		c.deny("download-run", "what comes from the network goes to a program that cannot be told", "download it to a file, read it, then run it")
	case c.from == fromDecoder:
		c.deny("decoded-command", "the command was hidden by an encoding", "write it as it is")
	case word == unknownText || strings.HasPrefix(word, unknownText+"/") || len(c.args) == 0:
		c.ask("unresolved", "what runs cannot be told beforehand", "write the command's name")
	default:
		c.ask("unresolved", "part of the command's name cannot be told beforehand", "write the command's name")
	}
	// What it is given may be a command all the same.
	if len(c.args) > 0 && (c.args[0] == "-c" || c.args[0] == "-e") && len(c.args) > 1 {
		c.inline(c.args[1])
	}
	return data{}
}

// executes judges a file that is run: a script that the same line wrote or loaded, or one that can be read.
func (a *analyzer) executes(c *invocation, file string) data {
	if d, ok := a.files[file]; ok {
		a.script(c, d, false)
		return data{}
	}
	a.openScript(c, file, false)
	c.fromFetched(file)
	c.destroysFramework(file)
	return data{}
}

// fromFetched asks about a program below a directory that the same text has cloned or unpacked from the network.
func (c *invocation) fromFetched(file string) {
	if slices.ContainsFunc(c.a.fetched, func(dir string) bool { return below(file, dir) }) {
		c.ask("download-run", "it runs what was just downloaded", "download, read, then run")
	}
}

// script judges data that is run as a script; shell: by a shell, whatever its first line says.
func (a *analyzer) script(c *invocation, d data, shell bool) {
	switch {
	case d.from == fromNetwork:
		c.deny("download-run", "it runs what was just downloaded", "download, read, then run")
	case d.from == fromDecoder && !d.known:
		c.deny("decoded-command", "it runs what was hidden by an encoding", "write it as it is")
	case d.known:
		if !shell && !shellScript([]byte(d.text)) {
			c.inline(d.text)
			return
		}
		if d.from == fromDecoder {
			c.ask("decoded-command", "it runs what was hidden by an encoding", "write it as it is")
		}
		a.isolated(func() data { return a.parse(d.text, data{}) })
	default:
		c.ask("unknown-script", "what the script says cannot be told beforehand", "write it first, then run it")
	}
}

// shellScript reports whether a file that is executed is run by a shell: shells also run text without a #! line.
func shellScript(text []byte) bool {
	head := string(text[:min(len(text), 256)])
	line, _, _ := strings.Cut(head, "\n")
	if strings.HasPrefix(line, "#!") {
		return slices.ContainsFunc(strings.Fields(line[2:]), func(f string) bool { return slices.Contains(shells, path.Base(f)) })
	}
	return head != "" && !strings.ContainsFunc(head, func(r rune) bool { return r == 0 || r == utf8.RuneError })
}

var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "fish", "rbash", "csh", "tcsh", "yash", "elvish", "nu", "xonsh", "osh", "oil"}

// options is what a command line looks like to getopt.
type options struct {
	short map[byte]bool
	long  map[string]string // the value behind =, or of the next word
	rest  []string
}

// parseOptions sorts words. values are the short and long options whose value is the next word.
func parseOptions(args []string, values ...string) options {
	o := options{short: map[byte]bool{}, long: map[string]string{}}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			o.rest = append(o.rest, args[i+1:]...)
			return o
		case strings.HasPrefix(arg, "--"):
			name, value, ok := strings.Cut(arg[2:], "=")
			if !ok && i+1 < len(args) && slices.ContainsFunc(values, func(v string) bool { return v == "--"+name || len(name) > 3 && strings.HasPrefix(v, arg) }) {
				i++
				value = args[i]
			}
			o.long[name] = value
		case len(arg) > 1 && arg[0] == '-':
			for j := 1; j < len(arg); j++ {
				o.short[arg[j]] = true
				if !slices.Contains(values, "-"+arg[j:j+1]) {
					continue
				}
				value := arg[j+1:]
				if value == "" && i+1 < len(args) {
					i++
					value = args[i]
				}
				o.long["-"+arg[j:j+1]] = value
				break
			}
		default:
			o.rest = append(o.rest, arg)
		}
	}
	return o
}

// value is that of an option, by its short name with a dash or by its long one, which may be abbreviated.
func (o options) value(short, long string) string {
	if v, ok := o.long[short]; ok && short != "" {
		return v
	}
	if v, ok := o.long[long]; ok {
		return v
	}
	for name, v := range o.long {
		if len(name) > 3 && strings.HasPrefix(long, name) {
			return v
		}
	}
	return ""
}

// has reports whether an option was given: a long one also when it is abbreviated, as getopt_long(3) allows.
func (o options) has(short byte, long ...string) bool {
	if short != 0 && o.short[short] {
		return true
	}
	for name := range o.long {
		for _, l := range long {
			if name == l || len(name) >= 3 && strings.HasPrefix(l, name) {
				return true
			}
		}
	}
	return false
}
