package main

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
)

// execOptions is what `exec` and `shell` are asked to do in a feature.
type execOptions struct {
	streamOptions
	workdir, user, key string
	env                []string
	timeout            time.Duration
	network            networkFlags
	ports              ports
}

func (o *execOptions) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.workdir, "workdir", "w", "", "the command's working directory inside (default /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "uid[:gid] of the command, inside (default: the profile's)")
	o.network.addFlags(f)
	o.ports.addFlags(f)
	f.StringArrayVarP(&o.env, "env", "e", nil, "a variable: NAME=VALUE, or NAME to pass the host's on; repeatable")
}

func newExecCommand(a *app) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] FEATURE [--] COMMAND [ARG…]",
		Short: "Run one more command in a live feature",
		Long: `Run one more command in a live feature, as a task of its own: under the feature's profile and limits, with a checkpoint
after it. Several at once share the feature, and its network: what --allow names must also be allowed by the rules of the
commands that run already, the feature's detached command among them. The exit code is the command's own, or caisson's as for run.`,
		Example: `  caisson run -d --feature dev
  caisson exec dev -- make test
  caisson exec -it dev bash`,
		Args:              atLeast(1, "a feature"),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, command, err := featureAndCommand(cmd.Flags(), args)
			if err != nil {
				return err
			}
			if len(command) == 0 {
				return usage("no command given")
			}
			return runExec(cmd.Context(), a, ref, command, &o)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	o.addFlags(f)
	o.streamOptions.addFlags(f)
	f.DurationVar(&o.timeout, "timeout", 0, "wall time of the command (default: the profile's)")
	f.StringVar(&o.key, "key", "", "idempotency key: asked again with the same key, the command is not run again")
	return cmd
}

// featureAndCommand takes the arguments of exec apart. caisson's flags may also stand after the feature: they end at the
// command's first word, or at --.
func featureAndCommand(f *pflag.FlagSet, args []string) (ref string, command []string, err error) {
	ref, command = args[0], args[1:]
	if len(command) > 0 && strings.HasPrefix(command[0], "-") {
		if err := f.Parse(command); err != nil {
			return "", nil, usage("%v", err)
		}
		command = f.Args()
	}
	return ref, command, nil
}

func newShellCommand(a *app) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "shell FEATURE",
		Short: "Open a shell in a live feature",
		Long: `Open a shell in a live feature, on your terminal: bash where the sandbox has one, else sh. Its end seals the state as
after any command. Without a terminal it reads its commands from standard input.`,
		Args: exactly(1, "one feature"), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.tty = isTerminal(a.stdin) && !a.json
			o.interactive = true
			return runExec(cmd.Context(), a, args[0], []string{"sh", "-c", shellScript}, &o)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

const shellScript = `if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi`

// request is the task that the options describe, without its streams and without a profile: the feature has one.
func (o *execOptions) request(feature string, command []string) (*runner.Request, error) {
	step := runner.Step{Args: command, Cwd: o.workdir, Timeout: o.timeout}
	if o.timeout < 0 {
		return nil, usage("--timeout %s: must be more than nothing", o.timeout)
	}
	if o.user != "" {
		uid, gid, err := parseUser(o.user)
		if err != nil {
			return nil, err
		}
		step.UID, step.GID = &uid, &gid
	}
	for _, e := range o.env {
		name, _, set := strings.Cut(e, "=")
		if name == "" {
			return nil, usage("--env %q: needs a name", e)
		}
		if !set {
			value, ok := os.LookupEnv(name)
			if !ok {
				continue
			}
			e = name + "=" + value
		}
		step.Env = append(step.Env, e)
	}
	if err := o.network.check(); err != nil {
		return nil, err
	}
	if step.Reach = o.network.reach(); step.Reach != nil { // over the profile's own rule, as for run
		step.Reach.Mode = cmp.Or(step.Reach.Mode, egress.ModeAllow)
	}
	publish, err := o.ports.publish()
	return &runner.Request{Feature: feature, Steps: []runner.Step{step}, Key: o.key, Publish: publish, OwnOnly: true}, err
}

// parseUser reads UID or UID:GID.
func parseUser(text string) (uid, gid uint32, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	for _, x := range []struct {
		text string
		to   *uint32
	}{{first, &uid}, {second, &gid}} {
		n, err := strconv.ParseUint(x.text, 10, 32)
		if err != nil {
			return 0, 0, usage("--user %q: must be UID or UID:GID", text)
		}
		*x.to = uint32(n)
	}
	return uid, gid, nil
}

func runExec(ctx context.Context, a *app, ref string, command []string, o *execOptions) error {
	if err := o.check(a); err != nil {
		return err
	}
	request, err := o.request(ref, command)
	if err != nil {
		return err
	}
	result, err := a.inFeature(ctx, ref, request, o.streamOptions)
	if err != nil {
		return err
	}
	return a.reportInside(result)
}

// inFeature runs a task in a feature that another process may hold, joined to our streams and signals.
func (a *app) inFeature(ctx context.Context, ref string, r *runner.Request, o streamOptions) (*runner.Result, error) {
	signals := newTaskSignals()
	signals.notify()
	defer signals.stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.Signals = signals.c
	streams, err := a.attach(r, o, cancel)
	if err != nil {
		return nil, err
	}
	defer streams.detach()
	var result *runner.Result
	err = a.withConsent(r, func() error {
		return a.serve(ctx, ref, func(s service) (err error) {
			result, err = s.Exec(ctx, ref, *r)
			return err
		})
	})
	return result, err
}
