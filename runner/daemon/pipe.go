package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
)

// pipe is the server's end of a stream.
type pipe struct {
	conn net.Conn
	r    *frame.Reader
	w    *frame.Writer
	in   *frame.Input  // of a call that is no task's
	gone chan struct{} // closed when the client has gone or let go
	quit func()        // closes it
	cut  atomic.Bool   // a write has failed: what the client has sent before it went is still to be read
	late bool          // the client came to a task that runs: the end of its input is not the task's

	mu      sync.Mutex
	wake    sync.Cond
	control []control // what must not hold its sender up when the client reads slowly
	open    int       // bytes of input that nobody has read yet
	owed    int       // bytes of window to give back
	ended   bool
	sent    chan struct{} // closed when ended and everything is sent
	reading sync.WaitGroup
}

type control struct {
	t frame.Type
	v any
}

// errLeft is what a stream ends with whose client has gone: nobody hears it.
var errLeft = errors.New("the client has gone")

// stream is a request whose answer is a stream of frames; both sides have it.
type stream[A, R any] struct {
	name string
	task bool // the client's going does not end what was begun; do calls pipe.listen itself
	do   func(ctx context.Context, s *Server, a A, p *pipe) (R, error)
}

func (c *stream[A, R]) route() string { return c.name }

func (c *stream[A, R]) serve(s *Server, w http.ResponseWriter, r *http.Request) {
	var a A
	if r.Header.Get("Upgrade") != frame.Protocol {
		refuseRequest(w, &runner.Error{Code: runner.CodeUsage, Exit: runner.ExitRefused, Cause: "this call needs Upgrade: " + frame.Protocol})
		return
	}
	if err := decode(w, r, &a); err != nil {
		refuseRequest(w, err)
		return
	}
	s.streams.Add(1)
	defer s.streams.Done()
	p, err := upgrade(w)
	if err != nil {
		refuseRequest(w, err)
		return
	}
	defer p.close()
	ctx, cancel := context.WithCancelCause(s.life)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { _ = p.conn.Close() })()
	if !c.task {
		p.in = frame.NewInput()
		p.listen(&session{in: p.in}, cancel)
		go func() {
			<-p.gone
			p.in.Close(errLeft)
			cancel(errLeft)
		}()
	}
	result, err := c.do(ctx, s, a, p)
	p.finish(result, err)
}

// upgrade takes the connection over.
func upgrade(w http.ResponseWriter) (*pipe, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	p := newPipe(conn, buffered.Reader)
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + frame.Protocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, switching); err != nil {
		p.quit()
	}
	return p, nil
}

func newPipe(conn net.Conn, r io.Reader) *pipe {
	p := &pipe{conn: conn, gone: make(chan struct{}), sent: make(chan struct{})}
	p.quit = sync.OnceFunc(func() { close(p.gone) })
	p.wake.L = &p.mu
	p.r, p.w = frame.NewReader(r), frame.NewWriter(conn)
	go p.send()
	return p
}

// listen reads what the client sends, in the background, for a session or, with nil, for nobody. A client that asks for it
// has cancel end the task.
func (p *pipe) listen(x *session, cancel context.CancelCauseFunc) {
	if x == nil {
		x = &session{}
	}
	p.reading.Go(func() {
		defer p.quit()
		for {
			t, data, err := p.r.Next()
			switch {
			case err != nil:
				return
			case t == frame.Cancel:
				cancel(errors.New(string(data)))
			case !p.take(x, t, data):
				return
			}
		}
	})
}

// take handles one frame; false ends the stream: the client lets go, or does not keep to the protocol.
func (p *pipe) take(x *session, t frame.Type, data []byte) bool {
	switch t {
	case frame.Stdin:
		if !p.charge(len(data)) {
			return false
		}
		if x.in == nil {
			p.taken(len(data)) // nobody reads it
		} else {
			x.in.Push(append([]byte(nil), data...), p.taken)
		}
	case frame.CloseStdin:
		if x.in != nil && !p.late {
			x.in.Close(io.EOF)
		}
	case frame.Resize:
		rows, cols, err := frame.ParseSize(data)
		if err == nil {
			x.size(runner.Winsize{Rows: rows, Cols: cols})
		}
		return err == nil
	case frame.Signal:
		sig, err := frame.ParseSignal(data)
		if err == nil {
			x.signal(syscall.Signal(sig))
		}
		return err == nil
	default: // frame.Detach too
		return false
	}
	return true
}

// charge counts input; false when the client has sent more than its window.
func (p *pipe) charge(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open += n
	return p.open <= frame.Window
}

// taken gives window back.
func (p *pipe) taken(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open -= n
	p.owed += n
	p.wake.Broadcast()
}

// post sends a frame without waiting.
func (p *pipe) post(t frame.Type, v any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.control = append(p.control, control{t, v})
		p.wake.Broadcast()
	}
}

// send sends what was posted, until the end.
func (p *pipe) send() {
	defer close(p.sent)
	for {
		p.mu.Lock()
		for len(p.control) == 0 && p.owed == 0 && !p.ended {
			p.wake.Wait()
		}
		list, owed, ended := p.control, p.owed, p.ended
		p.control, p.owed = nil, 0
		p.mu.Unlock()
		if ended && len(list) == 0 {
			return
		}
		if owed > 0 {
			_ = p.w.Credit(owed) // who does not hear it has gone, and listen knows
		}
		for _, c := range list {
			_ = p.w.JSON(c.t, c.v) // likewise
		}
	}
}

// finish writes the stream's last frame.
func (p *pipe) finish(result any, err error) {
	p.mu.Lock()
	p.ended = true
	p.wake.Broadcast()
	p.mu.Unlock()
	<-p.sent
	if err != nil {
		_ = p.w.JSON(frame.Error, failed(result, err))
		return
	}
	_ = p.w.JSON(frame.Result, result)
}

// to is a writer of frames to the client.
func (p *pipe) to(t frame.Type) io.Writer { return &output{p, t} }

type output struct {
	p *pipe
	t frame.Type
}

func (o *output) Write(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	if err := o.p.w.Write(o.t, data); err != nil {
		o.p.cut.Store(true)
		return 0, err
	}
	return len(data), nil
}

func (p *pipe) close() {
	if p.cut.Load() {
		_ = p.conn.SetReadDeadline(time.Now().Add(lastWord)) // it has no other end any more, so there is an end
		p.reading.Wait()
	}
	_ = p.conn.Close()
	p.quit()
	p.reading.Wait()
}
