package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/caisson-dev/caisson/runner"
)

// hostTerminal is the user's terminal in raw mode: every key goes to the terminal inside.
type hostTerminal struct {
	file  *os.File
	saved *term.State
	winch chan os.Signal
	done  chan struct{}
	size  chan runner.Winsize
}

// openTerminal puts f into raw mode. Restore must be called before caisson ends, on every path.
func openTerminal(f *os.File) (*hostTerminal, error) {
	if !isTerminal(f) {
		return nil, usage("-t needs a terminal on standard input, and this is none")
	}
	saved, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	t := &hostTerminal{
		file: f, saved: saved,
		winch: make(chan os.Signal, 1), done: make(chan struct{}), size: make(chan runner.Winsize, 1),
	}
	signal.Notify(t.winch, unix.SIGWINCH)
	go t.follow()
	return t, nil
}

// follow passes each change of the window's size on.
func (t *hostTerminal) follow() {
	for {
		select {
		case <-t.done:
			return
		case <-t.winch:
			select {
			case t.size <- t.winsize():
			case <-t.done:
				return
			}
		}
	}
}

func (t *hostTerminal) winsize() runner.Winsize {
	cols, rows, err := term.GetSize(int(t.file.Fd()))
	if err != nil {
		return runner.Winsize{}
	}
	return runner.Winsize{Rows: uint16(rows), Cols: uint16(cols)}
}

// Restore gives the terminal back as it was.
func (t *hostTerminal) Restore() {
	signal.Stop(t.winch)
	close(t.done)
	_ = term.Restore(int(t.file.Fd()), t.saved)
}

// terminal is what runner needs of it.
func (t *hostTerminal) terminal(out *os.File) runner.Terminal {
	return runner.Terminal{In: t.file, Out: out, Name: os.Getenv("TERM"), Size: t.winsize(), Resize: t.size}
}
