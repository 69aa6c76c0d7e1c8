package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	a, err := Try(p, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(p, Exclusive); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: %v", err)
	}
	if _, err := Try(p, Shared); !errors.Is(err, ErrLocked) {
		t.Fatalf("shared beside exclusive: %v", err)
	}
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(); err != nil {
		t.Fatal("a second release:", err)
	}
	s1, err1 := Try(p, Shared)
	s2, err2 := Try(p, Shared)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if _, err := Try(p, Exclusive); !errors.Is(err, ErrLocked) {
		t.Fatalf("exclusive beside shared: %v", err)
	}
	_, _ = s1.Release(), s2.Release()
}

// Who removes a feature holds its lock; whoever waited must not end up with the lock of a removed file.
func TestAcquireAfterRemoval(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	a, _ := Try(p, Exclusive)
	got := make(chan *Lock)
	go func() {
		l, err := Acquire(t.Context(), p)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	_ = a.Release()
	l := <-got
	if !same(l.f, p) {
		t.Fatal("holds the lock of a file that is gone")
	}
	_ = l.Release()
}

func TestAcquireGivesUp(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	a, _ := Try(p, Exclusive)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if _, err := Acquire(ctx, p); !errors.Is(err, why) {
		t.Fatalf("got %v", err)
	}
	_ = a.Release()
	b, err := Acquire(t.Context(), p) // the wait that was given up must not keep the lock
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Release()
}

func TestAcquireExcludes(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lock")
	var wg sync.WaitGroup
	var inside, n atomic.Int32
	for range 50 {
		wg.Go(func() {
			l, err := Acquire(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two holders")
			}
			inside.Add(-1)
			n.Add(1)
			_ = l.Release()
		})
	}
	wg.Wait()
	if n.Load() != 50 {
		t.Fatal(n.Load())
	}
}

func TestLinkIsNotFollowed(t *testing.T) {
	d := t.TempDir()
	p := filepath.Join(d, "lock")
	if err := os.Symlink(filepath.Join(d, "elsewhere"), p); err != nil {
		t.Fatal(err)
	}
	if _, err := Try(p, Exclusive); err == nil {
		t.Fatal("followed a link")
	}
}
