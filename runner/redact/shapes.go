package redact

import "bytes"

const (
	maxLine  = 64 << 10 // of a line, what is looked at at once
	ahead    = 8 << 10  // of it, what is only looked at for what begins before
	context  = 256      // what is looked at again of what has been written
	maxBlock = 64 << 10 // what a private key without an end hides
	maxQuote = 8 << 10  // likewise a quotation that does not end on its line
)

// shapes is the stage that hides what looks like a secret. It decides a line when it is there.
type shapes struct {
	to   func([]byte)
	buf  []byte
	done int    // of buf, what has been written: it is context
	seen int    // of buf, up to where there is no end of a line
	bol  bool   // buf begins a line
	over *ender // the value that goes on; buf is what follows of it
}

func (s *shapes) write(p []byte) {
	if len(s.buf) == 0 {
		s.buf = append(s.buf, s.run(p)...)
		return
	}
	s.buf = append(s.buf, p...)
	if rest := s.run(s.buf); len(rest) < len(s.buf) {
		s.buf = append(s.buf[:0], rest...)
	}
}

// run decides what can be decided of b, and returns the rest.
func (s *shapes) run(b []byte) []byte {
	for len(b) > s.done {
		if s.over != nil {
			n, ended := s.over.find(b)
			if ended {
				s.over = nil
			} else if n == 0 {
				return b
			}
			s.bol = s.bol && n == 0
			s.seen = max(0, s.seen-n)
			b = b[n:]
			continue
		}
		piece := b[:min(len(b), s.done+maxLine)]
		s.seen = max(s.seen, s.done)
		line := bytes.LastIndexByte(piece[s.seen:], '\n')
		switch {
		case line >= 0:
			b = b[s.lines(b[:s.seen+line+1]):]
		case len(piece) == s.done+maxLine:
			used := s.scan(piece, len(piece)-ahead, true)
			s.seen = len(piece) - used
			b = b[used:]
		default:
			s.seen = len(b)
			return b
		}
	}
	return b
}

// lines decides whole lines, up to a value that goes on behind them.
func (s *shapes) lines(b []byte) (used int) {
	for s.over == nil && used < len(b) {
		used += s.scan(b[used:], len(b)-used, false)
	}
	return used
}

// flush writes what is decided of a line that goes on.
func (s *shapes) flush() {
	for s.over == nil && len(s.buf) > s.done {
		used := s.scan(s.buf, len(s.buf), true)
		if used == 0 {
			break
		}
		s.buf = append(s.buf[:0], s.buf[used:]...)
	}
}

// close writes what is left, as if the line ended.
func (s *shapes) close() {
	if s.over == nil && len(s.buf) > s.done {
		s.buf = s.buf[s.lines(s.buf):]
	}
	if s.over != nil && s.over.kind == endBlock { // what is left is between lines
		s.to(s.buf)
	}
	*s = shapes{to: s.to, buf: s.buf[:0], bol: true}
}

// scan writes b without the secrets that begin before limit, and returns how much of it is not needed any more. partial says
// that the last line of b goes on. It ends early after a value of several lines: what follows is decided without looking back,
// as it is when it comes later.
func (s *shapes) scan(b []byte, limit int, partial bool) (used int) {
	p := piece{b: b, bol: s.bol, partial: partial}
	set := triggers()
	written, over := s.done, (*ender)(nil)
	for i := 0; over == nil; {
		if i = set.findFolded(b, i, limit); i >= limit || i+4 > len(b) {
			break
		}
		v := p.look(i)
		if v.waits && limit == len(b) {
			limit = max(v.start, written)
			break
		}
		if v.end == nil {
			i = v.next
			continue
		}
		n, ended := v.end.find(b[v.start:])
		goesOn := !ended && (partial || v.end.lines())
		stop := v.start + max(n, v.least)
		if !ended && !goesOn && !v.end.endsWith(b[v.start+n:]) {
			stop = len(b)
		}
		if i = max(v.next, stop); !goesOn && (stop <= written || isMark(b[v.start:stop])) {
			continue
		}
		if v.start > written {
			s.to(b[written:v.start])
		}
		s.to(v.mark)
		switch written = max(written, stop); {
		case goesOn:
			over = v.end
		case v.end.lines():
			s.seen, s.done, s.bol = 0, 0, false
			return written
		}
	}
	s.seen = 0
	switch {
	case over != nil:
		s.over, s.done, s.bol = over, 0, false
		return written
	case !partial:
		if written < len(b) {
			s.to(b[written:])
		}
		s.done, s.bol = 0, true
		return len(b)
	}
	if written < limit {
		s.to(b[written:limit])
	}
	written = max(written, limit)
	used = max(0, written-context)
	s.done, s.bol = written-used, s.bol && used == 0 || used > 0 && b[used-1] == '\n'
	return used
}
