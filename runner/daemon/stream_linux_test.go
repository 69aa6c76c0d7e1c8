package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
	"github.com/caisson-dev/caisson/runner/daemon/internal/socket"
)

// taskRoute is a call that runs a task as exec does, but one of a test's.
type taskRoute = *stream[with[*wireRequest], *runner.Result]

func newTask(run func(ctx context.Context, r *runner.Request) (*runner.Result, error)) taskRoute {
	return taskStream("test", func(ctx context.Context, _ *Server, _ string, r *runner.Request) (*runner.Result, error) {
		return run(ctx, r)
	})
}

func (b *bench) exec(t *testing.T, k taskRoute, r runner.Request, keys []byte) (*runner.Result, error) {
	t.Helper()
	return execTask(t.Context(), b.dial(t), k, with[*runner.Request]{"", &r}, keys)
}

// Everything that can flow does: input, both outputs, signals, progress, and a result that does not fit into a frame.
func TestExec(t *testing.T) {
	long := strings.Repeat("x", 3*frame.Max)
	k := newTask(func(_ context.Context, r *runner.Request) (*runner.Result, error) {
		r.Progress(runner.Progress{TaskID: "t1", Feature: "f", State: runner.StateRunning, Step: 1})
		sig := <-r.Signals
		n, err := io.Copy(r.Stdout, r.Stdin)
		fmt.Fprintf(r.Stderr, "%v %d %v", sig, n, err)
		return &runner.Result{TaskID: "t1", Cause: long, ExitCode: 7}, nil
	})
	b := newBench(t, Options{}, k)
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // four windows
	var out, errs bytes.Buffer
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGUSR1
	var seen []runner.Progress
	res, err := b.exec(t, k, runner.Request{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs, Signals: signals,
		Progress: func(p runner.Progress) { seen = append(seen, p) }}, nil)
	if err != nil || res.ExitCode != 7 || res.Cause != long {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), in) || errs.String() != fmt.Sprintf("user defined signal 1 %d <nil>", len(in)) {
		t.Error(out.Len(), errs.String())
	}
	if len(seen) != 1 || seen[0].TaskID != "t1" || seen[0].Step != 1 {
		t.Error(seen)
	}
}

// A task that is refused has read nothing: another process may be the one to run it.
func TestRefusedReadsNothing(t *testing.T) {
	read := make(chan struct{})
	k := newTask(func(context.Context, *runner.Request) (*runner.Result, error) {
		select {
		case <-read:
		case <-time.After(200 * time.Millisecond):
		}
		return nil, &runner.Error{Code: runner.CodeNotLive, Cause: "not live", Exit: runner.ExitRefused}
	})
	b := newBench(t, Options{}, k)
	in := &telling{Reader: strings.NewReader("typed"), tell: sync.OnceFunc(func() { close(read) })}
	if _, err := b.exec(t, k, runner.Request{Stdin: in}, nil); runner.CodeOf(err) != runner.CodeNotLive {
		t.Fatal(err)
	}
	select {
	case <-read:
		t.Error("the input of a refused task was read")
	default:
	}
}

// telling tells that it is read.
type telling struct {
	io.Reader
	tell func()
}

func (r *telling) Read(p []byte) (int, error) {
	r.tell()
	return r.Reader.Read(p)
}

// Signals pass input that nobody reads.
func TestSignalBeforeInput(t *testing.T) {
	k := newTask(func(_ context.Context, r *runner.Request) (*runner.Result, error) {
		<-r.Signals
		return &runner.Result{}, nil
	})
	b := newBench(t, Options{}, k)
	signals := make(chan os.Signal)
	go func() { signals <- syscall.SIGINT }()
	if _, err := b.exec(t, k, runner.Request{Stdin: zeros{}, Signals: signals}, nil); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestExecError(t *testing.T) {
	k := newTask(func(context.Context, *runner.Request) (*runner.Result, error) {
		return nil, &runner.Error{Code: runner.CodeNotLive, Cause: "nothing lives there", Remedy: "run -d", Exit: runner.ExitRefused}
	})
	b := newBench(t, Options{}, k)
	_, err := b.exec(t, k, runner.Request{}, nil)
	if e := wantCode(t, err, runner.CodeNotLive); e.Cause != "nothing lives there" || e.Remedy != "run -d" || e.Exit != 120 {
		t.Errorf("%+v", e)
	}
}

// A terminal: its sizes arrive, the detach keys let go, and the task goes on as if nobody had been there.
func TestDetach(t *testing.T) {
	typed, sizes := make(chan string, 1), make(chan runner.Winsize, 2)
	release := make(chan struct{})
	ended := make(chan struct{})
	k := newTask(func(ctx context.Context, r *runner.Request) (*runner.Result, error) {
		defer close(ended)
		r.Progress(runner.Progress{TaskID: "t1"})
		buf := make([]byte, 3)
		_, _ = io.ReadFull(r.Terminal.In, buf)
		typed <- string(buf)
		sizes <- r.Terminal.Size
		sizes <- <-r.Terminal.Resize
		<-release
		return &runner.Result{}, context.Cause(ctx)
	})
	b := newBench(t, Options{}, k)
	in, keyboard := io.Pipe()
	resize := make(chan runner.Winsize)
	go func() {
		_, _ = keyboard.Write([]byte("ls\n"))
		resize <- runner.Winsize{Rows: 50, Cols: 132}
	}()
	done := make(chan error, 1)
	keys, err := ParseDetachKeys(DefaultDetachKeys)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := b.exec(t, k, runner.Request{TTY: true, Terminal: runner.Terminal{In: in, Out: io.Discard,
			Size: runner.Winsize{Rows: 24, Cols: 80}, Resize: resize}}, keys)
		done <- err
	}()
	if got := <-typed; got != "ls\n" {
		t.Errorf("%q", got)
	}
	if got := <-sizes; got != (runner.Winsize{Rows: 24, Cols: 80}) {
		t.Error(got)
	}
	if got := <-sizes; got != (runner.Winsize{Rows: 50, Cols: 132}) {
		t.Error(got)
	}
	_, _ = keyboard.Write([]byte("\x10\x11"))
	if err := <-done; !errors.Is(err, ErrDetached) {
		t.Error(err)
	}
	x := b.session("t1")
	if x == nil {
		t.Fatal("the task's session has gone with its client")
	}
	select {
	case <-ended:
		t.Fatal("the task has ended with its client")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	<-x.done
	if x.err != nil || b.session("t1") != nil {
		t.Error(x.err, b.session("t1"))
	}
}

// raw begins a task and hands its connection out.
func (b *bench) raw(t *testing.T, k taskRoute, input bool) (c io.ReadWriteCloser, w *frame.Writer, r *frame.Reader) {
	t.Helper()
	conn, buffered, err := k.open(t.Context(), b.dial(t), with[*wireRequest]{Options: &wireRequest{Input: input}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, frame.NewWriter(conn), frame.NewReader(buffered)
}

// A client that dies takes nothing with it: output goes nowhere, the input ends.
func TestDeadClient(t *testing.T) {
	started, read := make(chan struct{}), make(chan error, 1)
	k := newTask(func(ctx context.Context, r *runner.Request) (*runner.Result, error) {
		r.Progress(runner.Progress{TaskID: "t1"})
		close(started)
		_, err := io.Copy(io.Discard, r.Stdin)
		read <- err
		for range 100 { // more than a socket holds
			if _, err := r.Stdout.Write(make([]byte, frame.Max)); err != nil {
				return &runner.Result{Cause: "nobody reads"}, context.Cause(ctx)
			}
		}
		return nil, errors.New("somebody reads")
	})
	b := newBench(t, Options{}, k)
	conn, _, _ := b.raw(t, k, true)
	<-started
	x := b.session("t1")
	_ = conn.Close()
	if err := <-read; err != nil {
		t.Error(err)
	}
	<-x.done
	if x.err != nil {
		t.Error(x.err)
	}
}

// A client that does not read holds its own task up and nobody else, also when the supervisor goes.
func TestSlowReader(t *testing.T) {
	var mu sync.Mutex
	written := 0
	k := newTask(func(_ context.Context, r *runner.Request) (*runner.Result, error) {
		count := writer(func(p []byte) (int, error) {
			n, err := r.Stdout.Write(p)
			mu.Lock()
			defer mu.Unlock()
			written += n
			return n, err
		})
		_, _ = io.CopyN(count, zeros{}, 1000*frame.Max) // until the client goes
		return &runner.Result{}, nil
	})
	b := newBench(t, Options{}, k)
	_, w, r := b.raw(t, k, false)
	progress := func() int { mu.Lock(); defer mu.Unlock(); return written }
	soon(t, "output", func() bool { return progress() > 0 })
	before := -1
	soon(t, "a full socket", func() bool {
		now := progress()
		stuck := now == before
		before = now
		time.Sleep(20 * time.Millisecond)
		return stuck
	})
	if before >= 1000*frame.Max {
		t.Error("nothing held it up")
	}
	b.dial(t) // the others are served
	for range 20 {
		if _, _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "more output", func() bool { return progress() > before })
	_ = w.Write(frame.Signal, []byte{1})
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Who sends more than its window, or no frames at all, is cut off.
func TestProtocolErrors(t *testing.T) {
	release := make(chan struct{})
	k := newTask(func(context.Context, *runner.Request) (*runner.Result, error) {
		<-release
		return &runner.Result{}, nil
	})
	b := newBench(t, Options{}, k)
	defer close(release)
	for name, send := range map[string]func(c io.Writer, w *frame.Writer) error{
		"window": func(_ io.Writer, w *frame.Writer) error { return w.Write(frame.Stdin, make([]byte, frame.Window+1)) },
		"long":   func(c io.Writer, _ *frame.Writer) error { _, err := c.Write([]byte{1, 255, 255, 255, 255}); return err },
		"type":   func(_ io.Writer, w *frame.Writer) error { return w.Write(99, nil) },
		"size":   func(_ io.Writer, w *frame.Writer) error { return w.Write(frame.Resize, []byte{1}) },
		"signal": func(_ io.Writer, w *frame.Writer) error { return w.Write(frame.Signal, []byte{0}) },
	} {
		conn, w, r := b.raw(t, k, true)
		_ = send(conn, w) // it may be cut off in the middle
		if typ, text, err := r.Next(); err == nil && typ != frame.Error {
			t.Error(name, typ, string(text))
		}
	}
}

// Whose context ends wants the task's end, and its result.
func TestCancel(t *testing.T) {
	started := make(chan struct{})
	k := newTask(func(ctx context.Context, _ *runner.Request) (*runner.Result, error) {
		close(started)
		<-ctx.Done()
		return &runner.Result{Cause: context.Cause(ctx).Error()}, nil
	})
	b := newBench(t, Options{}, k)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-started; cancel(errors.New("nobody reads it")) }()
	res, err := execTask(ctx, b.dial(t), k, with[*runner.Request]{"", &runner.Request{}}, nil)
	if err != nil || res.Cause != "nobody reads it" {
		t.Fatal(res, err)
	}
}

// When the supervisor has to go its tasks end, and their clients hear of it.
func TestLeavingEndsTasks(t *testing.T) {
	started := make(chan struct{})
	k := newTask(func(ctx context.Context, _ *runner.Request) (*runner.Result, error) {
		close(started)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	b := newBench(t, Options{}, k)
	go func() { <-started; b.stop() }()
	_, err := b.exec(t, k, runner.Request{}, nil)
	if code := runner.CodeOf(err); code != CodeGone && code != runner.CodeInternal {
		t.Error(err)
	}
	b.ended(t, 10*time.Second)
}

// A stream of bytes ends with its client, and a client's broken input breaks it.
func TestFlow(t *testing.T) {
	gone := make(chan error, 1)
	endless := flow("endless", func(ctx context.Context, _ *Server, _ nothing, p *pipe) (nothing, error) {
		w := p.to(frame.Stdout)
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				<-ctx.Done()
				gone <- context.Cause(ctx)
				return nothing{}, err
			}
		}
	})
	sum := flow("sum", func(_ context.Context, _ *Server, _ nothing, p *pipe) (int64, error) {
		n, err := io.Copy(io.Discard, p.in)
		if err != nil {
			gone <- err
		}
		return n, err
	})
	b := newBench(t, Options{}, endless, sum)
	c := b.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := endless.run(ctx, c, nothing{}, &end{out: io.Discard})
	wantCode(t, err, runner.CodeCancelled)
	if err := <-gone; !errors.Is(err, errLeft) {
		t.Error(err)
	}
	full := errors.New("full")
	if _, err := endless.run(t.Context(), c, nothing{}, &end{out: failing{full}}); !errors.Is(err, full) {
		t.Error(err)
	}
	<-gone
	if n, err := sum.run(t.Context(), c, nothing{}, &end{in: io.LimitReader(zeros{}, 5<<20)}); n != 5<<20 || err != nil {
		t.Error(n, err)
	}
	torn := errors.New("torn")
	broken := io.MultiReader(io.LimitReader(zeros{}, 1<<20), failing{torn})
	if _, err := sum.run(t.Context(), c, nothing{}, &end{in: broken}); !errors.Is(err, torn) {
		t.Error(err)
	}
	if err := <-gone; !errors.Is(err, errLeft) {
		t.Error("a torn input was taken for a whole one:", err)
	}
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }
func (f failing) Read([]byte) (int, error)  { return 0, f.error }

// post sends a raw request.
func (b *bench) post(t testing.TB, method, path, body string, header ...string) (int, string) {
	t.Helper()
	conn, err := socket.Dial(filepath.Join(b.dir, socketLink))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q, err := http.NewRequest(method, "http://caisson/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.URL.Path = path
	q.Header.Set(versionHeader, b.opt.Version)
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	go func() { _ = q.Write(conn) }() // it may be answered before it is written
	r, err := http.ReadResponse(bufio.NewReader(conn), q)
	if err != nil {
		t.Fatal(method, path, err)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil && r.ContentLength >= 0 {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

func TestBadRequests(t *testing.T) {
	b := newBench(t, Options{}, &call[nothing, nothing]{"panic", func(context.Context, *Server, nothing) (nothing, error) { panic("at the disco") }})
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/v1/feature", `{"ref":"x","reff":"y"}`, 400, runner.CodeUsage},
		{"POST", "/v1/rollback", `{"ref":"x","options":{"Too":"y"}}`, 400, runner.CodeUsage},
		{"POST", "/v1/feature", ``, 400, runner.CodeUsage},
		{"POST", "/v1/feature", `{"ref":`, 400, runner.CodeUsage},
		{"POST", "/v1/feature", `[]`, 400, runner.CodeUsage},
		{"POST", "/v1/feature", `{"ref":"x"}{}`, 400, runner.CodeUsage},
		{"POST", "/v1/feature", `{"ref":"` + strings.Repeat("x", maxBody) + `"}`, 413, CodeTooLarge},
		{"POST", "/v1/exec", `{"ref":"x"}`, 400, runner.CodeUsage},
		{"GET", "/v1/feature", ``, 404, runner.CodeNotFound},
		{"POST", "/v1/nothing", `{}`, 404, runner.CodeNotFound},
		{"POST", "/v2/feature", `{}`, 409, CodeVersion},
		{"POST", "/v1/panic", `{}`, 500, runner.CodeInternal},
	} {
		status, text := b.post(t, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) {
			t.Errorf("%s %s %.40s: %d %s", c.method, c.path, c.body, status, text)
		}
	}
	if status, text := b.post(t, "POST", "/v1/feature", `{"ref":"x"}`, versionHeader, "v0"); status != 409 || !strings.Contains(text, CodeVersion) {
		t.Error(status, text)
	}
	if status, text := b.post(t, "POST", "/v1/exec", `{"ref":"x"}`, "Upgrade", frame.Protocol, "Connection", "Upgrade"); status != 101 {
		t.Error(status, text)
	}
	if !strings.Contains(b.log.String(), "at the disco") {
		t.Error("a panic that nobody hears of")
	}
	b.dial(t)
}
