package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
	"github.com/caisson-dev/caisson/runner/daemon/internal/keys"
)

// ErrDetached is what a client answers that let go of a task by its detach keys. The task goes on.
var ErrDetached = errors.New("detached")

// DefaultDetachKeys let go of a task when nothing else is said.
const DefaultDetachKeys = "ctrl-p,ctrl-q"

// ParseDetachKeys reads keys as docker writes them: characters and ctrl-X, with commas between. "" is none.
func ParseDetachKeys(s string) ([]byte, error) {
	k, err := keys.Parse(s)
	if err != nil {
		return nil, &runner.Error{Code: runner.CodeUsage, Cause: err.Error(), Exit: runner.ExitRefused,
			Remedy: "write them as " + DefaultDetachKeys}
	}
	return k, nil
}

// AttachOptions is the caller's end of Attach.
type AttachOptions struct {
	Terminal       runner.Terminal // of a task with a terminal: In, Out, Size and Resize
	Stdin          io.Reader       // of others; may be nil
	Stdout, Stderr io.Writer       // nil discards
	DetachKeys     []byte          // typed one after the other they let go; nil: none do
	Signals        <-chan os.Signal
}

// Attach connects the caller to the task ref, or to the newest of the feature ref, and returns its result, or ErrDetached.
// What the task wrote before comes first. A caller that goes, or whose ctx ends, does not end it.
func (c *Client) Attach(ctx context.Context, ref string, o AttachOptions) (*runner.Result, error) {
	e := &end{in: o.Stdin, out: o.Stdout, err: o.Stderr, keys: o.DetachKeys, signals: o.Signals, leaves: true}
	a := attachment{Ref: ref}
	if o.Terminal.Out != nil {
		e.terminal(&o.Terminal)
		a.Size = &terminalSize{o.Terminal.Size.Rows, o.Terminal.Size.Cols}
	}
	return attach.run(ctx, c, a, e)
}

// Exec runs a task in a live feature, with the caller's streams. When ctx is done the task is ended, and its result comes
// all the same. Request.Progress and the writers are called from one goroutine.
func (c *Client) Exec(ctx context.Context, feature string, r runner.Request) (*runner.Result, error) {
	return c.ExecDetachable(ctx, feature, r, nil)
}

// ExecDetachable is Exec that the detach keys let go of, with ErrDetached.
func (c *Client) ExecDetachable(ctx context.Context, feature string, r runner.Request, keys []byte) (*runner.Result, error) {
	return execTask(ctx, c, execute, with[*runner.Request]{feature, &r}, keys)
}

// execTask makes the call k for a request with streams.
func execTask(ctx context.Context, c *Client, k *stream[with[*wireRequest], *runner.Result], a with[*runner.Request], keys []byte) (*runner.Result, error) {
	r := a.Options
	w, err := toWire(r)
	if err != nil {
		return nil, err
	}
	e := &end{in: r.Stdin, out: r.Stdout, err: r.Stderr, keys: keys, signals: r.Signals, progress: r.Progress, task: true}
	if r.TTY {
		e.terminal(&r.Terminal)
	}
	return k.run(ctx, c, with[*wireRequest]{a.Ref, w}, e)
}

// Resume goes on with a task, with the caller's streams.
func (c *Client) Resume(ctx context.Context, id string, o runner.ResumeOptions) (*runner.Result, error) {
	w := wireResume{RetryInterrupted: o.RetryInterrupted, SkipInterrupted: o.SkipInterrupted, Detach: o.Detach,
		Environ: wireEnviron(o.Environ), Input: o.Stdin != nil}
	if o.Profile != nil {
		var err error
		if w.Profile, err = json.Marshal(o.Profile); err != nil {
			return nil, err
		}
	}
	e := &end{in: o.Stdin, out: o.Stdout, err: o.Stderr, signals: o.Signals, progress: o.Progress, task: true}
	return resume.run(ctx, c, with[wireResume]{id, w}, e)
}

// end is the client's end of a stream.
type end struct {
	in       io.Reader
	out, err io.Writer
	json     func(text []byte) error // instead of out: for streams of JSON
	progress func(runner.Progress)
	keys     []byte
	signals  <-chan os.Signal
	resize   <-chan runner.Winsize
	task     bool // ctx ends the task, and a writer that fails does not
	leaves   bool // ctx lets go of it

	begin  func() // sending the input
	w      *frame.Writer
	window frame.Allowance
	quit   chan struct{} // the stream has ended
	once   sync.Once
	failed error                 // of out or json
	why    atomic.Pointer[error] // the input has closed the connection
}

// terminal has the end be a terminal.
func (e *end) terminal(t *runner.Terminal) {
	e.in, e.out, e.err, e.resize = t.In, t.Out, t.Out, t.Resize
}

// run makes the call and moves its bytes until the result.
func (k *stream[A, R]) run(ctx context.Context, c *Client, a A, e *end) (R, error) {
	var r R
	conn, buffered, err := k.open(ctx, c, a)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	e.w, e.quit = frame.NewWriter(conn), make(chan struct{})
	e.window.Add(frame.Window)
	defer e.stop()
	defer context.AfterFunc(ctx, func() { e.cancelled(ctx, conn) })()
	go e.control()
	e.begin = sync.OnceFunc(func() {
		if e.in != nil {
			go e.input(conn) // it may outlive the call in a read that nobody can call off
		}
	})
	if !e.task { // what a task is to read is left alone until there is one: another process may be the one to ask
		e.begin()
	}
	t, text, err := e.receive(frame.NewReader(buffered))
	switch {
	case (err != nil || t == frame.Error) && e.why.Load() != nil:
		return r, *e.why.Load()
	case e.failed != nil && !e.task:
		return r, e.failed
	case err != nil:
		return r, c.explain(ctx, err)
	case t == frame.Error:
		return r, readFailure(text, &r)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, gone(err)
	}
	return r, nil
}

// cancelled passes the end of the caller's context on: a task is asked to end, and is waited for.
func (e *end) cancelled(ctx context.Context, conn net.Conn) {
	if e.task {
		why := []byte(context.Cause(ctx).Error())
		_ = e.w.Write(frame.Cancel, why[:min(len(why), frame.Max)]) // a connection that is gone has its own error
		return
	}
	_ = conn.Close()
}

// receive reads until the last frame.
func (e *end) receive(r *frame.Reader) (frame.Type, []byte, error) {
	for {
		t, p, err := r.Next()
		if err != nil {
			return 0, nil, err
		}
		if t != frame.Result && t != frame.Error {
			e.begin()
		}
		switch t {
		case frame.Stdout:
			err = e.output(r, p)
		case frame.Stderr:
			e.write(e.err, p)
		case frame.Credit:
			var n int
			if n, err = frame.ParseCredit(p); err == nil {
				e.window.Add(n)
			}
		case frame.Progress:
			err = e.tell(r, p)
		case frame.Result, frame.Error:
			text, err := r.Text(t, p, maxAnswer)
			return t, text, err
		default:
			err = frame.ErrProtocol
		}
		if err != nil {
			return 0, nil, err
		}
		if e.failed != nil && !e.task && !e.leaves {
			return 0, nil, e.failed
		}
	}
}

func (e *end) output(r *frame.Reader, p []byte) error {
	if e.json == nil {
		e.write(e.out, p)
		return nil
	}
	text, err := r.Text(frame.Stdout, p, maxAnswer)
	if err == nil && e.failed == nil {
		e.failed = e.json(text)
	}
	return err
}

// write writes until the first error; a task is not held up by a reader that has gone.
func (e *end) write(w io.Writer, p []byte) {
	if w == nil || e.failed != nil {
		return
	}
	_, e.failed = w.Write(p)
}

func (e *end) tell(r *frame.Reader, p []byte) error {
	text, err := r.Text(frame.Progress, p, maxBody)
	if err != nil || e.progress == nil {
		return err
	}
	var at runner.Progress
	if err := json.Unmarshal(text, &at); err != nil {
		return err
	}
	e.progress(at)
	return nil
}

func (e *end) stop() {
	e.once.Do(func() { close(e.quit) })
	e.window.Close()
}

// control passes signals and sizes on.
func (e *end) control() {
	for {
		select {
		case <-e.quit:
			return
		case sig, ok := <-e.signals:
			if !ok {
				e.signals = nil
			} else if n, ok := sig.(syscall.Signal); ok {
				_ = e.w.Write(frame.Signal, []byte{byte(n)}) // the reader sees that the connection is gone
			}
		case s, ok := <-e.resize:
			if !ok {
				e.resize = nil
			} else {
				_ = e.w.Size(s.Rows, s.Cols) // likewise
			}
		}
	}
}

// input sends what is read, as far as the window allows, and looks for the detach keys.
func (e *end) input(conn net.Conn) {
	filter := keys.Filter{Keys: e.keys}
	buf := make([]byte, 32<<10)
	for {
		n, err := e.in.Read(buf)
		p, found := filter.Pass(buf[:n])
		for len(p) > 0 {
			m := e.window.Take(len(p))
			if m == 0 || e.w.Write(frame.Stdin, p[:m]) != nil {
				return
			}
			p = p[m:]
		}
		switch {
		case found:
			e.letGo(conn)
			return
		case errors.Is(err, io.EOF):
			if rest := filter.Rest(); len(rest) > 0 && e.window.Take(len(rest)) == len(rest) {
				_ = e.w.Write(frame.Stdin, rest) // the reader sees that the connection is gone
			}
			_ = e.w.Write(frame.CloseStdin, nil) // likewise
			return
		case err != nil:
			e.broken(conn, err)
			return
		}
	}
}

// broken is an input that fails: an import would be cut short, a task has no more to read.
func (e *end) broken(conn net.Conn, err error) {
	if e.task || e.leaves {
		_ = e.w.Write(frame.CloseStdin, nil) // the reader sees that the connection is gone
		return
	}
	e.why.CompareAndSwap(nil, &err)
	_ = conn.Close()
}

// letGo leaves the task alone. The supervisor closes the connection when it has taken what was typed before: whoever
// attaches next types after that.
func (e *end) letGo(conn net.Conn) {
	err := ErrDetached
	e.why.CompareAndSwap(nil, &err)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if e.w.Write(frame.Detach, nil) != nil {
		_ = conn.Close() // that says the same
	}
}
