package egress

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// fickle is a client's connection that asks for another name in its second hello.
type fickle struct {
	net.Conn
	hellos int
}

func (c *fickle) Write(p []byte) (int, error) {
	if p[0] == recordHandshake && p[recordHead] == 1 {
		c.hellos++
	}
	if c.hellos == 2 {
		p = bytes.ReplaceAll(p, []byte("good.test"), []byte("evil.test"))
	}
	return c.Conn.Write(p)
}

// seeing is a listener that keeps what clients send.
type seeing struct {
	net.Listener
	mu  sync.Mutex
	all bytes.Buffer
}

type seen struct {
	net.Conn
	by *seeing
}

func (l *seeing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &seen{c, l}, err
}

func (c *seen) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.by.mu.Lock()
	defer c.by.mu.Unlock()
	c.by.all.Write(p[:n])
	return n, err
}

func (l *seeing) saw(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.all.Bytes(), []byte(text))
}

// TestSecondHello: a server that asks for a second hello gets one for the same name, or none.
func TestSecondHello(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:443"}})
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}} // of which clients send no share at first
	eye := &seeing{Listener: s.Listener}
	s.Listener = eye
	s.StartTLS()
	t.Cleanup(s.Close)
	w.host("good.test", "93.184.216.34", 443, s.Listener.Addr().String())
	c := &tls.Config{ServerName: "good.test", InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}
	honest := tls.Client(w.mustOpen("good.test", 443), c)
	if err := honest.Handshake(); err != nil || !honest.ConnectionState().HelloRetryRequest {
		t.Fatalf("%v; a second hello: %v", err, honest.ConnectionState().HelloRetryRequest)
	}
	f := &fickle{Conn: w.mustOpen("good.test", 443)}
	if err := tls.Client(f, c).Handshake(); err == nil || f.hellos != 2 {
		t.Errorf("%d hellos: %v", f.hellos, err)
	}
	w.want(VerdictRefused, "good.test", `the second hello: SNI "evil.test" on a connection to good.test`)
	if eye.saw("evil.test") {
		t.Error("the server sees the other name")
	}
}

// retrying is a server that asks for a second hello and does nothing else.
func retrying(t *testing.T) (address string, got func() string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	random := sha256.Sum256([]byte("HelloRetryRequest"))
	message := append([]byte{2, 0, 0, 40, 3, 3}, random[:]...)
	message = append(message, 0, 0x13, 0x01, 0, 0, 0)
	eye := &seeing{Listener: l}
	go func() {
		for {
			c, err := eye.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for _, b := range message { // in records of one byte
					_, _ = c.Write([]byte{recordHandshake, 3, 3, 0, 1, b})
				}
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	return l.Addr().String(), func() string {
		eye.mu.Lock()
		defer eye.mu.Unlock()
		return eye.all.String()
	}
}

// A server that says nothing without end is cut off.
func TestEmptyRecords(t *testing.T) {
	again, read, err := asksAgain(strings.NewReader(strings.Repeat("\x16\x03\x03\x00\x00", 1000)))
	if again || err == nil || len(read) > 2*recordHead {
		t.Errorf("%v, %d bytes, %v", again, len(read), err)
	}
}

// TestHellosAtOnce: a second hello that does not wait for the question, behind whatever a server passes over.
func TestHellosAtOnce(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"good.test:443"}})
	at, got := retrying(t)
	w.host("good.test", "93.184.216.34", 443, at)
	good, evil := hello(t, &tls.Config{ServerName: "good.test"}), hello(t, &tls.Config{ServerName: "evil.test"})
	change := []byte{recordChange, 3, 3, 0, 1, 1}
	data := []byte{recordData, 3, 3, 0, 3, 'a', 'b', 'c'}
	both := append(bytes.Clone(good), evil[recordHead:]...)
	both[3], both[4] = byte((len(both)-recordHead)>>8), byte(len(both)-recordHead)
	for name, what := range map[string]struct {
		text []byte
		ends bool
	}{
		"at once":            {bytes.Join([][]byte{good, evil}, nil), true},
		"behind a change":    {bytes.Join([][]byte{good, change, change, evil}, nil), true},
		"behind early data":  {bytes.Join([][]byte{good, change, data, data, evil}, nil), true},
		"in small records":   {bytes.Join([][]byte{good, change, records(evil, 1)}, nil), true},
		"in the same record": {both, true},
		"in SSL 2":           {bytes.Join([][]byte{good, {0x80, 0x2e, 1, 0, 2}, evil}, nil), true},
		"for the same name":  {bytes.Join([][]byte{good, change, data, records(good, 7), []byte("the rest")}, nil), false},
	} {
		c := w.mustOpen("good.test", 443)
		_, _ = c.Write(what.text)
		_ = c.(*net.TCPConn).CloseWrite()
		_, err := io.ReadAll(c)
		if (err != nil) != what.ends {
			t.Errorf("%s: %v", name, err)
		}
		if seen := got(); strings.Contains(seen, "evil.test") {
			t.Fatalf("%s: the server sees the other name", name)
		}
	}
	w.g.Drain(1)
	if !strings.Contains(got(), "the rest") {
		t.Error("what follows an honest second hello does not arrive")
	}
	w.want(VerdictRefused, "good.test", "the second hello")
	w.want(VerdictRefused, "good.test", "more than a TLS hello in its record")
}
