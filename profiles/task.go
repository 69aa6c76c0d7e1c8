package profiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/quota"
)

// Task is a file of steps, for `caisson run -f`.
type Task struct {
	Profile string // as --profile takes it; "": what the command line says
	Steps   []TaskStep
}

// TaskStep is one command of a Task.
type TaskStep struct {
	Name    string            // of the profile's steps; "" for the profile's own rule
	Args    []string          // a line in the file is one for sh -c
	Network *StepPolicy       // over what the profile has for Name
	Env     map[string]string // over the profile's
	Workdir string            // inside
	Timeout time.Duration     // 0: the profile's; see Wall
	Retry   bool              // it may be run again after it was interrupted
	Source  string            // FILE:LINE

	untrusted bool // the file lies in the workspace
}

// LoadTask reads a file of steps strictly. One that lies in o.Workspace is the untrusted side's: it chooses neither its profile
// nor a rule of its own. Mistakes are *Error, joined when there are several.
func (o *LoadOptions) LoadTask(path string) (*Task, error) {
	inside, err := o.inWorkspace(path)
	if err != nil {
		return nil, err
	}
	data, err := readText(path, inside)
	if err != nil {
		return nil, err
	}
	root, err := soleMapping(path, data, "write steps: [{name: test, run: make test}]")
	if err != nil {
		return nil, err
	}
	r := taskReader{source: path, untrusted: inside}
	t := r.task(root)
	return t, join(r.errs)
}

// taskReader collects mistakes.
type taskReader struct {
	source    string
	untrusted bool
	errs      []error
}

var taskKeys = []string{"profile", "steps"}
var taskStepKeys = []string{"name", "run", "network", "env", "workdir", "timeout", "retry"}

func (r *taskReader) fail(key string, err error) {
	for _, err := range flatten(err) {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			e = mistake(0, "%s", err)
		}
		e.Source, e.Key = r.source, key
		r.errs = append(r.errs, e)
	}
}

// each walks over the keys of a mapping, of which each is known and set once.
func (r *taskReader) each(at string, n *yaml.Node, known []string, do func(key string, name, content *yaml.Node) error) {
	if n.Kind != yaml.MappingNode {
		r.fail(at, mistake(n.Line, "must hold keys: %s", oneOf(known)))
		return
	}
	seen := map[string]bool{}
	for name, content := range pairs(n) {
		key := strings.TrimPrefix(at+"."+name.Value, ".")
		var err error
		switch {
		case !slices.Contains(known, name.Value):
			err = mistake(name.Line, "unknown key%s", didYouMean(name.Value, known))
		case seen[name.Value]:
			err = mistake(name.Line, "set twice")
		default:
			err = do(name.Value, name, content)
		}
		if seen[name.Value] = true; err != nil {
			r.fail(key, err)
		}
	}
}

func (r *taskReader) task(root *yaml.Node) *Task {
	t := &Task{}
	r.each("", root, taskKeys, func(key string, name, content *yaml.Node) (err error) {
		if key == "profile" {
			if t.Profile, err = scalarText(content); err == nil && r.untrusted {
				err = mistake(name.Line, "a task inside the workspace does not choose its profile; say --profile %s on the command line", t.Profile)
			}
			if _, file := SplitRef(t.Profile); file != "" && !filepath.IsAbs(file) { // beside the task
				t.Profile = filepath.Join(filepath.Dir(r.source), t.Profile)
			}
			return err
		}
		if content.Kind != yaml.SequenceNode || len(content.Content) == 0 {
			return mistake(content.Line, "must be a list of steps, such as [{name: test, run: make test}]")
		}
		for i, n := range content.Content {
			t.Steps = append(t.Steps, r.step(fmt.Sprintf("steps.%d", i+1), n))
		}
		return nil
	})
	if len(t.Steps) == 0 && len(r.errs) == 0 {
		r.fail("steps", mistake(root.Line, "is not set"))
	}
	return t
}

func (r *taskReader) step(at string, n *yaml.Node) TaskStep {
	s := TaskStep{Source: fmt.Sprintf("%s:%d", r.source, n.Line), untrusted: r.untrusted}
	r.each(at, n, taskStepKeys, func(key string, _, content *yaml.Node) (err error) {
		switch key {
		case "name":
			if s.Name, err = scalarText(content); err == nil && checkName(s.Name) != nil {
				err = mistake(content.Line, "%q is no name", s.Name)
			}
		case "run":
			s.Args, err = command(content)
		case "network":
			s.Network, err = r.network(content)
		case "env":
			s.Env, err = vars{}.node(content)
		case "workdir":
			s.Workdir, err = scalarText(content)
		case "timeout":
			s.Timeout, err = taskTimeout(content)
		case "retry":
			s.Retry, err = taskRetry(content)
		}
		return err
	})
	if s.Args == nil && len(r.errs) == 0 {
		r.fail(at+".run", mistake(n.Line, "is not set"))
	}
	return s
}

// command is a line for a shell, or words that need none.
func command(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		line, err := scalarText(n)
		if err == nil && strings.TrimSpace(line) == "" {
			err = mistake(n.Line, "is empty")
		}
		return []string{"sh", "-c", line}, err
	}
	var args []string
	for _, c := range n.Content {
		word, err := scalarText(c)
		if err != nil {
			return nil, err
		}
		args = append(args, word)
	}
	if len(args) == 0 || args[0] == "" {
		return nil, mistake(n.Line, "has no command")
	}
	return args, nil
}

func (r *taskReader) network(n *yaml.Node) (*StepPolicy, error) {
	s, err := stepNetwork(n)
	if err == nil && r.untrusted && s.Rule != nil && s.Rule.Mode != string(egress.ModeNone) {
		err = mistake(n.Line, "a task inside the workspace has no rule of its own; name one of the profile's, or say it on the command line")
	}
	return &s, err
}

func taskTimeout(n *yaml.Node) (time.Duration, error) {
	text, err := scalarText(n)
	if err != nil {
		return 0, err
	}
	d, err := positive(quota.ParseDuration)(text)
	if err != nil {
		return 0, mistake(n.Line, "%s", err)
	}
	return time.Duration(d), nil
}

func taskRetry(n *yaml.Node) (bool, error) {
	text, err := scalarText(n)
	if err != nil {
		return false, err
	}
	on, err := yes(text)
	if err != nil {
		return false, mistake(n.Line, "%s", err)
	}
	return on, nil
}

// Rule is a step's rule under a profile; nil: what the profile has for its name.
func (s *TaskStep) Rule(p *Profile) (*egress.Policy, error) {
	if s.Network == nil {
		return nil, nil
	}
	policy, err := p.ruleOf(*s.Network)
	if err != nil {
		return nil, &Error{Source: s.Source, Key: "network", Message: err.Error()}
	}
	if _, err := egress.Parse(policy); err != nil { // a group that is not there
		return nil, &Error{Source: s.Source, Key: "network", Message: err.Error()}
	}
	return &policy, nil
}

// Wall is a step's wall time under a profile; 0: the profile's. A file inside the workspace gets no more than that.
func (s *TaskStep) Wall(p *Profile) time.Duration {
	if s.untrusted {
		return min(s.Timeout, time.Duration(p.Limits.Timeout))
	}
	return s.Timeout
}

// Environ is Env as NAME=VALUE, sorted.
func (s *TaskStep) Environ() []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, name+"="+s.Env[name])
	}
	return env
}

// TaskSchema returns the JSON Schema (2020-12) of a file of steps, for editors.
func TaskSchema() []byte {
	text := map[string]any{"type": "string", "minLength": 1}
	step := map[string]any{"type": "object", "additionalProperties": false, "required": []string{"run"}, "properties": map[string]any{
		"name":    map[string]any{"type": "string", "description": "of the profile's steps, whose rule then holds"},
		"run":     map[string]any{"anyOf": []any{text, map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "minItems": 1}}, "description": "a line for sh, or a command and its arguments"},
		"network": networkOrName(),
		"env":     vars{}.schema(),
		"workdir": map[string]any{"type": "string", "description": "working directory inside; relative to /workspace"},
		"timeout": map[string]any{"type": "string", "description": "wall time, such as 90s"},
		"retry":   map[string]any{"type": "boolean", "description": "it may be run again after it was interrupted"},
	}}
	data, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "caisson task", "description": "Steps for caisson run -f",
		"type": "object", "additionalProperties": false, "required": []string{"steps"},
		"properties": map[string]any{"profile": text, "steps": map[string]any{"type": "array", "minItems": 1, "items": step}},
	}, "", "  ")
	if err != nil {
		panic(err) // only maps, lists and texts
	}
	return data
}
