package command

import (
	"path"
	"slices"
	"strings"
)

// wrapper is a command that runs another: which of its options take a value, how many words come before the command.
type wrapper struct {
	values []string
	skip   int
	env    bool // NAME=VALUE words come first
}

// wrappers are the commands whose arguments are a command.
var wrappers = map[string]wrapper{
	"sudo": {values: []string{"-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R", "--user", "--group", "--host", "--prompt", "--chdir", "--chroot"}, env: true},
	"doas": {values: []string{"-u", "-C", "-a"}}, "env": {values: []string{"-u", "-C", "-P", "--unset", "--chdir"}, env: true},
	"nice": {values: []string{"-n", "--adjustment"}}, "ionice": {values: []string{"-c", "-n", "-p", "--class", "--classdata"}}, "nohup": {}, "setsid": {},
	"stdbuf": {values: []string{"-i", "-o", "-e", "--input", "--output", "--error"}}, "time": {values: []string{"-f", "-o", "--format", "--output"}},
	"timeout": {values: []string{"-s", "-k", "--signal", "--kill-after"}, skip: 1}, "gtimeout": {values: []string{"-s", "-k"}, skip: 1},
	"command": {}, "builtin": {}, "exec": {values: []string{"-a"}}, "chrt": {values: []string{"-T", "-P", "-D"}, skip: 1}, "taskset": {skip: 1},
	"strace": {values: []string{"-e", "-o", "-p", "-s", "-u", "-E", "-P"}}, "ltrace": {values: []string{"-e", "-o", "-p", "-s", "-u"}}, "unbuffer": {}, "xvfb-run": {values: []string{"-n", "-s", "-e", "-f"}},
	"busybox": {}, "toybox": {}, "caffeinate": {}, "catchsegv": {}, "rlwrap": {}, "setarch": {skip: 1}, "linux64": {}, "proot": {values: []string{"-r", "-b", "-w"}}, "fakeroot": {},
	"chroot": {values: []string{"--userspec", "--groups"}, skip: 1}, "nsenter": {values: []string{"-t", "-S", "-G", "--target"}}, "unshare": {values: []string{"-S", "-G", "-R", "-w"}},
	"runuser": {values: []string{"-u", "-g", "-G", "-s"}}, "setpriv": {values: []string{"--reuid", "--regid", "--groups", "--inh-caps"}}, "torsocks": {}, "proxychains": {values: []string{"-f"}},
	"proxychains4": {values: []string{"-f"}}, "perf": {values: []string{"-e", "-o", "-F"}, skip: 1}, "valgrind": {}, "hyperfine": {values: []string{"-w", "-r", "-m", "-M", "-p", "--prepare", "--warmup", "--runs"}},
	"ld-linux-x86-64.so.2": {values: []string{"--library-path", "--preload"}}, "ld-musl-x86_64.so.1": {}, "ld.so": {}, "dbus-run-session": {}, "cgexec": {values: []string{"-g"}},
	"systemd-run": {values: []string{"-p", "-E", "-u", "--unit", "--property", "--on-calendar", "--on-active", "--on-boot", "--on-startup", "--on-unit-active", "--timer-property"}}, "systemd-inhibit": {}, "watch": {values: []string{"-n", "--interval"}}, "firejail": {}, "prlimit": {values: []string{"-p", "-o", "--pid", "--output"}}, "trickle": {values: []string{"-d", "-u"}},
	"pkexec": {values: []string{"--user"}}, "dzdo": {values: []string{"-u", "-g", "-p", "-r", "-t"}, env: true}, "please": {values: []string{"-u", "-g", "-d", "-e"}}, "run0": {values: []string{"-u", "-g", "-D", "--user", "--group", "--unit", "--nice", "--chdir", "--setenv"}},
	"gosu": {skip: 1}, "su-exec": {skip: 1}, "setuidgid": {skip: 1}, "s6-setuidgid": {skip: 1}, "envdir": {skip: 1}, "chpst": {values: []string{"-u", "-U", "-b", "-e", "-/", "-C", "-n", "-l", "-L", "-m", "-d", "-o", "-p", "-f", "-c", "-r", "-t"}},
	"sg": {skip: 1}, "flock": {values: []string{"-w", "-E", "--timeout", "--wait", "--conflict-exit-code"}, skip: 1}, "faketime": {values: []string{"-f"}, skip: 1}, "timelimit": {values: []string{"-t", "-T", "-s", "-S"}}, "repeat": {skip: 1},
	"chronic": {}, "ifne": {}, "dotenv": {values: []string{"-e", "-f", "-p", "-v"}}, "dumb-init": {}, "tini": {}, "noglob": {}, "nocorrect": {}, "choom": {values: []string{"-n", "-p", "--adjust"}}, "numactl": {values: []string{"-C", "-N", "-m", "-i", "-p"}},
	"cpulimit": {values: []string{"-l", "-p", "-e", "-P", "--limit"}}, "daemonize": {values: []string{"-c", "-e", "-o", "-p", "-l", "-u", "-E"}}, "dtach": {values: []string{"-n", "-c", "-A", "-a", "-e", "-r"}}, "abduco": {values: []string{"-n", "-c", "-A", "-a"}},
	"eatmydata": {}, "ccache": {}, "bunx": {values: []string{"-p", "--package"}}, "uvx": {values: []string{"--from", "--with", "-p", "--python"}}, "distcc": {}, "bear": {}, "scan-build": {values: []string{"-o"}}, "torify": {}, "tsocks": {}, "usewithtor": {}, "ssh-agent": {values: []string{"-a", "-t", "-E", "-O", "-P"}}, "dbus-launch": {}, "flatpak-spawn": {},
	"retry": {values: []string{"-t", "-d", "-m"}}, "sudo-rs": {values: []string{"-u", "-g"}, env: true}, "cgroupify": {}, "heaptrack": {}, "rr": {skip: 1}, "uftrace": {},
}

// takesNext reports whether the value of an option is the next word: of a long one, or of the last letter of short ones.
func (w wrapper) takesNext(arg string) bool {
	if slices.Contains(w.values, arg) {
		return true
	}
	if strings.HasPrefix(arg, "--") {
		return false
	}
	for j := 1; j < len(arg); j++ {
		if slices.Contains(w.values, "-"+arg[j:j+1]) {
			return j == len(arg)-1
		}
	}
	return false
}

// options is how many words are options, or their values.
func (w wrapper) options(args []string) (i int) {
	for ; i < len(args) && len(args[i]) > 1 && args[i][0] == '-'; i++ {
		if args[i] == "--" {
			return i + 1
		}
		if w.takesNext(args[i]) {
			i++
		}
	}
	return min(i, len(args))
}

// unwrap judges the command within a command. done: there was one.
func (a *analyzer) unwrap(c *invocation, w wrapper) (out data, done bool) {
	args := c.args
	if c.name == "env" || c.name == "sudo" {
		args = c.splitString(args)
	}
	env := map[string]string{}
	i := 0
	for ; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			i++
			break
		}
		if len(arg) > 1 && arg[0] == '-' || arg == "-" && c.name == "env" {
			if w.takesNext(arg) {
				i++
			}
			continue
		}
		if name, value, ok := strings.Cut(arg, "="); w.env && ok && name != "" && !strings.Contains(name, "/") {
			env[name] = value
			a.dangerousVariable(name, value, c.from)
			continue
		}
		break
	}
	i += w.skip
	if i >= len(args) {
		if o := parseOptions(args, w.values...); c.name == "sudo" && (o.short['s'] || o.short['i']) { // a shell
			(&invocation{a: a, name: "sh", in: c.in, env: env, from: c.from}).stdinScript()
		}
		a.replacing = c.name == "exec"
		return data{}, false
	}
	if c.name == "systemd-run" && slices.ContainsFunc(c.args[:min(i, len(c.args))], func(s string) bool { return strings.HasPrefix(s, "--on-") || strings.HasPrefix(s, "--timer-") }) {
		c.deny("persistence", "what it sets up runs later, outside of this task", "")
	}
	if c.name == "command" && slices.ContainsFunc(c.args[:min(i, len(c.args))], func(s string) bool { return s == "-v" || s == "-V" }) {
		return c.output(), true
	}
	inner := args[i:]
	if i > 0 && i+1 < len(args) && strings.HasPrefix(args[i-1], "-") && args[i-1] != "--" && !known(inner[0]) && known(args[i+1]) {
		a.run(inner[1:], c.in, env, c.from) // the value of an option that we do not know was taken for the command: both readings count
	}
	out = a.wrapped(c, w, inner, env)
	a.replacing = a.replacing && (c.name == "command" || c.name == "builtin")
	return out, true
}

// wrapped judges the command that a wrapper starts.
func (a *analyzer) wrapped(c *invocation, w wrapper, inner []string, env map[string]string) data {
	if o := parseOptions(c.args[:max(len(c.args)-len(inner), 0)], w.values...); c.name == "env" && o.value("-C", "chdir") != "" || c.name == "sudo" && o.value("-D", "chdir") != "" {
		dir := a.cwd()
		defer func() { a.dir.set(cwdName, dir) }()
		a.dir.set(cwdName, a.abs(o.value(map[string]string{"env": "-C", "sudo": "-D"}[c.name], "chdir")))
	}
	if inner[0] == "-c" && len(inner) > 1 { // sg GROUP -c TEXT
		return a.inShell(c, inner[1])
	}
	switch c.name {
	case "watch":
		return a.inShell(c, strings.Join(inner, " "))
	case "hyperfine":
		for _, text := range inner {
			a.inShell(c, text)
		}
		return data{}
	case "nsenter":
		if t := parseOptions(c.args, w.values...).value("-t", "target"); t == "1" || t == "" {
			c.deny("host-namespace", "it enters the namespaces of the machine's first process", "")
		}
	case "sudo":
		if o := parseOptions(c.args[:len(c.args)-len(inner)], w.values...); o.has('e', "edit") {
			sudoedit(&invocation{a: a, name: "sudoedit", args: inner, in: c.in, env: env, from: c.from})
			return data{}
		}
	case "systemd-run":
		c.ask("service", "the service manager runs it, outside of what watches this task", "run the command itself")
	}
	return a.run(inner, c.in, env, c.from)
}

// splitString expands env -S, whose value is words.
func (c *invocation) splitString(args []string) []string {
	for i, arg := range args {
		value, found := "", false
		var rest []string
		switch {
		case arg == "--split-string":
			value, found, rest = strings.Join(args[i+1:min(i+2, len(args))], ""), true, args[min(i+2, len(args)):]
		case len(arg) > 1 && arg[0] == '-' && arg[1] != '-' && strings.Contains(arg, "S") && !strings.ContainsAny(arg[:strings.Index(arg, "S")], "uCP"):
			value, found, rest = arg[strings.Index(arg, "S")+1:], true, args[i+1:]
			if value == "" && len(rest) > 0 {
				value, rest = rest[0], rest[1:]
			}
		case strings.HasPrefix(arg, "--split-string="):
			value, found, rest = arg[len("--split-string="):], true, args[i+1:]
		case arg == "" || arg[0] != '-' && !strings.Contains(arg, "="):
			return args
		}
		if found {
			return slices.Concat(args[:i], quoted(value), rest)
		}
	}
	return args
}

// quoted splits text into words as env -S does: quotes hold them together, and nothing else is special.
func quoted(text string) (words []string) {
	var word strings.Builder
	quote, inside := rune(0), false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inside = r, true
		case quote == 0 && strings.ContainsRune(" \t\n", r):
			if inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteRune(r)
			inside = true
		}
	}
	if inside {
		words = append(words, word.String())
	}
	return words
}

// inShell judges text that a command hands to a shell.
func (a *analyzer) inShell(c *invocation, text string) data {
	switch {
	case !hasUnknown(text):
		if c.from == fromDecoder {
			c.ask("decoded-command", "a shell is given text that was hidden by an encoding", "write it as it is")
		}
		return a.isolated(func() data { return a.parse(text, c.in) })
	case c.from == fromNetwork:
		c.deny("remote-command", "a shell is given text from the network", "look at it first")
	case c.from == fromDecoder:
		c.deny("decoded-command", "a shell is given text that was hidden by an encoding", "write it as it is")
	default:
		a.isolated(func() data { // with a variable in the place of what is not known
			a.set("__", unknownText, c.from)
			return a.parse(strings.ReplaceAll(text, unknownText, "${__}"), data{})
		})
		if strings.TrimSpace(strings.ReplaceAll(text, unknownText, "")) == "" || strings.HasPrefix(strings.TrimSpace(text), unknownText) {
			c.ask("unresolved", "a shell is given text that cannot be told beforehand", "write the command itself")
		}
	}
	return data{}
}

func wrapperRules(t table) {
	t["grep"], t["egrep"], t["fgrep"], t["rg"], t["ag"], t["ugrep"] = search, search, search, search, search, search
	t["xargs"], t["parallel"], t["find"], t["fd"], t["fdfind"] = xargs, parallel, findRule, fd, fd
	t["zmodload"], t["ztcp"] = zshNetwork, zshNetwork
	t["eval"], t["source"], t["."], t["trap"], t["alias"], t["hash"], t["cd"], t["pushd"], t["popd"] = evalRule, source1, source1, trap, aliasRule, aliasRule, cd, cd, cd
	for _, name := range []string{"bwrap", "systemd-nspawn", "buildah", "machinectl", "distrobox", "toolbox", "wsl", "steam-run", "guix", "pdsh", "pssh", "parallel-ssh", "clush", "dsh", "rsh", "plink", "et", "salt", "flatpak-spawn", "firejail", "lxc-attach"} {
		t[name] = insideRule
	}
	t["script"], t["su"], t["expect"], t["sem"], t["npx"] = scriptRule, su, expectRule, parallel, npx
	for _, name := range []string{"poetry", "pipenv", "pipx", "uv", "bundle", "pdm", "rye", "hatch", "mise", "asdf", "direnv", "nix", "devbox", "npm", "pnpm", "yarn", "bun", "conda", "mamba", "micromamba", "pyenv", "rbenv", "nvm", "fnm", "volta", "aws-vault",
		"lerna"} {
		t[name] = runner
	}
}

// insideRule judges the command of a sandbox, or for another machine, which begins where a word is the name of a tool that we know.
func insideRule(c *invocation) {
	if slices.Contains([]string{"pdsh", "pssh", "parallel-ssh", "clush", "dsh", "rsh", "plink", "et", "salt", "machinectl"}, c.name) {
		c.ask("remote", "it works on other machines, where nothing is held back", "")
	}
	i := slices.IndexFunc(c.args, func(s string) bool {
		_, wrapper := wrappers[path.Base(s)]
		return wrapper || rules()[unversioned(path.Base(s))] != nil
	})
	if i >= 0 {
		c.a.run(c.args[i:], c.in, c.env, c.from)
	}
}

// xargs runs a command with words from standard input.
func xargs(c *invocation) {
	values := []string{"-I", "-L", "-n", "-P", "-s", "-d", "-E", "-a", "-J", "-R", "-S", "--arg-file", "--delimiter", "--max-lines", "--max-args", "--max-procs", "--max-chars"}
	i, replace, tokens := 0, "", c.in
	for ; i < len(c.args) && len(c.args[i]) > 1 && c.args[i][0] == '-'; i++ {
		arg := c.args[i]
		switch {
		case strings.HasPrefix(arg, "-I") && len(arg) > 2:
			replace = arg[2:]
		case arg == "-i" || arg == "--replace":
			replace = "{}"
		case strings.HasPrefix(arg, "--replace="):
			replace = arg[len("--replace="):]
		case strings.HasPrefix(arg, "-a") || strings.HasPrefix(arg, "--arg-file"):
			tokens = data{}
		}
		if arg == "--" {
			i++
			break
		}
		if slices.Contains(values, arg) && i+1 < len(c.args) {
			i++
			if arg == "-I" || arg == "-J" {
				replace = c.args[i]
			}
		}
	}
	if i >= len(c.args) {
		return
	}
	c.spread(c.args[i:], replace, tokens)
}

// spread judges a command with words put in or at its end.
func (c *invocation) spread(argv []string, replace string, tokens data) {
	words := []string{unknownText}
	switch {
	case tokens.known && replace != "":
		words = strings.Split(strings.Trim(strings.ReplaceAll(tokens.text, "\x00", "\n"), "\n"), "\n")
	case tokens.known:
		words = strings.Fields(strings.ReplaceAll(tokens.text, "\x00", "\n"))
	}
	if n := len(argv); n > 1 && slices.Contains(shells, path.Base(argv[0])) && (replace == "" && argv[n-1] == "-c" || replace != "" && argv[n-1] == replace) {
		c.ask("stdin-script", "what is read becomes shell text", "write the command, and give it the words as arguments")
	}
	if len(words) > maxFields {
		words = append(words[:maxFields], unknownText)
	}
	from := max(c.from, tokens.from)
	if from == fromNetwork && !slices.Contains(shells, path.Base(argv[0])) {
		from = fromNowhere
	}
	if from == fromSecret && (slices.Contains(networkTools, path.Base(argv[0])) || path.Base(argv[0]) == "ping") { // it carries out what was read
		substituted := c.a.substituted
		c.a.substituted = true
		defer func() { c.a.substituted = substituted }()
	} else if from == fromSecret { // file names and contents are arguments, not words of the command
		from = fromNowhere
	}
	if replace == "" {
		if hasUnknown(argv[0]) {
			c.ask("unresolved", "what runs cannot be told beforehand", "")
		}
		c.a.run(append(slices.Clone(argv), words...), data{}, c.env, from)
		return
	}
	for _, w := range words[:min(len(words), maxItems)] {
		one := make([]string, len(argv))
		for i, arg := range argv {
			one[i] = strings.ReplaceAll(arg, replace, w)
		}
		c.a.run(one, data{}, c.env, from)
	}
}

// parallel is GNU parallel: COMMAND ::: WORDS, in a shell.
func parallel(c *invocation) {
	i := slices.IndexFunc(c.args, func(s string) bool { return strings.HasPrefix(s, ":::") })
	argv, tokens := c.args, c.in
	if i >= 0 {
		argv = c.args[:i]
		tokens = literal(strings.Join(c.args[i+1:], "\n"))
	}
	o := 0
	for o < len(argv) && strings.HasPrefix(argv[o], "-") {
		if slices.Contains([]string{"-j", "-P", "-N", "-n", "-a", "--jobs", "--delay", "--timeout", "-I", "-d", "-S", "--colsep", "-C", "--results", "--joblog", "--arg-file", "--max-args", "--workdir", "--tmpdir"}, argv[o]) {
			o++
		}
		o++
	}
	argv = argv[min(o, len(argv)):]
	if len(argv) == 0 {
		if tokens.known {
			for line := range strings.Lines(tokens.text) {
				c.a.inShell(c, strings.TrimSpace(line))
			}
		} else if tokens.from > fromHost {
			c.deny("unknown-script", "it runs lines that cannot be told beforehand", "")
		}
		return
	}
	replace := ""
	if slices.ContainsFunc(argv, func(s string) bool { return strings.Contains(s, "{}") }) {
		replace = "{}"
	}
	if len(argv) == 1 && strings.ContainsAny(argv[0], " ;|&$`") {
		words := []string{unknownText}
		if tokens.known {
			words = strings.Fields(tokens.text)
		}
		for _, w := range words[:min(len(words), maxItems)] {
			text := strings.ReplaceAll(argv[0], "{}", w)
			if replace == "" {
				text += " " + w
			}
			c.a.inShell(c, text)
		}
		return
	}
	c.spread(argv, replace, tokens)
}

func fd(c *invocation) {
	i := slices.IndexFunc(c.args, func(s string) bool { return s == "-x" || s == "-X" || s == "--exec" || s == "--exec-batch" })
	if i >= 0 && i+1 < len(c.args) {
		c.onEach(c.args[i+1:], []string{"."}, nil)
	}
}
