package gates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// DefaultTimeout is the time a gate may take where none is configured.
const DefaultTimeout = time.Minute

// Configured is a gate with its place in the pipeline and what its failure does.
type Configured struct {
	Gate     Gate
	Mode     Mode
	Severity Severity      // the worst that its findings count as; "": as bad as they are
	Timeout  time.Duration // 0: DefaultTimeout
	Phase    Phase         // "": PhaseStatic
	Needs    []string      // names of gates that must accept before this one is asked
	// Incremental says that the gate judges every entry by itself, so that those which it has passed once need not
	// be shown to it again.
	Incremental bool
}

func (g Configured) phase() int { return slices.Index(Phases(), cmp.Or(g.Phase, PhaseStatic)) }

// Options are those of a pipeline.
type Options struct {
	Parallel int    // gates at once; 0: one for each CPU
	Cache    Cache  // nil: every gate is asked
	Image    string // digest of the root filesystem that gates run tools in; part of the cache's key
	// Approved says whether a person has let a verdict that does not accept pass. It is not asked about mandatory gates. nil:
	// nobody has.
	Approved func(v *Verdict) bool
	// Artifacts finds the reports and logs that evidence names. Where it is nil there are none.
	Artifacts Artifacts
}

// Pipeline is gates in the order in which they can be asked. It is safe for concurrent use.
type Pipeline struct {
	gates []Configured
	needs [][]int // for each gate, which ones must accept first
	opt   Options
}

// LoadError is gates that do not make a pipeline: what is wrong, and what to do about it.
type LoadError struct{ Cause, Remedy string }

func (e *LoadError) Error() string { return "gates: " + e.Cause }

// New checks gates against each other. The error is a *LoadError: a gate that does not exist or is named twice, an unknown
// phase or severity, a dependency that is unknown, circular, or of a later phase.
func New(gs []Configured, o Options) (*Pipeline, error) {
	p := &Pipeline{gates: slices.Clone(gs), needs: make([][]int, len(gs)), opt: o}
	if p.opt.Parallel <= 0 {
		p.opt.Parallel = runtime.GOMAXPROCS(0)
	}
	index := map[string]int{}
	for i, g := range gs {
		if err := checkConfigured(g); err != nil {
			return nil, err
		}
		name := g.Gate.Name()
		if _, twice := index[name]; twice {
			return nil, &LoadError{"the gate " + name + " is there twice", "name it once"}
		}
		index[name] = i
	}
	for i, g := range gs {
		for _, need := range g.Needs {
			j, ok := index[need]
			switch {
			case !ok:
				return nil, &LoadError{fmt.Sprintf("the gate %s needs %q, which is no gate here", g.Gate.Name(), need), "correct its needs, or add that gate"}
			case gs[j].phase() > g.phase():
				return nil, &LoadError{fmt.Sprintf("the gate %s of phase %s needs %s, which is asked later", g.Gate.Name(), cmp.Or(g.Phase, PhaseStatic), need), "correct its phase or its needs"}
			}
			p.needs[i] = append(p.needs[i], j)
		}
	}
	return p, p.circle()
}

func checkConfigured(g Configured) error {
	if g.Gate == nil {
		return &LoadError{"there is no such gate", "caisson gate ls shows which there are"}
	}
	name := g.Gate.Name()
	if g.phase() < 0 {
		return &LoadError{fmt.Sprintf("the gate %s has the unknown phase %q", name, g.Phase), "one of pre, static, test, post, decide"}
	}
	if _, err := ParseSeverity(string(cmp.Or(g.Severity, SeverityBlock))); err != nil || g.Severity == SeverityOff {
		return &LoadError{fmt.Sprintf("the gate %s has the severity %q", name, g.Severity), "one of block, warn, info; mode off switches it off"}
	}
	return nil
}

// circle finds gates that wait for each other.
func (p *Pipeline) circle() error {
	const visiting, done = 1, 2
	state := make([]int, len(p.gates))
	var way []string
	var visit func(i int) error
	visit = func(i int) error {
		name := p.gates[i].Gate.Name()
		switch state[i] {
		case done:
			return nil
		case visiting:
			way = append(way[slices.Index(way, name):], name)
			return &LoadError{"gates need each other in a circle: " + strings.Join(way, " → "), "take one of these needs away"}
		}
		state[i], way = visiting, append(way, name)
		for _, j := range p.needs[i] {
			if err := visit(j); err != nil {
				return err
			}
		}
		state[i], way = done, way[:len(way)-1]
		return nil
	}
	for i := range p.gates {
		if err := visit(i); err != nil {
			return err
		}
	}
	return nil
}

// Run asks the gates about c and returns one verdict for each, in the order in which they were given. A gate is asked
// when those that it needs have accepted, and when no gate of an earlier phase blocks; else its verdict is Skipped, with
// the reason, which is no pass. A gate that errs, panics, ends too late or looked at nothing gets the status Error. One
// that ignores its context is not waited for.
func (p *Pipeline) Run(ctx context.Context, c *Change) []Verdict {
	r := run{Pipeline: p, change: c, verdicts: make([]Verdict, len(p.gates)), places: make(chan struct{}, p.opt.Parallel),
		replaced: sync.OnceValue(c.replaced)}
	for range p.gates {
		r.done = append(r.done, make(chan struct{}))
	}
	for phase := range Phases() {
		why := r.blockedBefore(phase)
		var wg sync.WaitGroup
		for i, g := range p.gates {
			if g.phase() == phase {
				wg.Go(func() { r.gate(ctx, i, why) })
			}
		}
		wg.Wait()
	}
	if len(r.kept) > 0 {
		p.opt.Cache.Keep(ctx, r.kept...)
	}
	return r.verdicts
}

// run is one run of a pipeline.
type run struct {
	*Pipeline
	change   *Change
	verdicts []Verdict
	done     []chan struct{} // closed when a verdict is there
	places   chan struct{}

	replaced func() map[string]bool // the paths at which entries replace something
	keeping  sync.Mutex             // kept
	kept     []Kept                 // answers that are new
}

// blockedBefore says which gate of an earlier phase forbids to go on, if any.
func (r *run) blockedBefore(phase int) string {
	for i, g := range r.gates {
		if g.phase() < phase && !r.verdicts[i].accepts() {
			return fmt.Sprintf("the gate %s of phase %s did not pass", g.Gate.Name(), cmp.Or(g.Phase, PhaseStatic))
		}
	}
	return ""
}

// gate makes the verdict of one gate once those that it needs have theirs.
func (r *run) gate(ctx context.Context, i int, why string) {
	defer close(r.done[i])
	for _, j := range r.needs[i] {
		<-r.done[j]
		if !r.verdicts[j].accepts() {
			why = cmp.Or(why, fmt.Sprintf("it needs the gate %s, which did not pass", r.gates[j].Gate.Name()))
		}
	}
	r.places <- struct{}{}
	defer func() { <-r.places }()
	r.verdicts[i] = r.judge(ctx, r.gates[i], why)
}

// judge asks the cache, then the gate.
func (r *run) judge(ctx context.Context, g Configured, why string) Verdict {
	v := Verdict{Gate: g.Gate.Name(), GateDigest: g.Gate.Digest(), Mode: g.Mode, Started: time.Now()}
	if r.change != nil {
		v.ChangeDigest = r.change.Digest
	}
	switch {
	case g.Mode == ModeOff:
		v.Status = Skipped
	case why != "":
		v.Status, v.Reason, v.Remedy = Skipped, why, "correct what that gate names"
	case r.change == nil:
		v.fail(&Failure{"there is no change to look at", "seal a checkpoint first"})
	default:
		r.cached(ctx, g, &v)
		v.Approved = v.Mode == ModeBlock && !v.accepts() && r.opt.Approved != nil && r.opt.Approved(&v)
	}
	v.Duration = time.Since(v.Started)
	return v
}

// cached fills v from the cache, or by asking the gate.
func (r *run) cached(ctx context.Context, g Configured, v *Verdict) {
	key := Key{Gate: v.GateDigest, Tree: r.change.Tree, Image: r.opt.Image}
	use := r.opt.Cache != nil && key.Gate != "" && key.Tree != ""
	var a Answer
	var err error
	something := len(r.change.Entries) > 0
	if use {
		a, v.Cached = r.opt.Cache.Answer(ctx, key)
		v.Cached = v.Cached && a.sound(something, r.opt.Artifacts) == nil // its reports may have gone since
	}
	sights := r.sights()
	if v.Cached && !sights.still(a) {
		a, v.Cached = Answer{}, false
	}
	if !v.Cached {
		a, err = check(ctx, g, sights.noting(r.change))
		if err == nil {
			err = a.sound(something, r.opt.Artifacts)
		}
	}
	v.take(g, a, err)
	if use && !v.Cached && v.Status != Error && sights.seal(&a) {
		r.keeping.Lock()
		defer r.keeping.Unlock()
		r.kept = append(r.kept, Kept{key, a})
	}
}

// take turns what a gate says into its verdict.
func (v *Verdict) take(g Configured, a Answer, err error) {
	v.Findings, v.Dropped, v.Evidence, v.Checked = capped(a.Findings, g.Severity), a.Dropped, a.Evidence, a.Checked
	for _, f := range v.Findings {
		if f.Severity.rank() > v.Severity.rank() {
			v.Severity = f.Severity
		}
	}
	switch {
	case err != nil:
		v.fail(err)
	case v.Severity.rank() >= SeverityBlock.rank():
		v.Status = Fail
	default:
		v.Status = Pass
	}
}

// fail gives v the status Error.
func (v *Verdict) fail(err error) {
	v.Status, v.Reason = Error, err.Error()
	v.Remedy = "correct what the reason names and try again; a gate in mode warn does not block"
	if f, ok := errors.AsType[*Failure](err); ok {
		v.Remedy = cmp.Or(f.Remedy, v.Remedy)
	}
}
