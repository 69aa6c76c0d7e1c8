package gates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Key is everything that an answer depends on: the gate with its configuration, what it could see, and the root
// filesystem that it ran tools in (empty for a gate that runs none).
type Key struct{ Gate, Tree, Image string }

// Answer is what a gate says, without when and how strictly it was asked.
type Answer struct {
	// Below lists the paths of the workspace itself that it rests on, besides what the change replaces, sorted; Seen is a
	// digest of what was there (Change.Identify). Who keeps answers does not look into either.
	Below []string `json:"below,omitempty"`
	Seen  string   `json:"seen,omitempty"`

	Findings []Finding  `json:"findings,omitempty"`
	Dropped  int        `json:"dropped,omitempty"`
	Evidence []Evidence `json:"evidence,omitempty"`
	Checked  int        `json:"checked"`
}

// Kept is an answer with its key.
type Kept struct {
	Key
	Answer
}

// Cache remembers answers, never errors. It is safe for concurrent use. What it cannot read or keep it does not have: a
// gate is asked again. A pipeline keeps what is new of a run at once.
type Cache interface {
	Answer(ctx context.Context, k Key) (Answer, bool)
	Keep(ctx context.Context, list ...Kept)
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

// Keep remembers answers. Their slices are not changed by anybody afterwards.
func (m *MemoryCache) Keep(_ context.Context, list ...Kept) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = map[Key]Answer{}
	}
	size := m.Size
	if size <= 0 {
		size = 1024
	}
	for _, k := range list {
		if _, known := m.answers[k.Key]; !known {
			m.order = append(m.order, k.Key)
		}
		m.answers[k.Key] = k.Answer
	}
	for len(m.order) > size {
		delete(m.answers, m.order[0])
		m.order = m.order[1:]
	}
}

// sights is what one gate saw of the workspace below a change. Its owner works there: an answer that rests on it is used again
// only while it is the same. What entries replace is part of Change.Tree already.
type sights struct {
	run *run

	mu      sync.Mutex        // a gate that ended too late may still look
	seen    map[string]string // path → identity, from before it was looked at
	unknown bool              // something cannot be told from what may be there later
}

func (r *run) sights() *sights { return &sights{run: r, seen: map[string]string{}} }

// replaced are the paths at which there was something before.
func (c *Change) replaced() map[string]bool {
	paths := make(map[string]bool, len(c.Entries))
	for i := range c.Entries {
		if c.Entries[i].OldType != "" {
			paths[c.Entries[i].Path] = true
		}
	}
	return paths
}

// noting is the change for one gate, of which it is noted where it looks below.
func (s *sights) noting(c *Change) *Change {
	n := *c
	if c.OpenOld != nil {
		n.OpenOld = func(p string) (io.ReadCloser, error) { s.note(p); return c.OpenOld(p) }
	}
	if c.Lookup != nil {
		n.Lookup = func(p string) (FileType, bool) { s.note(p); return c.Lookup(p) }
	}
	if c.Readlink != nil {
		n.Readlink = func(p string) (string, bool) { s.note(p); return c.Readlink(p) }
	}
	return &n
}

func (s *sights) note(p string) {
	if s.run.replaced()[p] {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.seen[p]; known || s.unknown {
		return
	}
	id := s.run.change.identify(p)
	s.seen[p], s.unknown = id, id == ""
}

func (c *Change) identify(p string) string {
	if c.Identify == nil {
		return ""
	}
	return c.Identify(p)
}

// seal puts into an answer what it rests on; false when that cannot be told.
func (s *sights) seal(a *Answer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown || len(s.seen) == 0 {
		return !s.unknown
	}
	a.Below = make([]string, 0, len(s.seen))
	for p := range s.seen {
		a.Below = append(a.Below, p)
	}
	slices.Sort(a.Below)
	a.Seen = digestSights(a.Below, func(p string) string { return s.seen[p] })
	return true
}

// still says whether what an answer rests on is as it was.
func (s *sights) still(a Answer) bool {
	if len(a.Below) == 0 {
		return a.Seen == ""
	}
	known := true
	now := digestSights(a.Below, func(p string) string {
		id := s.run.change.identify(p)
		known = known && id != ""
		return id
	})
	return known && now == a.Seen
}

func digestSights(paths []string, of func(p string) string) string {
	sum := sha256.New()
	for _, p := range paths {
		fmt.Fprintf(sum, "%q %q\n", p, of(p))
	}
	return hex.EncodeToString(sum.Sum(nil))
}
