package gates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Bounds limit what a gate reads of one change.
type Bounds struct {
	Files int   // contents
	File  int64 // bytes of one
	Total int64 // bytes of all
}

// DefaultBounds are those of a gate that says nothing else.
var DefaultBounds = Bounds{Files: 100_000, File: 8 << 20, Total: 1 << 30}

// ErrBounds is in the error of a read that would go beyond the bounds.
var ErrBounds = errors.New("larger than what a gate reads")

// Reader reads contents of a change within Bounds, until its context ends. It is not safe for concurrent use.
type Reader struct {
	ctx   context.Context
	c     *Change
	b     Bounds
	files int
	total int64
}

// NewReader returns a Reader of c.
func NewReader(ctx context.Context, c *Change, b Bounds) *Reader {
	return &Reader{ctx: ctx, c: c, b: b}
}

// New returns the content that a path has in the change. The error is a *ReadError.
func (r *Reader) New(p string) ([]byte, error) { return r.read(p, r.c.Open) }

// Old returns the content that a path has in the workspace below the change.
func (r *Reader) Old(p string) ([]byte, error) { return r.read(p, r.c.OpenOld) }

// ReadError is a content that could not be read whole.
type ReadError struct {
	Path string
	Err  error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("%s cannot be read: %v", Quote(e.Path), e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }

// Head returns the first bytes of the content that a path has in the change, at most max of them.
func (r *Reader) Head(p string, max int64) ([]byte, error) {
	data, _, err := r.upTo(p, r.c.Open, max)
	return data, err
}

// OldHead is Head of the workspace below the change.
func (r *Reader) OldHead(p string, max int64) ([]byte, error) {
	data, _, err := r.upTo(p, r.c.OpenOld, max)
	return data, err
}

// Unread is the finding about a content that could not be read; ok is false for an error of another kind, such as the
// end of the context.
func Unread(err error) (f Finding, ok bool) {
	e, ok := errors.AsType[*ReadError](err)
	if !ok {
		return f, false
	}
	return Finding{Rule: "unread", Path: e.Path, Message: e.Err.Error(), Severity: SeverityBlock,
		Remedy: "make it a readable file of ordinary size, or leave it out of the change"}, true
}

type opener func(string) (io.ReadCloser, error)

func (r *Reader) read(p string, open opener) ([]byte, error) {
	data, more, err := r.upTo(p, open, r.b.File)
	if err == nil && more {
		err = &ReadError{p, fmt.Errorf("%w: %d bytes of a file", ErrBounds, r.b.File)}
	}
	return data, err
}

// upTo reads at most max bytes, and says whether there are more.
func (r *Reader) upTo(p string, open opener, max int64) (_ []byte, more bool, _ error) {
	var data bytes.Buffer
	_, more, err := r.copy(&data, p, open, max)
	return data.Bytes(), more, err
}

// copy writes at most max bytes to w, and says how many, and whether there are more.
func (r *Reader) copy(w io.Writer, p string, open opener, max int64) (n int64, more bool, _ error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, false, err
	}
	if open == nil {
		return 0, false, &ReadError{p, fs.ErrNotExist}
	}
	if r.files++; r.files > r.b.Files {
		return 0, false, &ReadError{p, fmt.Errorf("%w: %d files", ErrBounds, r.b.Files)}
	}
	f, err := open(p)
	if err != nil {
		return 0, false, &ReadError{p, err}
	}
	defer f.Close()
	n, err = io.Copy(w, io.LimitReader(f, max))
	if r.total += n; err == nil && r.total > r.b.Total {
		err = fmt.Errorf("%w: %d bytes in all", ErrBounds, r.b.Total)
	}
	if err == nil && n == max {
		var rest int
		if rest, err = io.ReadFull(f, make([]byte, 1)); errors.Is(err, io.EOF) {
			err = nil
		}
		more = rest > 0
	}
	if err != nil {
		return n, false, &ReadError{p, err}
	}
	return n, more, nil
}

// maxListed is how many findings of one rule are listed; the rest is counted.
const maxListed = 100

// List collects findings: at most maxListed of one rule and severity, the rest counted, so that a verdict never hides why it
// fails. The zero value is empty.
type List struct {
	verdict Verdict
	listed  map[string]int
}

// Add adds a finding, unless its severity is off.
func (l *List) Add(f Finding) {
	if f.Severity == SeverityOff {
		return
	}
	if l.listed == nil {
		l.listed = map[string]int{}
	}
	key := f.Rule + "/" + string(f.Severity)
	if l.listed[key]++; l.listed[key] > maxListed {
		l.verdict.Dropped++
		return
	}
	l.verdict.Findings = append(l.verdict.Findings, f)
}

// Measure adds a number.
func (l *List) Measure(m Measurement) {
	l.verdict.Evidence = append(l.verdict.Evidence, OfMeasurement(m))
}

// Verdict is the answer of a gate that looked at this many entries.
func (l *List) Verdict(checked int) Verdict {
	l.verdict.Checked = checked
	return l.verdict
}
