package egress

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// mixed is bytes of a seed, written in pieces of all sizes.
func mixed(c io.Writer, seed uint64, total int, sum hash.Hash) error {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 300<<10)
	for total > 0 {
		part := b[:min(total, 1+r.IntN(1<<r.IntN(19)))]
		for i := range part {
			part[i] = byte(r.Uint32())
		}
		sum.Write(part)
		if _, err := c.Write(part); err != nil {
			return err
		}
		total -= len(part)
	}
	return nil
}

// taken reads everything, in pieces of all sizes.
func taken(c io.Reader, seed uint64, sum hash.Hash) error {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 300<<10)
	for {
		n, err := c.Read(b[:1+r.IntN(1<<r.IntN(19))])
		sum.Write(b[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// TestIntact: what goes both ways at once arrives whole, whatever the pieces it is written and read in, and is counted.
func TestIntact(t *testing.T) {
	const total = 8<<20 + 12345
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.host("a.test", "93.184.216.34", 7, l.Addr().String())
	both := func(c *net.TCPConn, seed uint64) (sent, got []byte) {
		wrote, read := sha256.New(), sha256.New()
		var writing sync.WaitGroup
		writing.Go(func() {
			if err := errors.Join(mixed(c, seed, total, wrote), c.CloseWrite()); err != nil {
				t.Error(err)
			}
		})
		if err := taken(c, seed, read); err != nil {
			t.Error(err)
		}
		writing.Wait()
		_ = c.Close()
		return wrote.Sum(nil), read.Sum(nil)
	}
	for seed := range uint64(3) {
		client := w.mustOpen("a.test", 7).(*net.TCPConn)
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var there sync.WaitGroup
		var sent, got []byte
		there.Go(func() { sent, got = both(server.(*net.TCPConn), 2*seed) })
		up, down := both(client, 2*seed+1)
		there.Wait()
		if !bytes.Equal(up, got) || !bytes.Equal(down, sent) {
			t.Fatalf("seed %d: what arrived is not what was sent", seed)
		}
	}
	w.g.Drain(1)
	if e := w.want(VerdictAllowed, "a.test", ""); e.Out != total || e.In != total {
		t.Errorf("%d out and %d in are told, not %d", e.Out, e.In, total)
	}
}

// TestReset: an end that breaks off breaks the other one off, at once, whoever it is and whoever waits.
func TestReset(t *testing.T) {
	w := newWorld(t, Policy{Mode: ModeAllow, Allow: []string{"a.test:7"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.host("a.test", "93.184.216.34", 7, l.Addr().String())
	for _, full := range []bool{false, true} {
		for _, ours := range []bool{false, true} {
			client := w.mustOpen("a.test", 7).(*net.TCPConn)
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			server := accepted.(*net.TCPConn)
			one, other := client, server
			if ours {
				one, other = server, client
			}
			if full { // the other end is full of what nobody reads
				_ = one.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				for err == nil {
					_, err = one.Write(make([]byte, 256<<10))
				}
			}
			began := time.Now()
			if err := errors.Join(one.SetLinger(0), one.Close()); err != nil {
				t.Fatal(err)
			}
			_ = other.SetDeadline(time.Now().Add(10 * time.Second))
			_, err = io.Copy(io.Discard, other)
			for err == nil || errors.Is(err, io.EOF) { // an end that was read to its end hears of it when it writes
				_, err = other.Write(make([]byte, 256<<10))
			}
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("full %v, the server's %v: %v after %s", full, ours, err, time.Since(began))
			}
			_ = other.Close()
		}
	}
	w.g.Drain(1)
	if n := w.g.Usage().Connections; n > 0 {
		t.Errorf("%d connections are left", n)
	}
}
