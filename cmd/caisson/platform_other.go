//go:build !linux

package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/caisson-dev/caisson/runner"
)

// Nothing here is reached by a task: the engine refuses before, because sandboxes need Linux.

func kernelRelease() string { return "unknown" }

func signalNumber(string) syscall.Signal { return 0 }

func writable(string) error { return nil }

func ownerOf(os.FileInfo) int { return os.Geteuid() }

type hostTerminal struct{}

func openTerminal(*os.File) (*hostTerminal, error) {
	return nil, usage("-t is not available on this system")
}

func (*hostTerminal) Restore() {}

func (*hostTerminal) terminal(*os.File) runner.Terminal { return runner.Terminal{} }

type taskSignals struct{ c chan os.Signal }

func newTaskSignals() taskSignals { return taskSignals{make(chan os.Signal, 1)} }

func (s taskSignals) notify() { signal.Notify(s.c, os.Interrupt) }

func (s taskSignals) notifyAttached() { s.notify() }

func (s taskSignals) stop() { signal.Stop(s.c) }
