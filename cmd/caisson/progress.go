package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressDelay is how long something may take before a line says what it is.
const progressDelay = 500 * time.Millisecond

// progress is one line on a terminal that says what caisson is doing, drawn when that takes longer than
// progressDelay and erased when it is over. A nil progress draws nothing.
type progress struct {
	w io.Writer

	mu    sync.Mutex
	text  string
	timer *time.Timer
	shown bool
}

// newProgress returns nil when w is not a terminal.
func newProgress(w io.Writer) *progress {
	if !isTerminal(w) {
		return nil
	}
	return &progress{w: w}
}

// set says what is being done now; "" when nothing that needs saying is.
func (p *progress) set(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == p.text {
		return
	}
	p.text = text
	if text == "" {
		p.erase()
		return
	}
	switch {
	case p.shown:
		p.draw()
	case p.timer == nil:
		p.timer = time.AfterFunc(progressDelay, p.late)
	}
}

// late runs when something has taken progressDelay.
func (p *progress) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text != "" {
		p.draw()
	}
}

func (p *progress) draw() {
	p.shown = true
	fmt.Fprintf(p.w, "\r\x1b[Kcaisson: %s …", p.text)
}

func (p *progress) erase() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
