package journal

// Seen is an object in the state in which it was seen: inode, size, mode, and times in seconds and nanoseconds.
type Seen struct {
	Inode uint64   `json:"i,omitempty"`
	Size  int64    `json:"s,omitempty"`
	Mode  uint32   `json:"m,omitempty"`
	Mtime [2]int64 `json:"t,omitzero"`
	Ctime [2]int64 `json:"c,omitzero"`
}
