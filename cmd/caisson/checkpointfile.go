package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

type exportOptions struct {
	snapshot.ExportOptions
	output string
}

func newCheckpointExportCommand(a *app) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export FEATURE@CHECKPOINT",
		Short: "Write a checkpoint as an OCI layer: a tar of what changed",
		Long: `Write what a checkpoint changed against the one before it as a layer of the OCI image specification: a tar with whiteouts,
extended attributes, hard links and times. The digest of the uncompressed tar is printed on standard error.`,
		Args:              exactly(1, "one checkpoint, as FEATURE@CHECKPOINT"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointExport(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "-", "the file to write; - is standard output")
	f.BoolVar(&o.Full, "full", false, "everything that shows, not only what differs from the checkpoint before")
	f.BoolVar(&o.Home, "home", false, "the home directory instead of the workspace")
	f.BoolVar(&o.Zstd, "zstd", false, "compress")
	return cmd
}

// exported is what export --json prints.
type exported struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // of the uncompressed tar
}

func runCheckpointExport(ctx context.Context, a *app, ref string, o exportOptions) error {
	if o.output == "-" && (a.json || isTerminal(a.stdout)) {
		return usage("the tar does not belong on a terminal or among JSON: -o FILE")
	}
	report := exported{File: o.output}
	write := func(w io.Writer) error {
		return a.serve(ctx, ref, func(s service) (err error) {
			counted := &countingWriter{w: w}
			report.Digest, err = s.Export(ctx, ref, counted, o.ExportOptions)
			report.Bytes = counted.n
			return err
		})
	}
	var err error
	if o.output == "-" {
		err = write(a.stdout)
	} else {
		err = writeFile(o.output, write)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(report)
	}
	a.note("%s, %s", report.Digest, size(report.Bytes))
	return nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// writeFile makes a file of what write writes: whole, or not at all. Links are followed. What is there and is no file, or has no
// name to be replaced at, such as /dev/stdout, is written to.
func writeFile(path string, write func(io.Writer) error) error {
	name, err := hostfile.Resolve(path)
	if info, statErr := os.Lstat(name); err != nil || statErr == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return errOutput(err)
		}
		return errors.Join(write(f), f.Close())
	}
	path = name
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return errOutput(err)
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// errOutput is for a file that cannot be had.
func errOutput(err error) error {
	return &runner.Error{Code: runner.CodeUsage, Cause: "the file cannot be written", Remedy: "name a file that can be written", Exit: exitRefused, Err: err}
}

type importOptions struct {
	digest, maxSize, label string
}

func newCheckpointImportCommand(a *app) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import FEATURE [FILE]",
		Short: "Make a checkpoint of an OCI layer, on top of a feature's newest one",
		Long: `Read a layer of the OCI image specification, plain or compressed with zstd, from a file or standard input, make a
checkpoint of it on top of the feature's head, and print its id. The feature's state stays as it is: go there with
"caisson rollback FEATURE --to ID". Names that leave the directory, devices and what is larger than --max-size are refused.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usage("needs a feature and at most one file, and %d were given", len(args))
			}
			return nil
		},
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointImport(cmd.Context(), a, args, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.digest, "digest", "", "refuse what has another digest: sha256:…, of the uncompressed tar")
	f.StringVar(&o.maxSize, "max-size", "1g", "refuse what is larger when unpacked")
	f.StringVar(&o.label, "label", "", "label the checkpoint")
	return cmd
}

func runCheckpointImport(ctx context.Context, a *app, args []string, o importOptions) error {
	limit, err := quota.ParseBytes(o.maxSize)
	if err != nil {
		return usage("--max-size: %v", err)
	}
	in := a.stdin
	if len(args) == 2 && args[1] != "-" {
		if in, err = os.Open(args[1]); err != nil {
			return usage("%v", err)
		}
		defer in.Close()
	} else if isTerminal(in) {
		return usage("needs a file, or a layer on standard input")
	}
	layer := &source{Reader: in}
	var c *runner.Checkpoint
	var refused error
	err = a.serve(ctx, args[0], func(s service) error {
		if layer.begun.Load() { // for one who refused it all the same: what is left is no layer
			return refused
		}
		c, refused = s.Import(ctx, args[0], layer, runner.ImportOptions{Label: o.label, Digest: o.digest, MaxBytes: int64(limit)})
		return refused
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c)
	}
	_, err = fmt.Fprintln(a.stdout, c.ID)
	return err
}

// source knows whether anything of it has been asked for.
type source struct {
	io.Reader
	begun atomic.Bool
}

func (s *source) Read(p []byte) (int, error) {
	s.begun.Store(true)
	return s.Reader.Read(p)
}
