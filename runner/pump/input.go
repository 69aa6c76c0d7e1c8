package pump

import (
	"io"
	"os"
	"sync"
)

// Input hands a caller's reader to one step after the other. A read that blocks cannot be taken back: it stays, on the
// one goroutine that reads, until the reader answers or the process ends, and holds nobody up.
type Input struct {
	r      io.Reader
	start  sync.Once
	chunks chan []byte // closed at the end of r
}

// NewInput returns an Input for r, from which nothing is read before the first Feed.
func NewInput(r io.Reader) *Input { return &Input{r: r, chunks: make(chan []byte)} }

func (in *Input) read() {
	defer close(in.chunks)
	// Two buffers suffice: when the second chunk is taken, the first has been written.
	var buf [2][32 << 10]byte
	for i := 0; ; {
		n, err := in.r.Read(buf[i][:])
		if n > 0 { // a read of nothing is allowed, and takes no buffer
			in.chunks <- buf[i][:n]
			i = 1 - i
		}
		if err != nil {
			return
		}
	}
}

// Feed copies to w until the input or w ends, or stop is called, which waits for it. At the input's end it writes eof,
// which for a terminal is its end-of-file character, and closes w unless keep is set. w must be pollable (a pipe or a
// terminal): closing it takes a blocked write back.
func (in *Input) Feed(w *os.File, eof []byte, keep bool) (stop func()) {
	in.start.Do(func() { go in.read() })
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		in.copy(w, quit)
		select {
		case <-quit:
		default:
			_, _ = w.Write(eof) // nobody may be there to read it
			if !keep {
				_ = w.Close()
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		_ = w.Close() // a second close does nothing
		<-done
	})
}

func (in *Input) copy(w io.Writer, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case p, ok := <-in.chunks:
			if !ok {
				return
			}
			if _, err := w.Write(p); err != nil {
				return // nobody reads any more
			}
		}
	}
}
