package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// shortTask is how long a task may take that is worth no more than one processor.
const shortTask = 2 * time.Second

// shareProcessors has the Go scheduler use one processor for the time of a short task when others want them all: to hand its
// work from thread to thread takes a quarter of its CPU time, and wins nothing then.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") != "" || !allProcessorsBusy() { // who sets it has decided
		return
	}
	runtime.GOMAXPROCS(1)
	time.AfterFunc(shortTask, runtime.SetDefaultGOMAXPROCS)
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
