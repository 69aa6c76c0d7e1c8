package snapshot

import (
	"slices"
	"time"
)

// Keep says which checkpoints a feature keeps. Every rule with a value drops; a checkpoint stays only if all keep it.
type Keep struct {
	Count int           // the newest so many; 0: as many as there are
	Age   time.Duration // those not older; 0: of any age
	Bytes int64         // the newest whose own layers take no more in all; 0: of any size
}

// Candidate is a checkpoint and the reasons that it has to stay.
type Candidate struct {
	Record
	LastGood, Promoted, Labelled, Head bool
}

func (c *Candidate) stays() bool { return c.LastGood || c.Promoted || c.Labelled || c.Head }

// Retain returns the ids of the checkpoints to drop, oldest first. Those that are the last good one, were promoted, have
// a label or are the head stay whatever the rules say, and count for them. An alias goes with what it means, takes
// no place of its own, and passes its reasons to stay on.
func Retain(k Keep, all []Candidate, now time.Time) []string {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Candidate) int { return b.Created.Compare(a.Created) }) // newest first
	stay := map[string]bool{}
	for i := range all {
		if c := &all[i]; c.stays() {
			stay[c.ID] = true
			stay[meant(c)] = true
		}
	}
	dropped := map[string]bool{}
	var count int
	var bytes int64
	for i := range all {
		c := &all[i]
		if c.AliasOf != "" {
			continue
		}
		out := k.Age > 0 && now.Sub(c.Created) > k.Age || k.Count > 0 && count >= k.Count || k.Bytes > 0 && bytes+c.Bytes > k.Bytes
		if out && !stay[c.ID] {
			dropped[c.ID] = true
			continue
		}
		count++
		bytes += c.Bytes
	}
	var drop []string
	for i := range slices.Backward(all) {
		if c := &all[i]; dropped[meant(c)] {
			drop = append(drop, c.ID)
		}
	}
	return drop
}

func meant(c *Candidate) string {
	if c.AliasOf != "" {
		return c.AliasOf
	}
	return c.ID
}
