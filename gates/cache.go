package gates

import (
	"context"
	"sync"
)

// Key is everything that an answer depends on: the gate with its configuration, what it could see, and the root
// filesystem that it ran tools in (empty for a gate that runs none).
type Key struct{ Gate, Tree, Image string }

// Answer is what a gate says, without when and how strictly it was asked.
type Answer struct {
	Findings []Finding     `json:"findings,omitempty"`
	Dropped  int           `json:"dropped,omitempty"`
	Measured []Measurement `json:"measured,omitempty"`
	Checked  int           `json:"checked"`
}

// Cache remembers answers, never errors. It is safe for concurrent use. What it cannot read or keep it does not have: a
// gate is asked again.
type Cache interface {
	Answer(ctx context.Context, k Key) (Answer, bool)
	Keep(ctx context.Context, k Key, a Answer)
}

// MemoryCache is a Cache in memory: the newest answers, as many as Size says (0: 1024). The zero value is empty.
type MemoryCache struct {
	Size int

	mu      sync.Mutex
	answers map[Key]Answer
	order   []Key // oldest first
}

// Answer returns what was kept under k.
func (m *MemoryCache) Answer(_ context.Context, k Key) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.answers[k]
	return a, ok
}

// Keep remembers a. Its slices are not changed by anybody afterwards.
func (m *MemoryCache) Keep(_ context.Context, k Key, a Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = map[Key]Answer{}
	}
	size := m.Size
	if size <= 0 {
		size = 1024
	}
	if _, known := m.answers[k]; !known {
		m.order = append(m.order, k)
	}
	m.answers[k] = a
	for len(m.order) > size {
		delete(m.answers, m.order[0])
		m.order = m.order[1:]
	}
}
