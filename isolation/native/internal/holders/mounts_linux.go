package holders

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Mount is one line of a mountinfo file.
type Mount struct {
	ID, Parent uint64
	Point      string // absolute, seen from the root of that process
}

// Table is the mounts of a mount namespace, in the order in which the kernel tells them: parents first.
type Table struct{ mounts []Mount }

// ReadTable reads the mounts that a process sees.
func ReadTable(pid int) (*Table, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseTable(data)
}

// parseTable reads "id parent major:minor root point options …".
func parseTable(data []byte) (*Table, error) {
	t := &Table{}
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 6 {
			return nil, fmt.Errorf("mountinfo: line %q", line)
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo: line %q: %w", line, err)
		}
		parent, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo: line %q: %w", line, err)
		}
		t.mounts = append(t.mounts, Mount{ID: id, Parent: parent, Point: unescape(f[4])})
	}
	return t, nil
}

// unescape undoes the kernel's \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Mounted returns the topmost mount at a point.
func (t *Table) Mounted(point string) (Mount, bool) {
	for i := len(t.mounts) - 1; i >= 0; i-- {
		if t.mounts[i].Point == point {
			return t.mounts[i], true
		}
	}
	return Mount{}, false
}

// Below returns the mounts directly on a mount, each with its point.
func (t *Table) Below(m Mount) []Mount {
	var out []Mount
	for _, x := range t.mounts {
		if x.Parent == m.ID && x.ID != m.ID && x.Point != m.Point {
			out = append(out, x)
		}
	}
	return out
}

// At returns the mount that a path lies on, by its longest beginning that is a mount point; 0 when there is none.
func (t *Table) At(path string) uint64 {
	best := Mount{}
	for _, m := range t.mounts {
		under := m.Point == "/" || path == m.Point || strings.HasPrefix(path, m.Point) && path[len(m.Point)] == '/'
		if under && len(m.Point) >= len(best.Point) {
			best = m
		}
	}
	return best.ID
}
