package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// longCommand is how long a command runs before its output, its network and its change may be worth more than one processor.
const longCommand = 200 * time.Millisecond

// shareProcessors has the Go scheduler use one processor when others want them all: to hand the work of a short task from
// thread to thread takes a quarter of its CPU time, and wins nothing then. A command that runs for a while ends that: see
// processorSharing.progress.
func shareProcessors() *processorSharing {
	if os.Getenv("GOMAXPROCS") != "" || !allProcessorsBusy() { // who sets it has decided
		return &processorSharing{end: func() {}}
	}
	runtime.GOMAXPROCS(1)
	return &processorSharing{end: sync.OnceFunc(runtime.SetDefaultGOMAXPROCS)}
}

type processorSharing struct{ end func() }

// progress ends the sharing when a command runs for a while, and passes on what it is told.
func (s *processorSharing) progress(next func(runner.Progress)) func(runner.Progress) {
	return func(p runner.Progress) {
		if p.State == runner.StateRunning {
			time.AfterFunc(longCommand, s.end)
		}
		next(p)
	}
}

// allProcessorsBusy reports whether more threads want to run than there are processors.
func allProcessorsBusy() bool {
	text, err := os.ReadFile("/proc/loadavg") // 0.20 0.18 0.12 RUNNING/ALL LAST-PID
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return false
	}
	running, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.Atoi(running)
	return err == nil && n > runtime.NumCPU()
}
