package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Try decides about NAME:PORT, ADDRESS:PORT or [ADDRESS]:PORT as it is decided at run time, without touching the network:
// what a name resolves to is looked at when it is dialled. The host's loopback may be written as entries have it, host:PORT.
func (r *Rule) Try(destination string) Verdict {
	t, err := parseTarget(destination)
	if err != nil {
		return Verdict{Rule: "syntax", Reason: err.Error()}
	}
	if t.name == "host" {
		t.name = HostName
	}
	return r.decide(t)
}

// decide is the rule's word on a destination: the first refusal of those that must agree.
func (r *Rule) decide(t target) Verdict {
	return r.agree(func(r *Rule) Verdict {
		return r.learned(r.alone(t), t.name != "" && t.name != HostName || t.name == "" && public(t.addr))
	})
}

// agree asks the rule, and those that must allow it too.
func (r *Rule) agree(ask func(*Rule) Verdict) Verdict {
	v := ask(r)
	for _, o := range r.also {
		if !v.Allowed {
			break
		}
		if w := o.agree(ask); !w.Allowed {
			w.Reason = "by another step that runs now, whose rule must allow it, too: " + w.Reason
			return w
		}
	}
	return v
}

// learned turns a refusal that an entry would undo into the verdict of a rule that learns.
func (r *Rule) learned(v Verdict, worldly bool) Verdict {
	if r.learn && !v.Allowed && v.Remedy != "" && worldly {
		return Verdict{Allowed: true, Rule: RuleLearn, Remedy: v.Remedy}
	}
	return v
}

// alone is what the entries say of a destination.
func (r *Rule) alone(t target) Verdict {
	if e := find(r.deny, t); e != nil {
		return Verdict{Rule: "deny " + e.text, Reason: "the rule denies it"}
	}
	if r.mode != ModeNone {
		if e := find(r.allow, t); e != nil {
			return Verdict{Allowed: true, Rule: e.text}
		}
	}
	refused := Verdict{Rule: string(r.mode), Reason: "no entry of the rule names it", Remedy: remedy(t)}
	switch {
	case r.mode == ModeNone:
		refused.Reason = "the step has no network"
	case t.name == HostName:
		refused.Reason = "the host's loopback is reached only by host:PORT"
	case t.name == "" && !public(t.addr):
		refused.Reason = special(t.addr)
	case r.mode == ModeOpen:
		return Verdict{Allowed: true, Rule: string(ModeOpen)}
	}
	return refused
}

// remedy is the entry that names a destination; "" for an address that none can name.
func remedy(t target) string {
	switch {
	case t.name == HostName:
		return "host:" + strconv.Itoa(int(t.port))
	case t.name == "" && plainAddr(t.addr) != nil:
		return ""
	}
	return t.String()
}

// decideAddr is the rule's word on an address that an allowed name has resolved to: a public one that nothing denies, or
// one that an entry names as an address.
func (r *Rule) decideAddr(t target, a netip.Addr) Verdict {
	return r.agree(func(r *Rule) Verdict { return r.addrAlone(t, a) })
}

func (r *Rule) addrAlone(t target, a netip.Addr) Verdict {
	at := target{addr: a.Unmap(), port: t.port}
	if e := find(r.deny, at); e != nil {
		return Verdict{Rule: "deny " + e.text, Reason: fmt.Sprintf("%s resolves to %s, which the rule denies", t.name, a)}
	}
	why := special(at.addr)
	if why == "" {
		return Verdict{Allowed: true}
	}
	if e := find(r.allow, at); e != nil {
		return Verdict{Allowed: true, Rule: e.text}
	}
	return Verdict{Rule: string(r.mode), Reason: fmt.Sprintf("%s resolves to %s, which is %s", t.name, a, why), Remedy: at.String()}
}

// spells reports whether an entry has a name as it is, and not what it ends with: then somebody knew it.
func (r *Rule) spells(t target) bool {
	exact := func(e entry) bool { return !e.suffix && e.matches(t) }
	return slices.ContainsFunc(r.allow, exact) && !slices.ContainsFunc(r.also, func(o *Rule) bool { return !o.spells(t) })
}

// resolves reports whether a name may be known inside: whether some port of it may be reached. Under a rule that learns, or
// watches, others are known, too, because only a connection shows the port that is wanted.
func (r *Rule) resolves(name string) Verdict {
	return r.agree(func(r *Rule) Verdict {
		v := r.resolvesAlone(name)
		if !v.Allowed && (r.watch && v.Remedy != "" || (r.learn || r.watch) && name == HostName) {
			return Verdict{Allowed: true, Rule: RuleLearn}
		}
		return r.learned(v, true)
	})
}

func (r *Rule) resolvesAlone(name string) Verdict {
	for i := range r.deny {
		if e := &r.deny[i]; len(e.ports) == 0 && e.matchesName(name) {
			return Verdict{Rule: "deny " + e.text, Reason: "the rule denies it"}
		}
	}
	if r.mode != ModeNone {
		for i := range r.allow {
			if e := &r.allow[i]; e.matchesName(name) {
				return Verdict{Allowed: true, Rule: e.text}
			}
		}
	}
	refused := Verdict{Rule: string(r.mode), Reason: "no entry of the rule names it", Remedy: name}
	switch {
	case r.mode == ModeNone:
		refused.Reason = "the step has no network"
	case name == HostName:
		refused.Reason = "the host's loopback is reached only by host:PORT"
	case r.mode == ModeOpen:
		return Verdict{Allowed: true, Rule: string(ModeOpen)}
	}
	if name == HostName {
		refused.Remedy = "" // its port is not known yet
	}
	return refused
}

// speaksTLS reports whether a destination must be spoken to in TLS: port 443, and where an entry says so.
func (r *Rule) speaksTLS(t target) bool {
	if t.name == "" || t.name == HostName {
		return false
	}
	if t.port == 443 {
		return true
	}
	asks := func(e entry) bool { return e.tls && e.matches(t) }
	return find(r.tls, t) != nil || slices.ContainsFunc(r.allow, asks) ||
		slices.ContainsFunc(r.also, func(o *Rule) bool { return o.speaksTLS(t) })
}
