package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// world is a network namespace with a gateway, and an outside of the test's own: names resolve to public addresses, and
// each address and port leads to a server on loopback.
type world struct {
	t     testing.TB
	g     *Gateway
	jobs  chan func()
	mu    sync.Mutex
	event []Event
	told  *sync.Cond
	hosts map[string][]netip.Addr
	lands map[netip.AddrPort]string
	asked []string
}

func newWorld(t testing.TB, p Policy, change ...func(*Options)) *world {
	t.Helper()
	needRoot(t)
	r, err := Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, jobs: make(chan func()), hosts: map[string][]netip.Addr{}, lands: map[netip.AddrPort]string{}}
	w.told = sync.NewCond(&w.mu)
	fd := namespace(w.jobs)
	tun, err := OpenTUN(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	o := Options{TUN: tun, Rule: r, Step: 1, Events: w.tell, Outside: Outside{Resolver: w, Dial: w.dial}}
	for _, c := range change {
		c(&o)
	}
	if w.g, err = Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.g.Close(); err != nil {
			t.Error(err)
		}
		close(w.jobs)
	})
	return w
}

// needRoot: namespaces and devices are made.
func needRoot(t testing.TB) {
	t.Helper()
	var why error
	if os.Geteuid() != 0 {
		why = errors.New("not root")
	} else if _, err := os.Stat("/dev/net/tun"); err != nil {
		why = err
	}
	testenv.Need(t, "root", why)
}

// namespace makes a network namespace with a thread in it that does jobs, and returns the namespace.
func namespace(jobs <-chan func()) int {
	ns := make(chan int)
	go func() {
		runtime.LockOSThread() // ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		ns <- fd
		for job := range jobs {
			job()
		}
	}()
	return <-ns
}

func (w *world) tell(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.event = append(w.event, e)
	w.told.Broadcast()
}

// want waits for an event with this verdict, for this name or address, whose reason or rule holds text.
func (w *world) want(verdict, name, text string) Event {
	w.t.Helper()
	late := time.AfterFunc(20*time.Second, func() { w.told.Broadcast() })
	defer late.Stop()
	deadline := time.Now().Add(20 * time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for _, e := range w.event {
			if e.Verdict == verdict && (e.Name == name || e.Addr.String() == name) && strings.Contains(e.Rule+" "+e.Reason, text) {
				return e
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("no event %s of %s with %q in %+v", verdict, name, text, w.event[max(0, len(w.event)-50):])
		}
		w.told.Wait()
	}
}

func (w *world) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	w.asked = append(w.asked, host)
	if a, ok := w.hosts[host]; ok {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (w *world) dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	to, ok := w.lands[a]
	w.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("dial %s: %w", a, syscall.ECONNREFUSED)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", to)
}

// host makes a name resolve to an address whose port leads to a server.
func (w *world) host(name, addr string, port uint16, server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := netip.MustParseAddr(addr)
	w.hosts[name] = []netip.Addr{a}
	w.lands[netip.AddrPortFrom(a, port)] = server
}

// in runs f on the thread inside. Sockets are made there; what is done with them may be done anywhere.
func (w *world) in(f func()) {
	done := make(chan struct{})
	w.jobs <- func() { defer close(done); f() }
	<-done
}

// open connects from inside. The namespace is the thread's, and a dialler with one address does not leave it.
func (w *world) open(network, address string) (c net.Conn, err error) {
	w.in(func() { c, err = (&net.Dialer{Timeout: 10 * time.Second}).Dial(network, address) })
	if err == nil {
		w.t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

func (w *world) mustOpen(name string, port int) net.Conn {
	w.t.Helper()
	a, code := w.ask(name, dnsmessage.TypeA)
	if len(a) != 1 {
		w.t.Fatalf("%s does not resolve: %v", name, code)
	}
	c, err := w.open("tcp", net.JoinHostPort(a[0].String(), fmt.Sprint(port)))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// ask sends a question to the gateway.
func (w *world) ask(name string, kind dnsmessage.Type) ([]netip.Addr, dnsmessage.RCode) {
	w.t.Helper()
	q, err := dnsmessage.NewName(name + ".")
	if err != nil {
		w.t.Fatal(err)
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: q, Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.open("udp", net.JoinHostPort(Gateway4.String(), "53"))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		w.t.Fatal(err)
	}
	answer := make([]byte, 4096)
	n, err := c.Read(answer)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := m.Unpack(answer[:n]); err != nil || m.ID != 7 || !m.Response {
		w.t.Fatal(err, m)
	}
	var out []netip.Addr
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(b.A))
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(b.AAAA))
		}
	}
	return out, m.RCode
}

// echo is a server that sends back what it gets, and ends when the client does.
func echo(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.(*net.TCPConn).CloseWrite()
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestNames(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:7", "*.wild.test"}})
	a, code := w.ask("good.test", dnsmessage.TypeA)
	if code != 0 || len(a) != 1 || !Sandbox4.Masked().Contains(a[0]) {
		t.Fatal(a, code)
	}
	again, _ := w.ask("GOOD.test", dnsmessage.TypeA)
	if !slices.Equal(a, again) {
		t.Errorf("%v, then %v", a, again)
	}
	six, _ := w.ask("good.test", dnsmessage.TypeAAAA)
	if len(six) != 1 || !Sandbox6.Masked().Contains(six[0]) {
		t.Error(six)
	}
	for name, want := range map[string]dnsmessage.RCode{"bad.test": dnsmessage.RCodeNameError, "good.test.evil.test": dnsmessage.RCodeNameError,
		"wild.test": dnsmessage.RCodeNameError, "a.wild.test": 0, "a%b.wild.test": dnsmessage.RCodeNameError, HostName: dnsmessage.RCodeNameError} {
		if _, code := w.ask(name, dnsmessage.TypeA); code != want {
			t.Errorf("%s: %v, want %v", name, code, want)
		}
	}
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeALL, dnsmessage.TypeCNAME, dnsmessage.TypeSRV, 10, 65} {
		if a, code := w.ask("good.test", kind); code != dnsmessage.RCodeRefused || len(a) > 0 {
			t.Errorf("type %v: %v %v", kind, a, code)
		}
	}
	w.want(VerdictRefused, "bad.test", "no entry")
	if len(w.asked) > 0 {
		t.Errorf("somebody outside was asked for %v", w.asked)
	}
}

// TestTunnel asks for thousands of names below one that is allowed.
func TestTunnel(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"*.wild.test"}})
	refused := 0
	for i := range 2000 {
		if _, code := w.ask(fmt.Sprintf("%s%d.wild.test", strings.Repeat("data", 10), i), dnsmessage.TypeA); code == dnsmessage.RCodeRefused {
			refused++
		}
	}
	if refused < 1000 {
		t.Errorf("of 2000 different names %d were refused", refused)
	}
	if len(w.asked) > 0 {
		t.Errorf("somebody outside was asked for %d names", len(w.asked))
	}
}

func TestPlain(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:7", "192.0.2.9:7"}})
	server := echo(t)
	w.host("good.test", "93.184.216.34", 7, server)
	w.host("", "192.0.2.9", 7, server)
	for _, c := range []net.Conn{w.mustOpen("good.test", 7), func() net.Conn {
		c, err := w.open("tcp", "192.0.2.9:7")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}()} {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			_, _ = c.Write(data)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes came back, %v", len(got), err)
		}
	}
	e := w.want(VerdictAllowed, "good.test", "good.test:7")
	if e.Out != 1<<20 || e.In != 1<<20 || e.Dialled.String() != "93.184.216.34:7" || e.Step != 1 || e.Port != 7 {
		t.Errorf("%+v", e)
	}
	for _, to := range []string{"192.0.2.9:8", "8.8.8.8:53", "169.254.169.254:80", "198.18.200.1:80", "198.18.0.1:7", "[2606:4700::1]:7"} {
		if c, err := w.open("tcp", to); err == nil {
			t.Errorf("%s is reached: %v", to, c.RemoteAddr())
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", to, err)
		}
	}
	w.want(VerdictRefused, "8.8.8.8:53", "no entry")
	w.want(VerdictRefused, "169.254.169.254:80", "public internet")
	a, _ := w.ask("good.test", dnsmessage.TypeAAAA)
	if _, err := w.open("tcp", netip.AddrPortFrom(a[0], 8).String()); err == nil {
		t.Error("another port of the name is reached")
	}
}

func TestRebinding(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeOpen})
	server := echo(t)
	for name, addr := range map[string]string{"a.test": "127.0.0.1", "b.test": "169.254.169.254", "c.test": "10.0.0.1", "d.test": "::1", "e.test": "fd00:ec2::254", "f.test": "::ffff:127.0.0.1"} {
		w.host(name, addr, 7, server)
		a, _ := w.ask(name, dnsmessage.TypeA)
		if _, err := w.open("tcp", netip.AddrPortFrom(a[0], 7).String()); err == nil {
			t.Errorf("%s, which is %s, is reached", name, addr)
		}
		w.want(VerdictRefused, name, "resolves to")
	}
	w.host("turning.test", "93.184.216.34", 7, server)
	_ = w.mustOpen("turning.test", 7)
	w.host("turning.test", "127.0.0.1", 7, server)
	a, _ := w.ask("turning.test", dnsmessage.TypeA)
	if _, err := w.open("tcp", netip.AddrPortFrom(a[0], 7).String()); err == nil {
		t.Error("a name that has changed its answer is reached")
	}
}

func TestUDPAndICMP(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeOpen})
	c, err := w.open("udp", "8.8.8.8:443")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("quic"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("QUIC: %v", err)
	}
	w.want(VerdictRefused, "8.8.8.8:443", "only TCP")
	ping := func(to netip.Addr) bool {
		var answered bool
		w.in(func() {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(s)
			_ = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000})
			echo := []byte{8, 0, 0, 0, 0, 1, 0, 1}
			sum := ^uint16(0x0800 + 1 + 1)
			echo[2], echo[3] = byte(sum>>8), byte(sum)
			if err := unix.Sendto(s, echo, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				t.Error(err)
				return
			}
			b := make([]byte, 128)
			n, _, err := unix.Recvfrom(s, b, 0)
			answered = err == nil && n >= 28 && b[20] == 0
		})
		return answered
	}
	if !ping(Gateway4) {
		t.Error("the gateway does not answer")
	}
	for _, a := range []string{"8.8.8.8", "198.18.7.7", "169.254.169.254"} {
		if ping(netip.MustParseAddr(a)) {
			t.Errorf("%s answers", a)
		}
	}
}

func TestTLS(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:443,8443/tls", "other.test:443"}})
	s := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintf(rw, "hello from %s", r.Host) }))
	t.Cleanup(s.Close)
	for _, port := range []uint16{443, 8443} {
		w.host("good.test", "93.184.216.34", port, s.Listener.Addr().String())
	}
	get := func(port int, sni string, wrap func(net.Conn) net.Conn) (string, error) {
		c := w.mustOpen("good.test", port)
		if wrap != nil {
			c = wrap(c)
		}
		tc := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if err := tc.Handshake(); err != nil {
			return "", err
		}
		fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(tc), nil)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(r.Body)
		return string(b), err
	}
	for _, port := range []int{443, 8443} {
		if text, err := get(port, "good.test", nil); err != nil || text != "hello from good.test" {
			t.Errorf("port %d: %q %v", port, text, err)
		}
		if text, err := get(port, "good.test", func(c net.Conn) net.Conn { return &trickle{Conn: c} }); err != nil || text != "hello from good.test" {
			t.Errorf("a hello in pieces: %q %v", text, err)
		}
		for _, sni := range []string{"other.test", "evil.test", "", "good.test.evil.test"} {
			if text, err := get(port, sni, nil); err == nil {
				t.Errorf("SNI %q: %q", sni, text)
			}
		}
	}
	w.want(VerdictRefused, "good.test", `SNI "other.test"`)
	w.want(VerdictRefused, "good.test", "no name (SNI)")
	c := w.mustOpen("good.test", 443)
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
	if _, err := io.ReadAll(c); err == nil {
		w.want(VerdictRefused, "good.test", "no TLS")
	}
}

// trickle writes byte by byte.
type trickle struct{ net.Conn }

func (c *trickle) Write(p []byte) (int, error) {
	for i := range p {
		if n, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i + n, err
		}
	}
	return len(p), nil
}

func TestHTTP(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:80,8080", "host:8081"}}, func(o *Options) {
		o.Headers = []Header{{Host: "good.test", Name: "Authorization", Value: func() (string, error) { return "Bearer real", nil }}}
	})
	var mu sync.Mutex
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen = append(seen, r.Host)
		mu.Unlock()
		if r.Header.Get("Upgrade") == "websocket" {
			c, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
			line, _ := buf.ReadString('\n')
			fmt.Fprintf(c, "raw %s", line)
			return
		}
		fmt.Fprintf(rw, "%s %s %s auth=%s body=%s", r.Method, r.RequestURI, r.Host, r.Header.Get("Authorization"), b)
	}))
	t.Cleanup(s.Close)
	for _, port := range []uint16{80, 8080} {
		w.host("good.test", "93.184.216.34", port, s.Listener.Addr().String())
	}
	talk := func(port int, text string) string {
		c := w.mustOpen("good.test", port)
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		b, _ := io.ReadAll(c)
		return string(b)
	}
	const host = "Host: good.test\r\n"
	for text, want := range map[string]string{
		"GET /a?b HTTP/1.1\r\n" + host + "Authorization: placeholder\r\n\r\n":                                                             "GET /a?b good.test auth=Bearer real body=",
		"\r\nGET /a%2fb HTTP/1.1\r\n" + host + "\r\n":                                                                                     "GET /a%2fb good.test",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabcGET /second HTTP/1.1\r\n" + host + "\r\n":                             "GET /second good.test",
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":                                          "auth=Bearer real body=abc",
		"GET http://good.test/abs HTTP/1.1\r\n" + host + "\r\n":                                                                           "GET /abs good.test",
		"GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n": "raw GET / HTTP/1.1",
	} {
		if got := talk(80, text); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	mu.Lock()
	seen = nil
	mu.Unlock()
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"\r\n GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test.evil.test\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\n" + host + "\r\n",
		"GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test:81\r\n\r\n",
		"CONNECT evil.test:443 HTTP/1.1\r\n" + host + "\r\n",
		"GET / HTTP/1.1\r\n" + host + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"TRACE / HTTP/1.1\r\n" + host + "\r\n",
		"M-SEARCH / HTTP/1.1\r\nHost: evil.test\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + " folded: x\r\nHo st: evil.test\r\n\r\n",
	} {
		for _, port := range []int{80, 8080} {
			if got := talk(port, text); strings.Contains(got, "200 OK") {
				t.Errorf("port %d, %q: %q", port, text, got)
			}
		}
	}
	talk(80, "GET / HTTP/1.1\r\n"+host+"\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
	mu.Lock()
	defer mu.Unlock()
	for _, h := range seen {
		if h != "good.test" {
			t.Errorf("the server was asked for %q", h)
		}
	}
	w.want(VerdictRefused, "good.test", "Host \"evil.test\"")
	w.want(VerdictRefused, "good.test", "CONNECT")
	w.want(VerdictRefused, "good.test", "h2c")
	if got := talk(80, "hello, no HTTP\r\n"); got != "" {
		t.Errorf("port 80 takes %q", got)
	}
}

// TestServerSpeaksFirst: SSH and mail servers greet before the client says anything.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"ssh.test:22"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "SSH-2.0-test\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		fmt.Fprintf(c, "got %s", line)
	}()
	w.host("ssh.test", "93.184.216.34", 22, l.Addr().String())
	c := w.mustOpen("ssh.test", 22)
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || line != "SSH-2.0-test\r\n" {
		t.Fatal(line, err)
	}
	fmt.Fprintf(c, "SSH-2.0-client\r\n")
	if line, err := r.ReadString('\n'); err != nil || line != "got SSH-2.0-client\r\n" {
		t.Fatal(line, err)
	}
}

func TestSetRule(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7", "b.test:7"}})
	server := echo(t)
	w.host("a.test", "93.184.216.34", 7, server)
	w.host("b.test", "93.184.216.35", 7, server)
	a, b := w.mustOpen("a.test", 7), w.mustOpen("b.test", 7)
	one := make([]byte, 1)
	for _, c := range []net.Conn{a, b} {
		if _, err := c.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"b.test:7"}})
	if err != nil {
		t.Fatal(err)
	}
	w.g.SetRule(2, r)
	if _, err := a.Read(one); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that lost its permission: %v", err)
	}
	if e := w.want(VerdictCut, "a.test", "no entry"); e.Remedy != "a.test:7" || e.Step != 1 {
		t.Errorf("%+v", e)
	}
	if _, err := b.Write(one); err != nil {
		t.Error(err)
	}
	if _, err := b.Read(one); err != nil {
		t.Error(err)
	}
	w.g.SetRule(3, nil)
	if _, err := b.Read(one); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection in a step without network: %v", err)
	}
	if _, code := w.ask("b.test", dnsmessage.TypeA); code != dnsmessage.RCodeNameError {
		t.Error(code)
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}, Limits: Limits{Bytes: 1 << 20, Connections: 3, Idle: 300 * time.Millisecond}})
	w.host("a.test", "93.184.216.34", 7, echo(t))
	var open []net.Conn
	for range 3 {
		open = append(open, w.mustOpen("a.test", 7))
	}
	a, _ := w.ask("a.test", dnsmessage.TypeA)
	if _, err := w.open("tcp", netip.AddrPortFrom(a[0], 7).String()); err == nil {
		t.Error("a fourth connection")
	}
	w.want(VerdictRefused, "a.test", "connections at once")
	if _, err := open[0].Read(make([]byte, 1)); err == nil {
		t.Error("a silent connection gets something")
	}
	w.want(VerdictCut, "a.test", "silent")
	for _, c := range open {
		_, _ = c.Read(make([]byte, 1)) // all are cut
	}
	c := w.mustOpen("a.test", 7)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	b := make([]byte, 64<<10)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = c.Write(b)
	}
	if err == nil {
		t.Error("a hundred times 64 KiB pass a limit of 1 MiB")
	}
	w.want(VerdictCut, "a.test", "bytes")
	if u := w.g.Usage(); u.Out+u.In > 2<<20 || u.Out == 0 {
		t.Errorf("%+v", u)
	}
}

func TestPublish(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeNone})
	at, stop, err := w.g.Publish(Publish{Host: netip.MustParseAddrPort("127.0.0.1:0"), Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	w.in(func() { l, err = net.Listen("tcp4", "0.0.0.0:8000") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "in and out"); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "in and out" {
		t.Errorf("%q %v", b, err)
	}
	if _, _, err := w.g.Publish(Publish{Host: at, Port: 8001}); err == nil {
		t.Error("a port that is taken is published")
	}
	all, stopAll, err := w.g.Publish(Publish{Host: netip.MustParseAddrPort("0.0.0.0:0"), Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	defer stopAll()
	if c, err := net.Dial("tcp", netip.AddrPortFrom(netip.IPv6Loopback(), all.Port()).String()); err == nil {
		_ = c.Close()
		t.Errorf("%s is there for IPv6, too", all)
	}
	stop()
	if c, err := net.Dial("tcp", at.String()); err == nil {
		_ = c.Close()
		t.Error("the port is there after its end")
	}
}

// TestNotStarted: a gateway that could not be started leaves no device in the way of the next.
func TestNotStarted(t *testing.T) {
	needRoot(t)
	jobs := make(chan func())
	t.Cleanup(func() { close(jobs) })
	ns := namespace(jobs)
	defer unix.Close(ns)
	for range 2 {
		tun, err := OpenTUN(ns)
		if err != nil {
			t.Fatal(err)
		}
		g := &Gateway{opt: Options{TUN: tun}}
		g.ctx, g.cancel = context.WithCancel(t.Context())
		if err := errors.Join(g.makeStack(), g.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDrain ends a step with a connection that its command left open: its event is there when Drain returns.
func TestDrain(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.example:80"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w.host("a.example", "93.184.216.34", 80, l.Addr().String())
	defer w.mustOpen("a.example", 80).Close()
	w.g.Drain(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.event); n != 1 || w.event[0].Verdict != VerdictCut || w.event[0].Step != 1 {
		t.Errorf("the step's events: %+v", w.event)
	}
	w.g.Drain(1) // nothing is left to wait for
}

func TestHostLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{fmt.Sprintf("host:%d", port)}}, func(o *Options) { o.Outside.Dial = nil })
	c := w.mustOpen(HostName, port)
	if _, err := io.WriteString(c, "x\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a, _ := w.ask(HostName, dnsmessage.TypeA)
	if _, err := w.open("tcp", netip.AddrPortFrom(a[0], uint16(port)+1).String()); err == nil {
		t.Error("another port of the host is reached")
	}
}

// TestMemory: a gateway that waits takes little, and what has been leaves nothing.
func TestMemory(t *testing.T) {
	const count = 10
	before := heap()
	var last *world
	for range count {
		last = newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	}
	each := (heap() - before) / count
	if each > 1<<20 {
		t.Errorf("a gateway takes %d bytes", each)
	}
	last.host("a.test", "93.184.216.34", 7, echo(t))
	a, _ := last.ask("a.test", dnsmessage.TypeA)
	to := netip.AddrPortFrom(a[0], 7).String()
	connect := func(n int) {
		for i := range n {
			var c net.Conn
			var err error
			last.in(func() { c, err = net.Dial("tcp", to) }) // open would keep it for the test's end
			if err != nil {
				t.Fatal(i, err)
			}
			if i%2 == 0 { // the other half is a FIN
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			_ = c.Close()
		}
		last.g.Drain(1)
		last.mu.Lock()
		last.event, last.asked = nil, nil
		last.mu.Unlock()
	}
	n := 10_000
	if testing.Short() {
		n = 500
	}
	connect(200)
	goroutines, warm := runtime.NumGoroutine(), heap()
	connect(n)
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines+20; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
	grown := heap() - warm
	if grown > 512<<10 {
		t.Errorf("%d connections left %d bytes", n, grown)
	}
	t.Logf("idle: %d bytes each; after %d connections: %d more", each, n, grown)
}
