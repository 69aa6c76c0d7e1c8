package main

import (
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/profiles"
)

// listedGate is a gate with what a profile says of it.
type listedGate struct {
	Gate   string      `json:"gate"`
	Phase  gates.Phase `json:"phase"`
	Mode   gates.Mode  `json:"mode"`
	Origin string      `json:"origin"` // where the profile gets the mode from
	About  string      `json:"about"`
}

func newGateLsCommand(a *app) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the gates and what the profile does with them",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runGateLs(a, profile) },
	}
	profileFlag(cmd, &profile)
	return cmd
}

// profileFlag registers --profile on commands about gates.
func profileFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "profile", "", "the profile whose gates they are: a name or a file")
	completeFlag(cmd, "profile", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return profileNames(), cobra.ShellCompDirectiveDefault
	})
}

func runGateLs(a *app, ref string) error {
	p, err := loadRef(ref)
	if err != nil {
		return err
	}
	list := listGates(p)
	if a.json {
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GATE\tPHASE\tMODE\tLOOKS AT")
	for _, g := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", g.Gate, g.Phase, g.Mode, g.About)
	}
	return w.Flush()
}

// listGates says of every gate what a profile does with it. One that has nothing to look for counts as off.
func listGates(p *profiles.Effective) []listedGate {
	settings := p.GateConfig(nil).Settings
	var list []listedGate
	for _, g := range builtin.All() {
		mode := settings[g.Name].Mode
		if mode == "" {
			mode = gates.ModeOff
		}
		list = append(list, listedGate{g.Name, g.Phase, mode, p.Origins["gates."+g.Name+".mode"], g.About})
	}
	return list
}

// shownGate is a gate with its effective configuration.
type shownGate struct {
	listedGate
	Digest string            `json:"digest,omitempty"` // of the gate with its configuration
	Values map[string]string `json:"values"`           // by key
}

func newGateShowCommand(a *app) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:       "show NAME",
		Short:     "Print a gate's configuration in a profile",
		Args:      exactly(1, "the name of a gate"),
		ValidArgs: builtin.Names(),
		RunE:      func(_ *cobra.Command, args []string) error { return runGateShow(a, args[0], profile) },
	}
	profileFlag(cmd, &profile)
	return cmd
}

func runGateShow(a *app, name, ref string) error {
	p, err := loadRef(ref)
	if err != nil {
		return err
	}
	list := listGates(p)
	i := slices.IndexFunc(list, func(g listedGate) bool { return g.Gate == name })
	if i < 0 {
		_, err := gateNamed(name)
		return err
	}
	s := shownGate{listedGate: list[i], Values: p.Values("gates." + name)}
	if g, ok := builtin.Find(name); ok {
		configured, err := g.Configured(p.GateConfig(nil))
		if err != nil {
			return configuration(err, "the gate cannot be made", "correct the profile")
		}
		s.Digest = configured.Gate.Digest()
	}
	if a.json {
		return a.printJSON(s)
	}
	fmt.Fprintf(a.stdout, "%s: %s\nphase %s, mode %s (%s)\n", s.Gate, s.About, s.Phase, s.Mode, s.Origin)
	for _, key := range slices.Sorted(maps.Keys(s.Values)) {
		fmt.Fprintf(a.stdout, "  %s: %s\n", key, s.Values[key])
	}
	return nil
}

func newGateExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:       "explain NAME",
		Short:     "Say what a gate looks for",
		Args:      exactly(1, "the name of a gate"),
		ValidArgs: builtin.Names(),
		RunE:      func(_ *cobra.Command, args []string) error { return runGateExplain(a, args[0]) },
	}
}

func runGateExplain(a *app, name string) error {
	g, ok := builtin.Find(name)
	if !ok {
		_, err := gateNamed(name)
		return err
	}
	if a.json {
		return a.printJSON(g)
	}
	fmt.Fprintf(a.stdout, "%s looks at %s.\n", g.Name, g.About)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, r := range g.Rules {
		fmt.Fprintf(w, "  %s\t%s\n", r.Name, r.About)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "caisson gate show %s prints its configuration, caisson gate try %s tries it out.\n", g.Name, g.Name)
	return nil
}
