package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http/httpproxy"
)

// TestProxyAsked: plain HTTP goes to a proxy request by request, which many want: with its destination, the credentials that
// the host has and not those that the sandbox says, and a Host that is checked as ever.
func TestProxyAsked(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.RequestURI+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"))
		if r.Method == http.MethodConnect {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "hello %s", body)
	}))
	defer p.Close()
	via := "http://u:p@" + p.Listener.Addr().String()
	public := netip.MustParseAddr("93.184.216.34")
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:80,8080", "*.wild.test", "93.184.216.34", "2606:4700::1111"}}, func(o *Options) {
		o.Outside = Outside{Proxy: &httpproxy.Config{HTTPSProxy: via, HTTPProxy: via}, Resolver: answers{"good.test": {public}, "a.wild.test": {public}}}
	})
	const auth = " Basic dTpw"
	for _, c := range []struct{ name, request, want, answer string }{
		{"good.test:80", "GET /x?y HTTP/1.1\r\nHost: good.test\r\nProxy-Authorization: Basic mine\r\n\r\n", "GET http://good.test/x?y good.test" + auth, "hello "},
		{"good.test:80", "GET http://GOOD.test/x HTTP/1.1\r\nHost: good.test\r\n\r\n", "GET http://good.test/x good.test" + auth, "hello "},
		{"good.test:80", "POST / HTTP/1.1\r\nHost: good.test:80\r\nContent-Length: 2\r\n\r\nhi", "POST http://good.test/ good.test" + auth, "hello hi"},
		{"good.test:80", "OPTIONS * HTTP/1.1\r\nHost: good.test\r\n\r\n", "OPTIONS http://good.test good.test" + auth, "hello "},
		{"good.test:80", "GET / HTTP/1.0\r\n\r\n", "GET http://good.test/ good.test" + auth, "hello "},
		{"93.184.216.34:80", "GET / HTTP/1.1\r\nHost: 93.184.216.34\r\n\r\n", "GET http://93.184.216.34/ 93.184.216.34" + auth, "hello "},
		{"[2606:4700::1111]:80", "GET / HTTP/1.1\r\nHost: [2606:4700::1111]\r\n\r\n", "GET http://[2606:4700::1111]/ [2606:4700::1111]" + auth, "hello "},
		{"good.test:80", "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "", ""},
		{"good.test:80", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "", ""},
		{"good.test:80", "CONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test:80\r\n\r\n", "", ""},
		{"good.test:80", "SSH-2.0-x\r\n", "", ""},
		// Whoever answers 101 through a proxy that goes on in HTTP would leave the rest to be requests of the proxy's.
		{"good.test:80", "GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "", ""},
		// What is asked for as an address has no name to ask for, and what is not HTTP for certain needs the connection.
		{"a.wild.test:80", "", "CONNECT 93.184.216.34:80 93.184.216.34:80" + auth, ""},
		{"good.test:8080", "", "CONNECT good.test:8080 good.test:8080" + auth, ""},
	} {
		host, port, _ := net.SplitHostPort(c.name)
		if _, err := netip.ParseAddr(host); err != nil {
			a, _ := w.ask(host, dnsmessage.TypeA)
			host = a[0].String()
		}
		conn, err := w.open("tcp", net.JoinHostPort(host, port))
		var answer string
		if err == nil {
			_, _ = io.WriteString(conn, c.request)
			_ = conn.(*net.TCPConn).CloseWrite()
			if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				b, _ := io.ReadAll(r.Body)
				answer = string(b)
			}
			_ = conn.Close()
		}
		mu.Lock()
		if got := strings.Join(asked, ", "); got != c.want || answer != c.answer {
			t.Errorf("%s, %q: the proxy was asked for %q, not %q; the answer is %q", c.name, c.request, got, c.want, answer)
		}
		asked = nil
		mu.Unlock()
	}
}
