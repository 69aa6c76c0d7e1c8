package redact

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// buildOutput is n bytes of what builds print.
func buildOutput(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		switch i % 8 {
		case 0:
			fmt.Fprintf(&b, "[%4d/9999] Building CXX object src/core/CMakeFiles/core.dir/module_%d.cpp.o\n", i%9999, i)
		case 1:
			fmt.Fprintf(&b, "go: downloading golang.org/x/sys v0.%d.0\n", i%90)
		case 2:
			fmt.Fprintf(&b, "gcc -O2 -g -Wall -DNDEBUG -DVERSION=\\\"1.%d\\\" -I/usr/include/x -c -o build/obj/file%d.o src/file%d.c\n", i%10, i, i)
		case 3:
			fmt.Fprintf(&b, "src/file%d.c:%d:%d: warning: unused variable 'result' [-Wunused-variable]\n", i, i%500, i%80)
		case 4:
			fmt.Fprintf(&b, "npm http fetch GET 200 https://registry.npmjs.org/left-pad/-/left-pad-1.%d.0.tgz %dms\n", i%9, i%900)
		case 5:
			fmt.Fprintf(&b, "ok  \texample.com/project/internal/package%d\t0.%03ds\n", i, i%1000)
		case 6:
			fmt.Fprintf(&b, "2026-11-21T18:00:%02d.123Z INFO  server request handled method=GET path=/api/v1/items/%d status=200 duration=%dms\n", i%60, i, i%300)
		case 7:
			b.WriteString("    --- PASS: TestSomething/with_a_long_name_of_a_case (0.00s)\n")
		}
	}
	return b.Bytes()[:n]
}

func discard(r *Redactor, text []byte) {
	w := r.Writer(io.Discard)
	for p := text; len(p) > 0; p = p[min(len(p), 32<<10):] {
		_, _ = w.Write(p[:min(len(p), 32<<10)]) // Discard takes everything
	}
	_ = w.Close()
}

func known() *Redactor {
	r := &Redactor{}
	for i := range 10 {
		r.Know(Value{Name: fmt.Sprint("SECRET_", i), Text: fmt.Sprintf("%d-correct/horse %d battery", i*7919, i)})
	}
	return r
}

func BenchmarkShapes(b *testing.B) { benchmark(b, nil) }
func BenchmarkKnown(b *testing.B)  { benchmark(b, known()) }

func benchmark(b *testing.B, r *Redactor) {
	text := buildOutput(4 << 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		discard(r, text)
	}
}

// BenchmarkText is a short text without a secret, as the journal has them.
func BenchmarkText(b *testing.B) {
	r := known()
	for b.Loop() {
		r.Text("step 1 of 3: not finished after 10m0s")
	}
}

// TestMemory: what is held back is bounded, whatever comes.
func TestMemory(t *testing.T) {
	for name, unit := range map[string]string{
		"a long line": "abc ", "a key without an end": "-----BEGIN PRIVATE KEY-----\nabc", "an open quote": "password=\"a ", "backslashes": "token=\"\\",
		"a block": "password: |\n  a\n", "a long value": "password=aaaa", "blank lines": "\n ",
	} {
		text := unit
		if unit[0] != 'p' || !strings.Contains(unit, "|") {
			text = strings.Repeat(unit[len(unit)-1:], 4<<20)
		} else {
			text += strings.Repeat("  a\n", 1<<20)
		}
		r := known()
		w := r.Writer(io.Discard)
		_, _ = io.WriteString(w, unit)
		for p := text; len(p) > 0; p = p[min(len(p), 5000):] {
			_, _ = io.WriteString(w, p[:min(len(p), 5000)])
			if n := cap(w.known.held) + cap(w.shapes.buf) + cap(w.buf); n > 1<<20 {
				t.Fatalf("%s: %d bytes are held", name, n)
			}
		}
		_ = w.Close()
	}
}
