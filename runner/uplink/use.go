package uplink

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// How many a step's result names, and how many of them may be refusals: those cannot hide what was reached.
const maxDestinations, maxRefused = 256, 128

// Use is what a step did with the network.
type Use struct {
	Out          int64         `json:"out"` // bytes
	In           int64         `json:"in"`
	Destinations []Destination `json:"destinations,omitempty"`
	More         int           `json:"more,omitempty"` // connections and refusals to others than these

	Limit  string `json:"-"` // egress.RuleBytes or RuleConnections, if one was met
	Reason string `json:"-"` // its words

	refused int // of Destinations, with those that failed
}

// Destination is what became of one destination under one rule.
type Destination struct {
	To          string `json:"to"`       // NAME:PORT or ADDRESS:PORT; NAME alone was asked for and not reached
	Protocol    string `json:"protocol"` // as in egress.Event
	Verdict     string `json:"verdict"`  // allowed, refused, failed, cut
	Rule        string `json:"rule,omitempty"`
	Connections int    `json:"connections"` // or attempts
	Out         int64  `json:"out,omitempty"`
	In          int64  `json:"in,omitempty"`
	Reason      string `json:"reason,omitempty"` // of the first
	Remedy      string `json:"remedy,omitempty"` // the entry that would allow it
	Shared      bool   `json:"shared,omitempty"` // other steps ran, and it may have been one of them; bytes are not counted
}

// To is the destination of an event as rules name it.
func To(e *egress.Event) string {
	switch {
	case e.Name != "" && e.Port != 0:
		return e.Name + ":" + strconv.Itoa(int(e.Port))
	case e.Name != "":
		return e.Name
	}
	switch e.Rule {
	case egress.RuleUnlisted:
		return "(others)"
	case egress.RuleUnseen:
		return "(not seen)"
	}
	return e.Addr.String()
}

func (u *Use) add(e egress.Event) {
	u.Out += e.Out
	u.In += e.In
	if u.Limit == "" && (e.Rule == egress.RuleBytes || e.Rule == egress.RuleConnections) {
		u.Limit, u.Reason = e.Rule, e.Reason
	}
	u.list(e, false)
}

// share adds what may be another step's: it is listed, and charged to nobody.
func (u *Use) share(e egress.Event) {
	e.Out, e.In = 0, 0
	u.list(e, true)
}

func (u *Use) list(e egress.Event, shared bool) {
	if e.Addr.Addr() == egress.Sandbox4.Addr() {
		return // who called a published port was wanted by nobody inside
	}
	to := To(&e)
	i := slices.IndexFunc(u.Destinations, func(d Destination) bool {
		return d.To == to && d.Protocol == e.Protocol && d.Verdict == e.Verdict && d.Rule == e.Rule && d.Shared == shared
	})
	refused := e.Verdict == egress.VerdictRefused || e.Verdict == egress.VerdictFailed
	switch {
	case e.Rule == egress.RuleUnlisted, i < 0 && (len(u.Destinations) == maxDestinations || refused && u.refused == maxRefused):
		u.More += max(e.Count, 1)
		return
	case i < 0:
		i = len(u.Destinations)
		if refused {
			u.refused++
		}
		u.Destinations = append(u.Destinations, Destination{To: to, Protocol: e.Protocol, Verdict: e.Verdict, Rule: e.Rule,
			Reason: e.Reason, Remedy: e.Remedy, Shared: shared})
	}
	d := &u.Destinations[i]
	d.Connections += max(e.Count, 1)
	d.Out += e.Out
	d.In += e.In
}

func (u *Use) sorted() Use {
	s := *u
	s.Destinations = slices.Clone(u.Destinations)
	slices.SortFunc(s.Destinations, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Rule, b.Rule))
	})
	return s
}

// Empty reports whether nothing was wanted.
func (u *Use) Empty() bool { return len(u.Destinations)+u.More == 0 && u.Out+u.In == 0 }
