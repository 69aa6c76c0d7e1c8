package command

import (
	"fmt"
	"io"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

type environ struct{ a *analyzer }

func (e environ) Get(name string) expand.Variable {
	switch {
	case name == "@" || name == "*":
		if e.a.params == nil {
			return unknownVariable
		}
		return expand.Variable{Set: true, Kind: expand.Indexed, List: e.a.params}
	case len(name) == 1 && name[0] >= '1' && name[0] <= '9':
		if i := int(name[0] - '1'); i < len(e.a.params) {
			return expand.Variable{Set: true, Kind: expand.String, Str: e.a.params[i]}
		}
		return unknownVariable
	}
	if user, ok := strings.CutPrefix(name, "HOME "); ok { // ~alice
		return expand.Variable{Set: true, Kind: expand.String, Str: homeOf(user)}
	}
	if v, ok := e.a.vars.get(name); ok {
		e.a.expanded = max(e.a.expanded, v.from)
		if !e.a.spend(len(v.Str) / textPerCost) { // a few bytes can ask for a long value again and again
			return unknownVariable
		}
		return v.Variable
	}
	if e.a.absent[name] {
		return expand.Variable{}
	}
	if secretName(name) {
		e.a.expanded = max(e.a.expanded, fromSecret)
	}
	return unknownVariable
}

// unset has variables count as not set, as long as nothing sets them, or no longer so. It reports whether one did already.
func (a *analyzer) unset(names []string, on bool) (before bool) {
	if a.absent == nil {
		a.absent = map[string]bool{}
	}
	for _, name := range names {
		before = before || a.absent[name]
		a.absent[name] = on
	}
	return before
}

// defaulted are the variables of a command for which a word stands in, as in ${RM:-rm}, and that are not known: when
// they are not set either, it is that word which runs.
func defaulted(c *syntax.CallExpr) (names []string) {
	for _, w := range c.Args {
		syntax.Walk(w, func(n syntax.Node) bool {
			if p, ok := n.(*syntax.ParamExp); ok && p.Exp != nil && p.Param != nil && p.Exp.Word != nil {
				names = append(names, p.Param.Value)
			}
			_, sub := n.(*syntax.CmdSubst)
			return !sub
		})
	}
	return names
}

// secretName reports whether a variable of the environment is likely to hold a credential.
func secretName(name string) bool {
	up := strings.ToUpper(name)
	for _, word := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "CREDENTIAL"} {
		if strings.Contains(up, word) {
			return true
		}
	}
	return false
}

var unknownVariable = expand.Variable{Set: true, Kind: expand.String, Str: unknownText}

func (e environ) Each(f func(string, expand.Variable) bool) {
	for name, v := range e.a.vars.all() {
		if !e.a.spend(nodeCost) || !f(name, v.Variable) {
			return
		}
	}
}

// Set implements expand.WriteEnviron, for ${x:=y} and arithmetic.
func (e environ) Set(name string, v expand.Variable) error {
	if len(v.Str) > maxValue {
		v = unknownVariable
	}
	e.a.vars.set(name, variable{v, e.a.expanded})
	return nil
}

func (a *analyzer) config() *expand.Config {
	return &expand.Config{
		Env: environ{a},
		CmdSubst: func(w io.Writer, c *syntax.CmdSubst) error {
			out := a.isolated(func() data { return a.stmts(c.Stmts, data{}) })
			a.expanded = max(a.expanded, out.from)
			text := unknownText
			if out.known {
				text = out.text
			}
			_, err := io.WriteString(w, text)
			return err
		},
		ProcSubst: func(p *syntax.ProcSubst) (string, error) {
			out := a.process(p)
			a.subs++
			name := fmt.Sprintf("/dev/fd/%d", 1000+a.subs)
			a.files[name] = out
			return name, nil
		},
	}
}

// process runs a process substitution; one that is written to reads what the command around it reads.
func (a *analyzer) process(p *syntax.ProcSubst) data {
	in := data{}
	if p.Op == syntax.CmdOut {
		in = a.feeding
		a.piping++
		defer func() { a.piping-- }()
	}
	return a.isolated(func() data { return a.stmts(p.Stmts, in) })
}

// fields expands words as arguments. a.expanded is the worst source of what they hold.
func (a *analyzer) fields(words ...*syntax.Word) []string {
	a.expanded = fromNowhere
	var out []string
	for _, w := range words {
		if w == nil {
			continue
		}
		list := []string{unknownText}
		if n := braces(w); n <= maxBraces && a.cheap(w) && (n == 1 || a.spend(n*braceCost)) {
			if l, err := expand.Fields(a.config(), w); err == nil {
				list = l
			}
		}
		if out = append(out, list...); len(out) > maxFields || !a.spend(len(list)*fieldCost) {
			return append(out[:min(len(out), maxFields)], unknownText)
		}
	}
	return out
}

// word expands one word without splitting it.
func (a *analyzer) word(w *syntax.Word) string {
	a.expanded = fromNowhere
	if w == nil {
		return ""
	}
	if a.cheap(w) {
		if text, err := expand.Literal(a.config(), w); err == nil {
			return text
		}
	}
	return unknownText
}

func (a *analyzer) document(w *syntax.Word) string {
	a.expanded = fromNowhere
	if w == nil {
		return ""
	}
	if a.cheap(w) {
		if text, err := expand.Document(a.config(), w); err == nil {
			return text
		}
	}
	return unknownText
}

// maxSearched is how long a value may be that ${x//pattern/} and its like search: that takes the square of it.
const maxSearched = 256

// cheap reports whether a word can be expanded in little time.
func (a *analyzer) cheap(w *syntax.Word) bool {
	cheap := true
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst: // they are judged, and paid for, by themselves
			return false
		case *syntax.ParamExp:
			if (n.Repl != nil || n.Exp != nil) && n.Param != nil && len(a.value(n.Param.Value)) > maxSearched || a.transformed(n) {
				cheap = false
			}
		}
		cheap = cheap && a.spend(nodeCost)
		return cheap
	})
	return cheap
}

// transformed reports whether ${x@Q} or its like makes runes of bytes, or of escapes.
func (a *analyzer) transformed(p *syntax.ParamExp) bool {
	if p.Exp == nil || p.Exp.Op != syntax.OtherParamOps || p.Param == nil {
		return false
	}
	v, _ := a.vars.get(p.Param.Value)
	text := v.Str + strings.Join(v.List, "")
	return strings.Contains(text, `\U`) || strings.ContainsFunc(text, isStandIn)
}

// braces is how many words a brace expansion makes, at most some more than maxBraces.
func braces(w *syntax.Word) int {
	text := w.Lit()
	if text == "" && len(w.Parts) > 0 {
		for _, p := range w.Parts {
			if l, ok := p.(*syntax.Lit); ok {
				text += l.Value
			}
		}
	}
	if !strings.Contains(text, "{") {
		return 1
	}
	if strings.Count(text, "{") > 64 || strings.Contains(text, "..") && !smallRange(text) {
		return maxBraces + 1
	}
	n := 1
	for part := range strings.SplitSeq(text, "{") {
		if n *= 1 + strings.Count(part, ","); n > maxBraces {
			return n
		}
	}
	if k := strings.Count(text, ".."); k > 0 {
		for range k {
			if n *= 100; n > maxBraces {
				break
			}
		}
		n /= 2
	}
	return n
}

// smallRange reports whether no number of a range has more than two digits.
func smallRange(text string) bool {
	digits := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			digits = 0
			continue
		}
		if digits++; digits > 2 {
			return false
		}
	}
	return true
}

// substitutions runs the command substitutions below a node that is not expanded itself.
func (a *analyzer) substitutions(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst:
			a.isolated(func() data { return a.stmts(n.Stmts, data{}) })
			return false
		case *syntax.ProcSubst:
			a.process(n)
			return false
		}
		return true
	})
}
