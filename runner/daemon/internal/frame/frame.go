// Package frame is the protocol of a stream: frames of a type, a length and a payload, in both directions of a
// connection, and the bounded input that one side collects of them.
//
//	byte 0     type
//	byte 1–4   length of the payload, big endian, at most Max
//	…          the payload
package frame

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Protocol is what a connection is upgraded to.
const Protocol = "caisson-stream/1"

// Type is what a frame carries.
type Type byte

// The types.
const (
	Stdin      Type = 1  // to the server: input
	Stdout     Type = 2  // to the client: output
	Stderr     Type = 3  // likewise
	Resize     Type = 4  // to the server: rows and columns, u16 each
	Signal     Type = 5  // to the server: a signal's number, u8
	CloseStdin Type = 6  // to the server: the input ends
	Result     Type = 7  // to the client, the last: the call's result in JSON
	Detach     Type = 8  // to the server: the client goes, the task stays
	Error      Type = 9  // to the client, the last: a failure in JSON, with the result if there is one
	Progress   Type = 10 // to the client: where a task stands, in JSON
	Credit     Type = 11 // to the client: so many bytes of input more may be sent, u32
	Cancel     Type = 12 // to the server: end the task; the text says why
)

const (
	header = 5
	// Max is the longest payload in bytes. A JSON text that does not fit goes on in frames of the same type, of which the
	// first that is not full is the last.
	Max = 64 << 10
	// Window is how many bytes of input may be under way: so signals never wait behind input that nobody reads.
	Window = 256 << 10
)

// ErrProtocol says that the other side does not speak the protocol.
var ErrProtocol = errors.New(Protocol + ": protocol error")

// Writer writes frames. It is safe for concurrent use; a slow reader holds it up.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes p in as many frames as it needs, at least one.
func (w *Writer) Write(t Type, p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		n := min(len(p), Max)
		if err := w.frame(t, p[:n]); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// frame writes one frame with one system call.
func (w *Writer) frame(t Type, p []byte) error {
	w.buf = append(w.buf[:0], byte(t))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(p)))
	w.buf = append(w.buf, p...)
	_, err := w.w.Write(w.buf)
	return err
}

// JSON writes v as one text.
func (w *Writer) JSON(t Type, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		n := min(len(text), Max)
		if err := w.frame(t, text[:n]); err != nil || n < Max {
			return err
		}
		text = text[n:]
	}
}

// Size writes a terminal's size in characters.
func (w *Writer) Size(rows, cols uint16) error {
	return w.Write(Resize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols))
}

// Credit allows n bytes of input more.
func (w *Writer) Credit(n int) error {
	return w.Write(Credit, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// Reader reads frames. It is for one goroutine.
type Reader struct {
	r   io.Reader
	buf []byte
}

// NewReader returns a Reader of r, which had better be buffered.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the next frame; its payload is valid until the next call. io.EOF is an end between frames, a cut one is
// io.ErrUnexpectedEOF, one that is too long ErrProtocol.
func (r *Reader) Next() (Type, []byte, error) {
	var head [header]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > Max {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, n)
	}
	if cap(r.buf) < int(n) {
		r.buf = make([]byte, max(int(n), 4<<10))
	}
	p := r.buf[:n]
	if _, err := io.ReadFull(r.r, p); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return Type(head[0]), p, nil
}

// Text returns a JSON text of which the first frame has been read. One longer than most bytes is ErrProtocol.
func (r *Reader) Text(t Type, first []byte, most int) ([]byte, error) {
	text := append([]byte(nil), first...)
	for last := len(first); last == Max; {
		next, p, err := r.Next()
		switch {
		case err != nil:
			return nil, err
		case next != t || len(text)+len(p) > most:
			return nil, fmt.Errorf("%w: a text that does not end", ErrProtocol)
		}
		text, last = append(text, p...), len(p)
	}
	return text, nil
}

// ParseSize reads what Size wrote.
func ParseSize(p []byte) (rows, cols uint16, err error) {
	if len(p) != 4 {
		return 0, 0, ErrProtocol
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), nil
}

// ParseCredit reads what Credit wrote.
func ParseCredit(p []byte) (int, error) {
	if len(p) != 4 {
		return 0, ErrProtocol
	}
	n := binary.BigEndian.Uint32(p)
	if n > Window {
		return 0, ErrProtocol
	}
	return int(n), nil
}

// ParseSignal reads a signal's number.
func ParseSignal(p []byte) (int, error) {
	if len(p) != 1 || p[0] == 0 || p[0] > 64 {
		return 0, ErrProtocol
	}
	return int(p[0]), nil
}
