package profiles

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/quota"
)

// What becomes of a feature's state when gates refuse it.
const (
	RollbackFull  = "full"  // it goes back to the last good checkpoint
	RollbackSmart = "smart" // what the gates named goes back, the rest stays
	RollbackKeep  = "keep"  // it stays
)

// What becomes of a task that was to be promoted, and whose change only gates refuse that can be approved.
const (
	BlockReject = "reject" // it is rejected
	BlockWait   = "wait"   // it waits for approvals
)

// What happens when nobody in a live feature has acknowledged what the gates said.
const (
	EscalateStop  = "stop"  // the feature is stopped
	EscalatePause = "pause" // it stands still until a person lets it go on
	EscalateNone  = "none"  // it is noted
)

// Following is what follows from verdicts. Profiles of older versions say nothing of it: every gate is on then, what they refuse
// is rejected and stays, and nothing escalates.
type Following struct {
	Enabled  *bool    `json:"enabled,omitempty"`  // false: no gate is asked; nil is true
	Rollback string   `json:"rollback,omitempty"` // RollbackFull …; "" is RollbackKeep
	Unnamed  string   `json:"unnamed,omitempty"`  // RollbackFull or RollbackKeep, for what RollbackSmart cannot put back; "" is RollbackKeep
	OnBlock  string   `json:"on_block,omitempty"` // BlockReject, BlockWait; "" is BlockReject
	Feedback Feedback `json:"feedback,omitzero"`
}

// Feedback is how long a live feature has to acknowledge what the gates said of it.
type Feedback struct {
	Timeout  quota.Duration `json:"timeout"`
	Escalate string         `json:"escalate"` // EscalateStop …; "" is EscalateNone
}

// On says whether gates are asked at all.
func (f *Following) On() bool { return f.Enabled == nil || *f.Enabled }

// Mode is what a failure of the gate called name does; gates.ModeOff where none is asked.
func (g *Gates) Mode(name string) gates.Mode {
	switch s, ok := g.settings()[name]; {
	case !g.On():
		return gates.ModeOff
	case ok:
		return s.Mode
	case name == "command":
		return g.Command.Mode
	}
	return gates.ModeOff
}

// check refuses to switch gates off that are mandatory.
func (g *Gates) check() error {
	if g.On() {
		return nil
	}
	modes := map[string]gates.Mode{"command": g.Command.Mode}
	for name, s := range g.settings() {
		modes[name] = s.Mode
	}
	for _, name := range slices.Sorted(maps.Keys(modes)) {
		if modes[name] == gates.ModeMandatory {
			return &Error{Key: "gates.enabled", Message: fmt.Sprintf("gates cannot be switched off while the gate %s is mandatory", name),
				Remedy: "use a profile in which no gate is mandatory"}
		}
	}
	if len(g.Scope.Task) > 0 {
		return &Error{Key: "gates.enabled", Message: "a task's scope cannot be kept while gates are switched off", Remedy: "leave --scope out, or ask the gates"}
	}
	return nil
}

// followKeys say what follows from verdicts.
func followKeys() []key {
	return []key{
		{path: "gates.enabled", about: "false: no gate is asked, which every task notes in the audit trail; not while one is mandatory",
			kind: of[bool]{scalar[bool]{
				load:   func(p *Profile) (bool, bool) { return p.Gates.On(), p.Gates.Enabled != nil },
				store:  func(p *Profile, v bool) { p.Gates.Enabled = &v },
				parse:  yes,
				format: strconv.FormatBool,
				narrow: func(have, v bool) bool { return v || !have },
				shape:  map[string]any{"type": "boolean"},
			}}},
		{path: "gates.rollback", about: "what becomes of a state that gates refuse at a task's end",
			kind: word(func(p *Profile) *string { return &p.Gates.Rollback }, RollbackFull, RollbackSmart, RollbackKeep)},
		{path: "gates.unnamed", about: "likewise, of what smart cannot put back by its path",
			kind: word(func(p *Profile) *string { return &p.Gates.Unnamed }, RollbackFull, RollbackKeep)},
		{path: "gates.on_block", about: "what becomes of a task that was to be promoted, when everything that gates refuse can be approved",
			kind: word(func(p *Profile) *string { return &p.Gates.OnBlock }, BlockReject, BlockWait)},
		{path: "gates.feedback.timeout", about: "how long a live feature may leave what gates said unacknowledged",
			kind: quantity(func(p *Profile) *quota.Duration { return &p.Gates.Feedback.Timeout }, quota.ParseDuration)},
		{path: "gates.feedback.escalate", about: "what happens then",
			kind: word(func(p *Profile) *string { return &p.Gates.Feedback.Escalate }, EscalateStop, EscalatePause, EscalateNone)},
	}
}
