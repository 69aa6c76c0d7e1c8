package command

import (
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// data is what flows through a pipe, or lies in a file or a variable.
type data struct {
	text  string
	known bool   // text is all of it
	from  source // the worst of where it comes from
}

// source is where data comes from.
type source int

const (
	fromNowhere source = iota
	fromDecoder        // was hidden
	fromSecret         // belongs to the user
	fromNetwork        // belongs to somebody else
)

func literal(text string) data {
	if hasUnknown(text) {
		return data{}
	}
	return data{text: text, known: true}
}

// analyzer walks over a syntax tree and keeps what a shell would.
type analyzer struct {
	c           Config
	vars        map[string]expand.Variable
	taint       map[string]source // of variables
	funcs       map[string]*syntax.Stmt
	aliases     map[string]string
	files       map[string]data // by cleaned path
	params      []string        // $1 …
	calling     []string        // functions
	cwd         string
	moved       bool // cwd is not known
	depth       int
	steps       int
	subs        int    // process substitutions
	source      string // the simple command that is being judged, as it was written
	substituted bool   // its words hold a command substitution
	piping      int    // we stand behind a pipe
	parsed      int
	line        uint
	column      uint
	worst       int
	denied      bool
	findings    []Finding
	expanded    source // the worst source of the words that were expanded last
}

func newAnalyzer(c Config) *analyzer {
	a := &analyzer{c: c, vars: map[string]expand.Variable{}, taint: map[string]source{}, funcs: map[string]*syntax.Stmt{}, aliases: map[string]string{},
		files: map[string]data{}, cwd: c.Cwd}
	for name, value := range map[string]string{"HOME": c.Home, "PWD": c.Cwd, "OLDPWD": c.Cwd, "TMPDIR": "/tmp", "IFS": " \t\n", "USER": "user", "LOGNAME": "user",
		"SHELL": "/bin/bash", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "UID": "1000", "EUID": "1000", "OSTYPE": "linux-gnu", "0": "bash", "BASH": "/bin/bash"} {
		a.set(name, value)
	}
	return a
}

// set sets a variable. One that grows without end is not followed.
func (a *analyzer) set(name, value string) {
	if len(value) > a.c.MaxBytes {
		value = unknownText
	}
	a.vars[name] = expand.Variable{Set: true, Kind: expand.String, Str: value}
}

// tick counts a step; false when there were too many.
func (a *analyzer) tick() bool {
	if a.steps++; a.steps == maxSteps {
		a.find(Deny, "too-complex", "", "it takes too many steps to judge", "say it more simply")
	}
	return a.steps < maxSteps
}

// stmts judges a list of statements. What the list writes is known when each of it is.
func (a *analyzer) stmts(list []*syntax.Stmt, in data) data {
	out := data{known: true}
	for _, s := range list {
		out = join(out, a.stmt(s, in))
	}
	return out
}

func join(x, y data) data {
	if len(x.text)+len(y.text) > maxText {
		return data{from: max(x.from, y.from)}
	}
	return data{text: x.text + y.text, known: x.known && y.known, from: max(x.from, y.from)}
}

func (a *analyzer) stmt(s *syntax.Stmt, in data) data {
	if !a.tick() || s == nil {
		return data{}
	}
	a.at(s.Pos())
	in, outs := a.redirects(s, in)
	if s.Cmd == nil {
		for _, target := range outs {
			a.files[a.abs(target)] = data{known: true}
		}
		return data{known: true}
	}
	out := a.cmd(s.Cmd, in)
	if len(outs) == 0 {
		return out
	}
	for _, target := range outs {
		a.wrote(target, out)
	}
	return data{known: true}
}

// wrote notes what lies in a file now.
func (a *analyzer) wrote(target string, d data) {
	if p := a.abs(target); !hasUnknown(p) {
		a.files[p] = join(a.files[p], d)
		if old := a.files[p]; d.known && old.text == "" {
			a.files[p] = d
		}
	}
}

func (a *analyzer) cmd(c syntax.Command, in data) data {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return a.call(c, in)
	case *syntax.BinaryCmd:
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			return a.isolated(func() data {
				in := a.stmt(c.X, in)
				a.piping++
				defer func() { a.piping-- }()
				return a.stmt(c.Y, in)
			})
		}
		out := a.stmt(c.X, in)
		before := maps.Clone(a.vars)
		out = join(out, a.stmt(c.Y, in))
		a.disagree(before)
		return out
	case *syntax.Block:
		return a.stmts(c.Stmts, in)
	case *syntax.Subshell:
		return a.isolated(func() data { return a.stmts(c.Stmts, in) })
	case *syntax.IfClause:
		return a.ifClause(c, in)
	case *syntax.WhileClause:
		a.stmts(c.Cond, in)
		a.forget(c.Do)
		before := maps.Clone(a.vars)
		out := vague(a.stmts(c.Do, in))
		a.disagree(before)
		return out
	case *syntax.ForClause:
		return a.forClause(c, in)
	case *syntax.CaseClause:
		a.word(c.Word)
		for _, item := range c.Items {
			for _, p := range item.Patterns {
				a.substitutions(p)
			}
			before := maps.Clone(a.vars)
			a.stmts(item.Stmts, in)
			a.disagree(before)
		}
		return data{}
	case *syntax.FuncDecl:
		a.function(c)
	case *syntax.DeclClause:
		a.declare(c)
	case *syntax.TimeClause:
		return a.stmt(c.Stmt, in)
	case *syntax.CoprocClause:
		return vague(a.stmt(c.Stmt, in))
	case *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause:
		a.substitutions(c)
	case *syntax.TestDecl:
		return a.stmt(c.Body, in)
	}
	return data{known: true}
}

// vague is data of which some may be missing, or come again.
func vague(d data) data { return data{from: d.from} }

// isolated runs f as in a subshell: what it sets is gone afterwards, what it writes to files stays.
func (a *analyzer) isolated(f func() data) data {
	vars, taint, funcs, aliases, cwd, moved := maps.Clone(a.vars), maps.Clone(a.taint), maps.Clone(a.funcs), maps.Clone(a.aliases), a.cwd, a.moved
	out := f()
	a.vars, a.taint, a.funcs, a.aliases, a.cwd, a.moved = vars, taint, funcs, aliases, cwd, moved
	return out
}

func (a *analyzer) ifClause(c *syntax.IfClause, in data) data {
	var out data
	for ; c != nil; c = c.Else {
		a.stmts(c.Cond, in)
		before := maps.Clone(a.vars)
		out = join(out, a.stmts(c.Then, in))
		a.disagree(before)
	}
	return vague(out)
}

// disagree makes unknown what a branch that may not have been taken has changed.
func (a *analyzer) disagree(before map[string]expand.Variable) {
	for name, v := range a.vars {
		old, had := before[name]
		if had && old.String() != v.String() {
			a.set(name, unknownText)
		}
	}
}

// forget makes unknown what a loop's body sets, because it runs any number of times.
func (a *analyzer) forget(body []*syntax.Stmt) {
	for _, s := range body {
		syntax.Walk(s, func(n syntax.Node) bool {
			if as, ok := n.(*syntax.Assign); ok && as.Name != nil && as.Append {
				a.set(as.Name.Value, unknownText)
			}
			return true
		})
	}
}

// maxItems is for how many items a loop is gone through one by one.
const maxItems = 32

func (a *analyzer) forClause(c *syntax.ForClause, in data) data {
	loop, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		a.substitutions(c.Loop)
		return vague(a.stmts(c.Do, in))
	}
	items := a.fields(loop.Items...)
	from := a.expanded
	if !loop.InPos.IsValid() {
		items = a.params
	}
	if len(items) == 0 || len(items) > maxItems || a.steps > maxSteps/4 {
		items = []string{unknownText}
	}
	a.forget(c.Do)
	out := data{known: true}
	for _, item := range items {
		a.set(loop.Name.Value, item)
		a.taint[loop.Name.Value] = from
		out = join(out, a.stmts(c.Do, in))
	}
	return out
}

// function keeps a body until it is called, and looks whether it multiplies by itself.
func (a *analyzer) function(c *syntax.FuncDecl) {
	if c.Name == nil { // zsh's, which run at once
		a.stmt(c.Body, data{})
		return
	}
	name := c.Name.Value
	a.funcs[name] = c.Body
	calls, parallel := 0, false
	syntax.Walk(c.Body, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			if len(n.Args) > 0 && n.Args[0].Lit() == name {
				calls++
			}
		case *syntax.Stmt:
			parallel = parallel || n.Background
		case *syntax.BinaryCmd:
			parallel = parallel || n.Op == syntax.Pipe
		}
		return true
	})
	if calls > 1 || calls == 1 && parallel {
		a.find(Deny, "fork-bomb", name+"() { … }", "a function that calls itself again and again at the same time", "")
	}
}

func (a *analyzer) declare(c *syntax.DeclClause) {
	for _, as := range c.Args {
		if as.Name == nil {
			a.word(as.Value)
			continue
		}
		if !as.Naked {
			a.assign(as)
		}
		if slices.ContainsFunc(c.Args, func(o *syntax.Assign) bool { return o.Name == nil && o.Value.Lit() == "-n" }) {
			a.set(as.Name.Value, unknownText) // a reference to another
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
		a.vars[name] = expand.Variable{Set: true, Kind: expand.Indexed, List: list}
		return
	}
	if as.Index != nil {
		a.substitutions(as.Index)
		a.word(as.Value)
		a.set(name, unknownText)
		return
	}
	value := a.word(as.Value)
	from := a.expanded
	if as.Append {
		value, from = a.vars[name].String()+value, max(from, a.taint[name])
	}
	a.set(name, value)
	a.taint[name] = from
	a.history(name)
	a.dangerousVariable(name, value)
}

// redirects expands a statement's redirections: what it reads now, and where it writes.
func (a *analyzer) redirects(s *syntax.Stmt, in data) (data, []string) {
	var outs []string
	for _, r := range s.Redirs {
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			in = literal(a.document(r.Hdoc))
			in.from = a.expanded
			continue
		case syntax.WordHdoc:
			in = literal(a.word(r.Word) + "\n")
			in.from = a.expanded
			continue
		}
		target := a.word(r.Word)
		if strings.HasPrefix(target, "/dev/tcp/") || strings.HasPrefix(target, "/dev/udp/") {
			a.find(Deny, "network-device", target, "a shell that talks to the network by itself", "use a tool whose connections can be seen")
			in = data{from: fromNetwork}
			continue
		}
		switch r.Op {
		case syntax.RdrIn, syntax.RdrInOut:
			in = a.read(target)
		case syntax.DplIn, syntax.DplOut:
		default:
			a.writes(target, "redirection to")
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

// read is what lies in a file.
func (a *analyzer) read(target string) data {
	p := a.abs(target)
	if d, ok := a.files[p]; ok {
		return d
	}
	if secretPath(p, a.c.Home) {
		return data{from: fromSecret}
	}
	return data{}
}
