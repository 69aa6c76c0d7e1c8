package egress

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
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
// was read, which is nothing but its records. The parser is crypto/tls's, which is stopped where it would answer.
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
	case !rec.single():
		return "", rec.read.Bytes(), errors.New("more than a TLS hello in its record")
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

// recordHead is the length of what stands before a TLS record (RFC 8446, 5.1), in bytes; maxRecord of what follows at most.
const recordHead, maxRecord = 5, 1<<14 + 2048

// The types of TLS records.
const (
	recordChange    = 20 // change_cipher_spec
	recordAlert     = 21
	recordHandshake = 22
	recordData      = 23
)

// recorder is a connection that keeps what is read, which is whole records, and loses what is written.
type recorder struct {
	r    io.Reader
	read bytes.Buffer
	body []byte // of all records
	left int    // of the present one
}

func (c *recorder) Read(p []byte) (int, error) {
	if c.left > 0 {
		n, err := c.r.Read(p[:min(len(p), c.left)])
		c.left -= n
		c.read.Write(p[:n])
		c.body = append(c.body, p[:n]...)
		return n, err
	}
	if len(p) < recordHead {
		return 0, io.ErrShortBuffer
	}
	n, err := io.ReadFull(c.r, p[:recordHead])
	c.read.Write(p[:n])
	if err == nil {
		c.left = int(binary.BigEndian.Uint16(p[3:]))
	}
	return n, err
}

// single reports whether the records have held one message.
func (c *recorder) single() bool {
	return c.left == 0 && len(c.body) >= 4 && len(c.body) == 4+int(binary.BigEndian.Uint32(c.body)&0xffffff)
}

func (c *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (c *recorder) Close() error                     { return nil }
func (c *recorder) LocalAddr() net.Addr              { return nil }
func (c *recorder) RemoteAddr() net.Addr             { return nil }
func (c *recorder) SetDeadline(time.Time) error      { return nil }
func (c *recorder) SetReadDeadline(time.Time) error  { return nil }
func (c *recorder) SetWriteDeadline(time.Time) error { return nil }

// asksAgain reads what a server says first, as far as it takes to know whether it asks for a second hello: then the Random of
// its ServerHello is this (RFC 8446, 4.1.3).
func asksAgain(r io.Reader) (again bool, read []byte, err error) {
	random := sha256.Sum256([]byte("HelloRetryRequest"))
	const at = 4 + 2 // behind the message's head and the version
	var message []byte
	for len(message) < at+len(random) {
		b := make([]byte, recordHead)
		n, err := io.ReadFull(r, b)
		read = append(read, b[:n]...)
		if err != nil || b[0] != recordHandshake {
			return false, read, err
		}
		size := int(binary.BigEndian.Uint16(b[3:]))
		if size == 0 { // which RFC 8446, 5.1 forbids, and which would never end
			return false, read, refuse("no TLS: an empty record")
		}
		b = make([]byte, min(size, at+len(random)-len(message)))
		n, err = io.ReadFull(r, b)
		read, message = append(read, b[:n]...), append(message, b[:n]...)
		if err != nil {
			return false, read, err
		}
	}
	return message[0] == 2 && bytes.Equal(message[at:], random[:]), read, nil
}

// passSecond passes on what a client sends until the hello that it was asked for, which must ask for the same name.
func passSecond(dst io.Writer, src io.Reader, want string) error {
	head := make([]byte, recordHead)
	for {
		if _, err := io.ReadFull(src, head); err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint16(head[3:]))
		switch kind := head[0]; {
		case kind == recordHandshake:
			hello, err := checkHello(io.MultiReader(bytes.NewReader(head), src), want)
			if err != nil {
				return refuse("the second hello: %v", err)
			}
			_, err = dst.Write(hello)
			return err
		case kind != recordChange && kind != recordAlert && kind != recordData || size > maxRecord:
			return refuse("no TLS: a record of type %d", kind)
		}
		// Also data that was sent too early, which the server passes over.
		if _, err := io.CopyN(dst, io.MultiReader(bytes.NewReader(head), src), recordHead+size); err != nil {
			return err
		}
	}
}
