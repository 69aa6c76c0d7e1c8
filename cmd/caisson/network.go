package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/report"
	"github.com/caisson-dev/caisson/runner/uplink"
)

// ports are the flag -p.
type ports []string

func (p *ports) addFlags(f *pflag.FlagSet) {
	f.StringArrayVarP((*[]string)(p), "publish", "p", nil, "HOST:CONTAINER: show a port of the sandbox on 127.0.0.1, or [ADDRESS:]HOST:CONTAINER; HOST 0: any; repeatable")
}

// publish reads them.
func (p ports) publish() ([]egress.Publish, error) {
	var list []egress.Publish
	for _, text := range p {
		one, err := parsePort(text)
		if err != nil {
			return nil, usage("-p %q: %v", text, err)
		}
		list = append(list, one)
	}
	return list, nil
}

func parsePort(text string) (p egress.Publish, err error) {
	host, inside := "0", text
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		host, inside = text[:i], text[i+1:]
	}
	address := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if address, err = netip.ParseAddr(strings.Trim(host[:i], "[]")); err != nil {
			return p, fmt.Errorf("%q is no address", host[:i])
		}
		host = host[i+1:]
	}
	outer, err := strconv.ParseUint(host, 10, 16)
	if err != nil {
		return p, fmt.Errorf("%q is no port", host)
	}
	inner, err := strconv.ParseUint(inside, 10, 16)
	if err != nil || inner == 0 {
		return p, fmt.Errorf("%q is no port", inside)
	}
	return egress.Publish{Host: netip.AddrPortFrom(address, uint16(outer)), Port: uint16(inner)}, nil
}

// tellPorts says where ports are shown.
func (a *app) tellPorts(list []runner.Port) {
	for _, p := range list {
		a.note("port %d is shown at %s", p.Container, p.Host)
	}
}

// networkFlags are --network and --allow.
type networkFlags struct {
	mode  string
	allow []string
	said  *pflag.Flag // --network
}

func (o *networkFlags) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.mode, "network", "", "none, allow (what --allow names), open (the public internet) (default: the profile's)")
	o.said = f.Lookup("network")
	f.StringArrayVar(&o.allow, "allow", nil, "who may be reached, besides whom the profile names: NAME[:PORT], *.NAME, CIDR, host:PORT, a group; implies --network allow; repeatable")
}

// reach is what the flags put over a step's rule; nil: nothing.
func (o *networkFlags) reach() *runner.Reach {
	if o.mode == "" && len(o.allow) == 0 {
		return nil
	}
	return &runner.Reach{Mode: egress.Mode(o.mode), Allow: o.allow}
}

// check refuses flags that cannot be read, of a command that reads no profile.
func (o *networkFlags) check() error {
	modes := []string{string(egress.ModeNone), string(egress.ModeAllow), string(egress.ModeOpen)}
	if o.said.Changed && !slices.Contains(modes, o.mode) {
		return usage("--network %q: one of none, allow, open", o.mode)
	}
	if err := contradiction(o.mode, o.allow); err != nil {
		return err
	}
	for _, entry := range o.allow {
		if err := egress.CheckEntry(entry); err != nil {
			return usage("--allow %v", err)
		}
	}
	return nil
}

// contradiction refuses what says two things.
func contradiction(mode string, allow []string) error {
	if mode == string(egress.ModeNone) && len(allow) > 0 {
		return usage("--network none and --allow exclude each other")
	}
	return nil
}

// stepName is how --step picks the rule of a step: NAME: COMMAND.
var stepName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.-]*):\s+(\S.*)$`) })

// stepOf is one --step.
func stepOf(line string) runner.Step {
	st := runner.Step{Args: []string{"sh", "-c", line}}
	if m := stepName().FindStringSubmatch(line); m != nil {
		st.Name, st.Args[2] = m[1], m[2]
	}
	return st
}

// reportNetwork says what was refused, and where to read more.
func (a *app) reportNetwork(r *runner.Result) {
	var refused []string
	ref := r.TaskID
	unseen := false
	for _, st := range r.Steps {
		if st.Network == nil {
			continue
		}
		for _, d := range st.Network.Destinations {
			to := gates.Quote(d.To)
			if d.Verdict != egress.VerdictRefused || d.Rule == report.NoRecord || slices.Contains(refused, to) {
				continue
			}
			if d.Shared {
				ref = r.Feature
			}
			if d.Rule != egress.RuleUnseen {
				refused = append(refused, to)
				continue
			}
			unseen = true
			a.note("step %d wanted the network, and has none", st.N)
		}
	}
	const most = 3
	switch n := len(refused); {
	case n > most:
		a.note("not reached: %s and %d more", strings.Join(refused[:most], ", "), n-most)
	case n > 0:
		a.note("not reached: %s", strings.Join(refused, ", "))
	case !unseen:
		return
	}
	fmt.Fprintf(a.stderr, "  why:     caisson why %s\n", ref)
}

// learned is the smallest profile under which a task's steps would have reached all that they wanted.
func learned(r *runner.Result, p *profiles.Effective) string {
	rules := map[string][]string{}
	for _, st := range r.Steps {
		rules[st.Name] = append(rules[st.Name], entriesOf(st.Network)...)
	}
	for name, list := range rules {
		rules[name] = tidy(list)
	}
	return p.Learned(rules)
}

// learnedEvent is what run --learn --json prints before the result.
type learnedEvent struct {
	Event   string `json:"event"`   // "learned"
	Profile string `json:"profile"` // YAML
}

// reportLearned prints the profile.
func (a *app) reportLearned(r *runner.Result, p *profiles.Effective) error {
	text := learned(r, p)
	if a.json {
		return a.printJSON(learnedEvent{"learned", text})
	}
	a.note("the smallest profile for what was wanted of the network:")
	_, err := fmt.Fprint(a.stderr, text)
	return err
}

// entriesOf are the entries that allow what a step wanted.
func entriesOf(u *uplink.Use) (list []string) {
	if u == nil {
		return nil
	}
	for _, d := range u.Destinations {
		switch {
		case d.Verdict == egress.VerdictRefused:
			list = append(list, d.Remedy)
			if d.Remedy != "" && d.Protocol != "dns" && egress.CheckEntry(d.To) == nil && !strings.HasPrefix(d.To, egress.HostName) {
				list = append(list, d.To) // the name, too, of a name whose address is refused
			}
		case strings.HasPrefix(d.To, egress.HostName+":"):
			list = append(list, "host"+strings.TrimPrefix(d.To, egress.HostName))
		default:
			list = append(list, d.To)
		}
	}
	return list
}

// tidy leaves out what is there twice, what is no entry, and names without a port of which ports are known.
func tidy(list []string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(e string) bool {
		return egress.CheckEntry(e) != nil || !strings.Contains(e, ":") && slices.ContainsFunc(list, func(o string) bool { return strings.HasPrefix(o, e+":") })
	})
	slices.Sort(list)
	return slices.Compact(list)
}
