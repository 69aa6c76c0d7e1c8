package store

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/flock"
)

// A writer waits for its turn in the kernel, and a caller that gives up is told so.
func TestWritersTakeTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openFile(t, path)
	other, err := flock.Try(path+".writer", flock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Note(late, runner.AuditRecord{Event: "late"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Note(t.Context(), runner.AuditRecord{Event: "first"}) }()
	if _, err := s.Audit(t.Context(), ""); err != nil { // who reads waits for nobody
		t.Fatal(err)
	}
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	list, err := s.Audit(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].Event != "first" {
		t.Fatal(list, err)
	}
}
