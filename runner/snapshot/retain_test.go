package snapshot

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRetain(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// a is the oldest, one hour between two; sizes are 10 bytes.
	line := func(names string, change func(c *Candidate)) []Candidate {
		var all []Candidate
		for i, name := range strings.Split(names, "") {
			c := Candidate{Record: Record{ID: name, Bytes: 10, Created: now.Add(time.Duration(i-len(names)) * time.Hour)}}
			if change != nil {
				change(&c)
			}
			all = append(all, c)
		}
		slices.Reverse(all) // the order of the input does not matter
		return all
	}
	mark := func(id string, set func(c *Candidate)) func(c *Candidate) {
		return func(c *Candidate) {
			if c.ID == id {
				set(c)
			}
		}
	}
	for _, c := range []struct {
		name string
		keep Keep
		all  []Candidate
		want string
	}{
		{"no rule", Keep{}, line("abcd", nil), ""},
		{"count", Keep{Count: 2}, line("abcd", nil), "ab"},
		{"count of fewer", Keep{Count: 9}, line("abcd", nil), ""},
		{"age", Keep{Age: 2 * time.Hour}, line("abcd", nil), "ab"},
		{"bytes", Keep{Bytes: 35}, line("abcd", nil), "a"},
		{"every rule drops", Keep{Count: 3, Bytes: 25}, line("abcd", nil), "ab"},
		{"last good stays", Keep{Count: 1}, line("abcd", mark("b", func(c *Candidate) { c.LastGood = true })), "ac"},
		{"promoted stays", Keep{Count: 1}, line("abcd", mark("a", func(c *Candidate) { c.Promoted = true })), "bc"},
		{"labelled stays", Keep{Age: time.Minute}, line("abcd", mark("c", func(c *Candidate) { c.Labelled = true })), "abd"},
		{"head stays", Keep{Age: time.Minute}, line("abcd", mark("d", func(c *Candidate) { c.Head = true })), "abc"},
		{"an alias takes no place", Keep{Count: 2}, line("abcd", mark("c", func(c *Candidate) { c.AliasOf = "b" })), "a"},
		{"an alias goes with what it means", Keep{Count: 1}, line("abcd", mark("c", func(c *Candidate) { c.AliasOf = "b" })), "abc"},
		{"an alias keeps what it means", Keep{Count: 1}, line("abcd", mark("c", func(c *Candidate) { c.AliasOf, c.Labelled = "b", true })), "a"},
		{"one alone that is too large", Keep{Bytes: 5}, line("a", nil), "a"},
	} {
		if got := strings.Join(Retain(c.keep, c.all, now), ""); got != c.want {
			t.Errorf("%s: drops %q, want %q", c.name, got, c.want)
		}
	}
}
