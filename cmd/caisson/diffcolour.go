package main

import (
	"bufio"
	"bytes"
)

// diffWriter is standard output for a diff: buffered; on a terminal coloured, with control characters shown and
// not obeyed, because the content is the sandbox's.
func (a *app) diffWriter() *diffWriter {
	return &diffWriter{out: bufio.NewWriter(a.stdout), terminal: isTerminal(a.stdout), colour: a.colour()}
}

type diffWriter struct {
	out              *bufio.Writer
	terminal, colour bool
	line             []byte // the beginning of a line whose end has not been written
}

func (w *diffWriter) Write(p []byte) (int, error) {
	if !w.terminal {
		return w.out.Write(p)
	}
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.line = append(w.line, p...)
			break
		}
		w.emit(append(w.line, p[:i]...))
		w.out.WriteByte('\n')
		w.line, p = w.line[:0], p[i+1:]
	}
	return n, nil
}

// Flush writes what is buffered.
func (w *diffWriter) Flush() error {
	if len(w.line) > 0 {
		w.emit(w.line)
		w.line = nil
	}
	return w.out.Flush()
}

const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	cyan  = "\x1b[36m"
	reset = "\x1b[0m"
)

func (w *diffWriter) emit(line []byte) {
	colour := ""
	if w.colour {
		colour = lineColour(line)
	}
	w.out.WriteString(colour)
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			w.out.Write([]byte{'^', c ^ 0x40})
		} else {
			w.out.WriteByte(c)
		}
	}
	if colour != "" {
		w.out.WriteString(reset)
	}
}

func lineColour(line []byte) string {
	switch {
	case bytes.HasPrefix(line, []byte("diff ")), bytes.HasPrefix(line, []byte("+++ ")), bytes.HasPrefix(line, []byte("--- ")):
		return bold
	case bytes.HasPrefix(line, []byte("@@")):
		return cyan
	case bytes.HasPrefix(line, []byte("+")):
		return green
	case bytes.HasPrefix(line, []byte("-")):
		return red
	}
	return ""
}
