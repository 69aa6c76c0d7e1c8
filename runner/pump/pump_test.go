package pump

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func output(s *Sink, budgets ...*Budget) *Output {
	return &Output{Sink: s, Log: io.Discard, Budgets: budgets, Over: func() {}}
}

func TestCopy(t *testing.T) {
	var out, log bytes.Buffer
	s := NewSink(&out)
	b := NewBudget(1 << 20)
	o := output(s, b)
	o.Log = &log
	text := strings.Repeat("line\n", 100_000)
	if n := o.Copy(strings.NewReader(text)); n != int64(len(text)) {
		t.Fatal(n)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != text || log.String() != text || b.Exceeded() || b.Used() != int64(len(text)) {
		t.Fatal("lost something")
	}
}

func TestBudget(t *testing.T) {
	var out bytes.Buffer
	s := NewSink(&out)
	var over atomic.Int32
	small, large := NewBudget(10), NewBudget(1000)
	o := output(s, large, small)
	o.Over = func() { over.Add(1) }
	if n := o.Copy(io.MultiReader(strings.NewReader("123456"), strings.NewReader("7890abc"), strings.NewReader("more"))); n != 10 {
		t.Fatal(n)
	}
	_ = s.Close(t.Context())
	if out.String() != "1234567890" || over.Load() == 0 || !small.Exceeded() || large.Exceeded() || small.Used() != 17 {
		t.Fatalf("%q, %d", out.String(), small.Used())
	}
}

func TestBudgetExactly(t *testing.T) {
	b := NewBudget(4)
	o := output(NewSink(nil), b)
	o.Over = func() { t.Error("not over") }
	o.Copy(strings.NewReader("1234"))
	if b.Exceeded() {
		t.Fatal("exactly the limit is within it")
	}
}

// blocked never finishes a write until it is released.
type blocked struct{ release chan struct{} }

func (b *blocked) Write(p []byte) (int, error) { <-b.release; return len(p), nil }

func TestBlockedWriter(t *testing.T) {
	w := &blocked{make(chan struct{})}
	s := NewSink(w)
	done := make(chan int64)
	go func() { done <- output(s).Copy(io.LimitReader(zeros{}, 2<<20)) }()
	select {
	case <-done:
		t.Fatal("the writer did not hold the step up")
	case <-time.After(50 * time.Millisecond):
	}
	s.Relax(true) // the step dies
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("a blocked writer holds a dying step up")
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := s.Close(ctx); !errors.Is(err, why) {
		t.Fatal(err)
	}
	close(w.release)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

type broken struct{ calls atomic.Int32 }

func (b *broken) Write([]byte) (int, error) { b.calls.Add(1); return 0, io.ErrClosedPipe }

func TestClosedWriter(t *testing.T) {
	w := &broken{}
	s := NewSink(w)
	if n := output(s).Copy(io.LimitReader(zeros{}, 8<<20)); n != 8<<20 {
		t.Fatal(n)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.calls.Load() != 1 {
		t.Fatalf("%d writes", w.calls.Load())
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// One gigabyte passes in a few megabytes, also when the writer is slower than the reader.
func TestMemory(t *testing.T) {
	s := NewSink(writerFunc(func(p []byte) (int, error) { runtime.Gosched(); return len(p), nil }))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n := output(s, NewBudget(2<<30)).Copy(io.LimitReader(zeros{}, 1<<30)); n != 1<<30 {
		t.Fatal(n)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Fatalf("%d bytes were allocated", grown)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

func TestInput(t *testing.T) {
	text := strings.Repeat("0123456789", 50_000)
	in := NewInput(strings.NewReader(text))
	r, w := pipe(t)
	stop := in.Feed(w, nil, false)
	got, err := io.ReadAll(r)
	if err != nil || string(got) != text {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	stop()
	stop()
	// The next step sees the end at once.
	r, w = pipe(t)
	stop = in.Feed(w, []byte{4}, false)
	got, err = io.ReadAll(r)
	if err != nil || string(got) != "\x04" {
		t.Fatalf("%q, %v", got, err)
	}
	stop()
}

// A step ends while the caller's input says nothing, and while a full pipe is read by nobody.
// A reader may answer nothing; what was read before it stays whole until it has been written.
func TestInputOfNothing(t *testing.T) {
	read := make(chan struct{})
	texts := []string{"first", "", "second"}
	in := NewInput(reader(func(p []byte) (int, error) {
		if len(texts) == 0 {
			close(read)
			return 0, io.EOF
		}
		n := copy(p, texts[0])
		texts = texts[1:]
		if len(texts) == 0 {
			read <- struct{}{}
		}
		return n, nil
	}))
	go in.read()
	p := <-in.chunks
	<-read
	if string(p) != "first" {
		t.Fatalf("%q", p)
	}
	if p = <-in.chunks; string(p) != "second" {
		t.Fatalf("%q", p)
	}
	<-read
}

type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

func TestInputStops(t *testing.T) {
	silent, _ := pipe(t)
	for name, r := range map[string]io.Reader{"silent": silent, "full": zeros{}} {
		t.Run(name, func(t *testing.T) {
			_, w := pipe(t)
			stop := NewInput(r).Feed(w, nil, false)
			time.Sleep(10 * time.Millisecond) // so that the pipe is full: it makes the test harder, not right
			var wg sync.WaitGroup
			wg.Go(stop)
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(5 * time.Second):
				t.Fatal("stop hangs")
			}
		})
	}
}

// What a step did not read of the input is there for the next one, but for the chunk under way.
func TestInputGoesOn(t *testing.T) {
	src, feed := pipe(t)
	in := NewInput(src)
	r1, w1 := pipe(t)
	stop := in.Feed(w1, nil, false)
	_, _ = feed.WriteString("first")
	buf := make([]byte, 5)
	if _, err := io.ReadFull(r1, buf); err != nil || string(buf) != "first" {
		t.Fatal(string(buf), err)
	}
	stop()
	r2, w2 := pipe(t)
	stop = in.Feed(w2, nil, false)
	defer stop()
	_, _ = feed.WriteString("second")
	_ = feed.Close()
	if got, err := io.ReadAll(r2); err != nil || string(got) != "second" {
		t.Fatal(string(got), err)
	}
}
