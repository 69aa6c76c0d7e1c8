package redact

// span is where known values stand, one or several that touch each other.
type span struct{ start, end, mark int }

// values is the stage that hides known values. What it holds back can still become one.
type values struct {
	r    *Redactor
	m    *matcher
	to   func([]byte)
	held []byte
	at   int32  // where the automaton is after held
	open []span // in held, in order and apart
	// hidden is the end in held of the last span that was written, -1 for none: what touches it belongs to it.
	hidden int
	shares bool // a value ended with held, and may share a character with what follows
}

func (v *values) write(p []byte) {
	if m := v.r.values(); m != v.m {
		v.change(m)
	}
	if v.m == nil {
		v.to(p)
		return
	}
	from := len(v.held)
	if from > 0 {
		v.held = append(v.held, p...)
		p = v.held
	}
	v.scan(p, from)
	v.emit(p, v.safe(p, 1))
}

// safe is up to where nothing can become a value any more; before it may share so many characters with one.
func (v *values) safe(b []byte, before int) int {
	n := len(b) - int(v.m.nodes[v.at].depth)
	if n > 0 && isBase64(b[n-1]) {
		n -= before
	}
	return n
}

// flush writes what no value begins with.
func (v *values) flush() {
	if v.m != nil {
		v.emit(v.held, v.safe(v.held, 0))
	}
}

// close writes what is left.
func (v *values) close() {
	if v.m != nil {
		v.emit(v.held, len(v.held))
		v.at, v.hidden, v.shares = 0, -1, false
	}
}

// change goes on with other values. What is held back is looked at again.
func (v *values) change(m *matcher) {
	held := v.held[min(max(v.hidden, 0), len(v.held)):]
	v.m, v.held, v.open = m, nil, nil
	v.at, v.hidden, v.shares = 0, -1, false
	switch {
	case m != nil:
		v.write(held)
	case len(held) > 0:
		v.to(held)
	}
}

// scan looks for values that end in b[from:].
func (v *values) scan(b []byte, from int) {
	m, at := v.m, v.at
	if v.shares && from < len(b) {
		v.share(b, from)
	}
	for i := from; i < len(b); i++ {
		if at == 0 {
			if i = m.filter.find(b, i, len(b)); i == len(b) {
				break
			}
		}
		if at = m.step(at, b[i]); m.nodes[at].match > 0 {
			v.found(b, i+1, &m.nodes[at])
		}
	}
	v.at = at
}

// found notes a value that ends at end.
func (v *values) found(b []byte, end int, n *node) {
	s := span{end - int(n.match), end, int(n.mark)}
	if n.before && s.start > 0 && isBase64(b[s.start-1]) {
		s.start--
	}
	for len(v.open) > 0 { // a longer one may hold those before it
		last := v.open[len(v.open)-1]
		if last.end < s.start {
			break
		}
		if last.start < s.start {
			s.start, s.mark = last.start, last.mark
		}
		s.end = max(s.end, last.end)
		v.open = v.open[:len(v.open)-1]
	}
	v.open = append(v.open, s)
	if n.end {
		v.shares = true
		if end < len(b) {
			v.share(b, end)
		}
	}
}

// share hides the character after a value that has bits of it.
func (v *values) share(b []byte, at int) {
	v.shares = false
	if !isBase64(b[at]) {
		return
	}
	if n := len(v.open); n > 0 && v.open[n-1].end >= at {
		v.open[n-1].end = max(v.open[n-1].end, at+1)
	} else if v.hidden >= at {
		v.hidden = max(v.hidden, at+1)
	}
}

// emit writes b up to safe, and holds the rest back.
func (v *values) emit(b []byte, safe int) {
	from, done := max(v.hidden, 0), 0
	for _, s := range v.open {
		if s.start >= safe {
			break
		}
		done++
		if s.start > v.hidden {
			if from < s.start {
				v.to(b[from:s.start])
			}
			v.to(v.m.marks[s.mark])
		}
		v.hidden = max(v.hidden, s.end)
		from = v.hidden
	}
	if from < safe {
		v.to(b[from:safe])
	}
	v.held = append(v.held[:0], b[max(safe, 0):]...)
	v.hidden = max(v.hidden-safe, -1)
	v.open = append(v.open[:0], v.open[done:]...)
	for i := range v.open {
		v.open[i].start -= safe
		v.open[i].end -= safe
	}
}

// isBase64 says that c is a character of base64, of either alphabet.
func isBase64(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}
