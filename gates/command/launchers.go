package command

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func launcherRules(t table) {
	t["tmux"], t["screen"], t["gdb"], t["rust-gdb"] = tmux, screen, debugger, debugger
	t["nix-shell"], t["concurrently"], t["nodemon"], t["watchexec"], t["pee"], t["mispipe"], t["sops"], t["entr"] = texts, texts, texts, texts, texts, texts, texts, texts
	t["start-stop-daemon"], t["gio"] = daemon, gio
}

// known reports whether a word names a tool that is judged by its name.
func known(word string) bool {
	name := path.Base(word)
	_, wrapper := wrappers[name]
	return wrapper || rules()[unversioned(name)] != nil
}

// unversioned is a program's name without the version that distributions add: python3.11, perl5.36-x86.
func unversioned(name string) string {
	if rules()[name] != nil {
		return name
	}
	if short := strings.TrimRight(name, "0123456789.-"); len(short) > 1 && rules()[short] != nil {
		return short
	}
	return name
}

// toolPath reports whether an absolute path names a program that is judged by its name: one of the system, or of an
// environment that was installed somewhere.
func toolPath(file string) bool {
	dir, name := path.Split(file)
	dir = path.Clean(dir)
	if strings.HasPrefix(name, "ld-") || strings.HasPrefix(name, "ld.so") {
		return true
	}
	if slices.Contains([]string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/lib/git-core", "/usr/libexec/git-core", "/busybox", "/opt/homebrew/bin"}, dir) {
		return true
	}
	_, wrapper := wrappers[name]
	return (wrapper || rules()[unversioned(name)] != nil) && slices.Contains([]string{"bin", "sbin", ".bin"}, path.Base(dir))
}

// behindOptions are the words of a command behind options of which nobody knows which take a value: a word behind one is taken
// for its value when a tool that we know follows.
func behindOptions(args []string) []string {
	for i := 0; i < len(args); {
		switch {
		case args[i] == "--":
			return args[i+1:]
		case strings.HasPrefix(args[i], "-"):
			i++
		case i > 0 && !strings.Contains(args[i-1], "=") && !known(args[i]) && !strings.Contains(args[i], "/") && slices.ContainsFunc(args[i+1:], known):
			i++
		default:
			return args[i:]
		}
	}
	return nil
}

// textOptions are how programs of every kind are told what to run.
var textOptions = []string{"-c", "-e", "-x", "-s", "--command", "--cmd", "--exec", "--execute", "--eval", "--run", "--shell", "--on-change", "--post-renderer"}

// texts judges tools that hand words, or the values of options, to a shell.
func texts(c *invocation) {
	for i, arg := range c.args {
		name, value, joined := strings.Cut(arg, "=")
		switch {
		case slices.Contains(textOptions, name) && joined:
			c.a.inShell(c, value)
		case slices.Contains(textOptions, arg) && i+1 < len(c.args):
			c.a.inShell(c, c.args[i+1])
		case strings.Contains(arg, " ") && arg[0] != '-':
			c.a.inShell(c, arg)
		}
	}
	if rest := behindOptions(c.args); len(rest) > 1 && known(rest[0]) {
		c.a.run(rest, c.in, c.env, c.from)
	}
}

// doubtful judges what may be a command. What nobody means is asked about, and no more.
func (a *analyzer) doubtful(f func() data) {
	a.doubts++
	defer func() { a.doubts-- }()
	a.isolated(f)
}

// stranger judges a program that nobody knows by what it is given: words behind --, or behind run and exec, text behind -c and its
// like, statements for a database.
func (c *invocation) stranger() {
	if slices.Contains(passing, c.name) || slices.Contains([]string{"echo", "ls", "test", "[", "[[", "ag", "ack", "ugrep", "zgrep", "tldr", "which", "type", "whereis"}, c.name) {
		return
	}
	for i, arg := range c.args {
		rest := c.args[i+1:]
		switch {
		case !c.a.spend(nodeCost):
			return
		case len(rest) > 0 && (arg == "--" || i == 0 && (arg == "run" || arg == "exec")) && len(behindOptions(rest)) > 1:
			c.a.doubtful(func() data { return c.a.run(behindOptions(rest), c.in, c.env, c.from) })
			return
		case len(rest) > 0 && slices.Contains(textOptions, arg) && strings.Contains(rest[0], " "):
			c.maybeText(rest[0])
		case strings.Contains(arg, " ") && c.a.matches(statement(), arg):
			c.ask("database", "it reads as a statement that loses data", "say which rows with WHERE, in a transaction")
		}
	}
}

// maybeText judges what may be shell text.
func (c *invocation) maybeText(text string) {
	if c.a.spend(parseCost+len(text)*byteCost) && !hasUnknown(text) {
		if _, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), ""); err == nil {
			c.a.doubtful(func() data { return c.a.parse(text, c.in) })
		}
	}
}

// tmux judges the commands of tmux that start something: what stands behind its options is one text, or words.
func tmux(c *invocation) {
	rest := behindTmux(c.args, "-f", "-L", "-S", "-c", "-T")
	if len(rest) < 2 {
		return
	}
	sub, words := rest[0], behindTmux(rest[1:], "-b", "-c", "-e", "-F", "-f", "-l", "-n", "-p", "-s", "-t", "-x", "-y", "-N", "-d")
	switch {
	case strings.HasPrefix(sub, "send"):
		words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains([]string{"Enter", "C-m", "C-c", "KPEnter"}, w) })
	case !slices.ContainsFunc([]string{"new", "split", "run", "respawn", "if", "pipe", "popup", "display-popup"}, func(p string) bool { return strings.HasPrefix(sub, p) }):
		return
	}
	c.a.inShell(c, strings.Join(words, " "))
}

// behindTmux is what stands behind options of tmux: getopt's, whose first operand ends them. -d takes no value but for popups.
func behindTmux(args []string, values ...string) []string {
	w := wrapper{values: slices.DeleteFunc(values, func(v string) bool { return v == "-d" })}
	return args[w.options(args):]
}

// screen judges what GNU screen starts, or types into a window.
func screen(c *invocation) {
	if i := slices.Index(c.args, "stuff"); i >= 0 && i+1 < len(c.args) {
		c.a.inShell(c, strings.TrimRight(strings.NewReplacer("^M", "", `\n`, "", `\r`, "").Replace(c.args[i+1]), "\r\n"))
		return
	}
	w := wrapper{values: []string{"-c", "-e", "-h", "-L", "-p", "-s", "-S", "-t", "-T", "-x", "-r", "-Logfile"}}
	if i := w.options(c.args); i < len(c.args) && !slices.Contains(c.args[:i], "-X") {
		c.a.run(c.args[i:], c.in, c.env, c.from)
	}
}

// debugger judges gdb: a program to run, and its own commands.
func debugger(c *invocation) {
	if i := slices.IndexFunc(c.args, func(s string) bool { return s == "--args" || s == "-args" }); i >= 0 { // what stands behind is the program's
		if i+1 < len(c.args) {
			c.a.run(c.args[i+1:], c.in, c.env, c.from)
		}
		own := *c
		own.args = c.args[:i]
		c = &own
	}
	for i := 0; i < len(c.args); i++ {
		arg := c.args[i]
		if arg == "" || arg[0] != '-' {
			continue
		}
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		file, commands := debuggerOption(name)
		if !joined && (file || commands) {
			i++
			value = first(c.args[min(i, len(c.args)):])
		}
		switch {
		case file:
			c.debuggerFile(value)
		case commands:
			c.debuggerCommands(value)
		}
	}
	if c.in.from == fromNetwork {
		c.deny("download-run", "it runs what comes from the network", "download, read, then run")
	}
	if c.in.long {
		c.tooLong()
	}
	c.debuggerCommands(c.in.text)
	editor(c)
}

// debuggerOption reports whether the value of one of gdb's options, which may be abbreviated, is a file of commands, or a command.
func debuggerOption(name string) (file, command bool) {
	is := func(short, long string) bool {
		return name == short || len(name) > 1 && strings.HasPrefix(long, name)
	}
	return is("x", "command") || is("ix", "init-command") || is("eix", "early-init-command"), is("ex", "eval-command") || is("iex", "init-eval-command") || is("eiex", "early-init-eval-command")
}

// debuggerFile judges a file of gdb's commands.
func (c *invocation) debuggerFile(file string) {
	c.runsFetched(file)
	p := c.a.abs(file)
	if name := "commands " + p; !slices.Contains(c.a.calling, name) && len(c.a.calling) < maxDepth {
		c.a.calling = append(c.a.calling, name)
		c.debuggerCommands(c.named(p))
		c.a.calling = c.a.calling[:len(c.a.calling)-1]
	}
}

// debuggerCommands judges commands of gdb that run something, or read more of them.
func (c *invocation) debuggerCommands(text string) {
	if !c.a.spend(1 + len(text)/textPerCost) {
		return
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "!"):
			c.a.inShell(c, line[1:])
		case word == "shell" || word == "she" || word == "make":
			c.a.inShell(c, rest)
		case word == "source":
			c.debuggerFile(strings.TrimPrefix(strings.TrimSpace(rest), "-v "))
		}
	}
}

// daemon judges start-stop-daemon --exec PROGRAM -- WORDS.
func daemon(c *invocation) {
	o := parseOptions(c.args, "-x", "-a", "-p", "-u", "-g", "-n", "-d", "-r", "-s", "-R", "-c", "-N", "-P", "-I", "-k", "-C", "--exec", "--pidfile", "--user", "--name", "--chuid", "--chdir", "--chroot", "--signal",
		"--retry", "--group")
	for _, program := range []string{o.value("-x", "exec"), o.long["-a"]} {
		if program != "" {
			c.a.run(append([]string{program}, o.rest...), c.in, c.env, c.from)
		}
	}
}

func gio(c *invocation) {
	if sub := first(c.args); sub == "trash" || sub == "remove" {
		c.a.run(append([]string{"rm", "-r"}, c.args[1:]...), c.in, c.env, c.from)
	}
}

// runner unwraps TOOL run|exec COMMAND, and what hands a text to a shell.
func runner(c *invocation) {
	script := slices.Contains([]string{"npm", "pnpm", "yarn", "bun"}, c.name)
	switch sub := first(c.args); {
	case script && (sub == "run" || sub == "test" || sub == "start" || sub == "t" || sub == "install" || sub == "i" || sub == "ci"):
		c.scripts()
	case script && (sub == "pkg" || sub == "set-script"):
		for _, arg := range c.args[1:] {
			_, text, _ := strings.Cut(arg, "=")
			c.maybeText(cmp.Or(text, arg))
		}
	}
	switch sub := first(c.args); {
	case len(c.args) > 1 && slices.Contains([]string{"run", "exec", "x", "dlx"}, sub):
		values := []string{"-c", "--call", "-p", "--package", "-w", "--workspace"}
		o := parseOptions(c.args[1:1+(wrapper{values: values}).options(c.args[1:])], values...)
		if text := o.value("-c", "call"); script && text != "" {
			c.a.inShell(c, text)
			return
		}
		rest := behindOptions(c.args[1:])
		if c.name == "direnv" || c.name == "aws-vault" {
			rest = behindOptions(rest[min(1, len(rest)):])
		}
		c.fromAddress(first(rest))
		if len(rest) > 0 && (!script || sub != "run") {
			c.a.run(rest, c.in, c.env, c.from)
		}
		return
	case c.name == "nix" && (sub == "develop" || sub == "shell" || sub == "run"):
		if i := slices.IndexFunc(c.args, func(s string) bool { return s == "-c" || s == "--command" }); i >= 0 && i+1 < len(c.args) {
			c.a.run(c.args[i+1:], c.in, c.env, c.from)
		}
	case c.name == "bun" && strings.HasPrefix(sub, "-"):
		interpreter(c, "ep")
	}
	publishRule(c)
	if len(c.args) > 2 && c.args[0] == "config" && c.args[1] == "set" {
		c.ask("persistence", "it changes the tool for everything that comes later", "")
	}
}

// npx runs a package's program, or a text.
func npx(c *invocation) {
	publishRule(c)
	if text := parseOptions(c.args, "-c", "--call").value("-c", "call"); text != "" && strings.HasPrefix(first(c.args), "-") {
		c.a.inShell(c, text)
		return
	}
	if rest := c.args[(wrapper{values: []string{"-p", "--package"}}).options(c.args):]; len(rest) > 0 {
		c.fromAddress(rest[0])
		c.a.run(rest, c.in, c.env, c.from)
	}
}
