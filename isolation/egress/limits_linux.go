package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"
)

// chunk is what is copied at once, in bytes.
const chunk = 128 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// borrow takes a buffer from the pool; back gives it back.
func borrow() (b []byte, back func()) {
	p, ok := chunks.Get().(*[chunk]byte)
	if !ok {
		p = new([chunk]byte)
	}
	return p[:], func() { chunks.Put(p) }
}

// budget is what is left of limits.
type budget struct {
	limits  Limits
	out, in atomic.Int64
	outRate *rate.Limiter
	inRate  *rate.Limiter
}

func newBudget(l Limits) *budget {
	burst := int(min(l.Rate, 1<<30)) // a second's worth
	return &budget{limits: l, outRate: rate.NewLimiter(rate.Limit(l.Rate), burst), inRate: rate.NewLimiter(rate.Limit(l.Rate), burst)}
}

// exceeded says which limit has been reached.
func (b *budget) exceeded() string {
	if b.out.Load()+b.in.Load() > b.limits.Bytes {
		return fmt.Sprintf("more than %d bytes", b.limits.Bytes)
	}
	return ""
}

// meter counts what is written, holds it up to the rates, and ends what exceeds a limit.
type meter struct {
	f   *flow
	w   io.Writer
	out bool
}

func (m *meter) Write(p []byte) (int, error) {
	f := m.f
	epoch := f.g.current.Load()
	written := 0
	for len(p) > 0 {
		part := p[:min(len(p), chunk, epoch.used.outRate.Burst(), f.g.total.outRate.Burst())]
		for _, b := range []*budget{epoch.used, f.g.total} {
			count, limiter := &b.in, b.inRate
			if m.out {
				count, limiter = &b.out, b.outRate
			}
			if err := f.await(limiter, len(part)); err != nil {
				return written, err
			}
			count.Add(int64(len(part)))
			if reason := b.exceeded(); reason != "" {
				f.exceed(epoch.step, reason)
				return written, errors.New(reason)
			}
		}
		n, err := m.w.Write(part)
		written += n
		if m.out {
			f.out.Add(int64(n))
		} else {
			f.in.Add(int64(n))
		}
		f.touch()
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// await waits for the rate, but not longer than the flow lives.
func (f *flow) await(l *rate.Limiter, n int) error {
	f.held.Add(1)
	defer f.held.Add(-1)
	defer f.touch()
	return l.WaitN(f.ctx, n)
}

// copyChunks copies until src ends. It has a buffer only while there is something to put into it.
func copyChunks(dst io.Writer, src io.Reader) error {
	for {
		awaitData(src)
		if err := copyChunk(dst, src); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func copyChunk(dst io.Writer, src io.Reader) error {
	b, back := borrow()
	defer back()
	n, err := src.Read(b)
	if n > 0 {
		if _, err := dst.Write(b[:n]); err != nil {
			return err
		}
	}
	return err
}

// inside is the sandbox's end of a connection.
type inside struct {
	*gonet.TCPConn
	end   tcpip.Endpoint
	queue *waiter.Queue
}

// awaitData waits until reading would not have to, where the connection can say so.
func awaitData(r io.Reader) {
	switch c := r.(type) {
	case *inside:
		c.await()
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return // reading has the same error
		}
		_ = raw.Read(func(fd uintptr) bool {
			var b [1]byte
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN)
		})
	}
}

func (c *inside) await() {
	const events = waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr
	if c.end.Readiness(events) != 0 {
		return
	}
	entry, woken := waiter.NewChannelEntry(events)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	if c.end.Readiness(events) == 0 {
		<-woken
	}
}

func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

// silent is for how long nothing was sent; what waits for the rate is not silent.
func (f *flow) silent(now time.Time) time.Duration {
	if f.held.Load() > 0 {
		return 0
	}
	return now.Sub(time.Unix(0, f.last.Load()))
}

// ending adds what ends the flow at once; when it was cut already, now.
func (f *flow) ending(end func()) {
	f.mu.Lock()
	cut := f.why.Verdict != ""
	f.ends = append(f.ends, end)
	f.mu.Unlock()
	if cut {
		end()
	}
}

// cut ends a flow from outside of it.
func (f *flow) cut(rule, reason, remedy string) {
	f.endBy(Event{Step: f.event.Step, Rule: rule, Reason: reason, Remedy: remedy})
}

// exceed ends a flow by a limit. It is the step's doing only if the flow is its own, and not of a time when others ran too.
func (f *flow) exceed(step int, reason string) {
	if step != f.event.Step {
		step = 0
	}
	f.endBy(Event{Step: step, Rule: RuleBytes, Reason: reason})
}

func (f *flow) endBy(why Event) {
	f.mu.Lock()
	ends := f.ends
	first := f.why.Verdict == "" && !f.ended
	if first {
		why.Verdict = VerdictCut
		f.why = why
	}
	f.mu.Unlock()
	if first {
		for _, end := range ends {
			end()
		}
	}
}

// end tells what became of a flow.
func (f *flow) end(verdict string, err error) {
	f.mu.Lock()
	f.ended = true
	why := f.why
	f.mu.Unlock()
	e := f.event
	e.At, e.Duration = f.began, time.Since(f.began)
	e.Out, e.In = f.out.Load(), f.in.Load()
	e.Verdict, e.Rule = verdict, f.rule
	if err != nil {
		e.Reason = err.Error()
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		e.Rule, e.Reason, e.Remedy = refused.v.Rule, refused.v.Reason, refused.v.Remedy
	}
	if why.Verdict != "" {
		e.Step, e.Verdict, e.Rule, e.Reason, e.Remedy = why.Step, why.Verdict, why.Rule, why.Reason, why.Remedy
	}
	f.g.tell(e)
}
