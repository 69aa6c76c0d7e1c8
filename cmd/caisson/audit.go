package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
	"github.com/caisson-dev/caisson/runner/store"
)

func newAuditCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check that the log of what happened is what it was, or write it out",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAuditVerifyCommand(a), newAuditExportCommand(a))
	return cmd
}

func newAuditVerifyCommand(a *app) *cobra.Command {
	var heads []string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the chain of the log, and that nothing is missing at its end",
		Long: `Check that no entry of the log was changed, moved, put in or taken out since it was written, and that the log still has the
entries whose hashes are kept in the file audit.heads of the state directory, so that a cut end shows, too. The exit code is 0
when the log is whole; else what is wrong is listed with the number of the entry and its task. Old entries of files and of the
network go when there are many, and the log itself says which: they are counted, and are no damage.

Who can write the state directory can write all of it anew. The newest hash, which is printed last, shows that later if it was
kept elsewhere: give it back with --head. Then it is also said how many of the events up to there were trimmed since.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runAuditVerify(cmd.Context(), a, heads)
		},
	}
	cmd.Flags().StringArrayVar(&heads, "head", nil, "the log must have this entry, as NUMBER:HASH from an earlier check; can be repeated")
	return cmd
}

func runAuditVerify(ctx context.Context, a *app, heads []string) error {
	path, err := a.logPath()
	if err != nil {
		return err
	}
	kept := make([]chain.Head, len(heads))
	for i, text := range heads {
		if kept[i], err = chain.ParseHead(text); err != nil {
			return usage("--head: %v", err)
		}
		kept[i].From = "--head"
	}
	r, err := store.Verify(ctx, path, kept...)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(r)
	} else {
		a.printVerified(r)
	}
	if err != nil || r.Whole {
		return err
	}
	first := &r.Problems[0]
	return &runner.Error{Code: runner.CodeDamaged, Exit: exitInternal, Cause: "the log is not whole: " + problem(first),
		Remedy: "find out who could write the state directory; docs/audit.md says what this means"}
}

// logPath is the store that has the log.
func (a *app) logPath() (string, error) {
	if a.persistence == "memory" {
		return "", usage("--state-persistence memory: there is no log on disk")
	}
	dir, err := a.resolveStateDir()
	return filepath.Join(dir, storeFile), err
}

func problem(p *chain.Problem) string {
	text := fmt.Sprintf("entry %d", p.Seq)
	if p.Task != "" {
		text += " (task " + p.Task + ")"
	}
	return text + ": " + p.What
}

func (a *app) printVerified(r *chain.Report) {
	for i := range r.Problems {
		fmt.Fprintln(a.stdout, gates.Quote(problem(&r.Problems[i])))
	}
	word := "is whole"
	if !r.Whole {
		word = "is not whole"
	}
	fmt.Fprintf(a.stdout, "the log %s: %d entries of %d tasks, for %d events; %d more events were trimmed; %d heads were compared\n",
		word, r.Entries, r.Tasks, r.Events, r.Trimmed, r.Heads)
	for _, k := range r.Kept {
		fmt.Fprintf(a.stdout, "of the events up to %d, %d were trimmed since\n", k.Seq, k.Trimmed)
	}
	if r.Head != nil {
		fmt.Fprintln(a.stdout, r.Head)
	}
}

type auditExport struct {
	store.EntryOptions
	output string
}

func newAuditExportCommand(a *app) *cobra.Command {
	var o auditExport
	cmd := &cobra.Command{
		Use:   "export [FEATURE]",
		Short: "Write the log as JSON Lines, with what is needed to check it elsewhere",
		Long: `Write the entries of the log, or those of a feature or a task, oldest first, one JSON object in a line, each with its hash, that
of the entry before, and what these are of; docs/audit.md says how to check them with other tools. A feature that is gone is
found by its id.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.Feature = args[0]
			}
			return runAuditExport(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Task, "task", "", "only a task's, by its id")
	f.StringVarP(&o.output, "output", "o", "-", "the file to write; - is standard output")
	return cmd
}

// exportedEntry is a line of an export.
type exportedEntry struct {
	Seq     int64      `json:"seq"`   // of the last event that it stands for
	Count   int64      `json:"count"` // of events
	At      time.Time  `json:"at"`
	AtNS    int64      `json:"at_ns,string"` // the same, which is what is hashed: nanoseconds since 1970
	Feature string     `json:"feature"`
	Task    string     `json:"task"`
	Step    int        `json:"step"`
	Kind    string     `json:"kind"`
	Body    string     `json:"body"` // JSON, byte for byte
	Digest  chain.Hash `json:"digest"`
	Prev    chain.Hash `json:"prev"`
	Hash    chain.Hash `json:"hash"`
}

func runAuditExport(ctx context.Context, a *app, o auditExport) (err error) {
	path, err := a.logPath()
	if err == nil {
		_, err = os.Stat(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &runner.Error{Code: runner.CodeNotFound, Exit: exitRefused, Cause: "there is no log yet: " + path + " is not there", Remedy: "caisson audit verify"}
	}
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if f, err := s.Feature(ctx, o.Feature); err == nil {
		o.Feature = f.ID
	} else if o.Feature != "" && !errors.Is(err, runner.ErrNotFound) {
		return err
	}
	write := func(w io.Writer) error {
		n, lines := 0, bufio.NewWriter(w)
		err := s.Entries(ctx, o.EntryOptions, func(e *chain.Entry) error {
			n++
			return writeJSON(lines, exportedEntry{e.Seq, e.Count, e.At.UTC(), e.At.UnixNano(), e.Feature, e.Task, e.Step, e.Kind, string(e.Body), e.Digest(), e.Prev, e.Hash}, "")
		})
		if err == nil && n == 0 && (o.Feature != "" || o.Task != "") {
			err = &runner.Error{Code: runner.CodeNotFound, Exit: exitRefused, Cause: "the log has no such entries", Remedy: "caisson events"}
		}
		return errors.Join(err, lines.Flush())
	}
	if o.output == "-" {
		return write(a.stdout)
	}
	return writeFile(o.output, write)
}
