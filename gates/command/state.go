package command

import (
	"regexp"
	"slices"

	"mvdan.cc/sh/v3/expand"
)

// scope is a map with a history, so that what a subshell or a branch changed can be found, and undone, at the cost of the
// changes and not of the map.
type scope[V any] struct {
	now map[string]V
	log []change[V]
}

type change[V any] struct {
	name string
	old  V
	had  bool
}

func (s *scope[V]) get(name string) (V, bool) { v, ok := s.now[name]; return v, ok }
func (s *scope[V]) at(name string) V          { return s.now[name] }
func (s *scope[V]) all() map[string]V         { return s.now }
func (s *scope[V]) mark() int                 { return len(s.log) }

func (s *scope[V]) set(name string, v V) {
	if s.now == nil {
		s.now = map[string]V{}
	}
	old, had := s.now[name]
	s.log = append(s.log, change[V]{name, old, had})
	s.now[name] = v
}

// rollback undoes what was set since a mark.
func (s *scope[V]) rollback(mark int) {
	for _, c := range slices.Backward(s.log[mark:]) {
		if s.now[c.name] = c.old; !c.had {
			delete(s.now, c.name)
		}
	}
	s.log = s.log[:mark]
}

// since lists the first change of each name since a mark.
func (s *scope[V]) since(mark int) (first []change[V]) {
	seen := map[string]bool{}
	for _, c := range s.log[mark:] {
		if !seen[c.name] {
			seen[c.name] = true
			first = append(first, c)
		}
	}
	return first
}

// variable is a variable of the shell, and the worst source of its value.
type variable struct {
	expand.Variable
	from source
}

// maxValue is how long a variable's value may be to be followed. Longer ones are not known: a few bytes can have them copied,
// split and searched again and again.
const maxValue = 4 << 10

// set sets a variable.
func (a *analyzer) set(name, value string, from source) {
	if len(value) > maxValue {
		value = unknownText
	}
	a.vars.set(name, variable{expand.Variable{Set: true, Kind: expand.String, Str: value}, from})
}

// value is a variable's value as one text; "" when it is not set.
func (a *analyzer) value(name string) string { v, _ := a.vars.get(name); return v.String() }

// spend takes a cost from what the analysis may cost; false when nothing is left.
func (a *analyzer) spend(cost int) bool {
	if a.budget <= 0 {
		return false
	}
	if a.budget -= cost; a.budget <= 0 {
		a.find(Deny, "too-complex", "", "it takes too many steps to judge", "say it more simply")
	}
	return a.budget > 0
}

// matches is whether a text has what a pattern looks for; also when it would take too long to tell.
func (a *analyzer) matches(pattern *regexp.Regexp, text string) bool {
	return !a.spend(1+len(text)/2) || pattern.MatchString(text)
}

// isolated runs f as in a subshell: what it sets is gone afterwards, what it writes to files stays.
func (a *analyzer) isolated(f func() data) data {
	m, standing := a.mark(), a.standing
	out := f()
	a.standing = standing
	a.vars.rollback(m.vars)
	a.funcs.rollback(m.funcs)
	a.aliases.rollback(m.aliases)
	a.dir.rollback(m.dir)
	return out
}

// maybe runs f as what may run or not: what it sets is not known afterwards, nor whether there is any output.
func (a *analyzer) maybe(f func() data) data {
	m, standing := a.mark(), a.standing
	out := f()
	if a.standing != standing {
		from := a.standing.from
		if standing != nil {
			from = max(from, standing.from)
		}
		a.standing = &data{text: unknownText, from: from}
	}
	for _, c := range a.vars.since(m.vars) {
		now := a.vars.at(c.name)
		if a.spend(nodeCost) && (!c.had || now.String() != c.old.String()) {
			a.set(c.name, unknownText, max(now.from, c.old.from))
		}
	}
	if before := a.dir.since(m.dir); len(before) > 0 && before[0].old != a.cwd() {
		a.dir.set(cwdName, nowhere)
	}
	return vague(out)
}

// mark is a point in the histories of what a subshell has of its own.
type mark struct{ vars, funcs, aliases, dir int }

func (a *analyzer) mark() mark {
	return mark{a.vars.mark(), a.funcs.mark(), a.aliases.mark(), a.dir.mark()}
}
