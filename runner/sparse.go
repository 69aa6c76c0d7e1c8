package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"syscall"
)

// copySparse writes what it reads into an empty file, but for blocks of zeros: a hole costs a task nothing, and must not fill
// the host's disk. Of a file, holes are not read either.
func copySparse(ctx context.Context, to *os.File, from io.Reader) error {
	buf := make([]byte, 64<<10)
	zeros := make([]byte, len(buf))
	at, err := nextData(from, 0)
	for err == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var n int
		n, err = io.ReadFull(from, buf)
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == nil {
			at, err = nextData(from, at)
		}
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return to.Truncate(at)
}

// seekData is SEEK_DATA of Linux' lseek.
const seekData = 3

// nextData moves a file on to its next data, or to its end.
func nextData(from io.Reader, at int64) (int64, error) {
	f, ok := from.(*os.File)
	if !ok {
		return at, nil
	}
	next, err := f.Seek(at, seekData)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return f.Seek(0, io.SeekEnd)
	case err != nil: // a file system that knows no holes
		return f.Seek(at, io.SeekStart)
	}
	return next, nil
}
