package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/caisson-dev/caisson/isolation/egress/splice"
)

// helloTime is how long a client may take to say whom it wants.
const helloTime = 15 * time.Second

// flow is one connection.
type flow struct {
	g       *Gateway
	t       target
	inward  bool        // somebody outside came to a published port
	clear   atomic.Bool // TLS was not asked for
	ctx     context.Context
	event   Event
	began   time.Time
	dialled netip.AddrPort
	rule    string

	last    atomic.Int64 // UnixNano of the last byte
	held    atomic.Int32 // how many directions wait for the rate
	out, in atomic.Int64

	mu    sync.Mutex
	ends  []func() // what ends it at once
	ended bool
	why   Event // of a cut

	look   atomic.Pointer[look] // at what the server says first; nil: nobody waits for it
	answer chan bool            // what was seen
}

// look reads what a server says first, as far as it needs, and returns what it means and what was read.
type look func(io.Reader) (meaning bool, read []byte, err error)

// connection takes one that the sandbox opens. It has a goroutine of its own, with a stack that is still small.
func (g *Gateway) connection(r *tcp.ForwarderRequest) { g.workers.do(g.ctx, func() { g.decide(r) }) }

// workers are goroutines whose stacks have grown: what a connection needs of it costs more to grow than the rest of a short one.
type workers chan func()

// spareTime is how long a goroutine waits for more to do.
const spareTime = time.Second

// do has a goroutine do f, without waiting for it.
func (w workers) do(ctx context.Context, f func()) {
	select {
	case w <- f:
	default:
		go w.work(ctx, f)
	}
}

func (w workers) work(ctx context.Context, f func()) {
	spare := time.NewTimer(spareTime)
	defer spare.Stop()
	for {
		f()
		spare.Reset(spareTime)
		select {
		case f = <-w:
		case <-spare.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// decide decides about a connection and serves it to its end.
func (g *Gateway) decide(r *tcp.ForwarderRequest) {
	id := r.ID()
	to := netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
	t := target{addr: to.Addr(), port: to.Port()}
	e := Event{Addr: to, Port: to.Port(), Protocol: "tcp"}
	known := !inner(to.Addr())
	if name, ok := g.names.of(to.Addr()); ok {
		t, known = target{name: name, port: to.Port()}, true
		e.Name = name
	}
	f, done := g.newFlow(t, e)
	defer done()
	if full := g.enter(f); full.Rule != "" {
		g.refused(e, full) // before the client knows, who may end its step by it
		r.Complete(true)
		return
	}
	defer g.leave(f)
	// Decided when it can be found by SetRule: a rule that comes later cuts it.
	rule := g.rule()
	v := Verdict{Rule: "address", Reason: "nobody has this address"}
	if known {
		v = rule.decide(t)
	}
	if f.rule = v.Rule; !v.Allowed {
		g.refused(f.event, v)
		r.Complete(true)
		return
	}
	if rule.speaksTLS(t) {
		f.secure(r)
		return
	}
	if f.clear.Store(true); g.rule() != rule {
		g.review(f)
	}
	f.plain(r)
}

// newFlow is a connection, whose context ends when it is cut, or done.
func (g *Gateway) newFlow(t target, e Event) (f *flow, done context.CancelFunc) {
	f = &flow{g: g, t: t, event: e, began: time.Now(), answer: make(chan bool, 1)}
	f.ctx, done = context.WithCancel(g.ctx)
	f.ending(done)
	f.touch()
	return f, done
}

// enter admits a flow, or says which limit it would exceed.
func (g *Gateway) enter(f *flow) (full Verdict) {
	e := g.current.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch n := len(g.flows); {
	case g.closed:
		return Verdict{Rule: "closed", Reason: "the sandbox ends"}
	case n >= e.rule.limits.Connections || n >= g.total.limits.Connections:
		return Verdict{Rule: RuleConnections, Reason: fmt.Sprintf("%d connections at once", n)}
	}
	for _, b := range []*budget{e.used, g.total} {
		if reason := b.exceeded(); reason != "" {
			return Verdict{Rule: RuleBytes, Reason: reason}
		}
	}
	g.flows[f] = struct{}{}
	f.event.Step = e.step
	g.running.Add(1)
	return Verdict{}
}

func (g *Gateway) leave(f *flow) {
	g.mu.Lock()
	delete(g.flows, f)
	g.left.Broadcast()
	g.mu.Unlock()
	g.running.Done()
}

// secure takes the connection first, to read the TLS hello, and dials when it is the right one.
func (f *flow) secure(r *tcp.ForwarderRequest) {
	f.event.Protocol = "tls"
	in, abort, err := accept(r)
	if err != nil {
		f.end(VerdictFailed, err)
		return
	}
	f.ending(abort)
	_ = in.SetReadDeadline(time.Now().Add(helloTime))
	hello, err := checkHello(in, f.t.name)
	if err != nil {
		abort()
		f.end(VerdictRefused, err)
		return
	}
	_ = in.SetReadDeadline(time.Time{})
	out, err := f.dial(false)
	if err != nil {
		abort()
		f.end(verdictOf(err), err)
		return
	}
	again := look(asksAgain)
	f.look.Store(&again)
	f.relay(in, out.Conn, func(dst *meter) error {
		if _, err := dst.Write(hello); err != nil {
			return err
		}
		if f.answered() {
			if err := passSecond(dst, in, f.t.name); err != nil {
				return err
			}
		}
		return splice.Copy(dst, in)
	}, abort)
}

// answered waits for what look sees.
func (f *flow) answered() bool {
	select {
	case meaning := <-f.answer:
		return meaning
	case <-f.ctx.Done():
		return false
	}
}

// plain dials first, so that a refused connection is one inside too.
func (f *flow) plain(r *tcp.ForwarderRequest) {
	out, err := f.dial(true)
	if err != nil {
		r.Complete(true)
		f.end(verdictOf(err), err)
		return
	}
	in, abort, err := accept(r)
	if err != nil {
		_ = out.Close()
		f.end(VerdictFailed, err)
		return
	}
	f.relay(in, out.Conn, func(dst *meter) error {
		splice.Await(in)
		q := newRequests(f.t, in, dst)
		q.headers, q.proxy = f.g.opt.Headers, out.proxy
		q.rest = func() error { return splice.Copy(dst, in) }
		q.asked = func() {
			switches := look(switches)
			f.look.Store(&switches)
		}
		q.upgraded = f.answered
		return q.forward()
	}, abort)
}

func verdictOf(err error) string {
	if _, ok := errors.AsType[*refusedError](err); ok {
		return VerdictRefused
	}
	return VerdictFailed
}

// accept completes the handshake inside.
func accept(r *tcp.ForwarderRequest) (*splice.Conn, func(), error) {
	q := &waiter.Queue{}
	e, err := r.CreateEndpoint(q)
	if err != nil {
		r.Complete(true)
		return nil, nil, fmt.Errorf("handshake: %s", err)
	}
	r.Complete(false)
	e.SocketOptions().SetKeepAlive(true)
	return splice.NewConn(q, e), e.Abort, nil
}

// dial connects outside. What is plain may go to a proxy request by request.
func (f *flow) dial(plain bool) (outer, error) {
	rule := f.g.rule()
	out, err := f.g.opt.Outside.connect(f.ctx, rule, f.t, plain)
	f.mu.Lock()
	f.dialled = out.at
	f.mu.Unlock()
	f.event.Dialled = out.at
	if err == nil && f.g.rule() != rule {
		f.g.review(f) // while we dialled
	}
	return out, err
}

// relay copies both ways until both have ended, or one has failed.
func (f *flow) relay(in, out net.Conn, upwards func(*meter) error, abort func()) {
	f.ending(func() { abort(); _ = out.Close() })
	down := make(chan struct{})
	f.g.workers.do(f.g.ctx, func() {
		defer close(down)
		err := f.downwards(&meter{f: f, w: in}, out)
		if err == nil {
			err = closeWrite(in)
		}
		if err != nil {
			abort()
			_ = out.Close()
		}
	})
	err := upwards(&meter{f: f, w: out, out: true})
	if err == nil {
		err = closeWrite(out)
	} else {
		abort()
		_ = out.Close()
	}
	<-down
	_ = in.Close()
	_ = out.Close()
	if errors.Is(err, errRefused) {
		f.end(VerdictRefused, err)
		return
	}
	f.end(VerdictAllowed, nil)
}

// downwards copies what the server sends, and looks at what it says first when somebody waits for that.
func (f *flow) downwards(dst *meter, src io.Reader) error {
	defer func() {
		select {
		case f.answer <- false:
		default:
		}
	}()
	splice.Await(src)
	if look := f.look.Load(); look != nil {
		meaning, read, err := (*look)(src)
		f.answer <- meaning
		if _, werr := dst.Write(read); werr != nil {
			return werr
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
	return splice.Copy(dst, src)
}

// Publish shows a port of the sandbox on the host, until stop.
func (g *Gateway) Publish(p Publish) (at netip.AddrPort, stop func(), err error) {
	network, host := "tcp6", netip.AddrPortFrom(p.Host.Addr().Unmap(), p.Host.Port())
	if host.Addr().Is4() { // "tcp" takes 0.0.0.0 for the addresses of both families
		network = "tcp4"
	}
	l, err := net.Listen(network, host.String())
	if err != nil {
		return at, nil, fmt.Errorf("publish port %d: %w", p.Port, err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		at = a.AddrPort()
	}
	unwatch := context.AfterFunc(g.ctx, func() { _ = l.Close() })
	var accepting sync.WaitGroup
	accepting.Go(func() { g.publish(l, p) })
	return at, func() {
		unwatch()
		_ = l.Close()
		accepting.Wait()
		for _, f := range g.all() {
			if f.inward && f.t.port == p.Port {
				f.cut("closed", "the port is not shown any more", "")
			}
		}
	}, nil
}

// publish lets callers of the host's port in.
func (g *Gateway) publish(l net.Listener, p Publish) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		f, done := g.newFlow(target{addr: Sandbox4.Addr(), port: p.Port},
			Event{Addr: netip.AddrPortFrom(Sandbox4.Addr(), p.Port), Port: p.Port, Protocol: "tcp"})
		f.inward, f.rule = true, "publish"
		if full := g.enter(f); full.Rule != "" {
			done()
			_ = c.Close()
			continue
		}
		go func() {
			defer done()
			defer g.leave(f)
			f.inwards(c, p)
		}()
	}
}

func (f *flow) inwards(c net.Conn, p Publish) {
	f.ending(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(f.ctx, dialTime)
	defer cancel()
	from := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(Gateway4.AsSlice())}
	to := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(Sandbox4.Addr().AsSlice()), Port: p.Port}
	in, err := gonet.DialTCPWithBind(ctx, f.g.stack, from, to, ipv4.ProtocolNumber)
	if err != nil {
		_ = c.Close() // nobody listens inside
		f.end(VerdictFailed, err)
		return
	}
	f.relay(in, c, func(dst *meter) error { return splice.Copy(dst, in) }, func() { _ = in.Close() })
}
