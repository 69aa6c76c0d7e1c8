package command

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// data is what flows through a pipe, or lies in a file or a variable.
type data struct {
	text  string
	known bool   // text is all of it
	long  bool   // a file is in it that is too long to be judged
	from  source // the worst of where it comes from
}

// source is where data comes from.
type source int

const (
	fromNowhere source = iota
	fromHost           // says who and where we are
	fromDecoder        // was hidden
	fromSecret         // belongs to the user
	fromNetwork        // belongs to somebody else
)

func literal(text string) data {
	return data{text: text, known: !hasUnknown(text)}
}

// analyzer walks over a syntax tree and keeps what a shell would.
type analyzer struct {
	c           Config
	vars        scope[variable]
	funcs       scope[*syntax.Stmt]
	aliases     scope[string]
	dir         scope[string]     // the working directory, under one name: like a variable it is a branch's own
	files       map[string]data   // by cleaned path
	programs    map[string]string // names of tools, by the path of a copy or link
	params      []string          // $1 …
	calling     []string          // functions
	depth       int               // texts within texts
	running     int               // commands within commands
	parser      *syntax.Parser
	budget      int               // what the analysis may still cost
	disk        map[string]opened // files that the configuration could read, or not
	judged      int               // bytes of files that are judged
	piped       int               // and of those that flow
	subs        int               // process substitutions
	source      string            // the simple command that is being judged, as it was written
	substituted bool              // its words hold a command substitution
	piping      int               // we stand behind a pipe
	parallel    int               // of functions that are being called, what runs beside the rest
	away        int               // we are on another machine
	called      map[string]bool   // functions that were
	links       map[string]string // where symbolic links lead
	doubts      int               // what is being judged may be no command at all
	feeding     data              // what the command reads whose words are being expanded
	standing    *data             // what the shell itself reads; nil: what it was given
	replacing   bool              // the command was an exec that only redirects
	fetched     []string          // directories whose content comes from the network
	line        uint
	absent      map[string]bool // variables that count as not set
	column      uint
	odd         []int // where stand-ins are in the outermost text
	worst       int
	findings    []Finding
	expanded    source // the worst source of the words that were expanded last
}

func newAnalyzer(c Config) *analyzer {
	c.Dir, c.Cwd, c.Home = readable(c.Dir), readable(c.Cwd), readable(c.Home)
	a := &analyzer{c: c, files: map[string]data{}, disk: map[string]opened{}, programs: map[string]string{}, called: map[string]bool{}, links: map[string]string{}, budget: baseCost, parser: syntax.NewParser(syntax.Variant(syntax.LangBash))}
	a.dir.set(cwdName, c.Dir)
	for name, value := range map[string]string{"HOME": c.Home, "PWD": c.Dir, "OLDPWD": c.Dir, "TMPDIR": "/tmp", "IFS": " \t\n", "USER": "user", "LOGNAME": "user",
		"SHELL": "/bin/bash", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "UID": "1000", "EUID": "1000", "OSTYPE": "linux-gnu", "0": "bash", "BASH": "/bin/bash"} {
		a.set(name, value, fromNowhere)
	}
	for _, kv := range c.Env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			from := fromNowhere
			if secretName(name) {
				from = fromSecret
			}
			a.set(name, readable(value), from)
		}
	}
	return a
}

// stmts judges a list of statements. What the list writes is known when each of it is.
func (a *analyzer) stmts(list []*syntax.Stmt, in data) data {
	out := data{known: true}
	for _, s := range list {
		var o data
		o, in = a.inTurn(s, in)
		out = join(out, o)
	}
	return out
}

func join(x, y data) data {
	if len(x.text)+len(y.text) > maxText {
		return data{from: max(x.from, y.from), long: true}
	}
	return data{text: x.text + y.text, known: x.known && y.known, long: x.long || y.long, from: max(x.from, y.from)}
}

func (a *analyzer) stmt(s *syntax.Stmt, in data) data {
	if s == nil || !a.spend(stmtCost) {
		return data{}
	}
	a.at(s.Pos())
	if s.Background && starter(s) {
		a.find(Deny, "fork-bomb", "$0 &", "a script that starts itself and does not wait", "")
	}
	if s.Background || s.Coprocess { // what it sets is a subshell's
		return a.beside(func() data { return a.isolated(func() data { return a.foreground(s, in) }) })
	}
	return a.foreground(s, in)
}

// beside runs f as what does not wait for the rest.
func (a *analyzer) beside(f func() data) data {
	if len(a.calling) > 0 {
		a.parallel++
		defer func() { a.parallel-- }()
	}
	return f()
}

func (a *analyzer) foreground(s *syntax.Stmt, in data) data {
	a.feeding = in
	before := in
	in, outs := a.redirects(s, in)
	if s.Cmd == nil {
		for _, target := range outs {
			a.emptied(target)
			a.files[a.abs(target)] = data{known: true}
		}
		return data{known: true}
	}
	out, exec := a.redirected(s, before, in)
	if exec {
		a.replaced(before, in, outs)
		return data{known: true}
	}
	if len(outs) == 0 {
		return out
	}
	call, _ := s.Cmd.(*syntax.CallExpr)
	for _, target := range outs {
		if out.known && strings.TrimSpace(out.text) == "" && call != nil && len(call.Args) > 0 && slices.Contains([]string{":", "true", "echo", "printf", "cat"}, call.Args[0].Lit()) && !appends(s) {
			a.emptied(target)
		}
		a.wrote(target, out)
	}
	if endlessWriter(s) {
		a.find(Ask, "disk-full", "> "+outs[0], "it writes until nothing is left of the disk", "head -c N")
	}
	return data{known: true}
}

// appends reports whether all that a statement writes to files comes behind what is there.
func appends(s *syntax.Stmt) bool {
	return !slices.ContainsFunc(s.Redirs, func(r *syntax.Redirect) bool {
		return r.Op == syntax.RdrOut || r.Op == syntax.RdrClob || r.Op == syntax.RdrAll
	})
}

// emptied judges a file of which nothing is left.
func (a *analyzer) emptied(target string) {
	if below(a.abs(target), "/var/log") {
		a.find(Deny, "log-wiping", "> "+target, "it empties a log", "")
	}
}

// wrote notes what lies in a file now.
func (a *analyzer) wrote(target string, d data) {
	if p := a.abs(target); !hasUnknown(p) {
		if startsShells(p, a.c.Home) {
			a.runsLater(target, d)
		}
		if old, ok := a.files[p]; ok {
			d = join(old, d)
		}
		a.files[p] = d
	}
}

func (a *analyzer) cmd(c syntax.Command, in data) data {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return a.call(c, in)
	case *syntax.BinaryCmd:
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			if starter(c.X) && starter(c.Y) {
				a.find(Deny, "fork-bomb", "$0 | $0", "a script that starts itself again and again at the same time", "")
			}
			return a.isolated(func() data { return a.pipe(c, in) })
		}
		return a.chain(c, in)
	case *syntax.Block:
		return a.stmts(c.Stmts, in)
	case *syntax.Subshell:
		return a.isolated(func() data { return a.stmts(c.Stmts, in) })
	case *syntax.IfClause:
		return a.ifClause(c, in)
	case *syntax.WhileClause:
		if endless(c) {
			a.find(Deny, "fork-bomb", "while …", "a loop without end that starts processes and waits for none", "wait for each")
		}
		a.forget(c.Cond)
		a.forget(c.Do)
		in = a.condition(c.Cond, in)
		return a.maybe(func() data { return a.stmts(c.Do, in) })
	case *syntax.ForClause:
		return a.forClause(c, in)
	case *syntax.CaseClause:
		a.word(c.Word)
		out := data{}
		for _, item := range c.Items {
			for _, p := range item.Patterns {
				a.substitutions(p)
			}
			out = join(out, a.maybe(func() data { return a.stmts(item.Stmts, in) }))
		}
		return vague(out)
	case *syntax.FuncDecl:
		a.define(c)
	case *syntax.DeclClause:
		a.declare(c)
	case *syntax.TimeClause:
		return a.stmt(c.Stmt, in)
	case *syntax.CoprocClause:
		ordered(c.Stmt)
		return vague(a.isolated(func() data { return a.stmt(c.Stmt, in) }))
	case *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause:
		a.substitutions(c)
		a.elements(c)
	case *syntax.TestDecl:
		return a.stmt(c.Body, in)
	}
	return data{known: true}
}

// pipe judges what writes, and then what reads that.
func (a *analyzer) pipe(c *syntax.BinaryCmd, in data) data {
	in = a.stmt(c.X, in)
	a.standing = &in
	a.piping++
	defer func() { a.piping-- }()
	return a.beside(func() data { return a.stmt(c.Y, in) })
}

// vague is data of which some may be missing, or come again.
func vague(d data) data { return data{from: d.from, long: d.long} }

// define keeps a body until it is called, and looks whether it multiplies by itself.
func (a *analyzer) define(c *syntax.FuncDecl) {
	if c.Name == nil { // zsh's, which run at once
		a.stmt(c.Body, data{})
		return
	}
	name := c.Name.Value
	a.funcs.set(name, c.Body)
	if a.startsItself(name, c.Body) {
		a.find(Deny, "fork-bomb", name+"() { … }", "a function that calls itself again and again at the same time", "")
	}
}

func (a *analyzer) declare(c *syntax.DeclClause) {
	for _, as := range c.Args {
		if as.Name == nil {
			a.element(a.word(as.Value))
			continue
		}
		if !as.Naked {
			a.assign(as)
		}
		if slices.ContainsFunc(c.Args, func(o *syntax.Assign) bool { return o.Name == nil && o.Value.Lit() == "-n" }) {
			a.set(as.Name.Value, unknownText, fromNowhere) // a reference to another
		}
		a.history(as.Name.Value)
	}
}

func (a *analyzer) assign(as *syntax.Assign) {
	name := as.Name.Value
	if as.Array != nil {
		var list []string
		for _, e := range as.Array.Elems {
			if e.Index != nil {
				a.substitutions(e.Index)
			}
			if e.Value != nil {
				list = append(list, a.fields(e.Value)...)
			}
		}
		a.vars.set(name, variable{expand.Variable{Set: true, Kind: expand.Indexed, List: list}, a.expanded})
		return
	}
	if as.Index != nil {
		a.substitutions(as.Index)
		a.word(as.Value)
		a.set(name, unknownText, a.expanded)
		return
	}
	value := a.word(as.Value)
	from := a.expanded
	if as.Append {
		value, from = a.value(name)+value, max(from, a.vars.at(name).from)
	}
	a.set(name, value, from)
	a.history(name)
	a.dangerousVariable(name, value, from)
}

// redirects expands a statement's redirections: what it reads now, and where it writes.
func (a *analyzer) redirects(s *syntax.Stmt, in data) (data, []string) {
	var outs []string
	for _, r := range s.Redirs {
		target := ""
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			d := literal(a.document(r.Hdoc))
			a.reads(r, &in, d, a.expanded)
			continue
		case syntax.WordHdoc:
			d := literal(a.word(r.Word) + "\n")
			a.reads(r, &in, d, a.expanded)
			continue
		default:
			target = a.word(r.Word)
		}
		if strings.HasPrefix(target, "/dev/tcp/") || strings.HasPrefix(target, "/dev/udp/") {
			v := Deny
			if host, _, _ := strings.Cut(target[len("/dev/tcp/"):], "/"); s.Cmd == nil || loopback(host) { // it only looks whether somebody answers, or stays here
				v = Ask
			}
			a.find(v, "network-device", target, "a shell that talks to the network by itself", "use a tool whose connections can be seen")
			if d := (data{from: fromNetwork}); r.Op == syntax.RdrIn || r.Op == syntax.RdrInOut {
				a.reads(r, &in, d, d.from)
			} else {
				in = d
			}
			continue
		}
		switch r.Op {
		case syntax.RdrIn, syntax.RdrInOut:
			d := a.read(target)
			a.reads(r, &in, d, d.from)
		case syntax.DplIn:
			if d, ok := a.files["/dev/fd/"+target]; ok {
				a.reads(r, &in, d, d.from)
			} else if hasUnknown(target) {
				a.reads(r, &in, data{text: unknownText}, fromNowhere)
			}
		case syntax.DplOut:
		default:
			how := redirection
			if r.Op == syntax.AppOut || r.Op == syntax.AppAll {
				how = appending
			}
			a.writes(target, how)
			if !descriptor(target) {
				if r.Op != syntax.AppOut && r.Op != syntax.AppAll {
					delete(a.files, a.abs(target))
				}
				outs = append(outs, target)
			}
		}
	}
	return in, outs
}

// reads notes what stands behind a descriptor now: standard input, or another.
func (a *analyzer) reads(r *syntax.Redirect, in *data, d data, from source) {
	d.from = from
	if d == (data{}) { // that there is something is known
		d.text = unknownText
	}
	if r.N != nil && r.N.Value != "0" {
		a.files["/dev/fd/"+r.N.Value] = d
		return
	}
	*in = d
}
