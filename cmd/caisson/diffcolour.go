package main

import (
	"bufio"
	"bytes"
	"slices"
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
	for line := range bytes.Lines(p) {
		w.line = append(w.line, line...)
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		if err := w.emit(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush writes what is buffered.
func (w *diffWriter) Flush() error {
	if err := w.emit(); err != nil {
		return err
	}
	return w.out.Flush()
}

const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

// emit writes the line that has been gathered.
func (w *diffWriter) emit() error {
	text, end := bytes.CutSuffix(w.line, []byte("\n"))
	var shown []byte
	for _, c := range text {
		if c < ' ' && c != '\t' || c == 0x7f {
			shown = append(shown, '^', c^0x40)
		} else {
			shown = append(shown, c)
		}
	}
	if colour := lineColour(text); w.colour && colour != "" {
		shown = slices.Concat([]byte(colour), shown, []byte(reset))
	}
	if end {
		shown = append(shown, '\n')
	}
	w.line = w.line[:0]
	_, err := w.out.Write(shown)
	return err
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
