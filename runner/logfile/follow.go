package logfile

import (
	"context"
	"io"
	"os"
)

// Follow is Replay, and goes on with what is written until Close; then it returns nil. It reads the files, at its own pace:
// a slow do holds nobody up, and when the log has been turned over before do took something, a record with a Gap says how
// much. ctx ends it with context.Cause(ctx), an error of do with that. Any number may follow at once.
func (w *Writer) Follow(ctx context.Context, do func(Record) error) error {
	f := follower{w: w}
	defer f.close()
	for {
		at, err := f.next()
		if err != nil {
			return err
		}
		switch {
		case at.gap > 0:
			f.seen += at.gap
			err = do(Record{Gap: at.gap})
		case at.end > f.off:
			err = f.read(ctx, at.end, do)
		case at.wait == nil:
			return nil
		default:
			select {
			case <-ctx.Done():
			case <-at.wait:
			}
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// notify wakes those who follow. mu is held.
func (w *Writer) notify() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// follower is somebody's place in a log. Files are numbered as they were begun: 0 is the head, and while PATH.1 is 1+turns
// PATH.2 is 2+turns. A file that is open is read to its end even when it has been replaced meanwhile.
type follower struct {
	w    *Writer
	f    *os.File
	file int   // number of f
	off  int64 // in f
	seen int64 // bytes of data that do was given, or told that they are missing
}

// place says what comes next: a gap, records up to end, or, with wait, nothing before it is closed.
type place struct {
	gap  int64
	end  int64
	wait <-chan struct{}
}

// next finds out what comes next, and opens the file that has it.
func (f *follower) next() (place, error) {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := w.n
	if w.n > 0 {
		newest += w.turns
	}
	if f.f != nil && f.file < newest { // it is finished
		if end, err := size(f.f); err != nil || end > f.off {
			return place{end: end}, err
		}
		f.close()
		f.file = max(f.file+1, 1+w.turns)
	}
	if f.f == nil && (w.n > 0 || w.size > 0) {
		if err := f.open(); err != nil {
			return place{}, err
		}
		if gap := w.begin[f.index()] - f.seen; gap > 0 {
			return place{gap: gap}, nil
		}
	}
	if f.f != nil {
		end, err := w.size, error(nil)
		if f.file < newest {
			end, err = size(f.f)
		}
		if err != nil || end > f.off {
			return place{end: end}, err
		}
	}
	if w.err != nil && w.total > f.seen { // it could not be written
		return place{gap: w.total - f.seen}, nil
	}
	if w.done {
		return place{}, nil
	}
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return place{wait: w.changed}, nil
}

// index is which of the three files it is now.
func (f *follower) index() int {
	if f.file == 0 {
		return 0
	}
	return f.file - f.w.turns
}

func (f *follower) open() (err error) {
	f.f, err = os.Open(f.w.name(f.index()))
	f.off = 0
	return err
}

func (f *follower) close() {
	if f.f != nil {
		_ = f.f.Close() // it was only read
		f.f = nil
	}
}

// read gives do the records up to end.
func (f *follower) read(ctx context.Context, end int64, do func(Record) error) error {
	err := records(io.NewSectionReader(f.f, f.off, end-f.off), f.w.path, func(r Record) error {
		f.off += header + int64(len(r.Data))
		f.seen += int64(len(r.Data))
		if err := do(r); err != nil {
			return err
		}
		return context.Cause(ctx)
	})
	if err == nil {
		f.off = max(f.off, end) // a torn record is the end of its file
	}
	return err
}

func size(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
