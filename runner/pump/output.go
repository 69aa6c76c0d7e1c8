package pump

import (
	"io"
	"sync"
	"sync/atomic"
)

// Budget bounds how many bytes may come out. It is safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget allows limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used is how many bytes came, the refused ones included.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit is what was given to NewBudget.
func (b *Budget) Limit() int64 { return b.limit }

// Exceeded reports whether bytes were refused.
func (b *Budget) Exceeded() bool { return b.Used() > b.limit }

// take returns how many of n bytes may pass.
func (b *Budget) take(n int64) int64 {
	over := b.used.Add(n) - b.limit
	return n - min(max(over, 0), n)
}

// Output is where one stream of a step goes to.
type Output struct {
	Sink    *Sink
	Log     io.Writer // its errors do not matter to the step
	Budgets []*Budget
	Over    func() // called, perhaps more than once, when a budget is exceeded
}

const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// Copy reads r to its end and returns how many bytes passed. Once a budget is exceeded it goes on reading, so that the
// step is not held up while it dies, and discards. An error of r is its end: a terminal whose other side has been
// closed answers EIO.
func (o *Output) Copy(r io.Reader) (passed int64) {
	b := buffers.Get().(*[]byte) //nolint:errcheck // nothing else is ever put
	defer buffers.Put(b)
	for {
		n, err := r.Read(*b)
		if n > 0 {
			passed += o.pass((*b)[:n])
		}
		if err != nil {
			return passed
		}
	}
}

func (o *Output) pass(p []byte) int64 {
	n := int64(len(p))
	for _, b := range o.Budgets {
		n = min(n, b.take(int64(len(p))))
	}
	if n > 0 {
		_, _ = o.Log.Write(p[:n])
		_, _ = o.Sink.Write(p[:n])
	}
	if n < int64(len(p)) {
		o.Over()
	}
	return n
}
