package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// follow collects what Follow gives; gap is in place of what is missing.
func follow(t *testing.T, w *Writer, do func()) (out string, gap int64) {
	t.Helper()
	var b bytes.Buffer
	err := w.Follow(t.Context(), func(r Record) error {
		if r.Gap > 0 {
			gap += r.Gap
			b.WriteString("…")
		}
		b.Write(r.Data)
		if do != nil {
			do()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return b.String(), gap
}

// Everything that a log can hold arrives once and in order, at readers that came before and in the middle.
func TestFollow(t *testing.T) {
	w := Create(filepath.Join(t.TempDir(), "log"), 0)
	var want strings.Builder
	var wg sync.WaitGroup
	got := make([]string, 4)
	for i := range 2000 {
		if i%500 == 0 {
			n := i / 500
			wg.Go(func() { got[n], _ = follow(t, w, nil) })
		}
		line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i%97))
		want.WriteString(line)
		fmt.Fprint(w.To(Stdout, 1), line)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for n, s := range got {
		if s != want.String() {
			t.Errorf("reader %d has %d bytes of %d", n, len(s), want.Len())
		}
	}
	if late, _ := follow(t, w, nil); late != want.String() {
		t.Error("after the end:", len(late))
	}
}

// A reader that is overtaken by a log of three small files is told how much it has missed.
func TestFollowOvertaken(t *testing.T) {
	w := Create(filepath.Join(t.TempDir(), "log"), 1000)
	written := 0
	write := func() {
		n, _ := fmt.Fprintf(w.To(Stdout, 1), "%099d\n", written)
		written += n
	}
	write()
	slow := 0
	out, gap := follow(t, w, func() {
		if slow++; slow == 5 || slow == 12 { // in the middle of a file
			for range 300 {
				write()
			}
		}
		if slow < 20 {
			write()
			return
		}
		_ = w.Close()
	})
	data := strings.ReplaceAll(out, "…", "")
	if int64(written) != gap+int64(len(data)) || gap == 0 {
		t.Fatalf("%d bytes were written, %d arrived, %d are said to be missing", written, len(data), gap)
	}
	if last := fmt.Sprintf("%099d\n", written-100); !strings.HasSuffix(out, last) {
		t.Error("the end is missing")
	}
	last := -1
	for line := range strings.Lines(data) {
		var n int
		if _, err := fmt.Sscanf(line, "%d", &n); err != nil || n <= last {
			t.Fatalf("%q after %d: %v", line, last, err)
		}
		last = n
	}
}

// What the file system does not take is a gap; a log that was never written ends at once.
func TestFollowFailure(t *testing.T) {
	w := Create(filepath.Join(t.TempDir(), "missing", "missing", "log"), 0)
	fmt.Fprint(w.To(Stdout, 1), "lost")
	_ = w.Close()
	if out, gap := follow(t, w, nil); out != "…" || gap != 4 {
		t.Error(out, gap)
	}
	w = Create(filepath.Join(t.TempDir(), "log"), 0)
	_ = w.Close()
	if out, gap := follow(t, w, nil); out != "" || gap != 0 {
		t.Error(out, gap)
	}
}

func TestFollowEnds(t *testing.T) {
	w := Create(filepath.Join(t.TempDir(), "log"), 0)
	defer w.Close()
	fmt.Fprint(w.To(Stdout, 1), "a")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	err := w.Follow(ctx, func(Record) error { cancel(why); return nil })
	if !errors.Is(err, why) {
		t.Error(err)
	}
	if err := w.Follow(t.Context(), func(Record) error { return why }); !errors.Is(err, why) {
		t.Error(err)
	}
}
