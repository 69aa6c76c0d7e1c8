package main

import (
	"cmp"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
)

// runOptions is what `run` is asked to do; `inspect --spec` shares all but the streams.
type runOptions struct {
	workspace, feature, profile string
	workdir                     string
	labels                      []string
	patchFile                   string
	branch                      runner.BranchOptions
	allowProtected              []string

	steps         []string // each a line for sh -c, instead of args
	file          string   // of steps, instead of both
	task          *profiles.Task
	ports         ports
	learn         string
	retry, detach bool
	noCheckpoints bool
	key           string

	remove, quiet bool
	streamOptions

	promote string              // what the flag says; "" leaves it to the profile
	policy  map[string][]string // the flags that are keys of a profile
	args    []string
}

func (o *runOptions) addFlags(f *pflag.FlagSet) {
	f.SetInterspersed(false)
	profiles.AddFlags(f)
	f.StringVar(&o.workspace, "workspace", ".", "the directory to work on; /workspace inside")
	f.StringVar(&o.feature, "feature", "", "the feature's name (default: a fresh one)")
	f.StringVar(&o.profile, "profile", "", "a profile's name, or a file (with a / or ending in .yaml)")
	f.StringVarP(&o.workdir, "workdir", "w", "", "the command's working directory inside (default /workspace)")
	f.StringArrayVar(&o.labels, "label", nil, "KEY=VALUE kept with the feature; repeatable")
	f.StringVar(&o.patchFile, "patch-file", "", "where --promote=patch writes")
	addBranchFlags(f, &o.branch)
	f.StringArrayVar(&o.steps, "step", nil, "a step, as a line for sh; repeatable, run in order until one fails, a checkpoint after each. NAME: LINE runs under the profile's rule for that name")
	f.StringVarP(&o.file, "file", "f", "", "a file of steps (caisson profile schema --task)")
	f.StringArrayVar(&o.allowProtected, "allow-protected", nil, "glob of protected paths that may be changed all the same; repeatable")
}

// take keeps what the flags say once they are parsed.
func (o *runOptions) take(f *pflag.FlagSet, args []string) {
	o.policy = profiles.FlagValues(f)
	o.args = args
	if v := o.policy["promote"]; len(v) > 0 {
		o.promote = v[len(v)-1]
	}
}

// check refuses what makes no sense, before anything is opened.
func (o *runOptions) check(a *app) error {
	switch {
	case len(o.args) > 0 && len(o.steps) > 0:
		return usage("a command and --step exclude each other")
	case o.file != "" && len(o.args)+len(o.steps) > 0:
		return usage("a command or --step, and --file exclude each other")
	case len(o.args) == 0 && len(o.steps) == 0 && o.file == "" && !o.detach:
		return usage("no command given")
	case o.learn != "" && o.learn != runner.LearnAllow && o.learn != runner.LearnEnforce:
		return usage("--learn %q: one of allow, enforce", o.learn)
	case o.learn != "" && o.detach:
		return usage("--learn and -d exclude each other: what was learnt is said at the end")
	case o.learn == runner.LearnAllow && o.mode() == string(egress.ModeNone):
		return usage("--network none and --learn exclude each other: to learn the public internet is reached; with --learn=enforce it is not")
	case o.detach && o.remove:
		return usage("-d and --rm exclude each other")
	case o.detach && a.persistence == "memory":
		return usage("-d and --state-persistence memory exclude each other")
	case o.remove && o.promote != "" && o.promote != runner.PromoteNone:
		return usage("--rm and --promote exclude each other")
	}
	if err := contradiction(o.mode(), o.policy["allow"]); err != nil || o.detach { // nothing of ours is joined to it
		return err
	}
	return o.streamOptions.check(a)
}

// request is the task that the options describe, without its streams.
func (o *runOptions) request(a *app) (*runner.Request, error) {
	labels, err := parseLabels(o.labels)
	if err != nil {
		return nil, err
	}
	if err := o.loadTask(); err != nil {
		return nil, err
	}
	profile, err := loadProfile(o.profile, o.workspace, o.policy)
	if err != nil {
		return nil, err
	}
	steps, err := o.commands(profile)
	if err != nil {
		return nil, err
	}
	publish, err := o.ports.publish()
	if err != nil {
		return nil, err
	}
	promote := profile.Promote
	if o.remove {
		promote = runner.PromoteNone
	}
	if (promote == runner.PromotePatch) != (o.patchFile != "") {
		return nil, usage("--promote=patch and --patch-file FILE need each other")
	}
	if promote != runner.PromoteBranch && o.branch != (runner.BranchOptions{}) {
		return nil, usage("--branch and --message need --promote=branch")
	}
	r := &runner.Request{
		Workspace: o.workspace, Feature: o.feature, Profile: profile, Steps: steps,
		Promote: promote, PatchFile: o.patchFile, Branch: o.branch, AllowProtected: o.allowProtected,
		Remove: o.remove, Labels: labels, Environ: os.Environ(),
		Detach: o.detach, Key: o.key, Learn: o.learn, Publish: publish,
	}
	if o.noCheckpoints {
		r.Checkpoints = &runner.CheckpointPolicy{Off: true}
	}
	return r, nil
}

// mode is what --network says.
func (o *runOptions) mode() string {
	if v := o.policy["network"]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// loadTask reads the file of steps, which may name a profile.
func (o *runOptions) loadTask() (err error) {
	if o.file == "" {
		return nil
	}
	sources := profileSources()
	sources.Workspace = o.workspace
	if o.task, err = sources.LoadTask(o.file); err != nil {
		return configuration(err, "the file of steps cannot be read", "caisson profile schema --task")
	}
	o.profile = cmp.Or(o.profile, o.task.Profile)
	return nil
}

// commands are the steps of the task. An explicit --network none is the last word.
func (o *runOptions) commands(p *profiles.Effective) ([]runner.Step, error) {
	var steps []runner.Step
	for _, line := range o.steps {
		steps = append(steps, stepOf(line))
	}
	if len(o.args) > 0 {
		steps = append(steps, runner.Step{Args: o.args})
	}
	if o.task != nil {
		for i := range o.task.Steps {
			s := &o.task.Steps[i]
			rule, err := s.Rule(&p.Profile)
			if err != nil {
				return nil, err
			}
			steps = append(steps, runner.Step{Name: s.Name, Args: s.Args, Network: rule, Env: s.Environ(), Cwd: s.Workdir, Timeout: s.Wall(&p.Profile), Retry: s.Retry})
		}
	}
	for i := range steps {
		st := &steps[i]
		st.Cwd, st.Retry = cmp.Or(st.Cwd, o.workdir), st.Retry || o.retry
		if o.mode() == string(egress.ModeNone) {
			st.Network = &egress.Policy{Mode: egress.ModeNone}
			continue
		}
		flags := networkFlags{mode: o.mode(), allow: o.policy["allow"]}
		st.Reach = flags.reach()
	}
	return steps, nil
}

func parseLabels(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, t := range texts {
		key, value, _ := strings.Cut(t, "=")
		if key == "" {
			return nil, usage("--label %q: needs a key", t)
		}
		labels[key] = value
	}
	return labels, nil
}

// loadProfile returns the policy that holds on a workspace.
func loadProfile(ref, workspace string, flags map[string][]string) (*profiles.Effective, error) {
	o := profileSources()
	o.Name, o.File = profiles.SplitRef(ref)
	o.Workspace, o.Flags, o.Env = workspace, flags, os.Environ()
	return load(o)
}
