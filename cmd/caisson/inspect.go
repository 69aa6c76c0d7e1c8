package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/runner"
)

func newInspectCommand(a *app) *cobra.Command {
	var o runOptions
	var spec bool
	cmd := &cobra.Command{
		Use:   "inspect FEATURE | inspect --spec FEATURE | inspect --spec [run flags] -- COMMAND [ARG…]",
		Short: "Print all there is to know about a feature, or the OCI spec of a sandbox, as JSON",
		Long: `Print a feature with its tasks and their results as JSON. With --spec print the OCI runtime spec of its sandbox
instead, or of the sandbox that "caisson run" with the same flags would make. Nothing is started.`,
		ValidArgsFunction: a.completeFeatures(1),
		Args: func(cmd *cobra.Command, args []string) error {
			if spec && cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
				return nil
			}
			return exactly(1, "one feature, or --spec -- COMMAND")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !spec:
				return runInspect(cmd.Context(), a, args[0])
			case cmd.ArgsLenAtDash() != 0:
				return runInspectSpecOf(cmd.Context(), a, args[0])
			}
			o.take(cmd.Flags(), args)
			return runInspectSpec(cmd.Context(), a, &o)
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&spec, "spec", false, "the OCI runtime spec of the sandbox")
	cmd.Flags().SetInterspersed(true)
	return cmd
}

func runInspect(ctx context.Context, a *app, ref string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	feature, err := s.Feature(ctx, ref)
	if err != nil {
		return err
	}
	return a.printIndented(feature)
}

func runInspectSpecOf(ctx context.Context, a *app, ref string) error {
	return a.printSpec(ctx, func(s *runner.Supervisor) (*isolation.Spec, error) { return s.SpecOf(ctx, ref) })
}

func runInspectSpec(ctx context.Context, a *app, o *runOptions) error {
	if err := o.check(a); err != nil {
		return err
	}
	request, err := o.request(a)
	if err != nil {
		return err
	}
	return a.printSpec(ctx, func(s *runner.Supervisor) (*isolation.Spec, error) { return s.Spec(ctx, *request) })
}

// specID stands for the id of a feature in the spec of a sandbox that is only described.
const specID = "00000000000000000000000000"

func (a *app) printSpec(ctx context.Context, get func(*runner.Supervisor) (*isolation.Spec, error)) error {
	engine, err := native.New(native.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	// The id of what is never made is always the same, so that the same question has the same answer.
	s, err := a.openWith(ctx, runner.Options{Engine: engine, NewID: func() string { return specID }})
	if err != nil {
		return err
	}
	defer s.Close()
	spec, err := get(s)
	if err != nil {
		return err
	}
	return a.printIndented(spec.OCI)
}
