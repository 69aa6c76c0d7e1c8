package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/report"
)

const reportLong = `Write what there is to say of a task: its steps with verdicts and limits, what changed, what the gates found and on what
evidence, what people approved, what it did with the network, and what was promoted.

TASK is a task's id, a unique beginning of one, or a feature, of which it is the newest task. The report is about the state
at the task's end; where gates were asked about it again, or approved, it has what they say now, and says so.

  text      for people (the default)
  json      all of it, on one line; the field version says in which form
  sarif     SARIF 2.1.0: findings, for code scanning
  junit     JUnit's XML: a case for each step and each gate
  markdown  a summary in GitHub's Markdown, for $GITHUB_STEP_SUMMARY
  github    workflow commands, which GitHub shows as annotations of the change

The exit code is 0 when the report could be written, whatever it says.`

// reportOptions are how a report is written.
type reportOptions struct {
	format string // "": text, or json with --json
	output string // file; "" or "-": standard output
}

func newReportCommand(a *app) *cobra.Command {
	var o reportOptions
	cmd := &cobra.Command{
		Use:   "report TASK | FEATURE",
		Short: "Write a task's report: text, JSON, SARIF, JUnit, Markdown, GitHub annotations",
		Long:  reportLong,
		Example: `  caisson report f --format sarif --output caisson.sarif
  caisson report f --format markdown >> "$GITHUB_STEP_SUMMARY"`,
		Args: exactly(1, "one task or feature"), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runReport(cmd.Context(), a, args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.format, "format", "", "one of "+strings.Join(report.Formats(), ", "))
	f.StringVarP(&o.output, "output", "o", "", "the file to write (default standard output)")
	completeFlag(cmd, "format", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return report.Formats(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

func runReport(ctx context.Context, a *app, ref string, o reportOptions) error {
	format := cmp.Or(o.format, "text")
	if o.format == "" && a.json {
		format = "json"
	}
	if !slices.Contains(report.Formats(), format) {
		return usage("--format %s: one of %s", format, strings.Join(report.Formats(), ", "))
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	t, err := s.Report(ctx, ref)
	if err != nil {
		return err
	}
	var text bytes.Buffer // so that a file is whole, or not there
	if err := report.Write(&text, format, report.New(t, buildVersion().Version, time.Now())); err != nil {
		return err
	}
	if o.output == "" || o.output == "-" {
		_, err = a.stdout.Write(text.Bytes())
		return err
	}
	if err := os.WriteFile(o.output, text.Bytes(), 0o666); err != nil {
		return &runner.Error{Code: runner.CodeUsage, Cause: "the report cannot be written", Remedy: "name a file that can be written", Exit: exitRefused, Err: err}
	}
	return nil
}
