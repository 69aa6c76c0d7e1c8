package splice

import (
	"errors"
	"io"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/waiter"
)

// chunk is what is copied at once where a buffer is needed, and most where none is, in bytes.
const chunk, most = 128 << 10, 512 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// Borrow takes a buffer from the pool; back gives it back.
func Borrow() (b []byte, back func()) {
	p, ok := chunks.Get().(*[chunk]byte)
	if !ok {
		p = new([chunk]byte)
	}
	return p[:], func() { chunks.Put(p) }
}

// Metered is a connection that is written to under limits. Its Write keeps them by itself.
type Metered interface {
	io.Writer
	Pay(most int) (n int, err error) // waits until some of most bytes may go; n of them may now
	Paid(n int)                      // n bytes have gone
	Conn() io.Writer                 // that Write writes to
}

// Copy copies until src ends.
func Copy(dst Metered, src io.Reader) error {
	switch to := dst.Conn().(type) {
	case *net.TCPConn:
		if from, ok := src.(*Conn); ok {
			return out(to, from, dst)
		}
	case *Conn:
		if from, ok := src.(*net.TCPConn); ok {
			return in(to, from, dst)
		}
	}
	for {
		Await(src)
		if err := copyChunk(dst, src); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// copyChunk has a buffer only while there is something to put into it.
func copyChunk(dst io.Writer, src io.Reader) error {
	b, back := Borrow()
	defer back()
	n, err := src.Read(b)
	if n > 0 {
		if _, err := dst.Write(b[:n]); err != nil {
			return err
		}
	}
	return err
}

// out copies from the stack to a socket.
func out(to *net.TCPConn, from *Conn, m Metered) error {
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	woken, stop := from.watch(waiter.ReadableEvents)
	defer stop()
	for {
		there, err := from.ready(woken)
		if err != nil || there == 0 {
			return err
		}
		may, err := m.Pay(min(there, most))
		for err == nil && may > 0 {
			var n int
			n, err = from.writeTo(raw, may)
			m.Paid(n)
			may -= n
		}
		if err != nil {
			return err
		}
	}
}

// in copies from a socket to the stack.
func in(to *Conn, from *net.TCPConn, m Metered) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	woken, stop := to.watch(waiter.WritableEvents)
	defer stop()
	for {
		there, err := waiting(raw)
		if err != nil || there == 0 {
			return err
		}
		may, err := m.Pay(min(there, most))
		for err == nil && may > 0 {
			var n int
			if n, err = to.readFrom(raw, may); err == nil && n == 0 {
				<-woken
			}
			m.Paid(n)
			may -= n
		}
		if err != nil {
			return err
		}
	}
}

// Await waits until reading would not have to, where the connection can say so.
func Await(r io.Reader) {
	switch c := r.(type) {
	case *Conn:
		woken, stop := c.watch(waiter.ReadableEvents)
		defer stop()
		_, _ = c.ready(woken) // reading has the same error
	case *net.TCPConn:
		if raw, err := c.SyscallConn(); err == nil {
			_, _ = waiting(raw) // likewise
		}
	}
}
