package command

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// chain judges A && B && …, or A || B. What stands behind && finds what all before it did; when the chain is over, only A
// is certain to have run.
func (a *analyzer) chain(c *syntax.BinaryCmd, in data) data {
	if c.Op == syntax.OrStmt {
		out := a.stmt(c.X, in)
		if leaves(c.Y) { // who comes behind this knows that X went well
			a.isolated(func() data { return a.stmt(c.Y, in) })
			return out
		}
		return vague(join(out, a.maybe(func() data { return a.stmt(c.Y, in) })))
	}
	parts := []*syntax.Stmt{c.Y}
	first := c.X
	for {
		and, ok := first.Cmd.(*syntax.BinaryCmd)
		if !ok || and.Op != syntax.AndStmt || first.Negated || first.Background || len(first.Redirs) > 0 {
			break
		}
		parts = append(parts, and.Y)
		first = and.X
	}
	out, in := a.inTurn(first, in)
	known := true
	a.maybe(func() data {
		for _, s := range slices.Backward(parts) {
			var o data
			o, in = a.inTurn(s, in)
			out = join(out, o)
		}
		known = out.known
		return out
	})
	out.known = known
	return out
}

// inTurn judges a statement, and says what those behind it read.
func (a *analyzer) inTurn(s *syntax.Stmt, in data) (out, next data) {
	standing := a.standing
	if out = a.stmt(s, in); a.standing != standing {
		in = *a.standing
	}
	return out, in
}

// condition judges what decides whether others run, and says what they read.
func (a *analyzer) condition(list []*syntax.Stmt, in data) (next data) {
	standing := a.standing
	if a.stmts(list, in); a.standing != standing {
		in = *a.standing
	}
	return in
}

// leaves reports whether a statement ends the script, the function or the loop that it stands in.
func leaves(s *syntax.Stmt) bool {
	switch c := s.Cmd.(type) {
	case *syntax.CallExpr:
		return len(c.Args) > 0 && slices.Contains([]string{"exit", "return", "break", "continue"}, c.Args[0].Lit())
	case *syntax.Block:
		return len(c.Stmts) > 0 && leaves(c.Stmts[len(c.Stmts)-1])
	}
	return false
}

func (a *analyzer) ifClause(c *syntax.IfClause, in data) data {
	var out data
	for ; c != nil; c = c.Else {
		in = a.condition(c.Cond, in)
		out = join(out, a.maybe(func() data { return a.stmts(c.Then, in) }))
	}
	return vague(out)
}

// endless reports whether a loop never ends, starts something in each round, and waits for nothing.
func endless(c *syntax.WhileClause) bool {
	if len(c.Cond) != 1 {
		return false
	}
	switch cond := c.Cond[0].Cmd.(type) {
	case *syntax.CallExpr:
		words := ""
		for _, w := range cond.Args {
			words += w.Lit() + " "
		}
		return multiplies(c.Do) && (c.Until && words == "false " || !c.Until && slices.Contains([]string{": ", "true ", "[ 1 ] ", "test 1 "}, words))
	case *syntax.ArithmCmd:
		w, ok := cond.X.(*syntax.Word)
		return ok && w.Lit() == "1" && !c.Until && multiplies(c.Do)
	}
	return false
}

// multiplies reports whether a loop's body starts something, and waits for nothing.
func multiplies(body []*syntax.Stmt) bool {
	starts := false
	for _, s := range body {
		starts = starts || s.Background
		if call, ok := s.Cmd.(*syntax.CallExpr); !s.Background && (!ok || len(call.Args) > 0) {
			return false // it may take its time
		}
	}
	return starts
}

// endlessWriter reports whether a command prints without end.
func endlessWriter(s *syntax.Stmt) bool {
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	return call.Args[0].Lit() == "yes" || call.Args[0].Lit() == "cat" && slices.ContainsFunc(call.Args[1:], func(w *syntax.Word) bool {
		return slices.Contains([]string{"/dev/zero", "/dev/urandom", "/dev/random"}, w.Lit())
	})
}

// starter reports whether a statement starts the script that it stands in once more.
func starter(s *syntax.Stmt) bool {
	call, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	self := false
	syntax.Walk(call.Args[0], func(n syntax.Node) bool {
		p, ok := n.(*syntax.ParamExp)
		self = self || ok && p.Param != nil && (p.Param.Value == "0" || p.Param.Value == "BASH_SOURCE")
		return true
	})
	return self
}

// forget makes unknown what a loop's body changes from one round to the next, because it runs any number of times.
func (a *analyzer) forget(body []*syntax.Stmt) {
	for _, s := range body {
		syntax.Walk(s, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.Assign:
				if n.Name != nil && n.Append {
					a.set(n.Name.Value, unknownText, a.vars.at(n.Name.Value).from)
				}
			case *syntax.CallExpr:
				if len(n.Args) > 0 && slices.Contains([]string{"cd", "pushd", "popd"}, n.Args[0].Lit()) && !stays(n) {
					a.dir.set(cwdName, nowhere)
				}
			case *syntax.Subshell, *syntax.CmdSubst: // what moves there comes back
				return false
			}
			return a.spend(nodeCost)
		})
	}
}

// stays reports whether a cd goes to the same directory from everywhere.
func stays(c *syntax.CallExpr) bool {
	return len(c.Args) == 2 && (strings.HasPrefix(c.Args[1].Lit(), "/") || strings.HasPrefix(c.Args[1].Lit(), "~"))
}

// maxItems is for how many items a loop is gone through one by one.
const maxItems = 32

func (a *analyzer) forClause(c *syntax.ForClause, in data) data {
	loop, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok && l.Cond == nil && multiplies(c.Do) {
			a.find(Deny, "fork-bomb", "for ((;;)) …", "a loop without end that starts processes and waits for none", "wait for each")
		}
		a.substitutions(c.Loop)
		a.forget(c.Do)
		return a.maybe(func() data { return a.stmts(c.Do, in) })
	}
	items := a.fields(loop.Items...)
	from := a.expanded
	if !loop.InPos.IsValid() {
		items = a.params
	}
	a.forget(c.Do)
	if len(items) == 0 || len(items) > maxItems || a.budget < baseCost/2 || slices.ContainsFunc(items, hasUnknown) {
		items = append(items[:min(len(items), maxItems)], unknownText)
	}
	out := data{known: true}
	for _, item := range items {
		if hasUnknown(item) { // any number of words, or none
			out = join(out, a.maybe(func() data {
				a.set(loop.Name.Value, item, from)
				return a.stmts(c.Do, in)
			}))
			continue
		}
		a.set(loop.Name.Value, item, from)
		out = join(out, a.stmts(c.Do, in))
	}
	return out
}

// startsItself reports whether a function starts itself and does not wait for it, or does so more than once whatever happens.
func (a *analyzer) startsItself(name string, body *syntax.Stmt) bool {
	calls, piped, behind, background, conditional := 0, false, 0, false, false
	beside := map[syntax.Node]bool{} // ends of pipes
	var around []bool
	syntax.Walk(body, func(n syntax.Node) bool {
		if n == nil {
			around = around[:len(around)-1]
			return true
		}
		within := len(around) > 0 && around[len(around)-1] || beside[n]
		switch n := n.(type) {
		case *syntax.CallExpr:
			if len(n.Args) > 0 && n.Args[0].Lit() == name {
				calls++
				if within {
					behind++
				}
			}
		case *syntax.Stmt:
			background = background || n.Background || n.Coprocess
		case *syntax.BinaryCmd:
			if n.Op == syntax.Pipe || n.Op == syntax.PipeAll {
				piped, beside[n.Y] = true, true
			} else {
				conditional = true
			}
		case *syntax.IfClause, *syntax.CaseClause:
			conditional = true
		}
		around = append(around, within)
		return a.spend(nodeCost)
	})
	return calls > 0 && (background || behind > 0 || !conditional && (piped || calls > 1))
}
