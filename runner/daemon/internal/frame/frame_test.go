package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	long := bytes.Repeat([]byte("0123456789"), 20_000) // more than three frames
	if err := w.Write(Stdout, long); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Size(24, 80), w.Credit(4096), w.Write(Detach, nil)); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b)
	var got []byte
	for len(got) < len(long) {
		typ, p, err := r.Next()
		if err != nil || typ != Stdout || len(p) > Max {
			t.Fatal(typ, len(p), err)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, long) {
		t.Error("the bytes are others")
	}
	_, p, _ := r.Next()
	if rows, cols, err := ParseSize(p); rows != 24 || cols != 80 || err != nil {
		t.Error(rows, cols, err)
	}
	_, p, _ = r.Next()
	if n, err := ParseCredit(p); n != 4096 || err != nil {
		t.Error(n, err)
	}
	if typ, p, err := r.Next(); typ != Detach || len(p) != 0 || err != nil {
		t.Error(typ, p, err)
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A text is as long as it is, also when it fills its frames exactly.
func TestJSON(t *testing.T) {
	for _, n := range []int{0, 1, Max - 3, Max - 2, Max - 1, Max, 2*Max - 2, 3 * Max} {
		var b bytes.Buffer
		want := strings.Repeat("x", n)
		w := NewWriter(&b)
		if err := errors.Join(w.JSON(Result, want), w.Write(Stdout, []byte("next"))); err != nil {
			t.Fatal(err)
		}
		r := NewReader(&b)
		typ, p, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		text, err := r.Text(typ, p, 4*Max)
		var got string
		if err = errors.Join(err, json.Unmarshal(text, &got)); err != nil || got != want {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
		if typ, p, _ := r.Next(); typ != Stdout || string(p) != "next" {
			t.Error(n, typ, string(p))
		}
	}
}

func TestTextTooLong(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	_ = w.JSON(Result, strings.Repeat("x", 3*Max))
	r := NewReader(&b)
	typ, p, _ := r.Next()
	if _, err := r.Text(typ, p, 2*Max); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

// FuzzReader: whatever comes, no panic, no frame above the limit, no memory beyond it.
func FuzzReader(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{7, 255, 255, 255, 255})
	f.Add([]byte{4, 0, 0, 0, 4, 0, 24, 0, 80})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		for {
			typ, p, err := r.Next()
			if err != nil {
				return
			}
			if len(p) > Max || cap(r.buf) > Max {
				t.Fatal(len(p), cap(r.buf))
			}
			_, _, _ = ParseSize(p)
			if n, err := ParseCredit(p); err == nil && (n < 0 || n > Window) {
				t.Fatal(n)
			}
			if n, err := ParseSignal(p); err == nil && (n < 1 || n > 64) {
				t.Fatal(n)
			}
			if typ == Result {
				_, _ = r.Text(typ, p, maxTest)
			}
		}
	})
}

const maxTest = 4 * Max

// What is read is what was pushed, and the credit given back is as much.
func TestInput(t *testing.T) {
	in := NewInput()
	var mu sync.Mutex
	back := 0
	taken := func(n int) { mu.Lock(); back += n; mu.Unlock() }
	go func() {
		for range 1000 {
			in.Push([]byte("0123456789"), taken)
		}
		in.Close(io.EOF)
		in.Push([]byte("too late"), taken)
		in.Close(io.ErrUnexpectedEOF)
	}()
	got, err := io.ReadAll(in)
	if err != nil || string(got) != strings.Repeat("0123456789", 1000) || back != len(got) {
		t.Error(len(got), back, err)
	}
}

func TestInputBroken(t *testing.T) {
	in := NewInput()
	in.Push([]byte("half"), func(int) {})
	in.Close(io.ErrUnexpectedEOF)
	if got, err := io.ReadAll(in); string(got) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(string(got), err)
	}
}

func TestAllowance(t *testing.T) {
	var a Allowance
	got := make(chan int)
	go func() {
		for n := a.Take(100); n > 0; n = a.Take(100) {
			got <- n
		}
		close(got)
	}()
	a.Add(150)
	if n, m := <-got, <-got; n != 100 || m != 50 {
		t.Error(n, m)
	}
	a.Close()
	if _, open := <-got; open {
		t.Error("more than was allowed")
	}
}
