package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// dialTime is how long the way outside may take.
const dialTime = 15 * time.Second

// lookTime is how much of it the host's resolver may take: behind a proxy, many have none that answers.
const lookTime = 5 * time.Second

// Resolver is the part of net.Resolver that is used.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Outside is how the host reaches the world. The zero value resolves and dials directly.
type Outside struct {
	Resolver Resolver
	// Dial connects to an address that was decided about; nil: net.Dialer.
	Dial func(ctx context.Context, a netip.AddrPort) (net.Conn, error)
	// Proxy is the host's configuration; nil: none. What goes through a proxy is looked at as what is dialled: a name that
	// this host cannot resolve goes there only if an entry of the rule spells it.
	Proxy *httpproxy.Config
}

// HostProxy is the host's proxy configuration, from its environment: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.
func HostProxy(lookup func(string) string) *httpproxy.Config {
	get := func(name, lower string) string {
		if v := lookup(name); v != "" {
			return v
		}
		return lookup(lower)
	}
	all := get("ALL_PROXY", "all_proxy")
	c := &httpproxy.Config{HTTPProxy: get("HTTP_PROXY", "http_proxy"), HTTPSProxy: get("HTTPS_PROXY", "https_proxy"), NoProxy: get("NO_PROXY", "no_proxy")}
	if c.HTTPSProxy == "" {
		c.HTTPSProxy = all
	}
	if c.HTTPProxy == "" {
		c.HTTPProxy = all
	}
	if c.HTTPProxy == "" && c.HTTPSProxy == "" {
		return nil
	}
	return c
}

// refusedError is a destination that turned out to be none.
type refusedError struct{ v Verdict }

func (e *refusedError) Error() string { return e.v.Reason }

// outer is a connection outside.
type outer struct {
	net.Conn
	at    netip.AddrPort // who is at its other end; not valid: whoever a proxy found
	proxy *url.URL       // who is at its other end and wants every request with its destination; nil: nobody
}

// connect dials a destination that the rule allows. What a name resolves to is decided about, and exactly that is dialled.
// What is plain is HTTP/1 if it is for port 80.
func (o *Outside) connect(ctx context.Context, r *Rule, t target, plain bool) (outer, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if t.name == HostName {
		return o.first(ctx, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, t.port)
	}
	via, err := o.proxyFor(t)
	if err != nil {
		return outer{}, err
	}
	found, err := o.look(ctx, r, t)
	if via == nil {
		if err != nil {
			return outer{}, err
		}
		return o.first(ctx, found, t.port)
	}
	_, refused := errors.AsType[*refusedError](err)
	asks := plain && t.port == 80 && (via.Scheme == "http" || via.Scheme == "https") // many take no CONNECT to that port
	switch {
	case err != nil && !refused && !r.spells(t):
		return outer{}, &refusedError{Verdict{Rule: string(r.mode), Remedy: t.String(),
			Reason: fmt.Sprintf("what %s is, only the host's proxy knows: %v", t.name, err)}}
	case refused:
		return outer{}, err
	case asks && (t.name == "" || r.spells(t)):
		c, err := dialProxy(ctx, via)
		return outer{Conn: c, proxy: via}, err
	case r.spells(t): // proxies have rules for names, and may be the only ones to resolve this one
		c, err := throughProxy(ctx, via, t.String())
		return outer{Conn: c}, err
	}
	// The proxy is given what was looked at: it could find something else under the name.
	proxied := Outside{Dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		return throughProxy(ctx, via, a.String())
	}}
	return proxied.first(ctx, found, t.port)
}

// look is what a destination resolves to. One address that the rule does not allow is a name to distrust.
func (o *Outside) look(ctx context.Context, r *Rule, t target) ([]netip.Addr, error) {
	if t.name == "" {
		return []netip.Addr{t.addr}, nil
	}
	resolver := o.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	found, err := resolver.LookupNetIP(ctx, "ip", t.name+".")
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: "no address", Name: t.name, IsNotFound: true}
	}
	list := make([]netip.Addr, len(found)) // theirs may be somebody else's too
	for i, a := range found {
		list[i] = a.Unmap()
		if v := r.decideAddr(t, list[i]); !v.Allowed {
			return nil, &refusedError{v}
		}
	}
	return list, nil
}

// first dials the addresses in turn.
func (o *Outside) first(ctx context.Context, list []netip.Addr, port uint16) (outer, error) {
	dial := o.Dial
	if dial == nil {
		dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
		}
	}
	errs := []error{errors.New("nobody there")}
	for i, a := range list {
		ap := netip.AddrPortFrom(a, port)
		share := ctx
		if deadline, ok := ctx.Deadline(); ok && i < len(list)-1 {
			var cancel context.CancelFunc
			share, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(list)-i))
			defer cancel()
		}
		c, err := dial(share, ap)
		if err == nil {
			return outer{Conn: c, at: ap}, nil
		}
		errs = append(errs, err)
	}
	return outer{}, errs[len(errs)-1]
}

// proxyFor is the proxy for a destination, if there is one.
func (o *Outside) proxyFor(t target) (*url.URL, error) {
	if o.Proxy == nil {
		return nil, nil
	}
	scheme := "https"
	if t.port == 80 {
		scheme = "http"
	}
	return o.Proxy.ProxyFunc()(&url.URL{Scheme: scheme, Host: t.String()})
}

// throughProxy asks an HTTP or SOCKS proxy for a connection.
func throughProxy(ctx context.Context, via *url.URL, to string) (net.Conn, error) {
	switch via.Scheme {
	case "socks5", "socks5h":
		d, err := proxy.FromURL(via, proxy.Direct)
		if err != nil {
			return nil, err
		}
		if cd, ok := d.(proxy.ContextDialer); ok {
			return cd.DialContext(ctx, "tcp", to)
		}
		return d.Dial("tcp", to)
	case "http", "https":
		return throughHTTP(ctx, via, to)
	}
	return nil, fmt.Errorf("the host's proxy is of an unknown kind: %s", via.Scheme)
}

// dialProxy connects to an HTTP proxy.
func dialProxy(ctx context.Context, via *url.URL) (net.Conn, error) {
	address := via.Host
	if via.Port() == "" {
		address = net.JoinHostPort(via.Hostname(), map[string]string{"http": "80", "https": "443"}[via.Scheme])
	}
	if via.Scheme == "https" {
		return (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// credentials are what a proxy wants to hear; "" nothing.
func credentials(via *url.URL) string {
	if via.User == nil {
		return ""
	}
	password, _ := via.User.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(via.User.Username()+":"+password))
}

func throughHTTP(ctx context.Context, via *url.URL, to string) (net.Conn, error) {
	c, err := dialProxy(ctx, via)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if value := credentials(via); value != "" {
		r.Header.Set("Proxy-Authorization", value)
	}
	br := bufio.NewReader(c)
	if err = r.Write(c); err == nil {
		var answer *http.Response
		if answer, err = http.ReadResponse(br, r); err == nil {
			_ = answer.Body.Close() // of a successful CONNECT there is none
			if answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("the host's proxy says %s", answer.Status)
			}
		}
	}
	switch {
	case err != nil:
		return nil, errors.Join(err, c.Close())
	case br.Buffered() == 0:
		return c, nil
	}
	return &buffered{Conn: c, r: br}, nil
}

// buffered is a connection of which something was read already: the other end may speak first.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (c *buffered) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *buffered) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite ends one direction, where the connection can.
func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}
