package redact

import "io"

// maxOut is how much is written at once, about.
const maxOut = 256 << 10

// Writer hides secrets in what goes through it. It is not safe for concurrent use.
type Writer struct {
	w      io.Writer
	buf    []byte // to be written
	known  values
	shapes shapes
	err    error
}

// Writer returns a writer to w. A line is written when it is there, or with Flush, and what comes of one Write in one; Close
// writes the rest, and does not close w.
func (r *Redactor) Writer(w io.Writer) *Writer {
	x := &Writer{w: w}
	x.shapes = shapes{to: x.out, bol: true}
	x.known = values{r: r, to: x.shapes.write, hidden: -1}
	return x
}

// Write takes all of p. The error is the underlying writer's first; nothing is written after it.
func (x *Writer) Write(p []byte) (int, error) {
	if x.err != nil {
		return 0, x.err
	}
	x.known.write(p)
	if err := x.write(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Pending says that something is held back, which Flush may write.
func (x *Writer) Pending() bool {
	return len(x.known.held) > 0 || len(x.shapes.buf) > x.shapes.done
}

// Flush writes what cannot become a secret any more, without waiting for the end of the line: for a prompt that somebody
// reads. What is ambiguous without the rest of its line is then decided without it, or still held back.
func (x *Writer) Flush() error {
	x.known.flush()
	x.shapes.flush()
	return x.write()
}

// Close writes what is held back, as the end of the text. The Writer can be used again.
func (x *Writer) Close() error {
	x.known.close()
	x.shapes.close()
	return x.write()
}

func (x *Writer) out(p []byte) {
	if x.buf = append(x.buf, p...); len(x.buf) >= maxOut {
		_ = x.write() // the next one answers the error
	}
}

// write writes what is ready, at once: a log makes a record of it.
func (x *Writer) write() error {
	if len(x.buf) > 0 && x.err == nil {
		_, x.err = x.w.Write(x.buf)
	}
	x.buf = x.buf[:0]
	return x.err
}

// suspicious says that s may have the shape of a secret somewhere.
func suspicious[T string | []byte](s T) bool {
	if len(s) < MinValue {
		return false
	}
	return contains(triggers(), s, fold)
}
