package slots

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const helper = "CAISSON_SLOTS_TEST_HELPER"

// TestMain lets the test binary be a process that holds a slot until its standard input ends.
func TestMain(m *testing.M) {
	if dir := os.Getenv(helper); dir != "" {
		if _, err := New(dir, 1).Wait(context.Background()); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("have\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTry(t *testing.T) {
	s := New(t.TempDir(), 2)
	a, err1 := s.Try()
	b, err2 := s.Try()
	c, err3 := s.Try()
	if err := errors.Join(err1, err2, err3); err != nil || a == nil || b == nil || c != nil {
		t.Fatal(a, b, c, err)
	}
	_ = a.Release()
	if c, err := s.Try(); err != nil || c == nil {
		t.Fatal(c, err)
	}
}

func TestNeverMoreThanN(t *testing.T) {
	dir := t.TempDir()
	// Three views of one directory are like three processes.
	views := []*Slots{New(dir, 3), New(dir, 3), New(dir, 3)}
	var now, most atomic.Int32
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			slot, err := views[i%3].Wait(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond)
			now.Add(-1)
			_ = slot.Release()
		})
	}
	wg.Wait()
	if m := most.Load(); m > 3 || m < 2 {
		t.Fatalf("%d at once", m)
	}
}

func TestGivingUp(t *testing.T) {
	s := New(t.TempDir(), 1)
	held, _ := s.Try()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := s.Wait(ctx); !errors.Is(err, why) {
				t.Error(err)
			}
		})
	}
	cancel(why)
	wg.Wait()
	_ = held.Release()
	slot, err := s.Wait(t.Context()) // those who gave up must not keep it
	if err != nil {
		t.Fatal(err)
	}
	_ = slot.Release()
}

func TestWhoWaitsComesFirst(t *testing.T) {
	s := New(t.TempDir(), 1)
	held, _ := s.Try()
	got := make(chan *Slot)
	go func() {
		slot, err := s.Wait(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- slot
	}()
	for { // until it stands in the queue
		s.mu.Lock()
		waiting := s.first != nil
		s.mu.Unlock()
		if waiting {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = held.Release()
	if slot, err := s.Try(); err != nil || slot != nil {
		t.Fatal("jumped the queue", err)
	}
	_ = (<-got).Release()
}

func TestKilledHolderFreesItsSlot(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), helper+"="+dir)
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	s := New(dir, 1)
	if slot, err := s.Try(); err != nil || slot != nil {
		t.Fatal("the other process has no slot", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = c.Process.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	slot, err := s.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = slot.Release()
	_ = c.Wait()
}

func TestUnusableDirectory(t *testing.T) {
	s := New("/nonexistent", 2)
	if _, err := s.Try(); err == nil {
		t.Fatal("no error")
	}
	if _, err := s.Wait(t.Context()); err == nil {
		t.Fatal("no error")
	}
}
