package uplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
)

// box is a network namespace of the test's own, with a thread in it.
type box struct {
	jobs  chan func()
	asked int
	err   error
	tid   int
}

func (b *box) PID() int { return b.tid }

func (b *box) Network(context.Context) (*isolation.Network, error) {
	b.asked++
	if b.err != nil {
		return nil, b.err
	}
	n := &isolation.Network{}
	var err error
	b.in(func() {
		var fd int
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return
		}
		n.TUN = os.NewFile(uintptr(fd), "tun")
		if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE); err == nil {
			n.Netlink = os.NewFile(uintptr(fd), "netlink")
		}
	})
	return n, err
}

func (b *box) in(f func()) {
	done := make(chan struct{})
	b.jobs <- func() { defer close(done); f() }
	<-done
}

func newBox(t *testing.T) *box {
	t.Helper()
	var why error
	if os.Geteuid() != 0 {
		why = errors.New("not root")
	}
	testenv.Need(t, "root", why)
	_, why = os.Stat("/dev/net/tun")
	testenv.Need(t, "tun", why)
	b := &box{jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // ends with its namespace
		b.tid = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for job := range b.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(b.jobs) })
	return b
}

func rule(t *testing.T, p egress.Policy) *egress.Rule {
	t.Helper()
	r, err := egress.Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNoneNeedsNothing: without a rule nobody is asked for a device, and where there is none a rule is refused.
func TestNoneNeedsNothing(t *testing.T) {
	b := &box{err: &isolation.UnsupportedError{Control: isolation.ControlNetworkRules, Reason: "no TUN"}}
	u := New(Options{Sandbox: b})
	s, err := u.Begin(t.Context(), egress.None(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if use := s.End(); !use.Empty() || b.asked != 0 {
		t.Errorf("%+v, asked %d times", use, b.asked)
	}
	if _, err := u.Begin(t.Context(), rule(t, egress.Policy{Mode: egress.ModeOpen}), nil); !errors.Is(err, isolation.ErrUnsupported) || len(u.steps) != 0 {
		t.Errorf("%v, and %d steps run", err, len(u.steps))
	}
	if err := errors.Join(u.Close(), u.Close(), (*Uplink)(nil).Close()); err != nil {
		t.Error(err)
	}
}

// TestUnseen: what finds no route is counted, and told to the step that ran, or to all of them; with a gateway nothing is.
func TestUnseen(t *testing.T) {
	b := newBox(t)
	var told, stray []egress.Event
	u := New(Options{Sandbox: b, Stray: func(e egress.Event) { stray = append(stray, e) }})
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	begin := func(r *egress.Rule) *Step {
		s, err := u.Begin(t.Context(), r, func(e egress.Event) { told = append(told, e) })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	try := func(to string) {
		b.in(func() {
			if c, err := net.Dial("tcp", to); err == nil {
				t.Errorf("%s is reached", to)
				_ = c.Close()
			}
		})
	}
	first := begin(egress.None())
	try("203.0.113.7:80")
	try("[2001:db8::1]:80")
	try("127.0.0.1:1")
	use := first.End()
	if len(told) != 1 || told[0].Rule != egress.RuleUnseen || told[0].Count != 2 || len(use.Destinations) != 1 || use.Destinations[0].Connections != 2 {
		t.Fatalf("told %+v, and did %+v", told, use)
	}
	first = begin(egress.None())
	second := begin(egress.None())
	try("203.0.113.7:80")
	if one, two := second.End(), first.End(); len(stray) != 1 || len(told) != 1 || !one.Destinations[0].Shared || !two.Destinations[0].Shared {
		t.Errorf("together: told %+v and %+v, and did %+v and %+v", told, stray, one, two)
	}
	if use := begin(egress.None()).End(); !use.Empty() {
		t.Errorf("a step that wanted nothing did %+v", use)
	}
	third := begin(rule(t, egress.Policy{Mode: egress.ModeAllow}))
	try("203.0.113.7:80")
	if use := third.End(); len(use.Destinations) != 1 || use.Destinations[0].To != "203.0.113.7:80" {
		t.Errorf("with a gateway: %+v", use)
	}
}

// TestTogether runs steps at once: what holds is what all of them allow, and nobody gets more by another's end or beginning.
func TestTogether(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = io.Copy(c, c) // until the other end has nothing to say
			_ = c.Close()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	b := newBox(t)
	u := New(Options{Sandbox: b})
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	// 203.0.113.7 is outside: the dialler of the test leads it to the listener.
	u.opt.Outside.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
	to := fmt.Sprintf("203.0.113.7:%d", port)
	reaches := func() bool {
		var c net.Conn
		var err error
		b.in(func() { c, err = net.Dial("tcp", to) })
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	allowed := rule(t, egress.Policy{Mode: egress.ModeAllow, Allow: []string{to}})
	begin := func(r *egress.Rule) *Step {
		s, err := u.Begin(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := begin(allowed)
	if !reaches() {
		t.Fatal("the first step does not reach what its rule allows")
	}
	second := begin(egress.None())
	if reaches() {
		t.Error("with a step that has no network")
	}
	third := begin(allowed)
	if reaches() {
		t.Error("a third step brings the network back")
	}
	if use := third.End(); len(use.Destinations) != 1 || use.Destinations[0].Verdict != egress.VerdictRefused || !use.Destinations[0].Shared {
		t.Errorf("the third step did %+v", use)
	}
	if use := second.End(); len(use.Destinations) != 1 || use.Destinations[0].To != to {
		t.Errorf("the second step did %+v", use)
	}
	if !reaches() {
		t.Error("the first step is alone again, and does not reach what its rule allows")
	}
	use := first.End()
	got := 0
	for _, d := range use.Destinations { // one may have been cut by the second step's beginning, just before its end
		if d.Shared {
			continue
		}
		if d.Verdict == egress.VerdictRefused {
			t.Errorf("the first step was refused %+v", d)
		}
		got += d.Connections
	}
	if got != 2 {
		t.Errorf("the first step did %+v", use)
	}
	if reaches() || b.asked != 1 {
		t.Errorf("when no step runs, somebody reaches something; asked %d times", b.asked)
	}
}

// TestWhose: what begins while two steps run counts for neither, and neither fails by it; both are shown it.
func TestWhose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	b := newBox(t)
	stray := make(chan egress.Event, 10)
	u := New(Options{Sandbox: b, Stray: func(e egress.Event) { stray <- e }})
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	u.opt.Outside.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
	const to = "203.0.113.7:7"
	few := rule(t, egress.Policy{Mode: egress.ModeAllow, Allow: []string{to}, Limits: egress.Limits{Bytes: 2 << 10}})
	told := func(e egress.Event) { t.Errorf("a step is told %+v", e) }
	older, err := u.Begin(t.Context(), few, told)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := u.Begin(t.Context(), few, told)
	if err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	b.in(func() { c, err = net.Dial("tcp", to) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for err == nil { // until it is cut
		_, err = c.Write(make([]byte, 1<<10))
	}
	if e := <-stray; e.Step != 0 || e.Rule != egress.RuleBytes || e.Verdict != egress.VerdictCut {
		t.Errorf("of nobody is told %+v", e)
	}
	for name, s := range map[string]*Step{"older": older, "newer": newer} {
		if use := s.End(); use.Limit != "" || use.Out != 0 || len(use.Destinations) != 1 || !use.Destinations[0].Shared {
			t.Errorf("the %s step did %+v", name, use)
		}
	}
}

// TestUse: what is the same is counted, what is too much is only counted.
func TestUse(t *testing.T) {
	var u Use
	for i := range maxDestinations + 5 {
		u.add(egress.Event{Name: fmt.Sprintf("n%d.example", i), Port: 443, Verdict: egress.VerdictAllowed, Out: 1, In: 2})
		u.add(egress.Event{Name: "n0.example", Port: 443, Verdict: egress.VerdictAllowed, Out: 1})
	}
	u.add(egress.Event{Name: "n0.example", Port: 443, Verdict: egress.VerdictCut, Rule: egress.RuleBytes, Reason: "more"})
	s := u.sorted()
	const all = maxDestinations + 5
	if len(s.Destinations) != maxDestinations || s.More != 6 || s.Out != 2*all || s.In != 2*all || s.Limit != egress.RuleBytes || s.Reason != "more" {
		t.Errorf("%d destinations, %d more, %d out, %d in, %s", len(s.Destinations), s.More, s.Out, s.In, s.Limit)
	}
	if d := s.Destinations[0]; d.To != "n0.example:443" || d.Connections != 1+all {
		t.Errorf("%+v", d)
	}
	called := Use{}
	called.add(egress.Event{Addr: netip.AddrPortFrom(egress.Sandbox4.Addr(), 80), Port: 80, Verdict: egress.VerdictAllowed, Rule: "publish", Out: 1, In: 2})
	if len(called.Destinations) != 0 || called.Out != 1 || called.In != 2 || called.Empty() {
		t.Errorf("a caller of a published port is what the step wanted: %+v", called)
	}
	for want, e := range map[string]egress.Event{"a.example": {Name: "a.example"}, "1.2.3.4:5": {Addr: netip.MustParseAddrPort("1.2.3.4:5"), Port: 5}} {
		if got := To(&e); got != want {
			t.Errorf("%s is written %s", want, got)
		}
	}
}
