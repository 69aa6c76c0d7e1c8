package steps

import (
	"io"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/runner/redact"
)

// patience is how long the beginning of a line waits for its end before it goes to the log without it: a prompt, which
// whoever follows wants to see.
const patience = 100 * time.Millisecond

// kept is what goes to the log of a stream: without secrets, line by line, and what stands still as it is. It makes nothing
// before the first byte.
type kept struct {
	r  *redact.Redactor
	to io.Writer

	mu    sync.Mutex
	w     *redact.Writer
	timer *time.Timer
	armed bool
}

func newKept(r *redact.Redactor, to io.Writer) *kept { return &kept{r: r, to: to} }

// Write never fails, as the log does not.
func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.w == nil {
		k.w = k.r.Writer(k.to)
	}
	n, err := k.w.Write(p)
	switch k.armed = k.w.Pending(); {
	case !k.armed:
	case k.timer == nil:
		k.timer = time.AfterFunc(patience, k.flush)
	default:
		k.timer.Reset(patience)
	}
	return n, err
}

func (k *kept) flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.armed {
		k.armed = false
		_ = k.w.Flush() // as Write
	}
}

// close writes what is left.
func (k *kept) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.armed = false; k.w != nil {
		_ = k.w.Close() // as Write
	}
}
