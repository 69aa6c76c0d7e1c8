package logfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func replayAll(t *testing.T, path string) (out, errs string, gaps []int64) {
	t.Helper()
	var o, e bytes.Buffer
	err := Replay(path, func(r Record) error {
		switch {
		case r.Gap != 0:
			gaps = append(gaps, r.Gap)
			o.WriteString("…")
		case r.Stream == Stdout:
			o.Write(r.Data)
		default:
			e.Write(r.Data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), gaps
}

func TestReplay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if out, errs, gaps := replayAll(t, path); out+errs != "" || gaps != nil {
		t.Fatal("a log that was never written is not empty")
	}
	w := Create(path, 0)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("a file for nothing")
	}
	w = Create(path, 0)
	fmt.Fprint(w.To(Stdout, 1), "a")
	fmt.Fprint(w.To(Stderr, 1), "b\xff\x00")
	fmt.Fprint(w.To(Stdout, 2), strings.Repeat("x", 3<<20))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, errs, gaps := replayAll(t, path)
	if out != "a"+strings.Repeat("x", 3<<20) || errs != "b\xff\x00" || gaps != nil {
		t.Fatal("not what was written")
	}
	var steps []int
	_ = Replay(path, func(r Record) error { steps = append(steps, r.Step); return nil })
	if fmt.Sprint(steps) != "[1 1 2 2 2]" {
		t.Fatal(steps)
	}
}

// The beginning and the end of a long output are kept, in bounded space, and the gap is said.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	const segment = 10_000
	w := Create(path, segment)
	o := w.To(Stdout, 1)
	const lines = 20_000
	for i := range lines {
		fmt.Fprintf(o, "%07d\n", i)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var size int64
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		info, _ := f.Info()
		size += info.Size()
	}
	if size > 3*segment+20 {
		t.Fatalf("%d bytes on disk", size)
	}
	out, _, gaps := replayAll(t, path)
	if !strings.HasPrefix(out, "0000000\n0000001\n") || !strings.HasSuffix(out, fmt.Sprintf("%07d\n", lines-1)) {
		t.Fatal("the beginning or the end is missing")
	}
	kept := int64(strings.Count(out, "\n") * 8)
	if len(gaps) != 1 || gaps[0] != lines*8-kept || w.Lost() != gaps[0] {
		t.Fatalf("gaps %v, kept %d of %d", gaps, kept, lines*8)
	}
	// The tail is contiguous.
	tail := strings.Split(strings.TrimSpace(out[strings.Index(out, "…")+len("…"):]), "\n")
	for i, line := range tail {
		if want := fmt.Sprintf("%07d", lines-len(tail)+i); line != want {
			t.Fatalf("line %q, want %q", line, want)
		}
	}
}

func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := Create(path, 0)
	o := w.To(Stdout, 1)
	fmt.Fprint(o, "one")
	fmt.Fprint(o, "two")
	_ = w.Close()
	info, _ := os.Stat(path)
	for cut := int64(0); cut <= info.Size(); cut++ {
		if err := os.Truncate(path, info.Size()-cut); err != nil {
			t.Fatal(err)
		}
		out, _, _ := replayAll(t, path)
		if !strings.HasPrefix("onetwo", out) {
			t.Fatalf("cut by %d: %q", cut, out)
		}
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte{9}, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replay(path, func(Record) error { return nil }); err == nil {
		t.Fatal("damage was not noticed")
	}
}

// A log that cannot be written loses data and says so; the writer's caller sees no error.
func TestUnwritable(t *testing.T) {
	w := Create(filepath.Join(t.TempDir(), "missing", "missing", "log"), 0)
	if n, err := w.To(Stdout, 1).Write([]byte("lost")); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if w.Lost() != 4 {
		t.Fatal(w.Lost())
	}
	if err := w.Close(); err == nil {
		t.Fatal("no error at the end")
	}
}
