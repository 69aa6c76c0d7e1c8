package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/process"
	"github.com/caisson-dev/caisson/runner/flock"
)

// readyVariable names the descriptor on which the supervisor says that it serves, or why it does not.
const readyVariable = "CAISSON_READY_FD"

// Ensure is Dial, but starts the background supervisor when there is none: one, whoever else wants it at the same time.
// spawn starts the program and returns when it serves; see Reexec.
func Ensure(ctx context.Context, stateDir string, spawn func(logFile *os.File) error) (c *Client, err error) {
	c, err = Dial(ctx, stateDir)
	if !errors.Is(err, ErrNotRunning) {
		return c, err
	}
	lock, err := flock.Acquire(ctx, filepath.Join(stateDir, spawnName))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	const attempts = 10 // the one that serves may have had its guest, and leave, before we are there
	for range attempts {
		if c, err = Dial(ctx, stateDir); !errors.Is(err, ErrNotRunning) {
			return c, err
		}
		var log *os.File
		if log, err = process.OpenLog(filepath.Join(stateDir, logName)); err != nil {
			return nil, err
		}
		err = spawn(log)
		if err = errors.Join(err, log.Close()); err != nil {
			return nil, err
		}
	}
	return Dial(ctx, stateDir)
}

// Reexec returns what starts this program again, with other arguments, as the background supervisor: in a session of its
// own, in the state directory, with an environment reduced to CAISSON_*, PATH, HOME and XDG_*. It waits until the program
// has said that it serves; what prevents it comes back as the same *runner.Error.
func Reexec(stateDir string, args ...string) func(logFile *os.File) error {
	return func(log *os.File) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		cmd := exec.Cmd{Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Dir: stateDir,
			Env: append(environment(os.Environ()), readyVariable+"=3"), Stdout: log, Stderr: log,
			ExtraFiles: []*os.File{w}, SysProcAttr: process.OwnSession()}
		if err = process.KeepFiles(); err == nil {
			err = cmd.Start()
		}
		_ = w.Close()
		if err != nil {
			return err
		}
		go func() { _ = cmd.Wait() }() // a caller that lives longer leaves no zombie
		return awaitReady(r, log.Name())
	}
}

func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name != "PATH" && name != "HOME" && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "CAISSON_") ||
			name == readyVariable
	})
}

// served is what a supervisor says that serves.
const served = "serves\n"

func awaitReady(r io.Reader, log string) error {
	said, err := io.ReadAll(io.LimitReader(r, maxBody))
	if err != nil || string(said) == served {
		return err
	}
	var f failure
	if json.Unmarshal(said, &f) == nil && f.Error != nil {
		return f.err()
	}
	return &runner.Error{Code: runner.CodeInternal, Exit: runner.ExitInternal,
		Cause: "the background supervisor ended before it served", Remedy: "see " + log}
}

// Readiness is the supervisor's word to the command that started it. A nil one says nothing.
type Readiness struct{ f *os.File }

// Ready is the Readiness of this process; nil when nobody waits. To be called once.
func Ready() *Readiness {
	if os.Getenv(readyVariable) != "3" {
		return nil
	}
	return &Readiness{os.NewFile(3, "ready")}
}

// Fail says why the supervisor does not serve.
func (r *Readiness) Fail(err error) {
	text, _ := json.Marshal(toFailure(err)) // plain strings
	r.say(text)
}

func (r *Readiness) say(text []byte) {
	if r == nil || r.f == nil {
		return
	}
	_, _ = r.f.Write(text) // who has stopped waiting needs no answer
	_ = r.f.Close()
	r.f = nil
}

// logf writes one line with the time. What is said is never a request's content.
func (s *Server) logf(format string, args ...any) {
	if s.opt.Log == nil {
		return
	}
	line := fmt.Appendf([]byte(time.Now().UTC().Format(time.RFC3339Nano)+" "), format, args...)
	line = append(bytes.ReplaceAll(line, []byte("\n"), []byte("\\n")), '\n')
	_, _ = s.opt.Log.Write(line) // a full disk must not stop what runs
}
