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
			if at == 0 {
				continue
			}
			v := &m.nodes[n]
			v.fail = m.step(m.nodes[at].fail, v.c)
			if f := &m.nodes[v.fail]; f.match > 0 {
				if v.match == 0 {
					v.match, v.mark, v.before = f.match, f.mark, f.before
				}
				v.end = v.end || f.end
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
