package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/uplink"
)

func newWhyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "why [TASK | FEATURE]",
		Short: "Explain what the network rule refused, with the flag that would allow each",
		Long: `Print what a task wanted of the network and did not get, and for each the flag that would allow it; of a feature, what all
its tasks wanted; without an argument, the newest task that was refused something. What was wanted while several tasks ran
at once is the feature's. A connection that was cut because the
next step's rule does not allow it, or because a limit was met, is listed, too.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runWhy(cmd.Context(), a, strings.Join(args, ""))
		},
	}
}

// refusal is one thing that was not reached.
type refusal struct {
	Task   string `json:"task"`
	Step   int    `json:"step"` // 0: several ran, and Task is ""
	To     string `json:"to"`
	Count  int    `json:"count"`
	Rule   string `json:"rule"` // that decided
	Reason string `json:"reason"`
	Allow  string `json:"allow,omitempty"` // the entry that would allow it
	Flag   string `json:"flag,omitempty"`  // likewise, for the command line
}

func runWhy(ctx context.Context, a *app, ref string) error {
	var list []runner.Event
	err := a.serve(ctx, "", func(s service) error {
		o := runner.EventOptions{Network: true, Task: ref}
		if f, err := s.Feature(ctx, ref); ref != "" && err == nil {
			o.Feature, o.Task = f.ID, ""
		}
		list = nil
		return s.Events(ctx, o, func(e runner.Event) error {
			if n := e.Network; n != nil && n.Rule != noRecord && (n.Verdict == egress.VerdictRefused || n.Verdict == egress.VerdictCut) {
				list = append(list, e)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	if n := len(list); ref == "" && n > 0 {
		list = ofTask(list, &list[n-1])
	}
	refusals := gather(list)
	if a.json {
		return a.printJSON(refusals)
	}
	if len(refusals) == 0 {
		a.note("nothing was refused")
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tTO\tTIMES\tWHY\tTO ALLOW IT")
	for _, r := range refusals {
		flag := r.Flag
		if flag == "" {
			flag = "cannot be allowed"
		}
		step := "-" // of several that ran
		if r.Step > 0 {
			step = strconv.Itoa(r.Step)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", step, gates.Quote(r.To), r.Count, gates.Quote(r.Reason), gates.Quote(flag))
	}
	return w.Flush()
}

// ofTask are those of the same task, or of the same feature while several ran.
func ofTask(list []runner.Event, one *runner.Event) (of []runner.Event) {
	for _, e := range list {
		if e.TaskID == one.TaskID && e.Feature == one.Feature {
			of = append(of, e)
		}
	}
	return of
}

// gather counts what is the same.
func gather(list []runner.Event) []refusal {
	out := []refusal{}
	at := map[refusal]int{}
	for _, e := range list {
		n := e.Network
		r := refusal{Task: e.TaskID, Step: e.Step, To: uplink.To(n), Rule: n.Rule, Reason: n.Reason, Allow: n.Remedy}
		if n.Remedy != "" {
			r.Flag = "--allow " + quote(n.Remedy)
		}
		i, ok := at[r]
		if !ok {
			i = len(out)
			at[r] = i
			out = append(out, r)
		}
		out[i].Count += max(n.Count, 1)
	}
	return out
}

// quote keeps an entry one word for a shell.
func quote(entry string) string {
	if strings.ContainsAny(entry, "*[") {
		return "'" + entry + "'"
	}
	return entry
}
