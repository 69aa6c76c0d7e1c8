// Package chain is the arithmetic of the audit log: entries that are chained by hashes, the check of such a chain, and the
// heads of it that are kept in a file of their own. It reads no database; docs/audit.md says the same for whoever wants to
// check an export with other tools.
//
// An entry stands for one event or for several that follow each other: its Seq is the number of the last of them. The hash
// of an entry is SHA-256 over nine lines: the hash of the entry before (64 zeros for the first), Seq, Count, At in
// nanoseconds since 1970, Feature, Task, Step, Kind, and the SHA-256 of Body. Hashes are in lower-case hexadecimal, numbers
// decimal, and each line ends with a newline. No field has a newline in it, which makes this a one-to-one encoding.
//
// Entries are never changed. Those of many events are removed when there are too many of them, and an entry of KindTrim,
// which is part of the chain itself, then says which, and which hash the last of them had: the chain goes on from there. A
// gap that no entry announces is damage.
package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Kinds of entries that speak of others. Their Body is JSON whose detail is a Gaps.
const (
	KindTrim = "trim" // some were removed, as there were too many
	KindLost = "lost" // the end of the log was lost, or all of it; with no gaps: the heads, and nobody knows
)

// Hash is a SHA-256.
type Hash [sha256.Size]byte

// String is in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText is String.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what String has written, and nothing else.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("%q is no SHA-256 in hexadecimal", text)
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// Entry is one row of the log.
type Entry struct {
	Seq     int64 // of the last event that it stands for; from 1
	Count   int64 // of events; at least 1
	At      time.Time
	Feature string // id
	Task    string // id
	Step    int
	Kind    string
	Body    []byte // JSON

	Prev Hash // of the entry before
	Hash Hash
}

// Digest is the SHA-256 of the body.
func (e *Entry) Digest() Hash { return sha256.Sum256(e.Body) }

// Link makes an entry the next one after head, and returns the head that it is.
func (e *Entry) Link(head Head) Head {
	e.Seq, e.Prev = head.Seq+e.Count, head.Hash
	e.Hash = e.sum(e.Prev, e.Digest())
	return Head{Task: e.Task, Seq: e.Seq, Hash: e.Hash}
}

// sum is what the hash must be.
func (e *Entry) sum(prev, digest Hash) Hash {
	b := make([]byte, 0, 320)
	line := func(b []byte, text string) []byte { return append(append(b, text...), '\n') }
	number := func(b []byte, n int64) []byte { return append(strconv.AppendInt(b, n, 10), '\n') }
	b = append(hex.AppendEncode(b, prev[:]), '\n')
	b = number(number(number(b, e.Seq), e.Count), e.At.UnixNano())
	b = number(line(line(b, e.Feature), e.Task), int64(e.Step))
	b = line(b, e.Kind)
	b = append(hex.AppendEncode(b, digest[:]), '\n')
	return sha256.Sum256(b)
}

// Gaps is the detail of an entry of KindTrim or KindLost.
type Gaps struct {
	Of     string `json:"of,omitempty"` // kind of what was removed
	Events int64  `json:"events,omitempty"`
	Gaps   []Gap  `json:"gaps"`
}

// Gap is a range of events whose entries were removed.
type Gap struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Hash  Hash  `json:"hash"` // of the entry whose last event was Last
}

// Add adds the gap of one entry that is removed, after those before it.
func (g *Gaps) Add(next Gap) {
	g.Events += next.Last - next.First + 1
	if n := len(g.Gaps); n > 0 && g.Gaps[n-1].Last+1 == next.First {
		g.Gaps[n-1].Last, g.Gaps[n-1].Hash = next.Last, next.Hash
		return
	}
	g.Gaps = append(g.Gaps, next)
}

// Gaps are what an entry announces; none for one that announces nothing.
func (e *Entry) Gaps() (Gaps, error) {
	if e.Kind != KindTrim && e.Kind != KindLost {
		return Gaps{}, nil
	}
	var body struct {
		Detail Gaps `json:"detail"`
	}
	err := json.Unmarshal(e.Body, &body)
	return body.Detail, err
}
