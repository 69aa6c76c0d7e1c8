// Package logfile keeps what a task wrote to stdout and stderr: in order, with time, stream and step, in bounded space.
//
// A log is up to three files. The head, PATH, holds the beginning. When it is full the rest goes to PATH.1 and then
// PATH.2; when that is full too, PATH.2 becomes PATH.1, and what PATH.1 held is lost. So the beginning and the end of a
// long output are kept, and Replay says where the gap is. Each file is a sequence of records:
//
//	byte 0      stream: 1 stdout, 2 stderr
//	byte 1–2    step, from 1, big endian
//	byte 3–10   time, nanoseconds since 1970, big endian
//	byte 11–14  length of the data that follow, big endian
//
// A record that is cut off, by a crash, is the end.
package logfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Stream is where data came out.
type Stream byte

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

const (
	header    = 15
	maxRecord = 1 << 20
	// DefaultSegment is how large each of the three files may grow.
	DefaultSegment = 8 << 20
)

// Writer writes a log. The file, and its directory, are made at the first write. It is safe for concurrent use.
type Writer struct {
	path    string
	segment int64

	mu     sync.Mutex
	f      *os.File
	n      int      // which of the three files f is: 0, 1, 2
	size   int64    // of f
	lost   int64    // bytes of data that were dropped
	data   [3]int64 // bytes of data in each file
	record []byte
	err    error // of the first failed write: nothing is written after it

	// What Follow needs.
	total   int64         // bytes of data that came, lost ones too
	begin   [3]int64      // total when each file was begun
	turns   int           // how often the second file was thrown away
	done    bool          // Close was called
	changed chan struct{} // nil while nobody waits; closed by the next change
}

// Create returns a writer to path; segment is the size of each file in bytes, 0 means DefaultSegment.
func Create(path string, segment int64) *Writer {
	if segment <= 0 {
		segment = DefaultSegment
	}
	return &Writer{path: path, segment: segment}
}

// To returns what writes to one stream of one step.
func (w *Writer) To(s Stream, step int) io.Writer { return &stream{w: w, stream: s, step: step} }

type stream struct {
	w      *Writer
	stream Stream
	step   int
	head   [header]byte
}

// Write appends one record. After a failure it drops the data, and Lost counts them.
func (s *stream) Write(p []byte) (int, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for rest := p; len(rest) > 0; {
		chunk := rest[:min(len(rest), maxRecord)]
		rest = rest[len(chunk):]
		s.head[0] = byte(s.stream)
		binary.BigEndian.PutUint16(s.head[1:], uint16(s.step))
		binary.BigEndian.PutUint64(s.head[3:], uint64(time.Now().UnixNano()))
		binary.BigEndian.PutUint32(s.head[11:], uint32(len(chunk)))
		s.w.append(s.head[:], chunk)
	}
	return len(p), nil
}

func (w *Writer) append(head, data []byte) {
	defer w.notify()
	if w.err == nil {
		w.err = w.room(int64(len(head) + len(data)))
	}
	w.total += int64(len(data))
	if w.err != nil {
		w.lost += int64(len(data))
		return
	}
	w.record = append(append(w.record[:0], head...), data...) // one write, so that a crash tears no more than one record
	if _, w.err = w.f.Write(w.record); w.err != nil {
		w.lost += int64(len(data))
		_ = w.f.Truncate(w.size) // a torn record would hide nothing but itself; still, be tidy
		return
	}
	w.size += int64(len(head) + len(data))
	w.data[w.n] += int64(len(data))
}

// room opens the next file when this one is full.
func (w *Writer) room(need int64) error {
	switch {
	case w.f == nil:
		return w.open(0)
	case w.size == 0 || w.size+need <= w.segment:
		return nil
	case w.n < 2:
		return w.open(w.n + 1)
	}
	if err := os.Rename(w.name(2), w.name(1)); err != nil {
		return err
	}
	w.lost += w.data[1]
	w.data[1], w.begin[1] = w.data[2], w.begin[2]
	w.turns++
	return w.open(2)
}

func (w *Writer) open(n int) error {
	if w.f != nil {
		if err := w.f.Close(); err != nil {
			return err
		}
	}
	const flags = os.O_CREATE | os.O_TRUNC | os.O_WRONLY
	f, err := os.OpenFile(w.name(n), flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(filepath.Dir(w.path), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			f, err = os.OpenFile(w.name(n), flags, 0o600)
		}
	}
	if err != nil {
		return err
	}
	w.f, w.n, w.size, w.data[n], w.begin[n] = f, n, 0, 0, w.total
	return nil
}

func (w *Writer) name(n int) string { return name(w.path, n) }

func name(path string, n int) string {
	if n == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, n)
}

// Lost is how many bytes the log does not hold, because it is bounded or the file system is full.
func (w *Writer) Lost() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Close records what was lost and closes the file. The error is that of the first failed write.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	w.notify()
	if w.f == nil {
		return w.err
	}
	err := errors.Join(w.err, w.f.Close())
	w.f = nil
	if w.lost > 0 {
		err = errors.Join(err, os.WriteFile(w.path+".lost", fmt.Appendf(nil, "%d\n", w.lost), 0o600))
	}
	return err
}

// Record is one piece of output.
type Record struct {
	Stream Stream
	Step   int // from 1
	Time   time.Time
	Data   []byte // valid until the next record
	Gap    int64  // not 0: a record of its own, without data, where this many bytes are missing
}

// Replay gives each record to do, oldest first. A log that was never written is empty. An error of do ends it.
func Replay(path string, do func(Record) error) error {
	for n := range 3 {
		if err := replay(name(path, n), do); err != nil {
			return err
		}
		if lost := lostBytes(path); n == 0 && lost > 0 {
			if err := do(Record{Gap: lost}); err != nil {
				return err
			}
		}
	}
	return nil
}

func lostBytes(path string) (n int64) {
	text, err := os.ReadFile(path + ".lost")
	if err != nil {
		return 0
	}
	_, _ = fmt.Sscan(string(text), &n) // a torn number is none
	return n
}

func replay(path string, do func(Record) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	return records(f, path, do)
}

// records gives each record of r to do.
func records(from io.Reader, path string, do func(Record) error) error {
	r := bufio.NewReaderSize(from, 64<<10)
	var head [header]byte
	var data []byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return cut(err)
		}
		n := binary.BigEndian.Uint32(head[11:])
		if n > maxRecord || head[0] < 1 || head[0] > 2 {
			return fmt.Errorf("log %s: damaged", path)
		}
		data = append(data[:0], make([]byte, n)...)
		if _, err := io.ReadFull(r, data); err != nil {
			return cut(err)
		}
		err := do(Record{Stream: Stream(head[0]), Step: int(binary.BigEndian.Uint16(head[1:])),
			Time: time.Unix(0, int64(binary.BigEndian.Uint64(head[3:]))), Data: data})
		if err != nil {
			return err
		}
	}
}

// cut takes a record that was cut off for the end.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
