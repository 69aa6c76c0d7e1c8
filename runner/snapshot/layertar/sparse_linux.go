package layertar

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	hole       = 4 << 10  // the smallest block of zeros that is left out, in bytes
	sparseMin  = 64 << 10 // smaller files are written as they are
	sparseGain = 32 << 10 // files with fewer zeros, too
	// maxSpans keeps the map of a file below the 1 MiB that readers (archive/tar among them) take.
	maxSpans = 16 << 10
)

// span is a range of a file, in bytes.
type span struct{ from, to int64 }

var zeros [64 << 10]byte

// dataSpans returns where a file has other bytes than zeros. That follows from its content alone, so that an archive
// does not change with the filesystem; holes are only skipped.
func dataSpans(f *os.File, size int64, buf []byte) (spans []span, sparse bool, err error) {
	if size < sparseMin {
		return []span{{0, size}}, false, nil
	}
	for unit := int64(hole); ; unit *= 2 {
		spans, err = scan(f, size, unit, buf)
		if err != nil || len(spans) <= maxSpans {
			break
		}
	}
	data := int64(0)
	for _, s := range spans {
		data += s.to - s.from
	}
	if err != nil || size-data < sparseGain {
		return []span{{0, size}}, false, err
	}
	return spans, true, nil
}

// scan looks for zeros in aligned blocks of unit bytes. It stops early when there are too many spans.
func scan(f *os.File, size, unit int64, buf []byte) ([]span, error) {
	fd := int(f.Fd())
	piece := max(unit, int64(len(buf))/unit*unit)
	if int64(len(buf)) < piece {
		buf = make([]byte, piece)
	}
	var spans []span
	for off := int64(0); off < size && len(spans) <= maxSpans; off += piece {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err == nil && data > off {
			off = data / unit * unit
		}
		n, err := f.ReadAt(buf[:min(piece, size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if int64(n) < min(piece, size-off) {
			return nil, ErrChanged
		}
		for b := int64(0); b < int64(n); b += unit {
			if isZero(buf[b:min(b+unit, int64(n))]) {
				continue
			}
			from, to := off+b, min(off+b+unit, size)
			if last := len(spans) - 1; last >= 0 && spans[last].to == from {
				spans[last].to = to
			} else {
				spans = append(spans, span{from, to})
			}
		}
	}
	return spans, nil
}

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// sparseMap is what GNU tar's format 1.0 has before the data: decimal numbers, one per line. A file that ends in a hole
// has an empty span there.
func sparseMap(spans []span, size int64) []byte {
	if len(spans) == 0 || spans[len(spans)-1].to < size {
		spans = append(spans[:len(spans):len(spans)], span{size, size})
	}
	b := fmt.Appendf(nil, "%d\n", len(spans))
	for _, s := range spans {
		b = fmt.Appendf(b, "%d\n%d\n", s.from, s.to-s.from)
	}
	return pad(b)
}
