package egress

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// budget is what is left of limits.
type budget struct {
	limits  Limits
	out, in atomic.Int64
	outRate *rate.Limiter
	inRate  *rate.Limiter
}

func newBudget(l Limits) *budget {
	burst := int(min(l.Rate, 1<<30)) // a second's worth
	return &budget{limits: l, outRate: rate.NewLimiter(rate.Limit(l.Rate), burst), inRate: rate.NewLimiter(rate.Limit(l.Rate), burst)}
}

// exceeded says which limit has been reached.
func (b *budget) exceeded() string {
	if b.out.Load()+b.in.Load() > b.limits.Bytes {
		return fmt.Sprintf("more than %d bytes", b.limits.Bytes)
	}
	return ""
}

// How much of one step is told: nobody fills the log of the network to have it forget.
const (
	maxRefusals = 1000 // that differ
	maxSame     = 1000 // connections that were let through to one destination
	maxKinds    = 8 * maxRefusals
)

// ledger knows what was told of each step, and counts what is not.
type ledger struct {
	mu    sync.Mutex
	steps map[int]*page
}

// page is one step's.
type page struct {
	same     map[Event]*repeats // by what repeats have in common
	refusals int                // that differ
	unlisted int
}

type repeats struct {
	told   int
	folded Event // the others; Count 0: none
}

// tells reports whether an event is told by itself; else it is counted.
func (l *ledger) tells(e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.steps[e.Step]
	if p == nil {
		if l.steps == nil {
			l.steps = map[int]*page{}
		}
		p = &page{same: map[Event]*repeats{}}
		l.steps[e.Step] = p
	}
	return p.tells(e)
}

func (p *page) tells(e Event) bool {
	kind := Event{Name: e.Name, Addr: e.Addr, Protocol: e.Protocol, Verdict: e.Verdict, Rule: e.Rule, Reason: e.Reason}
	through, most := e.Verdict == VerdictAllowed || e.Verdict == VerdictCut, 1
	if through {
		most = maxSame
	}
	r := p.same[kind]
	switch {
	case r != nil:
	case !through && p.refusals == maxRefusals:
		p.unlisted++
		return false
	case len(p.same) == maxKinds:
		return true // to so many that could be reached, each is told
	default:
		r = &repeats{}
		p.same[kind] = r
		if !through {
			p.refusals++
		}
	}
	if r.told < most {
		r.told++
		return true
	}
	e.Out, e.In, e.Count = e.Out+r.folded.Out, e.In+r.folded.In, r.folded.Count+1
	r.folded = e
	return false
}

// settle ends the pages of all steps but those that go on, and returns what was counted, by time.
func (l *ledger) settle(goesOn func(step int) bool) (list []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for step, p := range l.steps {
		if goesOn(step) {
			continue
		}
		delete(l.steps, step)
		for _, r := range p.same {
			if r.folded.Count > 0 {
				list = append(list, r.folded)
			}
		}
		if p.unlisted > 0 {
			list = append(list, Event{At: time.Now(), Step: step, Verdict: VerdictRefused, Rule: RuleUnlisted, Count: p.unlisted,
				Reason: fmt.Sprintf("more than %d that differ: only counted", maxRefusals)})
		}
	}
	slices.SortFunc(list, func(a, b Event) int { return a.At.Compare(b.At) })
	return list
}

// chunk is what is written at once, in bytes.
const chunk = 128 << 10

// meter counts what is written, holds it up to the rates, and ends what exceeds a limit. It is a splice.Metered.
type meter struct {
	f   *flow
	w   io.Writer
	out bool
}

func (m *meter) Conn() io.Writer { return m.w }

func (m *meter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		part, err := m.Pay(min(len(p), chunk))
		if err != nil {
			return written, err
		}
		n, err := m.w.Write(p[:part])
		written += n
		m.Paid(n)
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// Pay waits until some of most bytes may go, and returns how many: as many as the rates let go at once.
func (m *meter) Pay(most int) (int, error) {
	f := m.f
	epoch := f.g.current.Load()
	n := min(most, epoch.used.outRate.Burst(), f.g.total.outRate.Burst())
	for _, b := range []*budget{epoch.used, f.g.total} {
		count, limiter := &b.in, b.inRate
		if m.out {
			count, limiter = &b.out, b.outRate
		}
		if err := f.await(limiter, n); err != nil {
			return 0, err
		}
		count.Add(int64(n))
		if reason := b.exceeded(); reason != "" {
			f.exceed(epoch.step, reason)
			return 0, errors.New(reason)
		}
	}
	return n, nil
}

// Paid counts what has gone.
func (m *meter) Paid(n int) {
	if m.out {
		m.f.out.Add(int64(n))
	} else {
		m.f.in.Add(int64(n))
	}
	m.f.touch()
}

// await waits for the rate, but not longer than the flow lives.
func (f *flow) await(l *rate.Limiter, n int) error {
	f.held.Add(1)
	defer f.held.Add(-1)
	defer f.touch()
	return l.WaitN(f.ctx, n)
}

func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

// silent is for how long nothing was sent; what waits for the rate is not silent.
func (f *flow) silent(now time.Time) time.Duration {
	if f.held.Load() > 0 {
		return 0
	}
	return now.Sub(time.Unix(0, f.last.Load()))
}

// ending adds what ends the flow at once; when it was cut already, now.
func (f *flow) ending(end func()) {
	f.mu.Lock()
	cut := f.why.Verdict != ""
	f.ends = append(f.ends, end)
	f.mu.Unlock()
	if cut {
		end()
	}
}

// cut ends a flow from outside of it.
func (f *flow) cut(rule, reason, remedy string) {
	f.endBy(Event{Step: f.event.Step, Rule: rule, Reason: reason, Remedy: remedy})
}

// exceed ends a flow by a limit. It is the step's doing only if the flow is its own, and not of a time when others ran too.
func (f *flow) exceed(step int, reason string) {
	if step != f.event.Step {
		step = 0
	}
	f.endBy(Event{Step: step, Rule: RuleBytes, Reason: reason})
}

func (f *flow) endBy(why Event) {
	f.mu.Lock()
	ends := f.ends
	first := f.why.Verdict == "" && !f.ended
	if first {
		why.Verdict = VerdictCut
		f.why = why
	}
	f.mu.Unlock()
	if first {
		for _, end := range ends {
			end()
		}
	}
}

// end tells what became of a flow.
func (f *flow) end(verdict string, err error) {
	f.mu.Lock()
	f.ended = true
	why := f.why
	f.mu.Unlock()
	e := f.event
	e.At, e.Duration = f.began, time.Since(f.began)
	e.Out, e.In = f.out.Load(), f.in.Load()
	e.Verdict, e.Rule = verdict, f.rule
	if err != nil {
		e.Reason = err.Error()
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		e.Rule, e.Reason, e.Remedy = refused.v.Rule, refused.v.Reason, refused.v.Remedy
	}
	if why.Verdict != "" {
		e.Step, e.Verdict, e.Rule, e.Reason, e.Remedy = why.Step, why.Verdict, why.Rule, why.Reason, why.Remedy
	}
	f.g.tell(e)
}
