package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/caisson-dev/caisson/isolation/egress/tun"
)

const (
	nic       = 1
	dnsPort   = 53
	maxSyns   = 512       // connections that are being decided about
	bufferMax = 4 << 20   // of one direction of one connection, in bytes
	buffer    = 256 << 10 // likewise, to begin with
)

// MTU of the device, in bytes: the largest, because every packet costs the same.
const MTU = 65535

// device is what a sandbox sees of its network.
var device = tun.Device{Name: "tun0", MTU: MTU, Addr4: Sandbox4, Addr6: Sandbox6}

// OpenTUN makes the device in a network namespace; see tun.Device.
func OpenTUN(netns int) (*os.File, error) { return device.Open(netns) }

// SetUp makes the device of two descriptors that were opened in its namespace; see tun.Device.
func SetUp(tun, rtnetlink *os.File) error { return device.SetUp(tun, rtnetlink) }

// Gateway is the other end of a sandbox's device. When it is closed, or its process dies, the sandbox has no network.
type Gateway struct {
	opt     Options
	ctx     context.Context
	cancel  context.CancelFunc
	stack   *stack.Stack
	link    *link
	names   *names
	current atomic.Pointer[epoch]
	total   *budget
	changed chan struct{} // another rule holds
	told    ledger
	workers workers

	mu      sync.Mutex
	left    *sync.Cond // a flow has ended
	flows   map[*flow]struct{}
	budgets map[int]*budget // of steps that are not drained
	closed  bool
	started bool // set before anybody else has the gateway
	running sync.WaitGroup
}

// epoch is a rule and what was used under it.
type epoch struct {
	rule *Rule
	step int
	used *budget
}

// Start puts a gateway behind a device.
func Start(ctx context.Context, o Options) (*Gateway, error) {
	if o.Rule == nil {
		o.Rule = None()
	}
	g := &Gateway{opt: o, names: newNames(), flows: map[*flow]struct{}{}, budgets: map[int]*budget{}, total: newBudget(o.Total.withDefaults()), workers: make(workers)}
	g.left, g.changed = sync.NewCond(&g.mu), make(chan struct{}, 1)
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.current.Store(&epoch{rule: o.Rule, step: o.Step, used: g.budgetOf(o.Step, o.Rule.limits)})
	err := g.makeStack()
	if err == nil {
		err = g.serve()
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.started = true
	g.running.Go(g.closeIdle)
	return g, nil
}

func (g *Gateway) makeStack() error {
	log.SetLevel(log.Warning) // what a sandbox sends is told as events
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	var err error
	if g.link, err = newLink(g.stack, g.opt.TUN); err != nil {
		return err
	}
	if err := g.stack.CreateNIC(nic, g.link); err != nil {
		return fmt.Errorf("network stack: %s", err)
	}
	// Every address is ours: what is sent to it is decided about by the forwarder.
	g.stack.SetPromiscuousMode(nic, true)
	g.stack.SetSpoofing(nic, true)
	g.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	for protocol, a := range map[tcpip.NetworkProtocolNumber]netip.Addr{ipv4.ProtocolNumber: Gateway4, ipv6.ProtocolNumber: Gateway6} {
		own := tcpip.ProtocolAddress{Protocol: protocol, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
		if err := g.stack.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("network stack: %s", err)
		}
	}
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: buffer, Max: bufferMax}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: buffer, Max: bufferMax}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	// No segment is on its way for long, and who was not the first to close uses the port again at once.
	wait := tcpip.TCPTimeWaitTimeoutOption(time.Millisecond)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &receive, &send, &moderate, &wait} {
		if err := g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("network stack: %s", err)
		}
	}
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(g.stack, 0, maxSyns, g.connection).HandlePacket)
	g.stack.SetTransportProtocolHandler(udp.ProtocolNumber, g.datagram)
	return nil
}

// serve answers DNS.
func (g *Gateway) serve() error {
	for protocol, a := range map[tcpip.NetworkProtocolNumber]netip.Addr{ipv4.ProtocolNumber: Gateway4, ipv6.ProtocolNumber: Gateway6} {
		c, err := gonet.DialUDP(g.stack, &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: dnsPort}, nil, protocol)
		if err != nil {
			return fmt.Errorf("DNS: %w", err)
		}
		g.running.Go(func() { g.serveDNS(c) })
	}
	return nil
}

// serveDNS answers one after the other: an answer costs microseconds and waits for nobody.
func (g *Gateway) serveDNS(c *gonet.UDPConn) {
	stop := context.AfterFunc(g.ctx, func() { _ = c.Close() })
	defer stop()
	b := make([]byte, 4096)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if a := g.answer(b[:n]); a != nil {
			_, _ = c.WriteTo(a, from) // who asks asks again
		}
	}
}

// datagram refuses what is no question to the gateway; the stack then says that the port is closed.
func (g *Gateway) datagram(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
	to := netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
	e := Event{Addr: to, Port: id.LocalPort, Protocol: "udp"}
	e.Name, _ = g.names.of(to.Addr())
	g.refused(e, Verdict{Rule: "udp", Reason: "only TCP goes out"})
	return false
}

func address(a tcpip.Address) netip.Addr {
	n, _ := netip.AddrFromSlice(a.AsSlice())
	return n.Unmap()
}

func (g *Gateway) rule() *Rule { return g.current.Load().rule }

// SetRule is a step's beginning: its rule holds from now on, also for connections that are there. A step that goes on under
// another rule, because others have come or gone, goes on with what is left to it. Step 0 is several steps at once, or none;
// its limits begin anew each time.
func (g *Gateway) SetRule(step int, r *Rule) {
	if r == nil {
		r = None()
	}
	if step != 0 {
		g.mu.Lock()
		delete(g.budgets, 0)
		g.mu.Unlock()
	}
	g.current.Store(&epoch{rule: r, step: step, used: g.budgetOf(step, r.limits)})
	select {
	case g.changed <- struct{}{}:
	default:
	}
	for _, f := range g.all() {
		g.review(f)
	}
	g.settle(func(n int) bool { return n == step })
}

// budgetOf is what a step has left of its limits.
func (g *Gateway) budgetOf(step int, l Limits) *budget {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.budgets[step]
	if b == nil || b.limits != l {
		fresh := newBudget(l)
		if b != nil {
			fresh.out.Store(b.out.Load())
			fresh.in.Store(b.in.Load())
		}
		b, g.budgets[step] = fresh, fresh
	}
	return b
}

// Drain waits until the step's connections have ended, a little for them to do so by themselves: who used them has gone.
// Then it cuts those that are left. After that every event of the step has been told.
func (g *Gateway) Drain(step int) {
	g.await(step, drainTime)
	for _, f := range g.all() {
		if f.event.Step == step && !f.inward {
			f.cut("closed", "the step has ended", "")
		}
	}
	g.await(step, cutTime)
	g.settle(func(n int) bool { return n != step })
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.budgets, step)
}

// drainTime is for connections whose two ends have closed them, cutTime for those that we have closed.
const drainTime, cutTime = 100 * time.Millisecond, 5 * time.Second

// await waits for the step's connections to end, and no longer than it may.
func (g *Gateway) await(step int, most time.Duration) {
	deadline := time.Now().Add(most)
	defer time.AfterFunc(most, g.left.Broadcast).Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for time.Now().Before(deadline) && g.busy(step) {
		g.left.Wait()
	}
}

// busy reports whether a connection of the step is there. g.mu is held.
func (g *Gateway) busy(step int) bool {
	for f := range g.flows {
		if f.event.Step == step && !f.inward {
			return true
		}
	}
	return false
}

// review cuts a flow that the present rule does not allow.
func (g *Gateway) review(f *flow) {
	if f.inward {
		return
	}
	f.mu.Lock()
	dialled := f.dialled
	f.mu.Unlock()
	v := g.rule().decide(f.t)
	if v.Allowed && f.clear.Load() && g.rule().speaksTLS(f.t) {
		v = Verdict{Rule: v.Rule, Reason: "TLS must be spoken from now on"}
	}
	if v.Allowed && f.t.name != "" && f.t.name != HostName && dialled.IsValid() {
		v = g.rule().decideAddr(f.t, dialled.Addr())
	}
	if !v.Allowed {
		f.cut(v.Rule, "the step's rule does not allow it: "+v.Reason, v.Remedy)
	}
}

func (g *Gateway) all() []*flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*flow, 0, len(g.flows))
	for f := range g.flows {
		list = append(list, f)
	}
	return list
}

// closeIdle cuts what has been silent for too long.
func (g *Gateway) closeIdle() {
	for {
		idle := g.rule().limits.Idle
		timer := time.NewTimer(max(idle/8, time.Millisecond))
		select {
		case <-g.ctx.Done():
			timer.Stop()
			return
		case <-g.changed: // it may be less now
			timer.Stop()
			continue
		case <-timer.C:
		}
		now := time.Now()
		for _, f := range g.all() {
			if f.silent(now) > idle {
				f.cut(RuleIdle, fmt.Sprintf("silent for %s", idle), "")
			}
		}
	}
}

// Usage is what went through so far.
func (g *Gateway) Usage() Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Usage{Out: g.total.out.Load(), In: g.total.in.Load(), Connections: len(g.flows)}
}

// Close cuts every connection and lets go of the device, which goes with its namespace. It is idempotent.
func (g *Gateway) Close() error {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if closed {
		return nil
	}
	g.cancel()
	for _, f := range g.all() {
		f.cut("closed", "the sandbox ends", "")
	}
	g.running.Wait()
	g.settle(func(int) bool { return false })
	if g.link == nil {
		g.stack.Destroy()
		return g.opt.TUN.Close()
	}
	g.link.stop()
	g.stack.Destroy() // which still writes
	// To take a device out of a namespace costs the kernel 7 to 30 ms, and with the namespace nobody waits for it. A
	// device without its other end takes what is sent to it and passes nothing on. One that has never worked makes room for
	// the next.
	if g.started {
		_ = unix.IoctlSetInt(int(g.opt.TUN.Fd()), unix.TUNSETPERSIST, 1) // it is only slower without
	}
	return errors.Join(g.link.close(), g.opt.TUN.Close())
}

// refused tells of a refusal.
func (g *Gateway) refused(e Event, v Verdict) {
	e.Verdict, e.Rule, e.Reason, e.Remedy = VerdictRefused, v.Rule, v.Reason, v.Remedy
	if e.Step == 0 {
		e.Step = g.current.Load().step
	}
	g.tell(e)
}

// tell passes an event on.
func (g *Gateway) tell(e Event) {
	if g.opt.Events == nil {
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.Reason = legible(e.Reason)
	if g.told.tells(e) {
		g.opt.Events(e)
	}
}

// settle tells what was only counted, of all steps but those that go on.
func (g *Gateway) settle(goesOn func(step int) bool) {
	for _, e := range g.told.settle(goesOn) {
		if g.opt.Events != nil {
			g.opt.Events(e)
		}
	}
}
