package quota

import (
	"fmt"
	"testing"
)

// BenchmarkGroup is what a sandbox pays: a group with limits, two leaves and their entries, and their removal apart.
func BenchmarkGroup(b *testing.B) {
	c := probed(b)
	b.Cleanup(func() { _ = c.Cleanup() })
	for i := 0; b.Loop(); i++ {
		g, err := c.New(fmt.Sprintf("%s-%d", unique(b), i), validLimits())
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"init", "step-1"} {
			leaf := newLeaf(b, g, name, nil)
			e, err := leaf.Entry()
			if err != nil {
				b.Fatal(err)
			}
			e.Close()
		}
		b.StopTimer()
		if err := g.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRemove(b *testing.B) {
	c := probed(b)
	b.Cleanup(func() { _ = c.Cleanup() })
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		g, err := c.New(fmt.Sprintf("%s-%d", unique(b), i), validLimits())
		if err != nil {
			b.Fatal(err)
		}
		newLeaf(b, g, "init", nil)
		newLeaf(b, g, "step-1", nil)
		b.StartTimer()
		if err := g.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUsage(b *testing.B) {
	g := newGroup(b, probed(b), validLimits())
	leaf := newLeaf(b, g, "step-1", nil)
	for b.Loop() {
		usage(b, leaf)
	}
}

func BenchmarkProbe(b *testing.B) {
	probed(b)
	for b.Loop() {
		if _, err := Probe(); err != nil {
			b.Fatal(err)
		}
	}
}
