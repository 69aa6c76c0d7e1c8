package daemon

import (
	"io"
	"os"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
)

// session is a task's other end while no caller is needed for it: clients come and go.
type session struct {
	in      *frame.Input // nil: the command reads end of file
	tty     bool
	resize  chan runner.Winsize
	signals chan os.Signal

	done   chan struct{} // closed when the task has ended; then
	result *runner.Result
	err    error
}

// newSession joins a request to a session.
func newSession(r *runner.Request, reads bool) *session {
	x := &session{tty: r.TTY, resize: make(chan runner.Winsize, 1), signals: make(chan os.Signal, 16), done: make(chan struct{})}
	r.Signals = x.signals
	if reads {
		x.in = frame.NewInput()
		if r.TTY {
			r.Terminal.In = x.in
		} else {
			r.Stdin = x.in
		}
	}
	if r.TTY {
		r.Terminal.Resize = x.resize
	}
	return x
}

// size tells the terminal inside its size: of several that nobody has taken yet, one of the last.
func (x *session) size(size runner.Winsize) {
	if size == (runner.Winsize{}) {
		return
	}
	select {
	case <-x.resize:
	default:
	}
	select {
	case x.resize <- size:
	default:
	}
}

// signal passes a signal on. What nobody takes for long is lost, as pending signals are.
func (x *session) signal(sig os.Signal) {
	select {
	case x.signals <- sig:
	default:
	}
}

// begin counts a session whose task is about to run, unless the supervisor is leaving.
func (s *Server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return &runner.Error{Code: CodeGone, Cause: "the supervisor is leaving", Remedy: "try again", Exit: runner.ExitInternal}
	}
	s.tasks.Add(1)
	return nil
}

// finish ends a session with its task.
func (s *Server) finish(x *session, result *runner.Result, err error) {
	x.result, x.err = result, err
	close(x.done)
	if x.in != nil {
		x.in.Close(io.EOF)
	}
	s.mu.Lock()
	for id, y := range s.sessions {
		if x == y {
			delete(s.sessions, id)
		}
	}
	s.mu.Unlock()
	s.tasks.Done()
	s.wake()
}

// register makes a session known by its task's id.
func (s *Server) register(task string, x *session) {
	select {
	case <-x.done: // a last word of a task that has ended
		return
	default:
	}
	if task != "" {
		s.mu.Lock()
		s.sessions[task] = x
		s.mu.Unlock()
	}
}

func (s *Server) session(task string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[task]
}
