package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates/builtin"
	commandgate "github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

const gateTryLong = `Run one gate outside of any task, to try a policy out. Nothing is run or changed.

command reads command lines from standard input, one per line, and says of each whether it would be allowed, asked about
or denied, by which rules, and what would be safer. With -0 they end in NUL, and may have several lines. Scripts that they
name are read below the current directory, as if that were the workspace.

The other gates look at a directory: at everything in it as if it were new, or with --base at what differs from another
directory. They have the configuration of the profile, whatever its mode.

The exit code is 0 when everything passed, 121 when something was asked about, denied or failed.`

// tryOptions are what gates can be told in a trial.
type tryOptions struct {
	profile string
	list    string // over the profile's; "" is that
	nul     bool
	base    string // directory that a change is a change of
}

// tryGates returns the gates that can be tried, by name.
func tryGates() map[string]func(ctx context.Context, a *app, o tryOptions, args []string) error {
	gates := map[string]func(ctx context.Context, a *app, o tryOptions, args []string) error{}
	for _, g := range builtin.All() {
		gates[g.Name] = func(ctx context.Context, a *app, o tryOptions, args []string) error {
			return tryFiles(ctx, a, g, o, args)
		}
	}
	gates["command"] = tryCommand // lines, not a directory
	return gates
}

func newGateTryCommand(a *app) *cobra.Command {
	var o tryOptions
	gates := tryGates()
	names := slices.Sorted(maps.Keys(gates))
	cmd := &cobra.Command{
		Use:   "try NAME [DIR]",
		Short: "Run one gate outside of any task",
		Long:  gateTryLong,
		Example: `  echo 'rm -rf ./build' | caisson gate try command
  find . -name '*.sh' -print0 | xargs -0 cat | caisson gate try command -0 --json
  caisson gate try secrets . --json
  caisson gate try immutable new --base old --profile ./mine.yaml`,
		Args:      atLeast(1, "the name of a gate"),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			try, known := gates[args[0]]
			if !known {
				return usage("no gate is called %q; one of %s", args[0], strings.Join(names, ", "))
			}
			return try(cmd.Context(), a, o, args[1:])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "", "the profile whose gate it is: a name or a file")
	f.StringVar(&o.list, "mode", "", "command: block (what the rules know is refused), allow (only what the profile lists may run), off")
	f.BoolVarP(&o.nul, "null", "0", false, "command: lines end in NUL")
	f.StringVar(&o.base, "base", "", "the other gates: the directory that the change is one of")
	completeFlag(cmd, "profile", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return profileNames(), cobra.ShellCompDirectiveDefault
	})
	return cmd
}

// triedCommand is the verdict on one command line, as JSON.
type triedCommand struct {
	commandgate.Result
	Rules []string `json:"rules"` // that were hit, the worst first
}

// tryCommand judges the command lines on standard input, each as soon as it was read.
func tryCommand(ctx context.Context, a *app, o tryOptions, args []string) error {
	if o.base != "" {
		return usage("--base is for gates that look at a directory")
	}
	if len(args) > 0 {
		return usage("the gate command reads command lines from standard input; %q is not wanted", args[0])
	}
	config, err := o.commandConfig()
	if err != nil {
		return err
	}
	if here, err := os.OpenRoot("."); err == nil { // else none can be read
		defer func() { _ = here.Close() }()
		config.Open = scriptsIn(here)
	}
	end := byte('\n')
	if o.nul {
		end = 0
	}
	in := bufio.NewReader(a.stdin)
	worst := commandgate.Allow
	for n := 1; ctx.Err() == nil; n++ {
		line, err := readLine(in, end, commandgate.DefaultMaxBytes+1)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading command lines: %w", err)
		}
		r := commandgate.Analyze(line, config)
		if r.Verdict != commandgate.Allow && worst != commandgate.Deny {
			worst = r.Verdict
		}
		if err := a.printTried(n, r); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if worst != commandgate.Allow {
		return exitError(exitGate)
	}
	return nil
}

// scriptsIn returns what reads scripts as if a directory were the workspace: by their paths inside, or by those of the host.
func scriptsIn(dir *os.Root) func(path string, limit int) ([]byte, error) {
	host, err := filepath.Abs(dir.Name())
	return func(path string, limit int) ([]byte, error) {
		name, found := strings.CutPrefix(path, snapshot.WorkspaceTarget+"/")
		if !found && err == nil {
			name, found = strings.CutPrefix(path, strings.TrimSuffix(host, "/")+"/")
		}
		if !found {
			return nil, fs.ErrNotExist
		}
		f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo has no end
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, errors.Join(fs.ErrInvalid, err)
		}
		return io.ReadAll(io.LimitReader(f, int64(limit)))
	}
}

// loadRef loads the profile that a flag names.
func loadRef(ref string) (*profiles.Effective, error) {
	sources := profileSources()
	sources.Name, sources.File = profiles.SplitRef(ref)
	return load(sources)
}

// commandConfig is the profile's configuration of the gate.
func (o tryOptions) commandConfig() (commandgate.Config, error) {
	e, err := loadRef(o.profile)
	if err != nil {
		return commandgate.Config{}, err
	}
	c := commandgate.Config{Mode: commandgate.Mode(cmp.Or(o.list, e.Gates.Command.List)), Allow: e.Gates.Command.Allow}
	if !slices.Contains(commandgate.Modes(), c.Mode) {
		return c, usage("--mode %s is none of block, allow, off", c.Mode)
	}
	return c, nil
}

func (a *app) printTried(n int, r commandgate.Result) error {
	if a.json {
		t := triedCommand{Result: r, Rules: []string{}}
		for _, f := range r.Findings {
			if !slices.Contains(t.Rules, f.Rule) {
				t.Rules = append(t.Rules, f.Rule)
			}
		}
		return a.printJSON(t)
	}
	if _, err := fmt.Fprintf(a.stdout, "%d: %s\n", n, r.Verdict); err != nil {
		return err
	}
	for _, f := range r.Findings {
		fmt.Fprintf(a.stdout, "  %s %s at %d:%d: %s: %q\n", f.Verdict, f.Rule, f.Line, f.Column, f.Message, f.Text)
		if f.Safer != "" {
			fmt.Fprintf(a.stdout, "    safer: %s\n", f.Safer)
		}
	}
	return nil
}

// readLine reads up to end, of which it keeps at most limit bytes; the last line may lack its end.
func readLine(r *bufio.Reader, end byte, limit int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice(end)
		complete := err == nil
		if complete {
			part = part[:len(part)-1]
		}
		line = append(line, part[:min(len(part), limit-len(line))]...)
		switch {
		case complete, errors.Is(err, io.EOF) && len(line) > 0:
			return string(line), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
}
