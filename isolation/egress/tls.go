package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// maxHello bounds a ClientHello: post-quantum key shares make some two kilobytes of it.
const maxHello = 64 << 10

// extensionECH is encrypted_client_hello: a name that we could not read.
const extensionECH = 0xfe0d

// readHello reads a ClientHello, however it is cut into records and segments, and returns the name it asks for and all that
// was read. The parser is crypto/tls's, which is stopped where it would answer.
func readHello(r io.Reader) (name string, read []byte, err error) {
	rec := &recorder{r: io.LimitReader(r, maxHello)}
	seen := errors.New("seen")
	var hello *tls.ClientHelloInfo
	err = tls.Server(rec, &tls.Config{MinVersion: tls.VersionTLS10, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, seen
	}}).Handshake()
	switch {
	case hello == nil:
		return "", rec.read.Bytes(), fmt.Errorf("no TLS: %w", err)
	case slices.Contains(hello.Extensions, extensionECH):
		return "", rec.read.Bytes(), errors.New("the name in the TLS hello is encrypted (ECH)")
	case hello.ServerName == "":
		return "", rec.read.Bytes(), errors.New("the TLS hello has no name (SNI)")
	}
	return hello.ServerName, rec.read.Bytes(), nil
}

// checkHello reads a ClientHello and makes sure that it asks for the name that the connection is allowed to.
func checkHello(r io.Reader, want string) (read []byte, err error) {
	name, read, err := readHello(r)
	if err != nil {
		return read, err
	}
	got, err := parseName(name)
	if err != nil {
		return read, fmt.Errorf("SNI %.80q: %w", name, err)
	}
	if got != want {
		return read, fmt.Errorf("SNI %q on a connection to %s", got, want)
	}
	return read, nil
}

// recorder is a connection that keeps what is read, and loses what is written.
type recorder struct {
	r    io.Reader
	read bytes.Buffer
}

func (c *recorder) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.read.Write(p[:n])
	return n, err
}

func (c *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (c *recorder) Close() error                     { return nil }
func (c *recorder) LocalAddr() net.Addr              { return nil }
func (c *recorder) RemoteAddr() net.Addr             { return nil }
func (c *recorder) SetDeadline(time.Time) error      { return nil }
func (c *recorder) SetReadDeadline(time.Time) error  { return nil }
func (c *recorder) SetWriteDeadline(time.Time) error { return nil }
