package store

import (
	"testing"

	"github.com/caisson-dev/caisson/runner/chain"
)

// whole checks the log, and answers what was found of it.
func whole(t *testing.T, s *Store, kept ...chain.Head) *chain.Report {
	t.Helper()
	r, err := s.Verify(t.Context(), kept...)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Whole {
		t.Errorf("%+v", r.Problems)
	}
	return r
}
