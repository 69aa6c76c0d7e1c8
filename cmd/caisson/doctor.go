package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/store"
)

func newDoctorCommand(a *app) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what caisson can enforce on this host and how to get the rest, or repair the state directory",
		Long: `Print every control with what this host answers: available and by which mechanism, unsupported and what to do
about it, or unknown because the question itself failed; and what can bound a feature's disk. The exit code is 0 when the
default profile can run.

With --repair compare the records of the state directory with what is on the disk, and put right what can be: checkpoints
without a record get one, half-made things go, what is damaged is named and the rest stays usable.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if repair {
				return runRepair(cmd.Context(), a)
			}
			return runDoctor(cmd.Context(), a)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "put the state directory right instead")
	return cmd
}

// repairReport is what doctor --repair did.
type repairReport struct {
	*runner.GCReport
	Repaired []string `json:"repaired,omitempty"` // rows of the store
}

func runRepair(ctx context.Context, a *app) error {
	a.repairing = true
	// First the rows, because what opens the state directory reads them.
	repaired, err := a.repairStore(ctx)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	report, err := s.Repair(ctx)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(repairReport{report, repaired})
	} else {
		for _, r := range repaired {
			fmt.Fprintf(a.stdout, "repaired\t%s\n", r)
		}
		a.printGC(report)
	}
	if err == nil && len(report.Problems) > 0 {
		return exitError(exitRefused)
	}
	return err
}

// repairStore makes the rows of the store readable again that are not; what was in them is lost.
func (a *app) repairStore(ctx context.Context) (repaired []string, err error) {
	dir, err := a.resolveStateDir()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, storeFile)
	if _, err := os.Stat(path); err != nil {
		return nil, nil //nolint:nilerr // no store, nothing to repair; what is wrong with it otherwise opening it says
	}
	s, err := store.Open(ctx, path)
	if err == nil {
		repaired, err = s.Repair(ctx)
		err = errors.Join(err, s.Close())
	}
	if code := runner.CodeOf(err); code != runner.CodeStoreCorrupt {
		return repaired, err
	}
	// What can be had of it the features say themselves.
	aside, moved := store.MoveAside(path, time.Now())
	if moved != nil {
		return nil, errors.Join(err, moved)
	}
	return append(repaired, fmt.Sprintf("%v: it is %s now, and the features are found again without their tasks", err, aside)), nil
}

// diagnosis is what doctor found.
type diagnosis struct {
	Kernel      string             `json:"kernel"`
	OS          string             `json:"os"`
	Arch        string             `json:"arch"`
	UID         int                `json:"uid"`
	Engine      string             `json:"engine"`
	Cgroups     string             `json:"cgroups"` // v2, v1, hybrid, none
	CgroupsRoot string             `json:"cgroups_root,omitempty"`
	StateDir    string             `json:"state_dir"`
	StateError  string             `json:"state_error,omitempty"` // why it cannot be used
	Controls    isolation.Features `json:"controls"`
	Layers      *runner.Layering   `json:"layers,omitempty"` // of a new feature, where the profile says nothing
	Disk        []disk.Support     `json:"disk"`             // in order of preference
	Room        *disk.Room         `json:"room,omitempty"`   // for more features with the default limits
	DefaultRuns bool               `json:"default_runs"`
	Missing     string             `json:"missing,omitempty"` // why not
	Remedy      string             `json:"remedy,omitempty"`
}

func runDoctor(ctx context.Context, a *app) error {
	engine, err := native.New(native.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	d := a.diagnose(ctx, engine)
	if a.json {
		err = a.printJSON(d)
	} else {
		err = a.printDiagnosis(d)
	}
	if err == nil && !d.DefaultRuns {
		return exitError(exitRefused)
	}
	return err
}

func (a *app) diagnose(ctx context.Context, engine isolation.Engine) *diagnosis {
	d := &diagnosis{
		Kernel: kernelRelease(), OS: runtime.GOOS, Arch: runtime.GOARCH, UID: os.Geteuid(), Engine: engine.Name(), Cgroups: "none",
	}
	cgroups, err := quota.Probe()
	if err == nil {
		d.Cgroups, d.CgroupsRoot = string(cgroups.Mode()), cgroups.Root()
	}
	own := isolation.Features{cgroupControl(cgroups, err)}
	if d.StateDir, err = a.resolveStateDir(); err == nil {
		row, mechanism := d.diagnoseDisk(ctx)
		own = append(own, row)
		if err = checkStateDir(d.StateDir); err == nil {
			own = append(own, d.diagnoseLayers(engine, mechanism))
		}
	}
	d.Controls = allControls(engine.Probe(ctx), own)
	if err == nil {
		err = defaultRuns(d.Controls)
	} else {
		d.StateError = err.Error()
	}
	d.DefaultRuns = err == nil
	if err != nil {
		e := a.explain(err)
		d.Missing, d.Remedy = e.Error(), e.Remedy
	}
	return d
}

// allControls completes the engine's answers: one row for every control, those that are not the engine's from own.
func allControls(probed, own isolation.Features) isolation.Features {
	var all isolation.Features
	for _, c := range isolation.Controls() {
		row := probed.Get(c)
		for _, o := range own {
			if o.Control == c {
				row = o
			}
		}
		all = append(all, row)
	}
	return all
}

func cgroupControl(cgroups *quota.Cgroups, err error) isolation.Feature {
	row := isolation.Feature{Control: isolation.ControlCgroups}
	if err == nil {
		row.Support, row.Detail = isolation.Available, fmt.Sprintf("%s, %s", cgroups.Mode(), cgroups.Root())
		return row
	}
	row.Detail = err.Error()
	if u, ok := errors.AsType[*quota.UnavailableError](err); ok {
		row.Support, row.Detail, row.Remedy, row.Scope = isolation.Unsupported, u.Reason, u.Remedy, u.Scope
	}
	return row
}

// defaultRuns is nil when the built-in default profile can run.
func defaultRuns(controls isolation.Features) error {
	p, err := profiles.Load(profiles.LoadOptions{Name: "default"})
	if err != nil {
		return err
	}
	_, err = controls.Require(p.Controls.Required, p.AllowWeaker, p.Controls.Waivable)
	return err
}

// checkStateDir says why dir cannot be used, without making it: its nearest existing parent must be a
// directory that we may write.
func checkStateDir(dir string) error {
	parent, err := disk.Existing(dir)
	if err == nil {
		err = writable(parent)
	}
	if err == nil {
		return nil
	}
	return &runner.Error{
		Code: runner.CodeState, Cause: "the state directory " + dir + " cannot be used: " + parent, Err: err,
		Remedy: "set CAISSON_STATE to a directory that you may write", Exit: exitRefused,
	}
}

func (a *app) printDiagnosis(d *diagnosis) error {
	state := d.StateDir
	if d.StateError != "" {
		state = d.StateError
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "kernel\t%s %s/%s\n", d.Kernel, d.OS, d.Arch)
	fmt.Fprintf(w, "user\t%d\n", d.UID)
	fmt.Fprintf(w, "engine\t%s\n", d.Engine)
	fmt.Fprintf(w, "state\t%s\n", state)
	if d.Layers != nil {
		fmt.Fprintf(w, "layers\t%s\n", d.Layers.Driver)
	}
	w.Flush()

	fmt.Fprintln(w, "\nCONTROL\tSUPPORT\tDETAIL")
	for _, c := range d.Controls {
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Control, c.Support, firstLine(c.Detail))
	}
	w.Flush()
	d.printDisk(w)
	for _, c := range d.Controls {
		if c.Support != isolation.Available && c.Remedy != "" {
			fmt.Fprintf(w, "\nto get %s:\n  %s\n", c.Control, strings.ReplaceAll(c.Remedy, "\n", "\n  "))
		}
	}
	if d.DefaultRuns {
		fmt.Fprintln(w, "\ndefault profile: can run")
	} else {
		fmt.Fprintf(w, "\ndefault profile: cannot run: %s\n  %s\n", d.Missing, d.Remedy)
	}
	return w.Flush()
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
