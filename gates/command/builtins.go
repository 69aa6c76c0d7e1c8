package command

import (
	"slices"
	"strings"
)

// evalRule judges text that the shell itself runs.
func evalRule(c *invocation) {
	text := strings.Join(c.args, " ")
	if first(c.args) == "--" {
		text = strings.Join(c.args[1:], " ")
	}
	if strings.TrimSpace(text) == "" {
		return
	}
	c.a.depth++
	defer func() { c.a.depth-- }()
	switch {
	case c.from == fromNetwork:
		c.deny("download-run", "it runs text from the network", "look at it first")
	case hasUnknown(text):
		c.a.isolated(func() data { return c.a.parse(strings.ReplaceAll(text, unknownText, "unknown"), data{}) })
		c.ask("unresolved", "what eval runs cannot be told beforehand", "write the command itself")
	default:
		if c.from == fromDecoder || strings.Count(text, `\x`) > 2 { // what prints it may decode it, or another shell's printf
			c.ask("decoded-command", "it runs what was hidden by an encoding", "write it as it is")
		}
		c.a.parse(text, c.in)
	}
}

// zshNetwork judges zsh's own way to a socket.
func zshNetwork(c *invocation) {
	if c.name == "ztcp" || slices.ContainsFunc(c.args, func(s string) bool { return strings.HasPrefix(s, "zsh/net/") }) {
		c.deny("reverse-shell", "it joins a shell with the network", "")
	}
}

func source1(c *invocation) {
	if len(c.args) > 0 {
		c.scriptFile(c.args[0])
	}
}

func trap(c *invocation) {
	o := parseOptions(c.args)
	if len(o.rest) > 1 && o.rest[0] != "" && o.rest[0] != "-" {
		c.a.inShell(c, o.rest[0])
	}
}

func aliasRule(c *invocation) {
	if c.name == "hash" {
		if o := parseOptions(c.args, "-p"); o.long["-p"] != "" && len(o.rest) > 0 {
			c.a.aliases.set(o.rest[0], o.long["-p"])
		}
		return
	}
	for _, arg := range c.args {
		if name, text, ok := strings.Cut(arg, "="); ok {
			c.a.aliases.set(name, text)
		}
	}
}

func cd(c *invocation) {
	o := parseOptions(c.args)
	dir := nowhere
	switch {
	case c.name == "popd":
	case len(o.rest) == 0:
		dir = c.a.c.Home
	case o.rest[0] != "-":
		dir = c.a.abs(o.rest[0])
	}
	c.a.set("OLDPWD", c.a.value("PWD"), fromNowhere)
	c.a.dir.set(cwdName, dir)
	if hasUnknown(dir) {
		dir = unknownText
	}
	c.a.set("PWD", dir, fromNowhere)
}

func flockRule(c *invocation) {
	for i, arg := range c.args {
		if (arg == "-c" || arg == "--command") && i+1 < len(c.args) {
			c.a.inShell(c, c.args[i+1])
			return
		}
	}
	if o := parseOptions(c.args, "-w", "-E"); len(o.rest) > 1 {
		c.a.run(o.rest[1:], c.in, c.env, c.from)
	}
}

func scriptRule(c *invocation) {
	o := parseOptions(c.args, "-c", "--command", "-O", "-I", "-B")
	if text := o.long["-c"] + o.long["command"]; text != "" {
		c.a.inShell(c, text)
	}
}

func su(c *invocation) {
	o := parseOptions(c.args, "-c", "--command", "-s", "--shell", "-g")
	if text := o.long["-c"] + o.long["command"]; text != "" {
		c.a.inShell(c, text)
		return
	}
	c.ask("su", "it becomes another user", "")
}

func expectRule(c *invocation) {
	if slices.Contains(c.args, "-c") {
		c.deny("interpreter-process", "it drives other programs", "")
	}
}
