package isolation

import (
	"fmt"
	"slices"
	"strings"
)

// dispensable are the controls that a sandbox can be made without. Where another one is missing nothing runs, waived or not.
var dispensable = []Control{ControlCgroups, ControlNonRoot, ControlDiskQuota}

// ShortageError is everything that is required and cannot be enforced here, at once: who is told of one thing after the other
// is refused once for each.
type ShortageError struct {
	Missing []*UnsupportedError // in the order of Controls
	Waived  []Control           // what is waived already, missing or not
	Allowed []Control           // what may be waived
}

// Shortage makes a ShortageError; of missing the first word about each control counts. Waived is what is waived already,
// allowed what may be.
func Shortage(missing []*UnsupportedError, waived, allowed []Control) *ShortageError {
	e := &ShortageError{Waived: waived, Allowed: allowed}
	for _, c := range controls {
		if i := slices.IndexFunc(missing, func(u *UnsupportedError) bool { return u.Control == c }); i >= 0 {
			e.Missing = append(e.Missing, missing[i])
		}
	}
	return e
}

func (e *ShortageError) Error() string {
	all := make([]string, len(e.Missing))
	for i, u := range e.Missing {
		all[i] = u.Error()
	}
	return strings.Join(all, "; ")
}

// Unwrap gives what each control's engine or host said.
func (e *ShortageError) Unwrap() []error {
	all := make([]error, len(e.Missing))
	for i, u := range e.Missing {
		all[i] = u
	}
	return all
}

// Remedy is what the user can do: the command that runs without what is missing, where that may be, and for each control how
// it can be had.
func (e *ShortageError) Remedy() string {
	gone := e.waivable()
	if len(gone) == 0 && len(e.Missing) == 1 && e.Missing[0].Scope == "" {
		return e.Missing[0].Remedy
	}
	var waiver string
	if len(gone) > 0 {
		waiver = fmt.Sprintf("to run without %s, which is weaker: %s", names(gone, " and "), e.command(gone))
	}
	var ways []string
	for _, u := range e.Missing {
		if u.Remedy != "" {
			ways = append(ways, fmt.Sprintf("to have %s: %s", u.Control, u.Remedy))
		}
		if u.Scope != "" {
			rest := slices.DeleteFunc(slices.Clone(gone), func(c Control) bool { return c == u.Control })
			ways = append(ways, fmt.Sprintf("to have %s: %s %s", u.Control, u.Scope, e.command(rest)))
		}
	}
	switch {
	case waiver == "":
	case len(gone) == len(e.Missing):
		ways = slices.Insert(ways, 0, waiver)
	default: // it helps only once the others are there
		ways = append(ways, "then, "+waiver)
	}
	return strings.Join(ways, "; ")
}

// waivable lists what is missing and may be waived.
func (e *ShortageError) waivable() []Control {
	var all []Control
	for _, u := range e.Missing {
		if slices.Contains(dispensable, u.Control) && slices.Contains(e.Allowed, u.Control) {
			all = append(all, u.Control)
		}
	}
	return all
}

// command is the command line that waives these controls, besides those that are waived already.
func (e *ShortageError) command(more []Control) string {
	all := slices.DeleteFunc(Controls(), func(c Control) bool { return !slices.Contains(more, c) && !slices.Contains(e.Waived, c) })
	if len(all) == 0 {
		return "caisson run …"
	}
	return "caisson run --allow-weaker " + names(all, ",") + " …"
}

func names(controls []Control, between string) string {
	all := make([]string, len(controls))
	for i, c := range controls {
		all[i] = string(c)
	}
	return strings.Join(all, between)
}
