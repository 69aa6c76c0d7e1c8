package main

import (
	"bytes"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return string(bytes.TrimRight(u.Release[:], "\x00"))
}

// signalNumber is the number of SIGTERM and the like; 0 when there is none.
func signalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

// writable says why we may not make something in dir.
func writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// ownerOf is the uid that owns a file.
func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// taskSignals receives the signals that are the command's while it runs, from notify to stop.
//
// SIGPIPE is caught and not ignored: an ignored signal stays ignored in the sandbox, and a default one would end
// caisson before it has cleaned up when `caisson run … | head` has seen enough. Writing fails with EPIPE instead.
type taskSignals struct{ c, broken chan os.Signal }

func newTaskSignals() taskSignals {
	return taskSignals{make(chan os.Signal, 16), make(chan os.Signal, 1)}
}

func (s taskSignals) notify() { s.catch(append(attachedSignals, unix.SIGHUP)) }

// notifyAttached leaves SIGHUP alone: a terminal that closes ends what looks on, not the task.
func (s taskSignals) notifyAttached() { s.catch(attachedSignals) }

var attachedSignals = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

func (s taskSignals) catch(signals []os.Signal) {
	signal.Notify(s.c, heeded(signals...)...)
	signal.Notify(s.broken, unix.SIGPIPE)
}

func (s taskSignals) stop() {
	signal.Stop(s.c)
	signal.Stop(s.broken)
}
