package splice

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Conn is the stack's end of a connection.
type Conn struct {
	*gonet.TCPConn
	end   tcpip.Endpoint
	queue *waiter.Queue
}

// NewConn makes one of an endpoint that is connected.
func NewConn(queue *waiter.Queue, end tcpip.Endpoint) *Conn {
	return &Conn{TCPConn: gonet.NewTCPConn(queue, end), end: end, queue: queue}
}

// Abort ends it at once, without a word of farewell.
func (c *Conn) Abort() { c.end.Abort() }

// watch is told of events until stop. What happens before it is looked at is not missed.
func (c *Conn) watch(events waiter.EventMask) (woken <-chan struct{}, stop func()) {
	entry, ch := waiter.NewChannelEntry(events | waiter.EventHUp | waiter.EventErr)
	c.queue.EventRegister(&entry)
	return ch, func() { c.queue.EventUnregister(&entry) }
}

// ready waits until there are bytes to read, and returns how many; 0 is the end.
func (c *Conn) ready(woken <-chan struct{}) (int, error) {
	for {
		n, terr := c.end.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
		if terr != nil {
			return 0, failure(terr)
		}
		if n > 0 {
			return n, nil
		}
		switch _, terr := c.end.Read(io.Discard, tcpip.ReadOptions{Peek: true}); terr.(type) {
		case nil: // it has come in between
		case *tcpip.ErrWouldBlock:
			<-woken
		case *tcpip.ErrClosedForReceive:
			return 0, nil
		default:
			return 0, failure(terr)
		}
	}
}

// writeTo has a socket take n bytes that are there, and returns how many it took at once. It waits until it takes some.
func (c *Conn) writeTo(raw syscall.RawConn, n int) (int, error) {
	s := &sink{left: n}
	var terr tcpip.Error
	err := raw.Write(func(fd uintptr) bool {
		s.fd = int(fd)
		// The stack holds the connection while we write, so the socket must not be waited for here.
		_, terr = c.end.Read(s, tcpip.ReadOptions{})
		return s.left < n || !errors.Is(s.err, unix.EAGAIN)
	})
	switch {
	case err != nil:
		return n - s.left, err
	case s.left < n:
		return n - s.left, nil
	case s.err != nil:
		return 0, s.err
	}
	return 0, failure(terr)
}

// sink writes the stack's packets to a socket, a number of bytes at most.
type sink struct {
	fd, left int
	err      error
}

func (s *sink) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if s.left == 0 {
			return n, io.ErrShortWrite
		}
		part := p[n:min(len(p), n+s.left)]
		flags := unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
		if s.left > len(part) {
			flags |= unix.MSG_MORE // small packets of the sandbox's need not be as many outside
		}
		wrote, err := unix.SendmsgN(s.fd, part, nil, nil, flags)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if s.err = err; err != nil {
			return n, err
		}
		n += wrote
		s.left -= wrote
	}
	return n, nil
}

// readFrom takes n bytes that a socket has, or as many as the stack has room for, which may be none.
func (c *Conn) readFrom(raw syscall.RawConn, n int) (int, error) {
	var moved int64
	var terr tcpip.Error
	err := raw.Read(func(fd uintptr) bool {
		moved, terr = c.end.Write(&source{fd: int(fd), left: n}, tcpip.WriteOptions{})
		return true
	})
	if err != nil {
		return int(moved), err
	}
	if _, full := terr.(*tcpip.ErrWouldBlock); terr != nil && !full {
		return int(moved), failure(terr)
	}
	return int(moved), nil
}

// source is a socket that has some bytes at least. The stack asks for no more, and takes no io.EOF for an answer.
type source struct{ fd, left int }

func (s *source) Len() int { return s.left }

func (s *source) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Read(s.fd, p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		}
		s.left -= n
		return n, nil
	}
}

// waiting waits until a socket has bytes to read, and returns how many; 0 is the end.
func waiting(raw syscall.RawConn) (n int, err error) {
	werr := raw.Read(func(fd uintptr) bool {
		if n, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ); n > 0 || err != nil {
			return true
		}
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	return n, errors.Join(werr, err)
}

// failure is the stack's error as one of ours.
func failure(terr tcpip.Error) error {
	if terr == nil {
		return nil
	}
	return &net.OpError{Op: "splice", Net: "tcp", Err: errors.New(terr.String())}
}
