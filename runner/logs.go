package runner

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/logfile"
)

// LogOptions picks from a feature's log.
type LogOptions struct {
	Task   string // id; "" means the feature's newest
	Stream string // "stdout", "stderr" or "" for both
	Step   int    // 1-based; 0 means all
	Follow bool   // go on until the task ends
}

// Logs replays what a task wrote.
func (s *Supervisor) Logs(ctx context.Context, ref string, o LogOptions, stdout, stderr io.Writer) error {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return explain(err, "feature", ref)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err != nil {
		return err
	}
	id := ""
	for _, t := range tasks {
		if o.Task == "" || o.Task == t.ID {
			id = t.ID
		}
	}
	if id == "" {
		return notFound("task", o.Task)
	}
	do := func(r logfile.Record) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return o.write(r, stdout, stderr)
	}
	if log := s.liveLog(id); o.Follow && log != nil {
		err = log.Follow(ctx, do)
	} else {
		err = logfile.Replay(s.logPath(f.ID, id), do)
	}
	return typed(err, "reading the log of "+f.Name)
}

// liveLog is the log of a task that runs in this process, or nil.
func (s *Supervisor) liveLog(task string) *logfile.Writer {
	if t := s.task(task); t != nil {
		return t.steps.Log
	}
	return nil
}

func (s *Supervisor) logPath(feature, task string) string {
	return filepath.Join(s.featureDir(feature), "log", task)
}

func (o LogOptions) write(r logfile.Record, stdout, stderr io.Writer) error {
	if r.Gap > 0 {
		_, err := fmt.Fprintf(stderr, "\n[caisson: %d bytes of output are missing here: the log is bounded]\n", r.Gap)
		return err
	}
	if o.Step != 0 && o.Step != r.Step {
		return nil
	}
	w, name := stdout, "stdout"
	if r.Stream == logfile.Stderr {
		w, name = stderr, "stderr"
	}
	if o.Stream != "" && o.Stream != name {
		return nil
	}
	_, err := w.Write(r.Data)
	return err
}
