package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
)

func newProfileCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "List, show and check profiles: what a sandbox may use, see and give back",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProfileLsCommand(a), newProfileShowCommand(a), newProfileValidateCommand(a), newProfileSchemaCommand(a),
		newProfileTryCommand(a))
	return cmd
}

func newProfileLsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the profiles that can be named",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runProfileLs(a) },
	}
}

func runProfileLs(a *app) error {
	infos := profiles.List(profileSources())
	if a.json {
		return a.printJSON(infos)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSOURCE\tDESCRIPTION")
	for _, p := range infos {
		about := p.Description
		if p.Error != "" {
			about = "cannot be loaded: " + p.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Source, about)
	}
	return w.Flush()
}

type profileShowOptions struct {
	effective bool
	workspace string
}

func newProfileShowCommand(a *app) *cobra.Command {
	var o profileShowOptions
	cmd := &cobra.Command{
		Use:   "show [NAME | FILE]",
		Short: "Print a profile with the origin of each value",
		Long: `Print a profile, and what it extends, with the origin of each value as a comment. With --effective print the policy
that "caisson run" would use: with CAISSON_* variables and what the workspace's .caisson.yaml narrows.`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return profileNames(), cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return runProfileShow(a, strings.Join(args, ""), o)
		},
	}
	cmd.Flags().BoolVar(&o.effective, "effective", false, "the policy that would hold for a run")
	cmd.Flags().StringVar(&o.workspace, "workspace", ".", "the workspace of that run")
	return cmd
}

func runProfileShow(a *app, ref string, o profileShowOptions) error {
	sources := profileSources()
	sources.Name, sources.File = profiles.SplitRef(ref)
	if o.effective {
		sources.Env, sources.Workspace = os.Environ(), o.workspace
	} else if ref == "" {
		sources.Name = "default"
	}
	e, err := load(sources)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(e)
	}
	return e.WriteText(a.stdout)
}

func newProfileValidateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE…",
		Short: "Check profile files: keys, values, what they extend",
		Args:  atLeast(1, "a file"),
		RunE:  func(_ *cobra.Command, args []string) error { return runProfileValidate(a, args) },
	}
}

func runProfileValidate(a *app, files []string) error {
	type valid struct {
		File   string `json:"file"`
		Name   string `json:"name"`
		Digest string `json:"digest"`
	}
	var good []valid
	var bad []error
	for _, file := range files {
		sources := profileSources()
		sources.File = file
		e, err := load(sources)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		good = append(good, valid{file, e.Name, e.Digest})
		if !a.json {
			fmt.Fprintf(a.stdout, "%s: ok\n", file)
		}
	}
	if len(bad) > 0 {
		return errors.Join(bad...)
	}
	if a.json {
		return a.printJSON(good)
	}
	return nil
}

func newProfileSchemaCommand(a *app) *cobra.Command {
	task := false
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a profile file, or of a file of steps",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema := profiles.Schema
			if task {
				schema = profiles.TaskSchema
			}
			_, err := a.stdout.Write(append(schema(), '\n'))
			return err
		},
	}
	cmd.Flags().BoolVar(&task, "task", false, "of the file that run --file takes")
	return cmd
}

func newProfileTryCommand(a *app) *cobra.Command {
	step := ""
	cmd := &cobra.Command{
		Use:   "try NAME | FILE",
		Short: "Say which destinations a profile's network rule allows",
		Long: `Read destinations, one a line, NAME:PORT or ADDRESS:PORT, and print for each, as a line of JSON, whether the rule allows
it, which entry decided, and which would allow it. It is decided by the code that decides at run time; nothing is looked
up or reached, and what a name resolves to is decided when it is dialled.`,
		Example: `  echo proxy.golang.org:443 | caisson profile try go --step fetch`,
		Args:    exactly(1, "one profile"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return profileNames(), cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, args []string) error { return runProfileTry(a, args[0], step) },
	}
	cmd.Flags().StringVar(&step, "step", "", "the step whose rule is asked (default: the rule of steps without a name)")
	return cmd
}

// tried is a line of profile try.
type tried struct {
	Destination string `json:"destination"`
	egress.Verdict
}

func runProfileTry(a *app, ref, step string) error {
	sources := profileSources()
	sources.Name, sources.File = profiles.SplitRef(ref)
	e, err := load(sources)
	if err != nil {
		return err
	}
	policy, err := e.StepRule(step)
	if err != nil {
		return usage("--step: %v", err)
	}
	rule, err := egress.Parse(policy)
	if err != nil {
		return configuration(err, "the rule cannot be read", "caisson profile validate")
	}
	const most = 64 << 10 // more is no destination, whatever follows
	lines := bufio.NewReaderSize(a.stdin, most)
	for {
		line, long, err := lines.ReadLine()
		text := string(line)
		for long && err == nil {
			_, long, err = lines.ReadLine()
		}
		if text != "" {
			if err := writeJSON(a.stdout, tried{text, rule.Try(text)}, ""); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// profileSources is where profiles lie, without the caller's variables and workspace.
func profileSources() profiles.LoadOptions {
	user, system := profiles.DefaultDirs(os.Environ())
	return profiles.LoadOptions{UserDir: user, SystemDir: system}
}

// load is profiles.Load; a file that cannot be read is a mistake in the configuration, not a failure of ours.
func load(o profiles.LoadOptions) (*profiles.Effective, error) {
	e, err := profiles.Load(o)
	return e, configuration(err, "the profile cannot be read", "caisson profile ls")
}

// configuration makes an error of reading a file one in the configuration; a mistake in it says itself what it is.
func configuration(err error, cause, remedy string) error {
	if _, ok := errors.AsType[*profiles.Error](err); err == nil || ok {
		return err
	}
	return &runner.Error{Code: runner.CodeConfiguration, Cause: cause, Err: err, Remedy: remedy, Exit: exitRefused}
}

func profileNames() []string {
	infos := profiles.List(profileSources())
	names := make([]string, len(infos))
	for i, p := range infos {
		names[i] = p.Name
	}
	return names
}
