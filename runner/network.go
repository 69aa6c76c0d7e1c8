package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/uplink"
)

// How a task learns what it needs of the network.
const (
	LearnAllow   = "allow"   // the public internet is reached; the result says what was
	LearnEnforce = "enforce" // the rules hold; the result says what was refused
)

// Port is a port of the sandbox that the host shows.
type Port struct {
	Host      netip.AddrPort `json:"host"`
	Container uint16         `json:"container"`
}

// rulesOf compiles the rules of a request's steps.
func rulesOf(r *Request) ([]*egress.Rule, error) {
	if r.Learn != "" && r.Learn != LearnAllow && r.Learn != LearnEnforce {
		return nil, refuse(CodeUsage, "one of allow, enforce", "cannot learn by %q", r.Learn)
	}
	for _, p := range r.Publish {
		if !p.Host.IsValid() || p.Port == 0 {
			return nil, refuse(CodeUsage, "-p 8080:80", "a port that is shown needs a port inside")
		}
	}
	rules := make([]*egress.Rule, len(r.Steps))
	for i := range r.Steps {
		rule, err := ruleOf(r.Profile, &r.Steps[i])
		if errors.Is(err, profiles.ErrNoStep) {
			return nil, refuse(CodeUsage, "caisson profile show "+r.Profile.Name, "%v", err)
		}
		if err != nil {
			return nil, refuse(CodeConfiguration, "", "the network rule of step %d: %v", i+1, err)
		}
		rules[i] = rule
		const mode = "network.mode"
		switch none := rule.Mode() == egress.ModeNone; {
		case r.Learn == "":
		case r.Learn == LearnEnforce, none && ruled(r.Profile, &r.Steps[i]): // what it would reach is learnt from what is refused
			rules[i] = rule.Watching()
		case none && r.Profile.Said(mode):
			return nil, refuse(CodeUsage, "--learn=enforce", "the network is none by %s, and to learn the public internet is reached", r.Profile.Origins[mode])
		default:
			rules[i] = rule.Learning()
		}
	}
	return rules, nil
}

// ruled reports whether a step has a rule by itself or by its name, and not the one of all.
func ruled(p *profiles.Effective, st *Step) bool {
	s := p.Steps[st.Name]
	return st.Network != nil || s.Rule != nil || s.Network != ""
}

// ruleOf is a step's own rule, else the one that the profile has for steps of its name, with what the caller puts over it.
func ruleOf(p *profiles.Effective, st *Step) (*egress.Rule, error) {
	var policy egress.Policy
	var err error
	if st.Network != nil {
		policy = p.Bound(*st.Network)
		if policy.Limits == (egress.Limits{}) {
			policy.Limits = p.NetworkTotal()
		}
	} else if policy, err = p.StepRule(st.Name); err != nil {
		return nil, err
	}
	if st.Reach != nil {
		policy = st.Reach.over(policy)
	}
	return egress.Parse(policy)
}

func (r *Reach) over(p egress.Policy) egress.Policy {
	p.Mode, p.Allow = cmp.Or(r.Mode, p.Mode), slices.Concat(p.Allow, r.Allow)
	if r.Mode == "" && p.Mode == egress.ModeNone && len(r.Allow) > 0 {
		p.Mode = egress.ModeAllow
	}
	return p
}

// newUplink is the network of a session, of which nothing is there yet.
func (x *session) newUplink() *uplink.Uplink {
	lookup := func(name string) string {
		for _, kv := range x.environ {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value
			}
		}
		return ""
	}
	o := uplink.Options{Sandbox: x.live.Sandbox(), Total: x.policy.NetworkTotal(), Stray: func(e egress.Event) {
		x.network.add(NetworkEvent{FeatureID: x.feature.ID, Event: e})
	}}
	if x.policy.Network.Proxy == "host" {
		o.Outside.Proxy = egress.HostProxy(lookup)
	}
	for i := range x.policy.Network.Secrets {
		if h, err := x.policy.Network.Secrets[i].Added(x.environ); err == nil { // profiles have checked it
			o.Headers = append(o.Headers, x.learning(&x.policy.Network.Secrets[i], h))
		}
	}
	x.network.store = func(list []NetworkEvent) error { return x.s.opt.Journal.AddNetworkEvents(context.Background(), list) }
	return uplink.New(o)
}

// online reports whether the task needs a gateway from its beginning. Who learns sees also what no rule lets through.
func (t *task) online() bool {
	return t.req.Learn != "" || len(t.req.Publish) > 0 ||
		slices.ContainsFunc(t.rules, func(r *egress.Rule) bool { return r.Mode() != egress.ModeNone })
}

// goOnline makes the network that some step needs, and shows the ports, before anything runs: what cannot be had is refused.
func (t *task) goOnline(ctx context.Context) error {
	if t.online() {
		if err := t.up.Open(ctx); err != nil {
			return err
		}
	}
	for _, p := range t.req.Publish {
		at, stop, err := t.up.Publish(ctx, p)
		if err != nil {
			return refuse(CodeConfiguration, "choose another port, or 0 for any", "%v", err)
		}
		t.res.Ports = append(t.res.Ports, Port{at, p.Port})
		t.tellPort(Port{at, p.Port})
		if !t.owner || !t.req.Detach { // else as long as the sandbox
			t.hide = append(t.hide, stop)
		}
	}
	return nil
}

// tellPort tells the caller, who may have asked for any port.
func (t *task) tellPort(p Port) {
	if t.req.Progress == nil {
		return
	}
	t.progress.Lock()
	defer t.progress.Unlock()
	t.req.Progress(Progress{TaskID: t.res.TaskID, Feature: t.feature.Name, State: t.state, Steps: len(t.req.Steps), Ports: []Port{p},
		Message: fmt.Sprintf("port %d is shown at %s", p.Container, p.Host)})
}

// Ports are what the task shows, once it has started.
func (r *Running) Ports() []Port {
	if r.t == nil {
		return nil
	}
	return r.t.res.Ports
}

// underRule runs a step under its rule, and says in its result what it did with the network.
func (t *task) underRule(ctx context.Context, n int, r *StepResult, run func() error) error {
	step, err := t.up.Begin(ctx, t.rules[n-1], func(e egress.Event) {
		if e.Step = n; e.Rule == egress.RuleUnseen {
			e.Remedy = groupOf(t.req.Steps[n-1].Args)
		}
		t.network.add(NetworkEvent{FeatureID: t.feature.ID, TaskID: t.res.TaskID, Step: n, Event: e})
	})
	if err != nil {
		return err
	}
	err = run()
	use := step.End()
	if !use.Empty() {
		r.Network = &use
	}
	if use.Limit != "" && (r.Verdict == VerdictNonzero || r.Verdict == VerdictSignalled) {
		r.Verdict, r.Cause = VerdictEgress, "the network's limit was met: "+use.Reason
		most := strings.TrimPrefix(use.Reason, "more than ") // what was let through is less, and no measure of what was wanted
		r.Limit = &LimitHit{Name: "egress", Limit: most, Peak: "more than " + most, Hint: "raise it with network." + use.Limit + " in a profile"}
	}
	return errors.Join(err, t.network.flush())
}

// fetchers are tools whose registries are a group: what is tried first when nobody has seen whom a step wanted.
var fetchers = map[string]string{
	"bundle": "rubygems", "cargo": "crates", "composer": "packagist", "conda": "conda", "dotnet": "nuget", "gem": "rubygems", "go": "go",
	"gradle": "maven", "mamba": "conda", "mix": "hex", "mvn": "maven", "npm": "npm", "npx": "npm", "pip": "pypi", "pip3": "pypi",
	"pipx": "pypi", "pnpm": "npm", "poetry": "pypi", "rustup": "crates", "uv": "pypi", "yarn": "npm",
}

// groupOf is the group of the first such tool that a command, or its line for a shell, calls by name; "" for none.
func groupOf(args []string) string {
	line := args[0]
	if shells := []string{"sh", "bash", "dash"}; len(args) > 2 && slices.Contains(shells, path.Base(line)) && strings.HasPrefix(args[1], "-") {
		line = args[2]
	}
	for call := range strings.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune(";&|()\n", r) }) {
		if words := strings.Fields(call); len(words) > 0 && fetchers[path.Base(words[0])] != "" {
			return fetchers[path.Base(words[0])]
		}
	}
	return ""
}

// placeholders are what a command sees in place of the secrets.
func (t *task) placeholders(vars map[string]string) {
	for i := range t.req.Profile.Network.Secrets {
		s := &t.req.Profile.Network.Secrets[i]
		vars[s.Name] = s.Placeholder()
	}
}

// environOf is the environment of whoever asks.
func environOf(r *Request) []string {
	if r.Environ == nil {
		return os.Environ()
	}
	return r.Environ
}

// networkLog writes what a gateway tells into the journal, in the background and in order.
type networkLog struct {
	store func([]NetworkEvent) error

	mu      sync.Mutex
	idle    *sync.Cond // nobody writes; nil before the first event
	pending []NetworkEvent
	lost    int // that came faster than they could be written
	writing bool
	err     error
}

// maxPending bounds what waits to be written.
const maxPending = 50_000

func (l *networkLog) add(e NetworkEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle == nil {
		l.idle = sync.NewCond(&l.mu)
	}
	if len(l.pending) == maxPending {
		l.lost++
		return
	}
	l.pending = append(l.pending, e)
	if !l.writing {
		l.writing = true
		go l.write()
	}
}

func (l *networkLog) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 {
		list := l.pending
		l.pending = nil
		l.mu.Unlock()
		err := l.store(list)
		l.mu.Lock()
		l.err = errors.Join(l.err, err)
	}
	l.writing = false
	l.idle.Broadcast()
}

// flush waits until all is written; the error is of what was not.
func (l *networkLog) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.idle.Wait()
	}
	err := l.err
	if l.lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d events of the network came faster than they could be written", l.lost))
	}
	l.err, l.lost = nil, 0
	if err != nil {
		return fmt.Errorf("the log of the network: %w", err)
	}
	return nil
}
