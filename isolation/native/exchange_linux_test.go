package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation"
)

// rotated is the stack that comes after s: its upper becomes the newest layer, under a fresh one.
func rotated(t testing.TB, s isolation.Stack) isolation.Stack {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(s.Upper), "next")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	next := s
	next.Lower = append([]isolation.Layer{{Path: s.Upper}}, s.Lower...)
	next.Upper, next.Work = filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{next.Upper, next.Work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := testIDs().Host(1000, 1000)
	if err := os.Chown(next.Upper, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clearVolatile(next.Work); err != nil {
			t.Error(err)
		}
	})
	return next
}

func TestExchange(t *testing.T) {
	needUserns(t)
	e, s := testEngine(t), testSpec(t)
	b := startBox(t, e, s)
	stacks := s.Stacks
	for i := range 5 {
		if out, code := sh(t, b, fmt.Sprintf("echo %d >>log; touch ~/f%d; ls ~ | wc -l", i, i)); code != 0 || out != fmt.Sprintf("%d\n", i+1) {
			t.Fatalf("%q, code %d", out, code)
		}
		stacks = []isolation.Stack{rotated(t, stacks[0]), rotated(t, stacks[1])}
		begin := time.Now()
		if err := b.Exchange(t.Context(), stacks...); err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(begin))
	}
	if out, _ := sh(t, b, "cat log"); out != "0\n1\n2\n3\n4\n" {
		t.Errorf("log %q", out)
	}
	if err := b.Exchange(t.Context(), s.Stacks[0], s.Stacks[0]); err == nil || errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}
