package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

// statsEvery is how often the live view is drawn.
const statsEvery = time.Second

func newStatsCommand(a *app) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "stats [FEATURE…]",
		Short: "Show what features use, and how long their seals, rollbacks and validations take",
		Long: `Show what live features use of CPU, memory, processes, disk and files, and how long sealing, rolling back and validating
took, as p50, p95 and p99. On a terminal the view goes on until you stop it; elsewhere, with --json and with --no-stream
it is printed once. Named features are shown also when they are not live.`,
		ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runStats(cmd.Context(), a, args, once)
		},
	}
	cmd.Flags().BoolVar(&once, "no-stream", false, "print once, also on a terminal")
	return cmd
}

func runStats(ctx context.Context, a *app, refs []string, once bool) error {
	read := func() (all []runner.Stats, err error) {
		err = a.serve(ctx, strings.Join(refs, ","), func(s service) error {
			all, err = s.Stats(ctx, refs)
			return err
		})
		return all, err
	}
	all, err := read()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]runner.Stats{}, all...))
	}
	if once || !isTerminal(a.stdout) {
		_, err = a.stdout.Write(statsTable(all, nil, 0))
		return err
	}
	return a.watchStats(ctx, all, read)
}

// watchStats draws the view again and again until ctx ends, which is how people leave it.
func (a *app) watchStats(ctx context.Context, all []runner.Stats, read func() ([]runner.Stats, error)) error {
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	var before []runner.Stats
	at, elapsed := time.Now(), time.Duration(0)
	for {
		// Home, each line erased to its end, and then what is left below.
		view := bytes.ReplaceAll(statsTable(all, before, elapsed), []byte("\n"), []byte("\x1b[K\n"))
		if _, err := fmt.Fprintf(a.stdout, "\x1b[H%s\x1b[J", view); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			next, err := read()
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			before, all, at, elapsed = all, next, now, now.Sub(at)
		}
	}
}

// statsTable is the view. before is what was seen elapsed ago, for the share of CPU.
func statsTable(all, before []runner.Stats, elapsed time.Duration) []byte {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FEATURE\tLIVE\tCPU\tMEMORY\tPIDS\tDISK\tFILES\tSEAL p50/p95/p99\tROLLBACK\tVALIDATION")
	for _, s := range all {
		disk, files := "-", "-"
		if d := s.Disk; d != nil {
			disk = ofLimit(size(d.Used), size(d.Limit), d.Limit > 0)
			files = ofLimit(fmt.Sprint(d.Inodes), fmt.Sprint(d.InodeLimit), d.InodeLimit > 0)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", s.Feature, yesNo(s.Live), cpuShare(s, before, elapsed), size(s.Memory), s.Pids,
			disk, files, percentiles(s, "seal"), percentiles(s, "rollback"), percentiles(s, "validation"))
	}
	_ = w.Flush() // a buffer takes everything
	return b.Bytes()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// cpuShare is the share of one CPU since before, or the whole time where there is no before.
func cpuShare(s runner.Stats, before []runner.Stats, elapsed time.Duration) string {
	for _, b := range before {
		if b.Feature == s.Feature && elapsed > 0 {
			return fmt.Sprintf("%.0f %%", 100*max(0, s.CPU-b.CPU).Seconds()/elapsed.Seconds())
		}
	}
	return s.CPU.Round(10 * time.Millisecond).String()
}

func ofLimit(used, limit string, limited bool) string {
	if !limited {
		return used
	}
	return used + "/" + limit
}

func percentiles(s runner.Stats, kind string) string {
	p, ok := s.Times[kind]
	if !ok || p.N == 0 {
		return "-"
	}
	var parts []string
	for _, d := range []time.Duration{p.P50, p.P95, p.P99} {
		parts = append(parts, short(d))
	}
	return strings.Join(parts, "/")
}

// short is a duration with two or three digits: 850µs, 1.2ms, 35ms, 2.1s.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// size is a number of bytes as people read it: 812, 1.5k, 20m. Below zero it is unknown.
func size(n int64) string {
	if n < 0 {
		return "-"
	}
	unit, v := "", float64(n)
	for _, u := range []string{"k", "m", "g", "t"} {
		if v < 1024 {
			break
		}
		unit, v = u, v/1024
	}
	if unit == "" || v >= 10 {
		return fmt.Sprintf("%.0f%s", v, unit)
	}
	return cmp.Or(strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0"), "0") + unit
}
