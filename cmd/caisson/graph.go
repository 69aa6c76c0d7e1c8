package main

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// graph draws a tree whose nodes come newest first, each after all of its children, as `git log --graph` does: one lane
// for each branch, which ends where it leaves its parent.
type graph struct {
	lanes []string // what each lane comes to next; "" is free
}

// node is the lines for one node: where lanes join, and then the node's own, with mark in its lane. parent is "" for a
// root.
func (g *graph) node(id, parent, mark string) []string {
	var mine []int
	for i, next := range g.lanes {
		if next == id {
			mine = append(mine, i)
		}
	}
	var lines []string
	lane := 0
	switch len(mine) {
	case 0: // the tip of a branch
		lane = g.free()
	case 1:
		lane = mine[0]
	default:
		lane = mine[0]
		lines = append(lines, g.join(mine))
		for _, i := range mine[1:] {
			g.lanes[i] = ""
		}
	}
	g.lanes[lane] = id
	lines = append(lines, g.line(lane, mark))
	g.lanes[lane] = parent
	g.trim()
	return lines
}

// free is a lane that nobody uses.
func (g *graph) free() int {
	if i := slices.Index(g.lanes, ""); i >= 0 {
		return i
	}
	g.lanes = append(g.lanes, "")
	return len(g.lanes) - 1
}

func (g *graph) trim() {
	for n := len(g.lanes); n > 0 && g.lanes[n-1] == ""; n-- {
		g.lanes = g.lanes[:n-1]
	}
}

func (g *graph) line(lane int, mark string) string {
	var b strings.Builder
	for i, next := range g.lanes {
		switch {
		case i == lane:
			b.WriteString(mark + " ")
		case next != "":
			b.WriteString("│ ")
		default:
			b.WriteString("  ")
		}
	}
	return b.String()
}

// join draws lanes that come together in the first of them.
func (g *graph) join(mine []int) string {
	first, last := mine[0], mine[len(mine)-1]
	var b strings.Builder
	for i, next := range g.lanes {
		inside, ours := i > first && i <= last, slices.Contains(mine, i)
		switch {
		case i == first:
			b.WriteString("├")
		case i == last:
			b.WriteString("╯")
		case inside && ours:
			b.WriteString("┴")
		case inside && next != "":
			b.WriteString("┼")
		case inside:
			b.WriteString("─")
		case next != "":
			b.WriteString("│")
		default:
			b.WriteString(" ")
		}
		if i >= first && i < last {
			b.WriteString("─")
		} else {
			b.WriteString(" ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// printGraph draws a feature's checkpoints, newest first. The parent of a fork's first one is another feature's and is
// not drawn.
func (a *app) printGraph(all []runner.Checkpoint, now time.Time) error {
	known := map[string]bool{}
	for i := range all {
		known[all[i].ID] = true
	}
	var g graph
	w := bufio.NewWriter(a.stdout)
	colour := a.colour()
	for i := len(all) - 1; i >= 0; i-- {
		c := &all[i]
		parent, mark := c.Parent, "○"
		if !known[parent] {
			parent = ""
		}
		if c.Head {
			mark = "●"
		}
		lines := g.node(c.ID, parent, mark)
		for _, l := range lines[:len(lines)-1] {
			fmt.Fprintln(w, l)
		}
		fmt.Fprintf(w, "%s%s\n", lines[len(lines)-1], graphText(c, now, colour))
	}
	return w.Flush()
}

// graphText is what stands beside a node.
func graphText(c *runner.Checkpoint, now time.Time, colour bool) string {
	id := c.ID
	if colour {
		id = yellow + id + reset
	}
	parts := []string{id, checkpointWhen(c)}
	if c.Indexed {
		parts = append(parts, checkpointChange(c))
	}
	if marks := checkpointMarks(c); len(marks) > 0 {
		parts = append(parts, "("+strings.Join(marks, ", ")+")")
	}
	if c.Label != "" {
		parts = append(parts, "["+snapshot.Quote(c.Label)+"]")
	}
	return strings.Join(append(parts, ago(c.Created, now)), "  ")
}
