package beneath

import (
	"bytes"
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Copier copies contents, and remembers which short ways the filesystems have. It is for one goroutine.
type Copier struct {
	Buf     []byte // what fits is read in one piece
	noClone bool   // the filesystems share no blocks
	noRange bool   // they do not copy in the kernel either
}

// Copy copies a file's content and keeps its holes.
func (c *Copier) Copy(ctx context.Context, dst, src int, st *unix.Stat_t) error {
	sparse := st.Blocks*512 < st.Size
	if st.Size <= int64(len(c.Buf)) && !sparse {
		n, err := ReadFull(src, c.Buf[:st.Size])
		if err != nil {
			return err
		}
		return writeAt(dst, c.Buf[:n], 0)
	}
	if !c.noClone {
		if err := unix.IoctlFileClone(dst, src); err == nil {
			return nil
		}
		c.noClone = true
	}
	if err := unix.Ftruncate(dst, st.Size); err != nil {
		return err
	}
	for off := int64(0); off < st.Size; {
		from, err := unix.Seek(src, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		to := st.Size
		switch {
		case errors.Is(err, unix.EINVAL):
			from = off
		case err != nil:
			return err
		default:
			if to, err = unix.Seek(src, from, unix.SEEK_HOLE); err != nil {
				return err
			}
		}
		if err := c.extent(ctx, dst, src, [2]int64{from, min(to, st.Size)}); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// extent copies one range, in the kernel where that can.
func (c *Copier) extent(ctx context.Context, dst, src int, span [2]int64) error {
	from, to := span[0], span[1]
	for from < to {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !c.noRange {
			in, out := from, from
			n, err := unix.CopyFileRange(src, &in, dst, &out, int(min(to-from, 64<<20)), 0)
			if err == nil && n > 0 {
				from += int64(n)
				continue
			}
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
				return err
			}
			c.noRange = err != nil
		}
		n, err := Retry(func() (int, error) {
			return unix.Pread(src, c.Buf[:min(int64(len(c.Buf)), to-from)], from)
		})
		if err != nil || n == 0 {
			return err
		}
		if err := writeAt(dst, c.Buf[:n], from); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

func writeAt(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := Retry(func() (int, error) { return unix.Pwrite(fd, b, off) })
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// SameContent compares two open files, and reads nothing where both have a hole.
func SameContent(ctx context.Context, a, b int, buf []byte) (bool, error) {
	var sa, sb unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &sa), unix.Fstat(b, &sb)); err != nil || sa.Size != sb.Size {
		return false, err
	}
	x, y := buf[:len(buf)/2], buf[len(buf)/2:]
	for off := int64(0); ; {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		inA, errA := nextData(a, off, sa.Size)
		inB, errB := nextData(b, off, sa.Size)
		if err := errors.Join(errA, errB); err != nil {
			return false, err
		}
		if off = min(inA, inB); off >= sa.Size {
			return true, nil
		}
		n, errA := readAt(a, x, off)
		m, errB := readAt(b, y, off)
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(x[:n], y[:m]) {
			return false, err
		}
		if n == 0 {
			return true, nil // both were cut short meanwhile
		}
		off += int64(n)
	}
}

// nextData is where the next data lie, or size.
func nextData(fd int, off, size int64) (int64, error) {
	at, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, nil
	case errors.Is(err, unix.EINVAL):
		return off, nil // a filesystem without SEEK_DATA
	}
	return at, err
}

// readAt reads until b is full or the file ends.
func readAt(fd int, b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := Retry(func() (int, error) { return unix.Pread(fd, b[n:], off+int64(n)) })
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}
