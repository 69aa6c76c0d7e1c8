package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// closedWorld is a world from which every dial is a failure of the test.
func closedWorld(t *testing.T, p Policy) *world {
	return newWorld(t, p, func(o *Options) {
		o.Outside.Dial = func(_ context.Context, a netip.AddrPort) (net.Conn, error) {
			t.Errorf("%s is dialled", a)
			return nil, syscall.ECONNREFUSED
		}
	})
}

// exchange sends one datagram to the gateway's DNS; nil when there is no answer at once.
func (w *world) exchange(question []byte) []byte {
	w.t.Helper()
	c, err := w.open("udp", net.JoinHostPort(Gateway4.String(), "53"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := c.Write(question); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		return nil
	}
	return b[:n]
}

// wireQuestion is a question as bytes, with whatever the labels hold.
func wireQuestion(labels ...string) []byte {
	b := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, l := range labels {
		b = append(append(b, byte(len(l))), l...)
	}
	return append(b, 0, 0, 1, 0, 1)
}

// legible: what is told can be printed on a terminal, whatever was asked for.
func (w *world) legible() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.event) == 0 {
		w.t.Error("nothing is told")
	}
	for _, e := range w.event {
		if text := e.Name + e.Rule + e.Reason + e.Remedy; strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
			w.t.Errorf("what is told of %s would write to a terminal: %q", e.Protocol, text)
		}
	}
}

// TestOddQuestions: names that are none have no address, also where everything is allowed, and nobody outside hears of them.
func TestOddQuestions(t *testing.T) {
	w := closedWorld(t, Policy{Mode: ModeOpen})
	long := strings.Repeat("a", 63)
	for _, labels := range [][]string{{"\x1b]0;mine\a\u009b2J", "test"}, {"a\x00b", "test"}, {"a\r\nb", "test"}, {"a%00", "test"}, {"a.b", "test"}, {"a b", "test"}, {"b\xfccher", "test"}, {"bücher", "test"},
		{long, long, long, long}, {"127", "1"}, {"2130706433"}, {"0x7f000001"}, {"0177", "0", "0", "1"}, {"0x7f", "1"}, {"127", "0", "0", "1"},
		{"-a", "test"}, {"a-", "test"}, {"a", "*"}, {"a/b", "test"}, {"::1"}, {}} {
		var m dnsmessage.Message
		answer := w.exchange(wireQuestion(labels...))
		if answer == nil {
			continue // no DNS message at all
		}
		if err := m.Unpack(answer); err != nil || m.RCode == dnsmessage.RCodeSuccess || len(m.Answers) > 0 {
			t.Errorf("%q: %v %+v", labels, err, m)
		}
	}
	w.legible()
	good := wireQuestion("good", "test")
	with := func(change func(b []byte)) []byte { b := bytes.Clone(good); change(b); return b }
	for name, q := range map[string][]byte{
		"an answer":        with(func(b []byte) { b[2] |= 0x80 }),
		"a status":         with(func(b []byte) { b[2] |= 2 << 3 }),
		"two questions":    with(func(b []byte) { b[5] = 2 }),
		"no question":      with(func(b []byte) { b[5] = 0 }),
		"the class CHAOS":  with(func(b []byte) { b[len(b)-1] = 3 }),
		"a name in a loop": append([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12, 0, 1, 0, 1),
		"half a question":  good[:15],
		"a header alone":   good[:12],
		"nothing":          {0},
	} {
		var m dnsmessage.Message
		if answer := w.exchange(q); answer != nil && (m.Unpack(answer) != nil || m.RCode == dnsmessage.RCodeSuccess && name != "no question" || len(m.Answers) > 0) {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if a, code := w.ask("Good.TEST", dnsmessage.TypeA); len(a) != 1 || code != 0 {
		t.Errorf("after all that: %v %v", a, code)
	}
	if len(w.asked) > 0 {
		t.Errorf("somebody outside was asked for %q", w.asked)
	}
	for _, to := range []string{"8.8.8.8:53", "[2001:4860:4860::8888]:53"} { // another resolver
		c, err := w.open("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(good)
		if _, err := c.Read(make([]byte, 512)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if _, err := w.open("tcp", net.JoinHostPort(Gateway4.String(), "53")); err == nil {
		t.Error("DNS by TCP")
	}
}

// TestTunnelUnknown asks for thousands of names that are not allowed: none leaves, and what is told of it is bounded.
func TestTunnelUnknown(t *testing.T) {
	w := closedWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test"}})
	const count = 4000
	for i := range count {
		kind := []dnsmessage.Type{dnsmessage.TypeTXT, 10, dnsmessage.TypeA, dnsmessage.TypeCNAME}[i%4]
		if a, code := w.ask(fmt.Sprintf("%s.%d.evil.test", strings.Repeat("x", 60), i), kind); code == 0 || len(a) > 0 {
			t.Fatal(a, code)
		}
	}
	if e := w.want(VerdictRefused, strings.Repeat("x", 60)+".0.evil.test", "only addresses"); e.Remedy != "" {
		t.Errorf("an entry would not have helped: %+v", e)
	}
	w.g.Drain(1)
	told := len(w.event)
	if last := w.event[told-1]; told != maxRefusals+1 || last.Rule != RuleUnlisted || last.Count != count-maxRefusals || len(w.asked) > 0 {
		t.Errorf("%d told, the last %+v; asked outside: %v", told, last, w.asked)
	}
}

// TestRepeats: who does the same again and again has it told once more when the step ends, with how often. Neither that nor
// anything else hides what was reached.
func TestRepeats(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:7,8"}})
	w.host("good.test", "93.184.216.34", 7, echo(t)) // and nobody listens on 8
	_ = w.mustOpen("good.test", 7).Close()
	a, _ := w.ask("good.test", dnsmessage.TypeA)
	const count = 50
	for range count {
		w.ask("bad.test", dnsmessage.TypeA)
		if _, err := w.open("tcp", netip.AddrPortFrom(a[0], 8).String()); err == nil {
			t.Fatal("nobody listens")
		}
	}
	w.g.Drain(1)
	rows, times := map[string]int{}, map[string]int{}
	for _, e := range w.event {
		rows[e.Verdict]++
		times[e.Verdict] += max(e.Count, 1)
	}
	for verdict, want := range map[string][2]int{VerdictAllowed: {1, 1}, VerdictRefused: {2, count}, VerdictFailed: {2, count}} {
		if got := [2]int{rows[verdict], times[verdict]}; got != want {
			t.Errorf("%s: rows and times %v, want %v", verdict, got, want)
		}
	}
}

// TestIPv6Tricks: an address with another one in it is not looked through; it is refused.
func TestIPv6Tricks(t *testing.T) {
	w := closedWorld(t, Policy{Mode: ModeOpen})
	for _, a := range strings.Fields("::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 ::7f00:1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::a00:1 2002:7f00:1:: 2002:808:808::1 " +
		"2001:0:7f00:1::1 2001::1 fd00:ec2::254 fc00::1 fec0::1 fe80::1%tun0 100::1 2001:db8::1 3fff::1 5f00::1 ff02::1 ff0e::1 fd63:6169:7373::3 fd63:6169:7373:0:1::100 fd63:6169:7373::1") {
		c, err := w.open("tcp", net.JoinHostPort(a, "80"))
		if err == nil {
			t.Errorf("%s is reached", a)
			_ = c.Close()
		}
	}
	w.want(VerdictRefused, "[64:ff9b::7f00:1]:80", "not on the public internet")
	w.want(VerdictRefused, "[2002:7f00:1::]:80", "not on the public internet")
	w.want(VerdictRefused, "169.254.169.254:80", "not on the public internet")
	w.want(VerdictRefused, "[fd63:6169:7373::3]:80", "nobody has this address")
}

// TestIPv6 goes by AAAA.
func TestIPv6(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"six.test:7", "[2606:4700::1111]:7"}})
	w.host("six.test", "2606:4700::1111", 7, echo(t))
	a, _ := w.ask("six.test", dnsmessage.TypeAAAA)
	for _, to := range []netip.Addr{a[0], netip.MustParseAddr("2606:4700::1111")} {
		c, err := w.open("tcp", netip.AddrPortFrom(to, 7).String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "six"); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(c); err != nil || string(b) != "six" {
			t.Errorf("%s: %q %v", to, b, err)
		}
	}
	ping := func(to netip.Addr) (answered bool) {
		w.in(func() {
			s, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(s)
			_ = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000})
			if err := unix.Sendto(s, []byte{128, 0, 0, 0, 0, 1, 0, 1}, 0, &unix.SockaddrInet6{Addr: to.As16()}); err != nil {
				t.Error(err)
				return
			}
			b := make([]byte, 1500)
			for {
				n, _, err := unix.Recvfrom(s, b, 0)
				if err != nil || n > 0 && b[0] == 129 {
					answered = err == nil
					return
				}
			}
		})
		return answered
	}
	if !ping(Gateway6) || ping(netip.MustParseAddr("2606:4700::1111")) || ping(a[0]) {
		t.Error("ICMPv6 is answered for the gateway only")
	}
}

// raw sends IP packets from a socket of the namespace's root.
func (w *world) raw(packets func(send func(b []byte, to netip.Addr))) {
	w.in(func() {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			w.t.Error(err)
			return
		}
		defer unix.Close(s)
		packets(func(b []byte, to netip.Addr) {
			if err := unix.Sendto(s, b, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				w.t.Error(err)
			}
		})
	})
}

// packet is an IPv4 packet without its checksums, which the kernel and nobody else make.
func packet(protocol byte, to netip.Addr, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[8], b[9] = 0x45, 64, protocol
	copy(b[12:], Sandbox4.Addr().AsSlice())
	copy(b[16:], to.AsSlice())
	return append(b, payload...)
}

// syn is a TCP segment that opens a connection.
func syn(from, to uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12], b[13], b[14] = 5<<4, 2, 0xff
	return b
}

// TestRawSockets: whatever is put on the wire, only TCP to what is allowed gets anywhere.
func TestRawSockets(t *testing.T) {
	w := closedWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:7"}})
	outside := netip.MustParseAddr("93.184.216.34")
	w.raw(func(send func([]byte, netip.Addr)) {
		for protocol := range 256 {
			send(packet(byte(protocol), outside, make([]byte, 64)), outside)
		}
		for _, a := range []string{"93.184.216.34", "10.0.0.1", "169.254.169.254", "127.0.0.1", "198.18.0.1", "198.18.1.0", "198.18.200.1", "224.0.0.1", "255.255.255.255"} {
			to := netip.MustParseAddr(a)
			if to.IsLoopback() || a == "255.255.255.255" {
				continue // not by this device
			}
			send(packet(unix.IPPROTO_TCP, to, syn(4000, 7)), to)
			short := packet(unix.IPPROTO_TCP, to, syn(4001, 7)[:8])
			send(short, to)
			fragment := packet(unix.IPPROTO_TCP, to, syn(4002, 7))
			fragment[6] = 0x20 // more are said to come
			send(fragment, to)
			send(packet(unix.IPPROTO_UDP, to, []byte{1, 2, 1, 187, 0, 8, 0, 0}), to)
		}
	})
	w.want(VerdictRefused, "10.0.0.1:7", "")
	w.want(VerdictRefused, "198.18.1.0:7", "nobody has this address")
	if a, code := w.ask("good.test", dnsmessage.TypeA); len(a) != 1 {
		t.Errorf("after all that: %v", code)
	}
}

// TestSYNFlood: what is half open is bounded, and the gateway works again when it is over.
func TestSYNFlood(t *testing.T) {
	over := make(chan struct{})
	var dialled atomic.Int64
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"slow.test:7", "good.test:7"}}, func(o *Options) {
		dial := o.Outside.Dial
		o.Outside.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			if dialled.Add(1); a.Addr() == netip.MustParseAddr("93.184.216.35") {
				select {
				case <-over:
				case <-ctx.Done():
				}
				return nil, syscall.ECONNREFUSED
			}
			return dial(ctx, a)
		}
	})
	w.host("good.test", "93.184.216.34", 7, echo(t))
	w.host("slow.test", "93.184.216.35", 7, "")
	slow, _ := w.ask("slow.test", dnsmessage.TypeA)
	before := runtime.NumGoroutine()
	w.raw(func(send func([]byte, netip.Addr)) {
		for i := range 20000 {
			send(packet(unix.IPPROTO_TCP, slow[0], syn(uint16(1024+i), 7)), slow[0])
		}
	})
	if n, g := w.g.Usage().Connections, runtime.NumGoroutine()-before; n > maxSyns || g > 4*maxSyns || n == 0 {
		t.Errorf("%d half open, %d goroutines", n, g)
	}
	close(over)
	for w.exchange(wireQuestion("good", "test")) == nil { // the queue may be full of the flood still, as for every resolver
	}
	c := w.mustOpen("good.test", 7)
	if _, err := c.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// heap is what is in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestIdleConnections opens fifty thousand and says nothing: the limit holds, memory too, and silence ends them.
func TestIdleConnections(t *testing.T) {
	count := 50_000
	if testing.Short() {
		count = 5000
	}
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	w.host("a.test", "93.184.216.34", 7, echo(t))
	a, _ := w.ask("a.test", dnsmessage.TypeA)
	to := netip.AddrPortFrom(a[0], 7)
	before := heap()
	var open []int
	defer func() {
		for _, s := range open {
			_ = unix.Close(s)
		}
	}()
	refused := 0
	w.in(func() {
		for range count {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			switch err := unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: 7}); {
			case err == nil:
				open = append(open, s)
				continue
			case errors.Is(err, unix.ECONNREFUSED):
				refused++
			default:
				t.Error(err)
			}
			_ = unix.Close(s)
		}
	})
	if len(open) != DefaultConnections || len(open)+refused != count {
		t.Errorf("%d are open, %d were refused", len(open), refused)
	}
	if each := (heap() - before) / int64(len(open)); each > 64<<10 {
		t.Errorf("each idle connection holds %d bytes", each)
	}
	r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}, Limits: Limits{Idle: 50 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	w.g.SetRule(2, r)
	w.want(VerdictCut, "a.test", "silent")
	w.g.Drain(1)
	if n := w.g.Usage().Connections; n > 0 {
		t.Errorf("%d are left", n)
	}
}

// TestNeverReads: who does not read stops who writes, and neither's memory is ours.
func TestNeverReads(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}, Limits: Limits{Idle: time.Second}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var sent atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := c.Write(b)
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			}()
		}
	}()
	w.host("a.test", "93.184.216.34", 7, l.Addr().String())
	before := heap()
	c := w.mustOpen("a.test", 7)
	if err := c.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64<<10)
	wrote := 0
	for err == nil {
		var n int
		n, err = c.Write(b) // the server does not read either
		wrote += n
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("silence did not end it")
	}
	w.want(VerdictCut, "a.test", "silent")
	if n := sent.Load(); n > 64<<20 || wrote > 64<<20 {
		t.Errorf("%d bytes down and %d up went where nobody reads", n, wrote)
	}
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
}

// capture is a server that keeps what it gets, and answers as little as it can.
func capture(t *testing.T) (address string, got func() string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var mu sync.Mutex
	var all bytes.Buffer
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				mu.Lock()
				all.Write(b)
				mu.Unlock()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}()
		}
	}()
	return l.Addr().String(), func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

// TestHTTPTricks: none of these makes a server see evil.test, on the port of HTTP or on another one.
func TestHTTPTricks(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:80,3128"}})
	at, got := capture(t)
	for _, port := range []uint16{80, 3128} {
		w.host("good.test", "93.184.216.34", port, at)
	}
	const good, evil = "Host: good.test\r\n", "GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	for _, text := range []string{
		"GET http://evil.test/\r\n", "GET http://evil.test/ HTTP/0.9\r\n" + good + "\r\n", "GET http://evil.test/ HTTP/1.0\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\n" + good + "\r\n", "GET http://good.test@evil.test/ HTTP/1.1\r\n" + good + "\r\n",
		"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "connect evil.test:443 HTTP/1.1\r\n" + good + "\r\n", "CONNECT evil.test:443 HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test\r\n evil.test\r\n\r\n", "GET / HTTP/1.1\r\n" + good + "X: y\r\n Host: evil.test\r\nhost:evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : evil.test\r\n" + good + "\r\n", "GET / HTTP/1.1\r\nHost: good.test, evil.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: good.test\x00evil.test\r\n\r\n",
		"GET / HTTP/1.1\nHost: evil.test\n\n", "GET / HTTP/1.1\r" + evil, "GET\thttp://evil.test/\tHTTP/1.1\r\n" + good + "\r\n", " " + evil,
		"POST / HTTP/1.1\r\n" + good + "Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + evil, "POST / HTTP/1.1\r\n" + good + "Content-Length: +0\r\n\r\n" + evil,
		"POST / HTTP/1.1\r\n" + good + "Transfer-Encoding: xchunked\r\n\r\n" + evil, "POST / HTTP/1.1\r\n" + good + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + evil,
		"POST / HTTP/1.1\r\n" + good + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil, "POST / HTTP/1.0\r\n" + good + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil,
		"POST / HTTP/1.1\r\n" + good + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n" + evil, "POST / HTTP/1.1\r\n" + good + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + evil,
		"GET / HTTP/1.1\r\n" + good + "\r\n" + evil, "GET / HTTP/1.1\r\n" + good + "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + evil, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil.test",
		"GET / HTTP/1.1\r\nHost: good.test.\r\n\r\n" + evil, "GET / HTTP/1.1\r\nHost: good.test:443\r\n\r\n" + evil, "GET / HTTP/1.1\r\nHost: \r\n\r\n" + evil,
		"GET / HTTP/1.1\r\n" + good + "\x1b]0;mine\a\r\n\r\n", "M-SEARCH * HTTP/1.1\r\n" + good + "\r\n" + evil, "GET /" + strings.Repeat("a", 2<<20) + " HTTP/1.1\r\nHost: evil.test\r\n\r\n",
	} {
		for _, port := range []int{80, 3128} {
			c := w.mustOpen("good.test", port)
			_, _ = io.WriteString(c, text)
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.ReadAll(c)
			_ = c.Close()
			if seen := got(); strings.Contains(seen, "evil.test") {
				t.Fatalf("port %d, %.200q: the server sees %.300q", port, text, seen)
			}
		}
	}
	for _, text := range []string{"\x00" + evil, strings.Repeat("A", 70000) + " / HTTP/1.1\r\nHost: evil.test\r\n\r\n"} { // elsewhere no server takes it for HTTP
		c := w.mustOpen("good.test", 80)
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(c)
		if seen := got(); strings.Contains(seen, "evil.test") {
			t.Errorf("%.300q", seen)
		}
	}
	w.want(VerdictRefused, "good.test", "CONNECT asks for another destination")
	w.want(VerdictRefused, "good.test", "h2c")
	w.want(VerdictRefused, "good.test", "mine")
	w.legible()
}

// hello is the ClientHello that a client would send.
func hello(t *testing.T, c *tls.Config) []byte {
	rec := &sent{}
	_ = tls.Client(rec, c).Handshake()
	if rec.Len() < 50 {
		t.Fatalf("no hello: %d bytes", rec.Len())
	}
	return rec.Bytes()
}

// sent keeps what is written, and has nothing to read.
type sent struct {
	bytes.Buffer
	recorder
}

func (s *sent) Read([]byte) (int, error)    { return 0, io.EOF }
func (s *sent) Write(p []byte) (int, error) { return s.Buffer.Write(p) }

// records cuts a hello into TLS records of some bytes each.
func records(hello []byte, size int) (out []byte) {
	for body := hello[5:]; len(body) > 0; body = body[min(size, len(body)):] {
		part := body[:min(size, len(body))]
		out = append(append(out, hello[0], hello[1], hello[2], byte(len(part)>>8), byte(len(part))), part...)
	}
	return out
}

// encrypted is a configuration with ECH for a name behind public.
func encrypted(t *testing.T, name, public string) *tls.Config {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte{1, 0, 0x20, 0, 32}, key.PublicKey().Bytes()...)
	body = append(body, 0, 4, 0, 1, 0, 1, 32, byte(len(public)))
	body = append(append(body, public...), 0, 0)
	list := append([]byte{0xfe, 0x0d, byte(len(body) >> 8), byte(len(body))}, body...)
	list = append([]byte{byte(len(list) >> 8), byte(len(list))}, list...)
	return &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: list}
}

// TestHello reads hellos that come in pieces, and refuses those whose name is not to be seen.
func TestHello(t *testing.T) {
	good := hello(t, &tls.Config{ServerName: "good.test"})
	for _, size := range []int{1, 2, 7, 100, 16000} {
		cut := records(good, size)
		read, err := checkHello(bytes.NewReader(append(bytes.Clone(cut), "what follows"...)), "good.test")
		if err != nil || !bytes.HasPrefix(append(cut, "what follows"...), read) || len(read) < len(cut) {
			t.Errorf("records of %d bytes: %d of %d, %v", size, len(read), len(cut), err)
		}
		if _, err := checkHello(bytes.NewReader(cut), "other.test"); err == nil {
			t.Errorf("records of %d bytes: another name", size)
		}
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"ECH":             {hello(t, encrypted(t, "evil.test", "good.test")), "encrypted"},
		"no SNI":          {hello(t, &tls.Config{InsecureSkipVerify: true}), "no name"},
		"an address":      {hello(t, &tls.Config{ServerName: "93.184.216.34"}), "no name"},
		"another name":    {hello(t, &tls.Config{ServerName: "evil.test"}), "on a connection to"},
		"half a hello":    {good[:40], "no TLS"},
		"an alert":        {[]byte{21, 3, 1, 0, 2, 2, 40}, "no TLS"},
		"SSL 2":           {append([]byte{0x80, 0x2e, 1, 0, 2}, make([]byte, 60)...), "no TLS"},
		"records of none": {bytes.Repeat([]byte{22, 3, 1, 0, 0}, 20000), "no TLS"},
		"no end":          {append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, make([]byte, 100000)...), "no TLS"},
		"HTTP":            {[]byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"), "no TLS"},
	} {
		if _, err := checkHello(bytes.NewReader(c.text), "good.test"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := checkHello(bytes.NewReader(hello(t, &tls.Config{ServerName: "GOOD.test"})), "good.test"); err != nil {
		t.Errorf("capital letters: %v", err)
	}
}

// FuzzHello: whatever is read, a name that is accepted is the one wanted, and nothing that was read is lost.
func FuzzHello(f *testing.F) {
	rec := &sent{}
	_ = tls.Client(rec, &tls.Config{ServerName: "good.test"}).Handshake()
	f.Add(rec.Bytes())
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		read, err := checkHello(bytes.NewReader(b), "good.test")
		if !bytes.HasPrefix(b, read) {
			t.Fatal("what was read is not what was sent")
		}
		if err == nil && !bytes.Contains(bytes.ToLower(b), []byte("good")) {
			t.Fatalf("accepted: %q", b)
		}
	})
}

// FuzzQuestion: an answer is a message, and only A and AAAA have one.
func FuzzQuestion(f *testing.F) {
	f.Add(wireQuestion("good", "test"))
	f.Add(wireQuestion("a\x00", "test"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"good.test", "*.wild.test"}})
		if err != nil {
			t.Fatal(err)
		}
		g := &Gateway{names: newNames()}
		g.current.Store(&epoch{rule: r})
		answer := g.answer(b)
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response {
			t.Fatalf("%q: %v", answer, err)
		}
		for _, a := range m.Answers {
			if name := strings.ToLower(a.Header.Name.String()); name != "good.test." && !strings.HasSuffix(name, ".wild.test.") {
				t.Fatalf("an answer about %q", name)
			}
		}
	})
}

// FuzzRequests: what the checks let through is, for the parser of the standard library, for the one host.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"))
	f.Add([]byte("GET http://good.test/ HTTP/1.0\r\n\r\n"))
	f.Add([]byte("GET http://good.test:/ HTTP/1.0\r\n\r\n"))
	f.Add([]byte("\r\n M-SEARCH * HTTP/1.1\r\nHost: evil.test\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		q := newRequests(target{name: "good.test", port: 80}, bytes.NewReader(b), &out)
		q.asked, q.upgraded = func() {}, func() bool { return false }
		_ = q.forward()
		text := out.String()
		for r := bufio.NewReader(&out); ; {
			got, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, got.Body)
			host := strings.TrimSuffix(strings.TrimSuffix(got.Host, ":80"), ":") // a port may be empty (RFC 3986, 3.2.3)
			if host != "" && !strings.EqualFold(host, "good.test") {
				t.Fatalf("%q became %q, which is for %q", b, text, got.Host)
			}
		}
	})
}

// TestPortsAreUsedAgain: a server that closes first leaves nothing that refuses the next connection from the same port.
func TestPortsAreUsedAgain(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	w.host("a.test", "93.184.216.34", 7, l.Addr().String())
	a, _ := w.ask("a.test", dnsmessage.TypeA)
	w.in(func() {
		err = os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40009"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		began := time.Now()
		c, err := w.open("tcp", netip.AddrPortFrom(a[0], 7).String())
		if err != nil {
			t.Fatalf("connection %d: %v; %+v", i, err, w.want(VerdictFailed, "a.test", ""))
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatal(i, err)
		}
		_ = c.Close()
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("connection %d took %s", i, took)
		}
	}
}

// TestKilledGateway: without its process the sandbox has no network, not an open one.
func TestKilledGateway(t *testing.T) {
	jobs := make(chan func())
	defer close(jobs)
	w := &world{t: t, jobs: jobs}
	needRoot(t)
	ns := os.NewFile(uintptr(namespace(jobs)), "netns")
	defer ns.Close()
	c := exec.Command("/proc/self/exe", "gateway")
	c.Env = append(os.Environ(), clientEnv+"=1")
	c.ExtraFiles = []*os.File{ns}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if a, code := w.ask("any.test", dnsmessage.TypeA); len(a) != 1 {
		t.Fatal(code)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	for _, to := range []string{"93.184.216.34:80", "198.18.0.1:53", "[2606:4700::1111]:80"} {
		if _, err := w.open("tcp", to); !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// gateway holds a gateway until it is killed.
func gateway() error {
	tun, err := OpenTUN(3)
	if err != nil {
		return err
	}
	r, err := Parse(Policy{Mode: ModeOpen})
	if err != nil {
		return err
	}
	if _, err := Start(context.Background(), Options{TUN: tun, Rule: r}); err != nil {
		return err
	}
	fmt.Print("up")
	select {}
}

// TestRate: a connection that waits for the rate is not silent, and ends when it is cut, not when its turn comes.
func TestRate(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}, Limits: Limits{Rate: 1024, Idle: 200 * time.Millisecond}})
	at, got := capture(t)
	w.host("a.test", "93.184.216.34", 7, at)
	c := w.mustOpen("a.test", 7)
	text := "\x01" + strings.Repeat("x", 2047)
	began := time.Now()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
		t.Fatalf("%q %v", b, err)
	}
	if took := time.Since(began); took < 900*time.Millisecond || got() != text {
		t.Errorf("2 KiB at 1 KiB/s, with one saved up, took %s", took)
	}
	c = w.mustOpen("a.test", 7)
	if _, err := io.WriteString(c, strings.Repeat(text, 50)); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	w.g.SetRule(2, nil)
	w.g.Drain(1)
	if took := time.Since(began); took > 2*time.Second || w.g.Usage().Connections > 0 {
		t.Errorf("%d connections, %s after they were cut", w.g.Usage().Connections, took)
	}
}

// TestTLSFromNowOn: a connection without TLS does not live on under a rule that asks for it.
func TestTLSFromNowOn(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	w.host("a.test", "93.184.216.34", 7, echo(t))
	c := w.mustOpen("a.test", 7)
	if _, err := io.WriteString(c, "\x01"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"a.test:7/tls"}})
	if err != nil {
		t.Fatal(err)
	}
	w.g.SetRule(2, r)
	w.want(VerdictCut, "a.test", "TLS must be spoken")
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("it goes on")
	}
}
