package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/runner"
)

// BenchmarkHold is what serving its feature costs a foreground run.
func BenchmarkHold(b *testing.B) {
	dir := b.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "features", "f"), 0o700); err != nil {
		b.Fatal(err)
	}
	s := New(Options{StateDir: dir, SocketDir: b.TempDir()})
	s.keeper = &keep{}
	for b.Loop() {
		release, err := s.Hold(b.Context(), "f")
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}

// BenchmarkCall is a whole client: it dials, asks once, and goes.
func BenchmarkCall(b *testing.B) {
	dir := b.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "features", "f"), 0o700); err != nil {
		b.Fatal(err)
	}
	s := New(Options{StateDir: dir, SocketDir: b.TempDir()})
	s.keeper = &keep{live: map[string]*runner.FeatureInfo{"f": {ID: "f"}}}
	release, err := s.Hold(b.Context(), "f")
	if err != nil {
		b.Fatal(err)
	}
	defer release()
	for b.Loop() {
		c, err := DialFeature(b.Context(), dir, "f")
		if err != nil {
			b.Fatal(err)
		}
		if err := c.get(b.Context()); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}
