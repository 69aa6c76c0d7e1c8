package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/redact"
)

// know has the secrets of a request's variables hidden, in everything that is kept and told, until forget.
func (s *Supervisor) know(r *Request) (forget func()) {
	var values []redact.Value
	for i := range r.Steps {
		values = append(values, redact.Values(r.Steps[i].Env)...)
	}
	if r.Profile != nil {
		for name, v := range r.Profile.Vars(environOf(r)) {
			values = append(values, redact.Values([]string{name + "=" + v})...)
		}
	}
	return s.opt.Redact.Know(values...)
}

// untilEnd has the session forget with its end.
func (x *session) untilEnd(forget func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forgets = append(x.forgets, forget)
}

func (x *session) forgetAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, forget := range x.forgets {
		forget()
	}
	x.forgets = nil
}

// learned has what a task knows forgotten with it, and what the one knows that made the session with that: its sandbox may have it.
func (t *task) learned(forget func()) {
	if t.unlearn = forget; t.owner {
		t.untilEnd(forget)
		t.unlearn = func() {}
	}
}

// told is an error whose words have no secret that is known now.
func (s *Supervisor) told(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Cause, e.Remedy = s.opt.Redact.Text(e.Cause), s.opt.Redact.Text(e.Remedy)
		if e.Err != nil {
			e.Err = &hushed{e.Err, s.opt.Redact.Text(e.Err.Error())}
		}
	}
	return err
}

// hushed is an error with other words.
type hushed struct {
	error
	words string
}

func (h *hushed) Error() string { return h.words }

func (h *hushed) Unwrap() error { return h.error }

// learning is a header whose value is known, to be hidden, from when the gateway first reads it: who gets it may send it back.
// Of one that changes the value before stays known, too.
func (x *session) learning(secret *profiles.Secret, h egress.Header) egress.Header {
	read := h.Value
	var mu sync.Mutex
	last := ""
	forget, before := func() {}, func() {}
	x.untilEnd(func() {
		mu.Lock()
		defer mu.Unlock()
		forget()
		before()
	})
	h.Value = func() (string, error) {
		value, err := read()
		mu.Lock()
		defer mu.Unlock()
		if err != nil || value == last {
			return value, err
		}
		last = value
		prefix, suffix, _ := strings.Cut(secret.Format, "%s")
		bare := strings.TrimSuffix(strings.TrimPrefix(value, prefix), suffix)
		before()
		before, forget = forget, x.s.opt.Redact.Know(redact.Value{Name: secret.Name, Text: bare})
		return value, nil
	}
	return h
}

// stepOptions is what the journal keeps of a step, besides its arguments. Of variables that are secrets it is only the names:
// who resumes has them, or does not.
type stepOptions struct {
	Step
	Env     []string `json:"env,omitempty"`
	Secrets []string `json:"secrets,omitempty"`
	Shown   []string `json:"shown,omitempty"` // Args without secrets, where that is something else
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
}

// options are those of a step, for the journal, and its arguments as they are shown.
func (s *Supervisor) options(st *Step) (options json.RawMessage, shown []string, err error) {
	o := stepOptions{Step: *st, UID: st.UID, GID: st.GID}
	o.Args = nil // which the journal has beside it
	for _, kv := range st.Env {
		if name, _, _ := strings.Cut(kv, "="); s.opt.Redact.Env([]string{kv})[0] != kv {
			o.Secrets = append(o.Secrets, name)
		} else {
			o.Env = append(o.Env, kv)
		}
	}
	shown = s.opt.Redact.Args(st.Args)
	if strings.Join(shown, "\x00") != strings.Join(st.Args, "\x00") {
		o.Shown = shown
	}
	options, err = json.Marshal(o)
	return options, shown, err
}

// optionsOf reads what options wrote.
func optionsOf(r *StepRecord) (o stepOptions, err error) {
	if len(r.Options) > 0 {
		err = json.Unmarshal(r.Options, &o)
	}
	return o, err
}

// surroundings is the environment of who resumes.
type surroundings struct {
	vars  []string
	taken []string // names of the secrets that came from it
}

// take looks a secret up.
func (e *surroundings) take(name string) (value string, ok bool) {
	if value, ok = variable(e.vars, name); ok && !slices.Contains(e.taken, name) {
		e.taken = append(e.taken, name)
	}
	return value, ok
}

// stepOf is the step of a record, with the secrets that the environment has; missing are the others.
func stepOf(r *StepRecord, environ *surroundings) (st Step, missing []string, err error) {
	o, err := optionsOf(r)
	if err != nil {
		return st, nil, err
	}
	st = o.Step
	st.Args, st.Env, st.UID, st.GID, st.Retry = r.Args, o.Env, o.UID, o.GID, r.Retry
	for _, name := range o.Secrets {
		if value, ok := environ.take(name); ok {
			st.Env = append(st.Env, name+"="+value)
		} else {
			missing = append(missing, name)
		}
	}
	return st, missing, nil
}

// keptProfile is a profile for the journal: in place of the values of secrets, marks.
func (s *Supervisor) keptProfile(p *profiles.Effective) (json.RawMessage, error) {
	kept := *p
	kept.Env = maps.Clone(p.Env)
	for name, value := range p.Env {
		if kv := name + "=" + value; s.opt.Redact.Env([]string{kv})[0] != kv {
			kept.Env[name] = redact.Mark
		}
	}
	return json.Marshal(&kept)
}

// fill puts the values that the environment has in place of the marks of keptProfile; missing are the names of the others.
func fill(vars map[string]string, environ *surroundings) (missing []string) {
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if vars[name] != redact.Mark {
			continue
		}
		if value, ok := environ.take(name); ok {
			vars[name] = value
		} else {
			missing = append(missing, name)
		}
	}
	return missing
}

// variable looks a variable up.
func variable(environ []string, name string) (value string, ok bool) {
	for _, kv := range environ {
		if value, ok = strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// errMissing is why a step cannot be run again: its secrets are not kept.
func errMissing(task string, step int, missing []string) error {
	return &Error{Code: CodeResume, Exit: ExitPerson,
		Cause:  fmt.Sprintf("step %d of task %s was given %s, and the values of secrets are not kept", step, task, strings.Join(missing, ", ")),
		Remedy: strings.Join(missing, "=… ") + "=… caisson resume " + task + ": they are taken from its environment"}
}

// shownArgs are a step's arguments without secrets. What the journal has is what a resume runs.
func (s *Supervisor) shownArgs(r *StepRecord) []string {
	if o, err := optionsOf(r); err == nil && o.Shown != nil {
		return o.Shown
	}
	return s.opt.Redact.Args(r.Args)
}

// shown is a step as it is shown.
func (s *Supervisor) shown(r StepRecord) StepRecord {
	r.Args = s.shownArgs(&r)
	if o, err := optionsOf(&r); err == nil {
		o.Args, o.Shown, o.Env = nil, nil, s.opt.Redact.Env(o.Env)
		if text, err := json.Marshal(o); err == nil {
			r.Options = s.opt.Redact.JSON(text)
		}
	}
	return r
}

// hide takes the secrets out of a result, and answers it as it is stored. The words by which a task goes on are no secret,
// also where somebody's is the same.
func (s *Supervisor) hide(r *Result) (json.RawMessage, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	hidden := s.opt.Redact.JSON(text)
	if len(hidden) == len(text) && string(hidden) == string(text) {
		return text, nil
	}
	var plain Result
	if json.Unmarshal(hidden, &plain) != nil { // a mark stands where none can: in a time
		plain = legible(hidden)
	}
	plain.TaskID, plain.FeatureID, plain.State, plain.Verdict, plain.Code = r.TaskID, r.FeatureID, r.State, r.Verdict, r.Code
	plain.Created, plain.Started, plain.Ended = r.Created, r.Started, r.Ended
	*r = plain
	return json.Marshal(r)
}

// legible is what can be read of a result.
func legible(text []byte) (r Result) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields) // it was written just now
	for name, value := range fields {
		var alone Result
		field, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err == nil && json.Unmarshal(field, &alone) == nil {
			_ = json.Unmarshal(field, &r) // as before
		}
	}
	return r
}
