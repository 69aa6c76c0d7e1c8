package runner

import (
	"encoding/base64"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/redact"
)

// TestLearnedHeader: what the gateway adds is hidden from when it reads it until the session has ended, without what is around it.
func TestLearnedHeader(t *testing.T) {
	r := &redact.Redactor{}
	x := &session{s: &Supervisor{opt: Options{Redact: r}}}
	values := []string{"Bearer first-value", "Bearer second-value"}
	var failure error
	h := x.learning(&profiles.Secret{Name: "API", Format: "Bearer %s"}, egress.Header{Value: func() (string, error) { return values[0], failure }})
	const text = "it was first-value, then second-value"
	if got := r.Text(text); got != text {
		t.Error(got)
	}
	for range 3 {
		if got, err := h.Value(); got != values[0] || err != nil {
			t.Error(got, err)
		}
	}
	if got := r.Text(text); got != "it was [redacted:API], then second-value" || len(x.forgets) != 1 {
		t.Error(got, len(x.forgets))
	}
	values = values[1:]
	if _, err := h.Value(); err != nil {
		t.Error(err)
	}
	if got := r.Text(text); got != "it was [redacted:API], then [redacted:API]" {
		t.Error(got)
	}
	if got := r.Text(base64.StdEncoding.EncodeToString([]byte("user:second-value"))); got == base64.StdEncoding.EncodeToString([]byte("user:second-value")) {
		t.Error(got)
	}
	values = []string{"Bearer third-value"}
	if _, err := h.Value(); err != nil {
		t.Error(err)
	}
	if got := r.Text(text + ", third-value"); got != "it was first-value, then [redacted:API], [redacted:API]" || len(x.forgets) != 1 {
		t.Error(got, len(x.forgets))
	}
	failure = errors.New("gone")
	if _, err := h.Value(); !errors.Is(err, failure) {
		t.Error(err)
	}
	x.forgetAll()
	if got := r.Text(text); got != text {
		t.Error(got)
	}
}

// TestStepWithoutSecrets: the journal has a step's variables but for secrets, whose names it has; they come back from where
// it is resumed.
func TestStepWithoutSecrets(t *testing.T) {
	s := &Supervisor{opt: Options{Redact: &redact.Redactor{}}}
	st := Step{Args: []string{"tool", "--token", "abcdef123"}, Env: []string{"A=b", "MY_TOKEN=one", "URL=https://u:pass1@h/"}, Cwd: "d"}
	options, shown, err := s.options(&st)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(shown, []string{"tool", "--token", redact.Mark}) {
		t.Error(shown)
	}
	r := StepRecord{N: 1, Args: st.Args, Options: options}
	if got := s.shown(r); !slices.Equal(got.Args, shown) || string(got.Options) != string(s.opt.Redact.JSON(got.Options)) {
		t.Error(got.Args, string(got.Options))
	}
	environ := &surroundings{vars: []string{"OTHER=x", "MY_TOKEN=two"}}
	got, missing, err := stepOf(&r, environ)
	if err != nil || !slices.Equal(missing, []string{"URL"}) || !slices.Equal(got.Env, []string{"A=b", "MY_TOKEN=two"}) || got.Cwd != "d" || !slices.Equal(got.Args, st.Args) {
		t.Error(got, missing, err)
	}
	p := &profiles.Effective{Profile: profiles.Profile{Env: map[string]string{"A": "b", "MY_TOKEN": "one"}}}
	text, err := s.keptProfile(p)
	if err != nil || p.Env["MY_TOKEN"] != "one" || string(s.opt.Redact.JSON(text)) != string(text) {
		t.Error(err, p.Env)
	}
	vars := map[string]string{"A": "b", "MY_TOKEN": redact.Mark, "OTHER_TOKEN": redact.Mark}
	if missing := fill(vars, environ); !slices.Equal(missing, []string{"OTHER_TOKEN"}) || !slices.Equal(environ.taken, []string{"MY_TOKEN"}) || vars["MY_TOKEN"] != "two" {
		t.Error(missing, vars)
	}
}

// TestHiddenResult: a result stays one whatever is hidden in it.
func TestHiddenResult(t *testing.T) {
	s := &Supervisor{opt: Options{Redact: &redact.Redactor{}}}
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, secret := range []string{"hunter2x", "2026-05", string(StateSucceeded), "01k-task"} {
		forget := s.opt.Redact.Know(redact.Value{Name: "S", Text: secret})
		r := Result{TaskID: "01k-task", FeatureID: "01k-feature", State: StateSucceeded, Verdict: VerdictTimeout, Code: "timeout", Cause: "it was " + secret, Created: now, Ended: now,
			Steps: []StepResult{{N: 1, Args: []string{"echo", secret}}}, Checkpoints: []Checkpoint{{ID: "c", Created: now}}}
		text, err := s.hide(&r)
		if err != nil {
			t.Fatal(err)
		}
		stored := result(&TaskRecord{Result: text})
		if stored == nil {
			t.Fatalf("%s: %s", secret, text)
		}
		for _, r := range []*Result{&r, stored} {
			if r.TaskID != "01k-task" || r.State != StateSucceeded || r.Verdict != VerdictTimeout || !r.Ended.Equal(now) || r.Cause != "it was [redacted:S]" || len(r.Steps) != 1 || r.Steps[0].Args[1] != "[redacted:S]" {
				t.Errorf("%s: %+v", secret, r)
			}
		}
		forget()
	}
}

// TestTold: an error's words stay without secrets when those are not known any more.
func TestTold(t *testing.T) {
	s := &Supervisor{opt: Options{Redact: &redact.Redactor{}}}
	forget := s.opt.Redact.Know(redact.Value{Name: "S", Text: "hunter2x"})
	below := errors.New("open hunter2x: gone")
	err := s.told(&Error{Code: CodeInternal, Cause: "reading: open hunter2x: gone", Remedy: "rm hunter2x", Err: below})
	forget()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Error() != "reading: open [redacted:S]: gone" || e.Remedy != "rm [redacted:S]" || !errors.Is(err, below) {
		t.Error(err)
	}
}
