package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/uplink"
)

// The kinds of a Refusal.
const (
	KindNetwork   = "network"   // a connection or a name
	KindGate      = "gate"      // a gate's finding about the change, or its failure
	KindCommand   = "command"   // a finding of the gate command about a step
	KindLimit     = "limit"     // of memory, processes, disk, output, time or bytes of the network
	KindAdmission = "admission" // a task that did not begin
	KindPromote   = "promote"   // a promotion
	KindConflict  = "conflict"  // a path at which the workspace has changed under a promotion
)

// Refusal is one thing that somebody wanted and did not get, and what would have it pass.
type Refusal struct {
	Kind    string `json:"kind"`
	Task    string `json:"task"` // "": several ran, or none
	Feature string `json:"feature,omitempty"`
	Step    int    `json:"step"` // from 1; 0: none, or several

	To    string `json:"to,omitempty"`    // network: as rules name it
	Count int    `json:"count,omitempty"` // network: how often
	Rule  string `json:"rule,omitempty"`  // that decided; of a gate and command its rule, of a limit its name, else the code

	Gate       string         `json:"gate,omitempty"`
	Mode       gates.Mode     `json:"mode,omitempty"`
	Severity   gates.Severity `json:"severity,omitempty"`
	Checkpoint string         `json:"checkpoint,omitempty"` // that was judged, or to be promoted
	Path       string         `json:"path,omitempty"`
	Line       int            `json:"line,omitempty"`   // from 1; 0: of the whole file, or none
	Column     int            `json:"column,omitempty"` // command: in bytes, from 1
	Text       string         `json:"text,omitempty"`   // command: that was resolved

	Limit  string `json:"limit,omitempty"` // with its unit
	Peak   string `json:"peak,omitempty"`
	Reason string `json:"reason"`

	Remedy  string `json:"remedy,omitempty"`  // what to do about it
	Approve string `json:"approve,omitempty"` // gate: the command that lets it pass all the same
	Allow   string `json:"allow,omitempty"`   // network: the entry that would allow it
	Flag    string `json:"flag,omitempty"`    // network and limit: for the command line
}

// Why lists what a task was refused, but for the network, which Network has from the log: how its gates, limits and
// promotion stand.
func Why(t *runner.TaskReport) []Refusal {
	list := []Refusal{}
	base := Refusal{Task: t.Task.ID, Feature: t.Feature}
	if res := t.Task.Result; res != nil {
		list = append(list, limits(res, base)...)
	}
	verdicts := Verdicts(t)
	if t.Checkpoint != nil {
		base.Checkpoint = t.Checkpoint.ID
	}
	for i := range verdicts {
		list = append(list, blocked(&verdicts[i], base)...)
	}
	noted := len(list)
	for i := range t.Refusals {
		list = append(list, Noted(&t.Refusals[i], t.Feature)...)
	}
	if res := t.Task.Result; res != nil && res.Verdict == runner.VerdictRefused && len(list) == noted {
		r := base
		r.Kind, r.Rule, r.Reason, r.Remedy = KindAdmission, res.Code, res.Cause, res.Remedy
		list = append(list, r)
	}
	return list
}

// Verdicts are those on the state at a task's end: as they are now, or as they were then when that state has gone.
func Verdicts(t *runner.TaskReport) []gates.Verdict {
	if c := t.Checkpoint; c != nil && len(c.Verdicts) > 0 {
		return c.Verdicts
	}
	if res := t.Task.Result; res != nil {
		return res.Gates
	}
	return nil
}

// limits are those that ended a step or the task.
func limits(res *runner.Result, base Refusal) (list []Refusal) {
	hit := func(step int, l *runner.LimitHit, why string) {
		r := base
		r.Kind, r.Step, r.Rule, r.Limit, r.Peak, r.Reason, r.Remedy = KindLimit, step, l.Name, l.Limit, l.Peak, why, l.Hint
		r.Flag = flagOf(l.Hint)
		list = append(list, r)
	}
	for i := range res.Steps {
		if s := &res.Steps[i]; s.Limit != nil {
			hit(s.N, s.Limit, s.Cause)
		}
	}
	if len(list) == 0 && res.Limit != nil {
		hit(0, res.Limit, res.Cause)
	}
	return list
}

// flagOf finds the flag in a hint; "" where only a profile helps.
func flagOf(hint string) string {
	for word := range strings.FieldsSeq(hint) {
		if strings.HasPrefix(word, "--") {
			return strings.TrimRight(word, ",.;")
		}
	}
	return ""
}

// blocked is what a gate that forbids to promote has found, or why it could not look.
func blocked(v *gates.Verdict, base Refusal) (list []Refusal) {
	if len(gates.Blocking([]gates.Verdict{*v})) == 0 {
		return nil
	}
	base.Kind, base.Gate, base.Mode = KindGate, v.Gate, v.Mode
	if ref := cmp.Or(base.Task, base.Feature); v.Approvable() {
		base.Approve = fmt.Sprintf("caisson approve %s --gate %s --reason REASON", ref, v.Gate)
	}
	for _, f := range gates.WorstFirst(v.Findings) {
		if f.Severity != gates.SeverityBlock {
			continue
		}
		r := base
		r.Rule, r.Severity, r.Path, r.Line, r.Reason, r.Remedy = f.Rule, f.Severity, f.Path, f.Line, f.Message, f.Remedy
		list = append(list, r)
	}
	if len(list) == 0 || v.Reason != "" {
		base.Rule, base.Reason, base.Remedy = string(v.Status), v.Reason, v.Remedy
		switch {
		case base.Reason != "":
		case v.Unresolved != "":
			base.Reason = fmt.Sprintf("its failure at checkpoint %s stands: to switch it off, or to have it only warn, does not resolve that", v.Unresolved)
			base.Remedy = cmp.Or(base.Remedy, "switch it on and correct what it finds, or go back to before it failed")
		default:
			base.Reason = "it did not pass"
		}
		list = append(list, base)
	}
	return list
}

// Noted is a refusal of the log; feature is the name of whose it is, "" for none.
func Noted(n *runner.RefusedRecord, feature string) (list []Refusal) {
	d := &n.Refusal
	base := Refusal{Kind: KindAdmission, Task: n.TaskID, Feature: feature, Step: n.Step, Rule: d.Code, Reason: d.Cause, Remedy: d.Remedy, Checkpoint: d.Checkpoint}
	if d.What == runner.RefusedPromote {
		base.Kind = KindPromote
	}
	for _, f := range d.Findings {
		r := base
		r.Kind, r.Gate, r.Rule, r.Line, r.Column, r.Text, r.Reason, r.Remedy = KindCommand, "command", f.Rule, int(f.Line), int(f.Column), f.Text, f.Message, f.Safer
		r.Severity = gates.SeverityBlock
		if r.Remedy == "" {
			r.Remedy = d.Remedy
		}
		list = append(list, r)
	}
	for _, c := range d.Conflicts {
		r := base
		r.Kind, r.Path, r.Reason = KindConflict, c.Path, c.Reason
		list = append(list, r)
	}
	for i := range n.Verdicts {
		list = append(list, blocked(&n.Verdicts[i], base)...)
	}
	if len(list) == 0 {
		list = append(list, base)
	}
	return list
}

// NoRecord is the rule that refuses questions which no rule can allow (SRV, TXT, …): programs ask them, and go on without.
const NoRecord = "dns"

// Network counts what was not reached of the network, by what was the same.
func Network(events []runner.Event) []Refusal {
	out := []Refusal{}
	at := map[Refusal]int{}
	for _, e := range events {
		n := e.Network
		if n == nil || n.Rule == NoRecord || n.Verdict != egress.VerdictRefused && n.Verdict != egress.VerdictCut {
			continue
		}
		r := Refusal{Kind: KindNetwork, Task: e.TaskID, Step: e.Step, To: uplink.To(n), Rule: n.Rule, Reason: n.Reason, Allow: n.Remedy}
		if n.Remedy != "" {
			r.Flag = "--allow " + Word(n.Remedy)
		}
		if n.Name == egress.HostName && n.Port == 0 && !strings.HasPrefix(n.Rule, "deny ") { // the caller knows the port that was wanted
			r.Flag = "--allow host:PORT"
		}
		switch {
		case n.Rule == egress.RuleUnseen:
			r.Flag = cmp.Or(r.Flag, "--allow RULE")
			r.Remedy = "run it again with caisson run --learn=enforce, which says who is wanted and lets nobody be reached"
		case strings.HasPrefix(n.Rule, "limits."):
			r.Remedy = "raise network." + n.Rule + " in a profile"
		}
		i, ok := at[r]
		if !ok {
			i = len(out)
			at[r] = i
			out = append(out, r)
		}
		out[i].Count += max(n.Count, 1)
	}
	return out
}

// Word keeps an entry of a network rule one word for a shell.
func Word(entry string) string {
	if strings.ContainsAny(entry, "*[") {
		return "'" + entry + "'"
	}
	return entry
}
