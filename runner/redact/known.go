package redact

// matcher finds known values: the automaton of Aho and Corasick, which looks at each byte once however the values overlap,
// behind a filter that skips what no value begins with.
type matcher struct {
	nodes  []node
	root   [256]int32 // children of node 0
	filter bitmap     // of the first four bytes of forms
	marks  [][]byte
}

// node is a prefix of a form.
type node struct {
	child, next int32 // the first child, and the next one of its parent
	fail        int32 // the longest proper suffix that is a prefix of a form
	depth       int32
	held        int32 // of the depth, how much can still become a form
	match       int32 // length of the longest form that ends here; 0: none does
	mark        int32
	c           byte
	before, end bool // of the forms that end here
}

// newMatcher returns nil for no values.
func newMatcher(values []Value) *matcher {
	if len(values) == 0 {
		return nil
	}
	m := &matcher{nodes: make([]node, 1)}
	for i, v := range values {
		m.marks = append(m.marks, []byte(markOf(v.Name, values)))
		for _, f := range forms(v.Text) {
			m.add(f, int32(i))
		}
	}
	m.link()
	return m
}

func (m *matcher) add(f form, mark int32) {
	m.filter.set(gram(f.text, 0))
	at := int32(0)
	for i := range len(f.text) {
		next := m.child(at, f.text[i])
		if next == 0 {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, node{c: f.text[i], depth: int32(i + 1), next: m.nodes[at].child})
			m.nodes[at].child = next
			if at == 0 {
				m.root[f.text[i]] = next
			}
		}
		at = next
	}
	n := &m.nodes[at]
	if n.match == 0 {
		n.match, n.mark = n.depth, mark
	}
	n.before, n.end = n.before || f.before, n.end || f.end
}

// suspects says that s may have a value somewhere.
func (m *matcher) suspects(s string) bool {
	return m != nil && contains(&m.filter, s, 0)
}

// contains says that s may have something of a set; fold makes its letters small.
func contains[T string | []byte](set *bitmap, s T, fold uint32) bool {
	for i := 0; i+4 <= len(s); i++ {
		if h := slot(gram(s, i) | fold); set[h>>6]>>(h&63)&1 != 0 {
			return true
		}
	}
	return false
}

// child is where c leads from a node; 0: nowhere.
func (m *matcher) child(at int32, c byte) int32 {
	if at == 0 {
		return m.root[c]
	}
	for n := m.nodes[at].child; n != 0; n = m.nodes[n].next {
		if m.nodes[n].c == c {
			return n
		}
	}
	return 0
}

// link finds the suffixes, breadth first.
func (m *matcher) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for n := m.nodes[at].child; n != 0; n = m.nodes[n].next {
			queue = append(queue, n)
			v := &m.nodes[n]
			if v.held = v.depth; at == 0 {
				continue
			}
			v.fail = m.step(m.nodes[at].fail, v.c)
			if f := &m.nodes[v.fail]; f.match > 0 {
				if v.match == 0 {
					v.match, v.mark, v.before = f.match, f.mark, f.before
				}
				v.end = v.end || f.end
			}
			if v.child == 0 { // whatever comes, it goes on from there
				v.held = m.nodes[v.fail].held
			}
		}
	}
}

// step goes on from a node with c.
func (m *matcher) step(at int32, c byte) int32 {
	for {
		if n := m.child(at, c); n != 0 {
			return n
		}
		if at == 0 {
			return 0
		}
		at = m.nodes[at].fail
	}
}

// begun is the form of which so much is there at a node that it tells something of the value; nil where there is none.
func (m *matcher) begun(at int32) *node {
	n := m.nodes[at]
	if n.depth < MinValue || n.match == n.depth {
		return nil
	}
	n.match = n.depth
	for child := n.child; child != 0; child = m.nodes[child].child {
		n.mark, n.before = m.nodes[child].mark, m.nodes[child].before
	}
	return &n
}

// bitmap is a set of four bytes in a row, by a hash: what it has may also be something else.
type bitmap [1 << 10]uint64

func slot(gram uint32) uint32 { return gram * 0x9E3779B1 >> 16 }

func (f *bitmap) set(gram uint32) {
	h := slot(gram)
	f[h>>6] |= 1 << (h & 63)
}

// find returns where in b[i:end] four bytes of the set may begin, or the first place with fewer than four; else end.
func (f *bitmap) find(b []byte, i, end int) int {
	for ; i < end && i+4 <= len(b); i++ {
		h := slot(uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24)
		if f[h>>6]>>(h&63)&1 != 0 {
			return i
		}
	}
	return min(i, end)
}

// findFolded is find for letters of either case; the set has small ones.
func (f *bitmap) findFolded(b []byte, i, end int) int {
	for ; i < end && i+4 <= len(b); i++ {
		h := slot((uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24) | fold)
		if f[h>>6]>>(h&63)&1 != 0 {
			return i
		}
	}
	return min(i, end)
}

// fold makes capital letters small; digits and most signs stay.
const fold = 0x20202020

// gram is the four bytes at i.
func gram[T string | []byte](s T, i int) uint32 {
	return uint32(s[i]) | uint32(s[i+1])<<8 | uint32(s[i+2])<<16 | uint32(s[i+3])<<24
}

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
	n := len(b) - int(v.m.nodes[v.at].held)
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

// close writes what is left. A value that was cut off there is hidden as if it were whole.
func (v *values) close() {
	if v.m != nil {
		if n := v.m.begun(v.at); n != nil {
			v.found(v.held, len(v.held), n)
		}
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
