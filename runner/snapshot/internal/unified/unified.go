// Package unified prints differences of texts as git does: hunks and the histogram of --stat.
package unified

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// File is one file's line in a histogram: counts of lines, or a note instead.
type File struct {
	Path           string
	Added, Deleted int
	Note           string
}

// maxLines is how many lines of two texts are compared. Of more, one replaces the other: a diff takes some hundred bytes for
// each line, and a file of nothing but line ends is made quickly.
const maxLines = 1 << 18

func tooMany(old, now string) bool { return lines(old)+lines(now) > maxLines }

// Count fills in how many lines differ.
func (f *File) Count(old, now string) {
	many := tooMany(old, now)
	if !many {
		old, now = trim(old, now)
	}
	if many || old == "" || now == "" {
		f.Added, f.Deleted = lines(now), lines(old)
		return
	}
	for _, edit := range udiff.Lines(old, now) {
		f.Deleted += lines(old[edit.Start:edit.End])
		f.Added += lines(edit.New)
	}
}

// trim leaves out the lines that two texts begin and end with: most of a file, as a rule.
func trim(a, b string) (restA, restB string) {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	if a == b {
		return "", ""
	}
	n = strings.LastIndexByte(a[:n], '\n') + 1
	a, b = a[n:], b[n:]
	n = 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	end := a[len(a)-n:]
	if i := strings.IndexByte(end, '\n'); i >= 0 {
		end = end[i+1:]
		a, b = a[:len(a)-len(end)], b[:len(b)-len(end)]
	}
	return a, b
}

// WriteStat prints the histogram, scaled to the largest file, and the total.
func WriteStat(out io.Writer, all []File) error {
	const bar = 40
	width, most, added, deleted := 0, 1, 0, 0
	for i := range all {
		s := &all[i]
		s.Path = beneath.Quote(s.Path)
		width = max(width, min(len(s.Path), 60))
		most = max(most, s.Added+s.Deleted)
		added, deleted = added+s.Added, deleted+s.Deleted
	}
	digits := len(fmt.Sprint(most))
	var b bytes.Buffer
	for _, s := range all {
		fmt.Fprintf(&b, " %-*s | ", width, s.Path)
		if s.Note != "" {
			b.WriteString(s.Note)
		} else {
			fmt.Fprintf(&b, "%*d", digits, s.Added+s.Deleted)
			plus, minus := s.Added, s.Deleted
			if most > bar {
				plus, minus = (plus*bar+most-1)/most, (minus*bar+most-1)/most
			}
			if plus+minus > 0 {
				b.WriteString(" " + strings.Repeat("+", plus) + strings.Repeat("-", minus))
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, " %d files changed, %d insertions(+), %d deletions(-)\n", len(all), added, deleted)
	_, err := out.Write(b.Bytes())
	return err
}

// label is a name in a "---" or "+++" line: git and patch expect a tab after one with a space.
func label(name string) string {
	if strings.Contains(name, " ") {
		return name + "\t"
	}
	return name
}

// Text is one side of a difference.
type Text struct{ Name, Content string }

// Hunks prints the differences of two texts, with their names and some lines of context around each.
func Hunks(out *bytes.Buffer, old, now Text, context int) error {
	fmt.Fprintf(out, "--- %s\n+++ %s\n", label(old.Name), label(now.Name))
	switch {
	case old.Content == "":
		fmt.Fprintf(out, "@@ -0,0 +%s @@\n", span(1, lines(now.Content)))
		whole(out, '+', now.Content)
		return nil
	case now.Content == "":
		fmt.Fprintf(out, "@@ -%s +0,0 @@\n", span(1, lines(old.Content)))
		whole(out, '-', old.Content)
		return nil
	case tooMany(old.Content, now.Content):
		fmt.Fprintf(out, "@@ -%s +%s @@\n", span(1, lines(old.Content)), span(1, lines(now.Content)))
		whole(out, '-', old.Content)
		whole(out, '+', now.Content)
		return nil
	}
	edits := udiff.Lines(old.Content, now.Content)
	u, err := udiff.ToUnifiedDiff(old.Name, now.Name, old.Content, edits, context)
	if err != nil {
		return fmt.Errorf("diff of %s: %w", now.Name, err)
	}
	for _, h := range u.Hunks {
		hunk(out, h)
	}
	return nil
}

func whole(out *bytes.Buffer, sign byte, text string) {
	for l := range strings.Lines(text) {
		line(out, sign, l)
	}
}

// span is the range of count lines from the given one on. An empty one is named by the line before it.
func span(from, count int) string {
	switch count {
	case 0:
		return fmt.Sprintf("%d,0", from-1)
	case 1:
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d,%d", from, count)
}

var signs = map[udiff.OpKind]byte{udiff.Delete: '-', udiff.Insert: '+', udiff.Equal: ' '}

func hunk(out *bytes.Buffer, h *udiff.Hunk) {
	from, to := 0, 0
	for _, l := range h.Lines {
		if l.Kind != udiff.Insert {
			from++
		}
		if l.Kind != udiff.Delete {
			to++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(h.FromLine, from), span(h.ToLine, to))
	for _, l := range h.Lines {
		line(out, signs[l.Kind], l.Content)
	}
}

func line(out *bytes.Buffer, sign byte, content string) {
	out.WriteByte(sign)
	out.WriteString(content)
	if !strings.HasSuffix(content, "\n") {
		out.WriteString("\n\\ No newline at end of file\n")
	}
}

func lines(text string) int {
	n := strings.Count(text, "\n")
	if text != "" && text[len(text)-1] != '\n' {
		n++
	}
	return n
}
