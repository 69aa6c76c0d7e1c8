package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// benchGroups are what --only picks from, in the order in which they are measured; those of onlyNamed only when they are.
var benchGroups = []string{"library", "host", "caisson", "bwrap", "runc", "docker", "checkpoints", "changes", "build"}

var onlyNamed = []string{"checkpoints", "changes", "build"}

type benchOptions struct {
	n      int
	atOnce int
	only   []string
}

func newBenchCommand(a *app) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how long sandboxes take on this host, beside bwrap, runc and docker",
		Long: `Measure starts, commands and memory of sandboxes, first as a library and then as whole processes, side by side with
what is installed of bubblewrap, runc and docker, and print Markdown. Everything is made in a temporary
directory and removed. docker is measured when a daemon answers and a statically linked busybox can be imported;
what takes minutes with --only: checkpoints against docker commit, git stash, cp -a and a reflink copy of the same tree of
100,000 files; changes of 10,000 files against cp -a; a cold "go build" inside and outside.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runBench(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&o.n, "number", "n", 100, "how often each figure is measured")
	f.IntVar(&o.atOnce, "at-once", 100, "how many sandboxes at once, running or idle; 0: none")
	f.StringSliceVar(&o.only, "only", nil, "groups: "+strings.Join(benchGroups, ", "))
	return cmd
}

// figure is one thing measured. Values are in Unit.
type figure struct {
	Group string  `json:"group"`
	Name  string  `json:"name"`
	What  string  `json:"what"`
	Unit  string  `json:"unit"` // ms, s, KB
	N     int     `json:"n"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	Min   float64 `json:"min"`
}

// benchReport is all that a run of bench found, and how.
type benchReport struct {
	Version versionInfo `json:"version"`
	Time    time.Time   `json:"time"`
	Machine string      `json:"machine"`
	Method  string      `json:"method"`
	Figures []figure    `json:"figures"`
	Skipped []string    `json:"skipped,omitempty"` // what was not measured, and why
}

// bencher is one run of bench.
type bencher struct {
	app    *app
	o      benchOptions
	dir    string // everything lies in it
	line   *progress
	report benchReport
}

func runBench(ctx context.Context, a *app, o benchOptions) error {
	if o.n < 1 || o.atOnce < 0 {
		return usage("-n must be at least 1, and --at-once not negative")
	}
	for _, g := range o.only {
		if !slices.Contains(benchGroups, g) {
			return usage("--only %q: one of %s", g, strings.Join(benchGroups, ", "))
		}
	}
	dir, err := os.MkdirTemp("", "caisson-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Sandboxes with ids of their own pass through it.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	b := &bencher{app: a, o: o, dir: dir, line: newProgress(a.stderr)}
	defer b.line.set("")
	b.report = benchReport{
		Version: buildVersion(), Time: time.Now().UTC(), Machine: machine(),
		Method: fmt.Sprintf("n=%d after %d warm-ups, one after the other unless a row says otherwise; wall time; "+
			"processes from fork to wait", o.n, warmups(o.n)),
	}
	if err := os.Mkdir(b.workspace(), 0o755); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	b.line.set("")
	if a.json {
		return a.printJSON(b.report)
	}
	return a.printBench(&b.report)
}

func (b *bencher) measure(ctx context.Context) error {
	if b.wants("library") {
		if err := b.library(ctx); err != nil {
			return fmt.Errorf("library: %w", err)
		}
	}
	for _, t := range b.tools(ctx) {
		if !b.wants(t.group) {
			continue
		}
		if t.missing != "" {
			b.report.Skipped = append(b.report.Skipped, t.group+": "+t.missing)
			continue
		}
		if err := b.processes(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.group, err)
		}
	}
	for _, part := range []struct {
		group   string
		measure func(context.Context) error
	}{{"checkpoints", b.checkpoints}, {"changes", b.changes}, {"build", b.build}} {
		if !b.wants(part.group) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.group, err)
		}
	}
	return nil
}

func (b *bencher) wants(group string) bool {
	return len(b.o.only) == 0 && !slices.Contains(onlyNamed, group) || slices.Contains(b.o.only, group)
}

func (b *bencher) workspace() string { return filepath.Join(b.dir, "workspace") }

// warmups is how many runs come before n measured ones.
func warmups(n int) int { return min(5, n) }

// repeat measures f n times after the warm-ups. f gives one value for each name.
func (b *bencher) repeat(what string, f func(i int) ([]float64, error)) ([][]float64, error) {
	b.line.set(what)
	var all [][]float64
	for i := -warmups(b.o.n); i < b.o.n; i++ {
		values, err := f(i)
		if err != nil {
			return nil, err
		}
		if i < 0 {
			continue
		}
		for len(all) < len(values) {
			all = append(all, nil)
		}
		for j, v := range values {
			all[j] = append(all[j], v)
		}
	}
	return all, nil
}

// add appends a figure made of values.
func (b *bencher) add(f figure, values []float64) {
	slices.Sort(values)
	f.N, f.P50, f.P95, f.Min = len(values), percentile(values, 50), percentile(values, 95), values[0]
	b.report.Figures = append(b.report.Figures, f)
}

// percentile is the nearest-rank percentile of sorted values.
func percentile(sorted []float64, p int) float64 {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// machine is what a figure is worth nothing without.
func machine() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(info) {
			if name, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(name)) == "model name" {
				model = string(bytes.TrimSpace(value))
				break
			}
		}
	}
	user := "root"
	if os.Geteuid() != 0 {
		user = "unprivileged"
	}
	return fmt.Sprintf("%d × %s, %s %s, %s, %s", runtime.NumCPU(), model, runtime.GOOS, kernelRelease(), runtime.Version(), user)
}

func (a *app) printBench(r *benchReport) error {
	var w bytes.Buffer
	fmt.Fprintf(&w, "caisson %s, %s\n\n", r.Version.Version, r.Time.Format("2006-01-02"))
	fmt.Fprintf(&w, "Machine: %s.\n\nMethod: %s.\n\n", r.Machine, r.Method)
	fmt.Fprintf(&w, "| what | p50 | p95 | min | n |\n|---|---:|---:|---:|---:|\n")
	for _, f := range r.Figures {
		fmt.Fprintf(&w, "| %s | %s | %s | %s | %d |\n", f.What, f.text(f.P50), f.text(f.P95), f.text(f.Min), f.N)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(&w, "\nNot measured: %s.\n", s)
	}
	_, err := a.stdout.Write(w.Bytes())
	return err
}

func (f *figure) text(v float64) string {
	digits := 2
	if v >= 100 {
		digits = 0
	}
	return fmt.Sprintf("%.*f %s", digits, v, f.Unit)
}
