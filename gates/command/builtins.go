package command

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
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

// redirected judges a statement's command, which reads something else as long as it runs. exec: it is one without a command, so
// that the shell itself does from now on.
func (a *analyzer) redirected(s *syntax.Stmt, before, in data) (out data, exec bool) {
	standing := a.standing
	if in != before {
		a.standing = &in
	}
	a.replacing = false
	out = a.cmd(s.Cmd, in)
	_, simple := s.Cmd.(*syntax.CallExpr)
	exec, a.replacing = a.replacing && simple && len(s.Redirs) > 0, false
	if in != before {
		a.standing = standing
	}
	return out, exec
}

// replaced notes what the shell itself reads from now on. What it writes goes to files of which nobody can tell what they hold.
func (a *analyzer) replaced(before, in data, outs []string) {
	if in != before {
		a.standing = &in
	}
	for _, target := range outs {
		a.wrote(target, data{text: unknownText})
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
			c.maybeText(text) // whoever types it next runs it
		}
	}
}

// callbacks judges builtins that are told what to run later, or to load.
func callbacks(c *invocation) {
	o := parseOptions(c.args, "-C", "-c", "-f", "-x", "-n", "-d", "-O", "-s", "-t", "-u", "-A", "-F", "-G", "-P", "-S", "-W", "-X", "-m", "-q", "-r")
	switch c.name {
	case "enable":
		if o.long["-f"] != "" {
			c.ask("preload", "it loads machine code into the shell", "")
		}
	case "bind":
		if _, text, ok := strings.Cut(o.long["-x"], ":"); ok {
			c.a.inShell(c, strings.Trim(text, `" `))
		}
	case "mapfile", "readarray":
		setsVariables(c)
		fallthrough
	default:
		if text := o.long["-C"]; text != "" {
			c.a.inShell(c, text)
		}
	}
}

// subscripts runs the substitutions within arguments of builtins that take them for names of array elements or for arithmetic: the shell
// expands what is quoted there once more.
func (c *invocation) subscripts() {
	if !slices.Contains([]string{"test", "[", "declare", "typeset", "local", "export", "readonly", "unset", "read", "printf", "let", "wait"}, c.name) {
		return
	}
	for _, arg := range c.args {
		c.a.element(arg)
	}
}

// element runs the substitutions in the subscript of what is the name of an array's element.
func (a *analyzer) element(text string) {
	if i := strings.IndexByte(text, '['); i < 1 || !syntax.ValidName(text[:i]) || !strings.ContainsAny(text[i:], "$`") || hasUnknown(text) || !a.spend(parseCost+len(text)*byteCost) {
		return
	}
	a.later(text)
}

// elements are those that are quoted below a node.
func (a *analyzer) elements(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		if q, ok := n.(*syntax.SglQuoted); ok {
			a.element(q.Value)
		}
		return a.spend(nodeCost)
	})
}

// ordered puts words before a coprocess's first one behind it: the parser takes its if=x for an assignment.
func ordered(s *syntax.Stmt) {
	if call, ok := s.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 && len(call.Assigns) > 0 && call.Args[0].Pos().Offset() < call.Assigns[0].Pos().Offset() {
		words := []*syntax.Word{call.Args[0]}
		for _, as := range call.Assigns {
			w := &syntax.Word{Parts: []syntax.WordPart{&syntax.Lit{ValuePos: as.Pos(), Value: as.Name.Value + "="}}}
			if as.Value != nil {
				w.Parts = append(w.Parts, as.Value.Parts...)
			}
			words = append(words, w)
		}
		call.Args, call.Assigns = append(words, call.Args[1:]...), nil
	}
}

// later runs the substitutions in a text that a shell expands when it comes to use it.
func (a *analyzer) later(text string) {
	if w, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Document(strings.NewReader(text)); err == nil {
		escaped(w)
		a.substitutions(w)
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

func scriptRule(c *invocation) {
	if c.piped() || c.in != (data{}) { // the shell that it starts reads that
		(&invocation{a: c.a, name: "sh", in: c.in, env: c.env, from: c.from}).stdinScript()
	}
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
	if len(parseOptions(c.args).rest) == 0 {
		c.stdinScript()
	}
	if slices.Contains(c.args, "-c") {
		c.deny("interpreter-process", "it drives other programs", "")
	}
}
