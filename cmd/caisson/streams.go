package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/runner"
)

// errNoReader is why a task is cancelled whose output nobody reads any more, as in `caisson run … | head`.
var errNoReader = errors.New("nobody reads the output any more")

// reader is a stream of ours that cancels the task when its other end has gone, or takes no more.
type reader struct {
	io.Writer
	cancel  context.CancelCauseFunc
	midLine bool         // what was written last does not end with a newline
	lost    atomic.Value // the error of what could not be written, though somebody wanted it
}

func (r *reader) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if n > 0 {
		r.midLine = p[n-1] != '\n'
	}
	if errors.Is(err, syscall.EPIPE) {
		r.cancel(errNoReader)
	} else if err != nil {
		lost := fmt.Errorf("the output cannot be written: %w", err)
		r.lost.Store(lost)
		r.cancel(lost)
	}
	return n, err
}

// noteLost keeps the error of what could not be written for the end: the command may have ended well before.
func (a *app) noteLost(r *reader) {
	if err, ok := r.lost.Load().(error); ok {
		a.lost = err
	}
}

// eventWriter writes JSON Lines: output, states, and one terminal event. It is safe for concurrent use.
type eventWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *eventWriter) write(event any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return writeJSON(w.out, event, "")
}

// outputEvent is a piece of what the command wrote. A piece that is not UTF-8 is in base64.
type outputEvent struct {
	Event  string `json:"event"`  // "output"
	Stream string `json:"stream"` // stdout, stderr
	Data   string `json:"data,omitempty"`
	Raw    string `json:"data_base64,omitempty"`
}

// stateEvent says that a task has moved on.
type stateEvent struct {
	Event   string       `json:"event"` // "state"
	Time    time.Time    `json:"time"`
	Task    string       `json:"task"`
	Feature string       `json:"feature"`
	State   runner.State `json:"state"`
	Step    int          `json:"step,omitempty"`
	Message string       `json:"message,omitempty"`
}

func (w *eventWriter) progress(p runner.Progress) {
	_ = w.write(stateEvent{ // a reader that has gone cancels the task
		Event: "state", Time: time.Now().UTC(), Task: p.TaskID, Feature: p.Feature,
		State: p.State, Step: p.Step, Message: p.Message,
	})
}

func (w *eventWriter) stream(name string) *eventStream {
	return &eventStream{events: w, name: name}
}

// eventStream turns what is written to it into events. A rune that is cut in two waits for its rest.
type eventStream struct {
	events *eventWriter
	name   string
	cut    []byte
}

func (s *eventStream) Write(p []byte) (int, error) {
	data := append(s.cut, p...)
	n := len(data) - incomplete(data)
	s.cut = append([]byte(nil), data[n:]...)
	if n > 0 {
		if err := s.emit(data[:n]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush writes what still waits for its rest.
func (s *eventStream) flush() {
	if len(s.cut) > 0 {
		_ = s.emit(s.cut) // likewise
		s.cut = nil
	}
}

func (s *eventStream) emit(data []byte) error {
	event := outputEvent{Event: "output", Stream: s.name}
	if utf8.Valid(data) {
		event.Data = string(data)
	} else {
		event.Raw = base64.StdEncoding.EncodeToString(data)
	}
	return s.events.write(event)
}

// incomplete is how many bytes at the end of data begin a rune that is not all there.
func incomplete(data []byte) int {
	for n := 1; n <= len(data) && n < utf8.UTFMax; n++ {
		tail := data[len(data)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
