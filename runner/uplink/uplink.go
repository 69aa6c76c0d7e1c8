// Package uplink is the network of one live sandbox: a gateway, made when the first step needs one, and the rules of the steps
// that run now. It knows nothing of tasks and of journals.
//
// Steps that run at the same time share the sandbox's network namespace. What holds is what each of their rules allows: a step
// that begins takes connections away from the others, and never gives them any. Whose a connection is that begins while several
// run, the gateway cannot know: it is told to all of them as shared, counts for none, and no step fails by it.
package uplink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
)

// Options is what an Uplink is made of. It owns none of them.
type Options struct {
	Sandbox interface {
		Network(ctx context.Context) (*isolation.Network, error)
		PID() int
	}
	Total   egress.Limits // of all steps together
	Outside egress.Outside
	Headers []egress.Header
	Stray   func(egress.Event) // what belongs to no one step: what began while several ran, or none
}

// Uplink is safe for concurrent use. A nil Uplink can be closed.
type Uplink struct {
	opt Options

	changing sync.Mutex // one that makes the gateway or sets its rule at a time; before mu
	unrouted int        // what was counted last, under changing
	counts   bool       // something was

	mu     sync.Mutex
	gate   *egress.Gateway // nil: nobody has needed one
	closed bool
	last   int
	steps  []*Step // that run, oldest first
}

// New makes one that has no gateway yet, and costs nothing.
func New(o Options) *Uplink { return &Uplink{opt: o} }

// Step is a step that runs under a rule.
type Step struct {
	u      *Uplink
	number int
	rule   *egress.Rule
	told   func(egress.Event)
	use    Use // under u.mu
}

// Begin is a step's beginning: its rule holds when it returns. told gets what the gateway tells of it, from several
// goroutines. *isolation.UnsupportedError where there is no TUN device and the rule needs one.
func (u *Uplink) Begin(ctx context.Context, rule *egress.Rule, told func(egress.Event)) (*Step, error) {
	u.changing.Lock()
	defer u.changing.Unlock()
	s := &Step{u: u, rule: rule, told: told}
	u.count()
	u.mu.Lock()
	u.last++
	s.number = u.last
	u.steps = append(u.steps, s)
	u.mu.Unlock()
	if rule.Mode() != egress.ModeNone || rule.Learns() {
		if err := u.open(ctx); err != nil {
			u.forget(s)
			return nil, err
		}
	}
	u.enforce()
	return s, nil
}

// End is the step's end: its connections are ended, and all that was told of it is in the answer.
func (s *Step) End() Use {
	u := s.u
	u.changing.Lock()
	defer u.changing.Unlock()
	if g := u.gateway(); g != nil {
		g.Drain(s.number)
	}
	u.count()
	u.forget(s)
	u.enforce()
	u.mu.Lock()
	defer u.mu.Unlock()
	return s.use.sorted()
}

// Open makes the gateway, for what needs one before the first step.
func (u *Uplink) Open(ctx context.Context) error {
	u.changing.Lock()
	defer u.changing.Unlock()
	return u.open(ctx)
}

// open makes the gateway, once. u.changing is held.
func (u *Uplink) open(ctx context.Context) error {
	if u.gateway() != nil {
		return nil
	}
	if u.counts {
		u.count()
	}
	n, err := u.opt.Sandbox.Network(ctx)
	if err != nil {
		return err
	}
	err = egress.SetUp(n.TUN, n.Netlink)
	if err = errors.Join(err, n.Netlink.Close()); err != nil {
		return errors.Join(fmt.Errorf("network: %w", err), n.TUN.Close())
	}
	number, rule := u.current()
	g, err := egress.Start(ctx, egress.Options{TUN: n.TUN, Rule: rule, Step: number, Total: u.opt.Total, Outside: u.opt.Outside,
		Headers: u.opt.Headers, Events: u.tell})
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.Join(os.ErrClosed, g.Close())
	}
	u.gate = g
	return nil
}

func (u *Uplink) gateway() *egress.Gateway {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.gate
}

// current is the rule that all running steps agree on, and the number of the only one; 0 when there are others.
func (u *Uplink) current() (int, *egress.Rule) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.steps) == 0 {
		return 0, egress.None()
	}
	var rules []*egress.Rule
	for _, s := range slices.Backward(u.steps) {
		rules = append(rules, s.rule)
	}
	if len(u.steps) > 1 {
		return 0, egress.All(rules...)
	}
	return u.steps[0].number, rules[0]
}

// enforce has the gateway keep the current rule. u.changing is held.
func (u *Uplink) enforce() {
	if g := u.gateway(); g != nil {
		g.SetRule(u.current())
	}
}

func (u *Uplink) forget(s *Step) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.steps = slices.DeleteFunc(u.steps, func(o *Step) bool { return o == s })
}

// tell passes an event on to its step, or shows it to all whose it may be.
func (u *Uplink) tell(e egress.Event) {
	u.mu.Lock()
	i := slices.IndexFunc(u.steps, func(s *Step) bool { return s.number == e.Step })
	told := u.opt.Stray
	if i >= 0 {
		told = u.steps[i].told
		u.steps[i].use.add(e)
	} else {
		e.Step = 0
		for _, s := range u.steps {
			s.use.share(e)
		}
	}
	u.mu.Unlock()
	if told != nil {
		told(e)
	}
}

// Publish shows a port of the sandbox on the host until stop, or the end.
func (u *Uplink) Publish(ctx context.Context, p egress.Publish) (at netip.AddrPort, stop func(), err error) {
	if err := u.Open(ctx); err != nil {
		return at, nil, err
	}
	return u.gateway().Publish(p)
}

// Close ends the network. It is idempotent.
func (u *Uplink) Close() error {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	g := u.gate
	u.closed = true
	u.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.Close()
}
