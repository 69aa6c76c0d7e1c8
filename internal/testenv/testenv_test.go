package testenv

import (
	"errors"
	"runtime"
	"testing"
)

// recorder stands in for a test and notes how Need ended it.
type recorder struct {
	testing.TB
	fatal, skipped bool
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(string, ...any) {
	r.fatal = true
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

func TestNeed(t *testing.T) {
	missing := errors.New("no such thing")
	for _, c := range []struct {
		require, feature string
		err              error
		fatal, skipped   bool
	}{
		{"", "cgroups", nil, false, false},
		{"all", "cgroups", nil, false, false},
		{"", "cgroups", missing, false, true},
		{"root,vm", "cgroups", missing, false, true},
		{"root, cgroups", "cgroups", missing, true, false},
		{"all", "cgroups", missing, true, false},
		{"", "cgruops", nil, true, false},
	} {
		t.Setenv(Variable, c.require)
		r := &recorder{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Need(r, c.feature, c.err)
		}()
		<-done
		if r.fatal != c.fatal || r.skipped != c.skipped {
			t.Errorf("%+v: fatal %v, skipped %v", c, r.fatal, r.skipped)
		}
	}
}
