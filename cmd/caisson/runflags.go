package main

import (
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
)

// runOptions is what `run` is asked to do; `inspect --spec` shares all but the streams.
type runOptions struct {
	workspace, feature, profile string
	workdir                     string
	labels                      []string
	patchFile                   string
	allowProtected              []string

	steps         []string // each a line for sh -c, instead of args
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
	f.StringArrayVar(&o.steps, "step", nil, "a step, as a line for sh; repeatable, run in order until one fails, a checkpoint after each")
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
	case len(o.args) == 0 && len(o.steps) == 0 && !o.detach:
		return usage("no command given")
	case o.detach && o.remove:
		return usage("-d and --rm exclude each other")
	case o.detach && a.persistence == "memory":
		return usage("-d and --state-persistence memory exclude each other")
	case o.remove && o.promote != "" && o.promote != runner.PromoteNone:
		return usage("--rm and --promote exclude each other")
	case o.detach:
		return nil // nothing of ours is joined to it
	}
	return o.streamOptions.check(a)
}

// request is the task that the options describe, without its streams.
func (o *runOptions) request(a *app) (*runner.Request, error) {
	labels, err := parseLabels(o.labels)
	if err != nil {
		return nil, err
	}
	profile, err := loadProfile(o.profile, o.workspace, o.policy)
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
	r := &runner.Request{
		Workspace: o.workspace, Feature: o.feature, Profile: profile, Steps: o.commands(),
		Promote: promote, PatchFile: o.patchFile, AllowProtected: o.allowProtected,
		Remove: o.remove, Labels: labels, Environ: os.Environ(),
		Detach: o.detach, Key: o.key,
	}
	if o.noCheckpoints {
		r.Checkpoints = &runner.CheckpointPolicy{Off: true}
	}
	return r, nil
}

// commands are the steps of the task.
func (o *runOptions) commands() []runner.Step {
	var steps []runner.Step
	for _, line := range o.steps {
		steps = append(steps, runner.Step{Args: []string{"sh", "-c", line}, Cwd: o.workdir, Retry: o.retry})
	}
	if len(o.args) > 0 {
		steps = append(steps, runner.Step{Args: o.args, Cwd: o.workdir, Retry: o.retry})
	}
	return steps
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
