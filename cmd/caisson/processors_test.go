package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

func TestSharingEndsWithALongCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, told := false, 0
		s := &processorSharing{end: func() { ended = true }}
		tell := s.progress(func(runner.Progress) { told++ })
		tell(runner.Progress{State: runner.StatePreparing})
		time.Sleep(2 * longCommand)
		synctest.Wait()
		if ended {
			t.Error("it ended before a command ran")
		}
		tell(runner.Progress{State: runner.StateRunning})
		time.Sleep(longCommand)
		synctest.Wait()
		if !ended || told != 2 {
			t.Errorf("ended: %v, told %d times", ended, told)
		}
	})
}
