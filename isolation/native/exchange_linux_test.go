package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestManyLayersOldKernel has a kernel that takes all layers in one string of 255 bytes.
func TestManyLayersOldKernel(t *testing.T) {
	needUserns(t)
	e, s := testEngine(t), testSpec(t)
	e.appends = false
	const depth = 40
	ids := testIDs()
	for i := range depth {
		layer := stack(t, ids, "/workspace").Upper
		if err := os.WriteFile(filepath.Join(layer, fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		s.Stacks[0].Lower = append([]isolation.Layer{{Path: layer}}, s.Stacks[0].Lower...)
	}
	b := startBox(t, e, s)
	if out, code := sh(t, b, "ls | wc -l; echo x >new"); code != 0 || out != fmt.Sprintf("%d\n", depth) {
		t.Fatalf("%q", out)
	}
	if err := b.Exchange(t.Context(), rotated(t, s.Stacks[0])); err != nil {
		t.Fatal(err)
	}
	if out, code := sh(t, b, "ls | wc -l; pwd"); code != 0 || out != fmt.Sprintf("%d\n/workspace\n", depth+1) {
		t.Fatalf("%q", out)
	}
	here, err := os.Getwd()
	if err != nil || filepath.Base(here) != "native" && os.Geteuid() == 0 {
		t.Errorf("the supervisor is in %q, %v", here, err)
	}
	bad := rotated(t, s.Stacks[0])
	bad.Lower = slices.Repeat(bad.Lower[:1], 300)
	if err := b.Exchange(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "too many for this kernel") {
		t.Errorf("%v", err)
	}
}
