package chain

import (
	"cmp"
	"fmt"
	"slices"
)

// Problem is one thing that is wrong with a log.
type Problem struct {
	Seq  int64  `json:"seq"`            // of the entry, or of the first event that is missing
	Task string `json:"task,omitempty"` // whose entry it is, where that is known
	What string `json:"what"`
}

// Report is what a Checker has found.
type Report struct {
	Whole    bool      `json:"whole"`
	Entries  int64     `json:"entries"`
	Events   int64     `json:"events"` // that they stand for
	Tasks    int       `json:"tasks"`
	Trimmed  int64     `json:"trimmed"`        // events whose entries were removed, and announced as such
	Heads    int       `json:"heads"`          // how many were compared
	Head     *Head     `json:"head"`           // the newest entry that is never removed, to be kept elsewhere; null for an empty log
	Kept     []Kept    `json:"kept,omitempty"` // what Checker.Kept shows of trimming, in its order
	Problems []Problem `json:"problems"`
}

// Kept is what went since a head was kept. A trim says itself what it removed: of that the head proves the number alone.
type Kept struct {
	Seq     int64 `json:"seq"`     // of the head
	Trimmed int64 `json:"trimmed"` // events at or before it, whose removal was announced after it
}

// maxProblems bounds a report: a log that was written anew differs everywhere.
const maxProblems = 100

// Checker checks a log from its first entry to its last, and its heads. The zero value with Heads set is ready.
type Checker struct {
	Heads   []Head            // that the log must have
	Kept    []Head            // that it must have, too; of each of them the report has a Kept
	NoHeads bool              // the file that has them is gone
	Trimmed func(string) bool // whether entries of a kind are removed when there are many; nil: none

	last   Head
	tasks  map[string]bool
	heads  map[int64][]int // Seq → indexes in Heads that have not been met
	holes  []hole
	gaps   []announced
	lost   []announced // which leave no hole, as the entry that tells of them has their numbers
	report Report
}

// hole is a place where numbers are missing.
type hole struct {
	Gap
	next   Entry // the entry after it, without its body
	digest Hash
}

// announced is a Gap and the entry that told of it.
type announced struct {
	Gap
	kind string
	by   int64 // the number of that entry
}

// Add checks the next entry as it was stored. Entries come in the order of their Seq.
func (c *Checker) Add(e *Entry) {
	if c.tasks == nil {
		c.begin()
	}
	c.report.Entries++
	c.report.Events += e.Count
	if e.Task != "" {
		c.tasks[e.Task] = true
	}
	digest := e.Digest()
	switch first := e.Seq - e.Count + 1; {
	case e.Count < 1 || first <= c.last.Seq:
		c.problem(e.Seq, e.Task, fmt.Sprintf("it stands for %d events and follows entry %d: it was inserted, or the count was altered", e.Count, c.last.Seq))
	case first > c.last.Seq+1:
		h := hole{Gap: Gap{First: c.last.Seq + 1, Last: first - 1}, next: *e, digest: digest}
		h.next.Body = nil
		c.holes = append(c.holes, h)
	case e.sum(c.last.Hash, digest) != e.Hash:
		c.problem(e.Seq, e.Task, "it is not what it was: what it says, its hash or the entry before was altered or exchanged")
	}
	c.meet(e)
	c.last = Head{Task: e.Task, Seq: e.Seq, Hash: e.Hash}
	if c.Trimmed == nil || !c.Trimmed(e.Kind) {
		head := c.last
		c.report.Head = &head
	}
	c.heed(e)
}

// heed takes note of what an entry says was removed.
func (c *Checker) heed(e *Entry) {
	said, err := e.Gaps()
	switch {
	case err != nil:
		c.problem(e.Seq, e.Task, "what it says of removed entries cannot be read: "+err.Error())
	case e.Kind == KindTrim && (c.Trimmed == nil || !c.Trimmed(said.Of)):
		c.problem(e.Seq, e.Task, fmt.Sprintf("it says that entries of kind %q were trimmed, which never are", said.Of))
	case e.Kind == KindLost && len(said.Gaps) == 0:
		c.problem(e.Seq, "", "the file with the log's heads was gone when this was written: whether others came after the entry before cannot be told")
	}
	for _, g := range said.Gaps {
		if e.Kind == KindLost && g.First > e.Seq-e.Count && g.Last < e.Seq {
			c.problem(g.First, "", fmt.Sprintf("entries %d to %d are gone: they were cut off the log's end, or lost with the power, before entry %d came", g.First, g.Last, e.Seq))
			c.report.Events -= g.Last - g.First + 1
			c.lost = append(c.lost, announced{g, e.Kind, e.Seq})
			continue
		}
		c.gaps = append(c.gaps, announced{g, e.Kind, e.Seq})
	}
}

func (c *Checker) begin() {
	c.tasks, c.heads = map[string]bool{}, map[int64][]int{}
	c.Heads = slices.Concat(c.Heads, c.Kept)
	for i, h := range c.Heads {
		c.heads[h.Seq] = append(c.heads[h.Seq], i)
	}
	c.report.Heads = len(c.Heads)
	c.report.Problems = []Problem{}
}

func (c *Checker) problem(seq int64, task, what string) {
	c.report.Problems = append(c.report.Problems, Problem{Seq: seq, Task: task, What: what})
}

// meet compares an entry with the heads that are of it.
func (c *Checker) meet(e *Entry) {
	for _, i := range c.heads[e.Seq] {
		if h := &c.Heads[i]; h.Hash != e.Hash {
			c.problem(e.Seq, cmp.Or(h.Task, e.Task), "it is not the one that was there: "+h.From+" has another hash of it")
		}
	}
	delete(c.heads, e.Seq)
}

// Finish answers once all entries were added.
func (c *Checker) Finish() *Report {
	if c.tasks == nil {
		c.begin()
	}
	for _, h := range c.Kept {
		c.report.Kept = append(c.report.Kept, Kept{h.Seq, c.trimmedSince(h.Seq)})
	}
	c.fill()
	c.unmet()
	if c.NoHeads && c.report.Entries > 0 {
		c.problem(c.last.Seq, c.last.Task, "the file with the log's heads is gone: whether more came after this entry cannot be told")
	}
	r := &c.report
	r.Tasks = len(c.tasks)
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return cmp.Compare(a.Seq, b.Seq) })
	r.Whole = len(r.Problems) == 0
	r.Problems = r.Problems[:min(len(r.Problems), maxProblems)]
	return r
}

// trimmedSince counts the events up to number seq that entries after it say were trimmed.
func (c *Checker) trimmedSince(seq int64) (n int64) {
	for _, g := range c.gaps {
		if g.kind == KindTrim && g.by > seq {
			n += max(0, min(g.Last, seq)-g.First+1)
		}
	}
	return n
}

// fill compares the holes with what entries say was removed: each of both must be of the other.
func (c *Checker) fill() {
	slices.SortFunc(c.gaps, func(a, b announced) int { return cmp.Compare(a.First, b.First) })
	rest := c.gaps
	for _, h := range c.holes {
		for len(rest) > 0 && rest[0].First < h.First {
			c.stillThere(rest[0])
			rest = rest[1:]
		}
		at := h.First // up to here the hole is explained
		var last *announced
		for len(rest) > 0 && rest[0].First == at && rest[0].Last <= h.Last && rest[0].Last >= at {
			last, rest = &rest[0], rest[1:]
			at = last.Last + 1
			if last.kind == KindLost {
				c.problem(last.First, "", fmt.Sprintf("entries %d to %d are gone: the log was lost, and begun anew with entry %d", last.First, last.Last, h.next.Seq))
			} else {
				c.report.Trimmed += last.Last - last.First + 1
			}
		}
		if at <= h.Last {
			c.problem(at, h.next.Task, fmt.Sprintf("entries %d to %d are missing", at, h.Last))
		} else if h.next.sum(last.Hash, h.digest) != h.next.Hash {
			c.problem(h.next.Seq, h.next.Task, "it is not what it was, or does not follow the entries that were removed before it")
		}
	}
	for _, g := range rest {
		c.stillThere(g)
	}
}

func (c *Checker) stillThere(g announced) {
	c.problem(g.First, "", fmt.Sprintf("entries %d to %d were removed once, and something is there", g.First, g.Last))
}

// unmet says which heads the log does not have. Those of what was removed cannot be met any more. Of those beyond the end the
// newest of each task says enough.
func (c *Checker) unmet() {
	type whose struct{ from, task string }
	beyond := map[whose]*Head{}
	for seq, list := range c.heads {
		for _, i := range list {
			h := &c.Heads[i]
			switch w := (whose{h.From, h.Task}); {
			case c.removed(h):
			case seq <= c.last.Seq:
				c.problem(seq, h.Task, "it is missing: "+h.From+" has its hash")
			case beyond[w] == nil || beyond[w].Seq < seq:
				beyond[w] = h
			}
		}
	}
	for _, h := range beyond {
		c.problem(h.Seq, h.Task, fmt.Sprintf("it is gone, and %s has its hash: the log ends with entry %d; its tail was cut, or was lost with the power", h.From, c.last.Seq))
	}
}

// removed reports whether a head may be of what entries say was removed.
func (c *Checker) removed(h *Head) bool {
	of := func(g announced) bool {
		return g.First <= h.Seq && h.Seq <= g.Last && (g.Last != h.Seq || g.Hash == h.Hash)
	}
	return slices.ContainsFunc(c.gaps, of) || slices.ContainsFunc(c.lost, of)
}
