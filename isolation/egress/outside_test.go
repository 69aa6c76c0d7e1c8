package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

// pretend gives the host these addresses, for one test.
func pretend(t *testing.T, err error, list ...string) {
	real := here
	t.Cleanup(func() { here = real })
	here = &surroundings{find: func() ([]net.Addr, error) {
		var out []net.Addr
		for _, text := range list {
			ip, n, perr := net.ParseCIDR(text)
			if perr != nil {
				t.Fatal(perr)
			}
			out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return out, err
	}}
}

// TestHostsOwnAddresses: a public address of the host's, or of its neighbours', is not the public internet.
func TestHostsOwnAddresses(t *testing.T) {
	pretend(t, nil, "127.0.0.1/8", "93.184.216.34/24", "2606:2800:220:1::5/64", "8.8.4.4/32")
	for _, p := range []Policy{{Mode: ModeOpen}, {Mode: ModeAllow, Allow: []string{"0.0.0.0/0", "::/0", "64.0.0.0/2", "2000::/3", "*.test"}}} {
		r, err := Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range strings.Fields("93.184.216.34:22 93.184.216.1:80 [2606:2800:220:1::5]:22 [2606:2800:220:1::99]:443 8.8.4.4:53 127.0.0.1:1 169.254.169.254:80 [::1]:1 [fe80::1]:1") {
			if v := r.Try(to); v.Allowed || v.Remedy != to || v.Reason == "" {
				t.Errorf("%s: %s: %+v", p.Mode, to, v)
			}
			if v := r.decideAddr(target{name: "a.test", port: 80}, netip.MustParseAddrPort(to).Addr()); v.Allowed || v.Reason == "" {
				t.Errorf("%s: a.test at %s: %+v", p.Mode, to, v)
			}
		}
		for _, to := range strings.Fields("93.184.217.34:22 8.8.8.8:53 [2606:2800:220:2::5]:22") {
			if v := r.Try(to); !v.Allowed {
				t.Errorf("%s: %s: %+v", p.Mode, to, v)
			}
		}
	}
	named, err := Parse(Policy{Mode: ModeOpen, Allow: []string{"93.184.216.34:8080", "2606:2800:220:1::/64"}})
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]bool{"93.184.216.34:8080": true, "93.184.216.34:22": false, "[2606:2800:220:1::5]:1": true} {
		if v := named.Try(to); v.Allowed != want {
			t.Errorf("%s: %+v", to, v)
		}
	}
	pretend(t, errors.New("netlink is closed"))
	if v := named.Try("8.8.8.8:53"); v.Allowed {
		t.Errorf("what cannot be told is allowed: %+v", v)
	}
}

// TestSurroundings asks the kernel for this host's.
func TestSurroundings(t *testing.T) {
	s := surroundings{find: net.InterfaceAddrs}
	if !s.holds(netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("%v %v", s.list, s.err)
	}
	if s.holds(netip.MustParseAddr("203.0.113.77")) {
		t.Errorf("a documentation address is near: %v %v", s.list, s.err)
	}
}

// answers is a resolver that knows some names.
type answers map[string][]netip.Addr

func (a answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if found, ok := a[strings.TrimSuffix(host, ".")]; ok {
		return slices.Clone(found), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// asking is a proxy that writes down what it is asked for, and answers itself.
func asking(t *testing.T) (address string, asked func() []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var mu sync.Mutex
	var list []string
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				mu.Lock()
				list = append(list, r.Method+" "+r.Host)
				mu.Unlock()
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n\r\nhello")
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// TestThroughProxy: a proxy is no way to where the rule would not let us dial.
func TestThroughProxy(t *testing.T) {
	at, asked := asking(t)
	public, inside := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.0.0.7")
	o := Outside{Proxy: &httpproxy.Config{HTTPSProxy: "http://" + at, HTTPProxy: "http://" + at, NoProxy: "direct.test"},
		Resolver: answers{"good.test": {public}, "in.test": {inside}, "both.test": {public, inside}, "nip.test": {netip.MustParseAddr("169.254.169.254")}, "direct.test": {inside}}}
	for _, c := range []struct {
		policy Policy
		name   string
		want   string // what the proxy is asked for; "" nothing
	}{
		{Policy{Mode: ModeOpen}, "good.test", "CONNECT 93.184.216.34:443"},
		{Policy{Mode: ModeOpen}, "in.test", ""},
		{Policy{Mode: ModeOpen}, "both.test", ""},
		{Policy{Mode: ModeOpen}, "nip.test", ""},
		{Policy{Mode: ModeOpen}, "unknown.test", ""},
		{Policy{Mode: ModeOpen}, "direct.test", ""},
		{Policy{Mode: ModeAllow, Allow: []string{"*.test"}}, "unknown.test", ""},
		{Policy{Mode: ModeAllow, Allow: []string{"*.test"}}, "good.test", "CONNECT 93.184.216.34:443"},
		{Policy{Mode: ModeAllow, Allow: []string{"unknown.test:443"}}, "unknown.test", "CONNECT unknown.test:443"},
		{Policy{Mode: ModeAllow, Allow: []string{"good.test:443"}}, "good.test", "CONNECT good.test:443"},
		{Policy{Mode: ModeAllow, Allow: []string{"in.test:443"}}, "in.test", ""},
		{Policy{Mode: ModeAllow, Allow: []string{"in.test:443", "10.0.0.7:443"}}, "in.test", "CONNECT in.test:443"},
	} {
		r, err := Parse(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		before := len(asked())
		conn, err := o.connect(t.Context(), r, target{name: c.name, port: 443}, false)
		got := strings.Join(asked()[before:], ", ")
		if got != c.want {
			t.Errorf("%+v: %s: the proxy was asked for %q, want %q (%v)", c.policy, c.name, got, c.want, err)
		}
		if _, refused := errors.AsType[*refusedError](err); c.want == "" && !refused {
			t.Errorf("%+v: %s: %v", c.policy, c.name, err)
		}
		if conn.Conn != nil {
			if b, err := io.ReadAll(conn); err != nil || string(b) != "hello" {
				t.Errorf("%q %v", b, err)
			}
			_ = conn.Close()
		}
	}
}
