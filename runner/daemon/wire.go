package daemon

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Codes that only this package gives to a *runner.Error.
const (
	CodeVersion   = "version_mismatch" // the supervisor was started by another version of caisson
	CodeForbidden = "forbidden"        // the caller is another user
	CodeGone      = "supervisor_gone"  // the connection broke before the answer
	CodeTooLarge  = "too_large"        // the request is longer than maxBody
)

const (
	maxBody   = 8 << 20   // bytes of a request
	maxAnswer = 256 << 20 // bytes of an answer: a change of a million paths
)

// statuses are the HTTP status of an error, for people with curl: the code in the body counts.
var statuses = map[string]int{
	runner.CodeUsage: http.StatusBadRequest, runner.CodeInvalidName: http.StatusBadRequest,
	runner.CodeConfiguration: http.StatusBadRequest, CodeForbidden: http.StatusForbidden,
	runner.CodeNotFound: http.StatusNotFound, runner.CodeAmbiguous: http.StatusConflict, runner.CodeExists: http.StatusConflict,
	runner.CodeBusy: http.StatusConflict, runner.CodeHeld: http.StatusConflict, runner.CodeConflict: http.StatusConflict,
	runner.CodeGate: http.StatusConflict, runner.CodeNotLive: http.StatusConflict, runner.CodePaused: http.StatusConflict, CodeVersion: http.StatusConflict,
	runner.CodeResume: http.StatusConflict, runner.CodeKey: http.StatusConflict, CodeTooLarge: http.StatusRequestEntityTooLarge,
	runner.CodeQueueFull: http.StatusServiceUnavailable, runner.CodeUnsupported: http.StatusNotImplemented,
	runner.CodeDisk: http.StatusInsufficientStorage, runner.CodeQuota: http.StatusInsufficientStorage,
	runner.CodeInternal: http.StatusInternalServerError,
}

func statusOf(code string) int {
	if s, ok := statuses[code]; ok {
		return s
	}
	return http.StatusUnprocessableEntity
}

// failure is an answer that is an error: what a caller in the supervisor's process would find with errors.As.
type failure struct {
	Error     *runner.Error       `json:"error"`
	Conflicts []snapshot.Conflict `json:"conflicts,omitempty"`
	Holders   []isolation.Holder  `json:"holders,omitempty"`
	Elsewhere bool                `json:"elsewhere,omitempty"` // runner.ErrElsewhere
	Result    json.RawMessage     `json:"result,omitempty"`    // of a call that answers both, as promote does
}

// toFailure is err for the wire.
func toFailure(err error) *failure {
	f := &failure{Error: &runner.Error{Code: runner.CodeInternal, Cause: err.Error(), Exit: runner.ExitInternal}}
	if e, ok := errors.AsType[*runner.Error](err); ok {
		f.Error = &runner.Error{Code: e.Code, Cause: e.Error(), Remedy: e.Remedy, Exit: e.Exit}
	}
	if e, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		f.Conflicts = e.Conflicts
	}
	if e, ok := errors.AsType[*isolation.HeldError](err); ok {
		f.Holders = e.Holders
	}
	f.Elsewhere = errors.Is(err, runner.ErrElsewhere)
	return f
}

// err is the *runner.Error that toFailure was given, with the errors below it that callers ask for.
func (f *failure) err() error {
	if f.Error == nil || f.Error.Code == "" {
		return gone(errors.New("an error without a code"))
	}
	e := *f.Error
	switch {
	case len(f.Conflicts) > 0:
		e.Err = said{e.Cause, &snapshot.ConflictError{Conflicts: f.Conflicts}}
	case len(f.Holders) > 0:
		e.Err = said{e.Cause, &isolation.HeldError{Holders: f.Holders}}
	case f.Elsewhere:
		e.Err = said{e.Cause, runner.ErrElsewhere}
	}
	return &e
}

// said is an error whose text is in the cause already.
type said struct {
	cause string
	error
}

func (s said) Error() string { return s.cause }
func (s said) Unwrap() error { return s.error }

// gone says that the supervisor did not answer.
func gone(err error) error {
	return &runner.Error{Code: CodeGone, Cause: "the supervisor has gone before it answered", Exit: runner.ExitInternal, Err: err,
		Remedy: "see `caisson ps -a` for what became of it"}
}

// text is a string of any bytes: JSON knows none but UTF-8.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(t))})
}

func (t *text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var raw struct {
			Base64 []byte `json:"base64"`
		}
		err := json.Unmarshal(data, &raw)
		*t = text(raw.Base64)
		return err
	}
	var s string
	err := json.Unmarshal(data, &s)
	*t = text(s)
	return err
}

func texts(list []string) []text {
	if list == nil {
		return nil
	}
	t := make([]text, len(list))
	for i, s := range list {
		t[i] = text(s)
	}
	return t
}

func untexts(list []text) []string {
	if list == nil {
		return nil
	}
	s := make([]string, len(list))
	for i, t := range list {
		s[i] = string(t)
	}
	return s
}

// wireRequest is a runner.Request without its streams.
type wireRequest struct {
	Workspace      text                     `json:"workspace"`
	Feature        string                   `json:"feature,omitempty"`
	Steps          []wireStep               `json:"steps"`
	Profile        json.RawMessage          `json:"profile"`
	Promote        string                   `json:"promote,omitempty"`
	PatchFile      text                     `json:"patch_file,omitempty"`
	Branch         wireBranch               `json:"branch,omitzero"`
	AllowProtected []text                   `json:"allow_protected,omitempty"`
	OwnOnly        bool                     `json:"own_only,omitempty"`
	Consent        bool                     `json:"consent,omitempty"`
	Remove         bool                     `json:"remove,omitempty"`
	Labels         map[string]string        `json:"labels,omitempty"`
	Detach         bool                     `json:"detach,omitempty"`
	Key            string                   `json:"key,omitempty"`
	TTL            time.Duration            `json:"ttl_ns,omitempty"`
	Idle           time.Duration            `json:"idle_ns,omitempty"`
	Checkpoints    *runner.CheckpointPolicy `json:"checkpoints,omitempty"`
	Learn          string                   `json:"learn,omitempty"`
	Publish        []egress.Publish         `json:"publish,omitempty"`
	TTY            bool                     `json:"tty,omitempty"`
	Interactive    bool                     `json:"interactive,omitempty"`
	Environ        []text                   `json:"environ,omitempty"`
	Input          bool                     `json:"input,omitempty"` // there is something to read
	Term           string                   `json:"term,omitempty"`
	Size           runner.Winsize           `json:"size,omitzero"`
}

// wireBranch is a runner.BranchOptions, whatever the bytes are that no branch can have.
type wireBranch struct {
	Name    text `json:"name,omitempty"`
	Message text `json:"message,omitempty"`
	Force   bool `json:"force,omitempty"`
}

// wireStep is a runner.Step, of which the exported form leaves out what may be secret.
type wireStep struct {
	Args []text      `json:"args"`
	Env  []text      `json:"env,omitempty"`
	Cwd  text        `json:"cwd,omitempty"`
	UID  *uint32     `json:"uid,omitempty"`
	GID  *uint32     `json:"gid,omitempty"`
	Rest runner.Step `json:"rest"` // everything else
}

// toWire makes paths absolute: the supervisor works elsewhere.
func toWire(r *runner.Request) (*wireRequest, error) {
	w := &wireRequest{Feature: r.Feature, Promote: r.Promote, Branch: wireBranch{text(r.Branch.Name), text(r.Branch.Message), r.Branch.Force}, AllowProtected: texts(r.AllowProtected), OwnOnly: r.OwnOnly, Consent: r.Consent, Remove: r.Remove,
		Labels: r.Labels, Detach: r.Detach, Key: r.Key, TTL: r.TTL, Idle: r.Idle, Checkpoints: r.Checkpoints, Learn: r.Learn, Publish: r.Publish, TTY: r.TTY,
		Interactive: r.Interactive, Environ: wireEnviron(r.Environ), Input: r.Stdin != nil || r.TTY && r.Terminal.In != nil,
		Term: r.Terminal.Name, Size: r.Terminal.Size}
	for _, s := range r.Steps {
		step := wireStep{Args: texts(s.Args), Env: texts(s.Env), Cwd: text(s.Cwd), UID: s.UID, GID: s.GID, Rest: s}
		step.Rest.Args, step.Rest.Cwd = nil, ""
		w.Steps = append(w.Steps, step)
	}
	for _, p := range []struct {
		from string
		to   *text
	}{{r.Workspace, &w.Workspace}, {r.PatchFile, &w.PatchFile}} {
		abs, err := absolute(p.from)
		if err != nil {
			return nil, err
		}
		*p.to = text(abs)
	}
	var err error
	if r.Profile != nil {
		w.Profile, err = json.Marshal(r.Profile)
	}
	return w, err
}

// wireEnviron is the caller's environment; nil is this process's own, which is not the supervisor's.
func wireEnviron(list []string) []text {
	if list == nil {
		list = os.Environ()
	}
	return texts(list)
}

// environ is what wireEnviron was given, and never nil.
func environ(list []text) []string {
	return append([]string{}, untexts(list)...)
}

func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// request is what toWire was given, without streams.
func (w *wireRequest) request() (*runner.Request, error) {
	r := &runner.Request{Workspace: string(w.Workspace), Feature: w.Feature, Promote: w.Promote, PatchFile: string(w.PatchFile),
		Branch:         runner.BranchOptions{Name: string(w.Branch.Name), Message: string(w.Branch.Message), Force: w.Branch.Force},
		AllowProtected: untexts(w.AllowProtected), OwnOnly: w.OwnOnly, Consent: w.Consent, Remove: w.Remove, Labels: w.Labels, Detach: w.Detach, Key: w.Key,
		TTL: w.TTL, Idle: w.Idle, Checkpoints: w.Checkpoints, Learn: w.Learn, Publish: w.Publish, TTY: w.TTY, Interactive: w.Interactive, Environ: environ(w.Environ)}
	r.Terminal.Name, r.Terminal.Size = w.Term, w.Size
	for _, s := range w.Steps {
		step := s.Rest
		step.Args, step.Env, step.Cwd, step.UID, step.GID = untexts(s.Args), untexts(s.Env), string(s.Cwd), s.UID, s.GID
		r.Steps = append(r.Steps, step)
	}
	if len(w.Profile) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(w.Profile, &r.Profile); err != nil {
		return nil, badRequest(err)
	}
	return r, nil
}

func badRequest(err error) error {
	return &runner.Error{Code: runner.CodeUsage, Cause: "the request cannot be read", Exit: runner.ExitRefused, Err: err}
}
