package report

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/caisson-dev/caisson/gates"
)

// maxRows is how many findings the summary lists: GitHub takes 1 MiB of one, and nobody reads more.
const maxRows = 200

// writeMarkdown writes a summary in GitHub's Markdown.
func writeMarkdown(w io.Writer, r *Report) error {
	var b strings.Builder
	k := &r.Task
	fmt.Fprintf(&b, "## caisson: %s\n\n", prose(r.ended()))
	fmt.Fprintf(&b, "Task %s in the feature %s", code(k.ID), code(k.Feature))
	if k.Profile != "" {
		fmt.Fprintf(&b, ", under the profile %s", code(k.Profile))
	}
	b.WriteString(".\n")
	if k.Cause != "" {
		fmt.Fprintf(&b, "\n**Cause:** %s\n", prose(k.Cause))
	}
	if k.Remedy != "" {
		fmt.Fprintf(&b, "\n**What to do:** %s\n", prose(k.Remedy))
	}
	if c := r.Change; c != nil {
		fmt.Fprintf(&b, "\n**Change:** %d added, %d modified, %d deleted (%d bytes)\n", c.Added, c.Modified, c.Deleted, c.Bytes)
	}
	if p := r.Promoted; p != nil {
		fmt.Fprintf(&b, "\n**Promoted:** %s\n", prose(promotion(p)))
	}
	r.markdownSteps(&b)
	r.markdownGates(&b)
	if len(r.Reproduce) > 0 {
		b.WriteString("\n**Reproduce:** ")
		for i, command := range r.Reproduce {
			if i > 0 {
				b.WriteString(" · ")
			}
			b.WriteString(code(command))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) markdownSteps(b *strings.Builder) {
	if len(r.Steps) == 0 {
		return
	}
	b.WriteString("\n### Steps\n\n| step | command | verdict | end | time | network |\n| ---: | --- | --- | --- | ---: | --- |\n")
	for i := range r.Steps {
		if i == maxRows {
			fmt.Fprintf(b, "\n%d more steps are not listed.\n", len(r.Steps)-i)
			break
		}
		s := &r.Steps[i]
		verdict, took := string(s.State), ""
		if s.Verdict != "" {
			verdict, took = string(s.Verdict), s.Duration.Round(time.Millisecond).String()
		}
		fmt.Fprintf(b, "| %d | %s | %s | %s | %s | %s |\n", s.N, code(short(strings.Join(s.Args, " "))), prose(verdict), prose(end(s)), took, prose(network(s)))
	}
}

func (r *Report) markdownGates(b *strings.Builder) {
	if len(r.Gates) == 0 {
		return
	}
	b.WriteString("\n### Gates\n\n")
	if text := r.about(); text != "" {
		fmt.Fprintf(b, "%s.\n\n", prose(text))
	}
	b.WriteString("| gate | phase | mode | answer | findings | at the task's end |\n| --- | --- | --- | --- | ---: | --- |\n")
	for i := range r.Gates {
		g := &r.Gates[i]
		v := &g.Verdict
		fmt.Fprintf(b, "| %s | %s | %s | %s | %d | %s |\n", code(v.Gate), prose(string(g.Phase)), prose(string(v.Mode)), prose(g.outcome()), len(v.Findings)+v.Dropped,
			prose(string(g.Then)))
	}
	for i := range r.Gates {
		if v := &r.Gates[i].Verdict; v.Reason != "" {
			fmt.Fprintf(b, "\n**%s:** %s %s\n", prose(v.Gate), prose(v.Reason), prose(v.Remedy))
		}
	}
	r.markdownFindings(b)
	for _, a := range r.Approvals {
		fmt.Fprintf(b, "\n**Approved:** %s by %s at %s: %s\n", code(a.Gate), prose(a.By), a.At.UTC().Format(time.RFC3339), prose(a.Reason))
	}
}

func (r *Report) markdownFindings(b *strings.Builder) {
	rows, more := 0, 0
	for i := range r.Gates {
		g := &r.Gates[i]
		more += g.Verdict.Dropped
		for _, f := range gates.WorstFirst(g.Verdict.Findings) {
			if rows == maxRows {
				more++
				continue
			}
			if rows++; rows == 1 {
				b.WriteString("\n### Findings\n\n| severity | gate | where | what | what to do |\n| --- | --- | --- | --- | --- |\n")
			}
			where := "the change"
			if f.Path != "" {
				where = code(place(&f))
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", g.severity(&f), code(g.Verdict.Gate+"/"+f.Rule), where, prose(f.Message), prose(f.Remedy))
		}
	}
	if more > 0 {
		fmt.Fprintf(b, "\n%d more findings are not listed.\n", more)
	}
}

// place is a finding's file and line.
func place(f *gates.Finding) string {
	if f.Line > 0 {
		return fmt.Sprintf("%s:%d", f.Path, f.Line)
	}
	return f.Path
}

// short cuts a text for a table.
func short(s string) string {
	const most = 120
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most]) + "…"
}

// code is a text as code, in which GitHub finds no mentions, numbers of issues or emoji.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "<code>" + entities(s) + "</code>"
}

// prose is a text that nothing is read into: no markup, cell, link, mention or number of an issue. Mentions and numbers are
// looked for in what a reader sees, after the markup: a space without width tells them from their sign.
func prose(s string) string {
	return strings.NewReplacer("&#64;", "&#64;&#8203;", "&#35;", "&#35;&#8203;", "GH-", "GH-&#8203;", "gh-", "gh-&#8203;").Replace(entities(s))
}

// entities has letters, digits and signs that mean nothing where they stand as they are, on one line. All else is the number of
// its character, which has no meaning in Markdown whatever the character's is.
func entities(s string) string {
	var b strings.Builder
	text := []rune(gates.Quote(s))
	for i, r := range text {
		before, after := ' ', ' '
		if i > 0 {
			before = text[i-1]
		}
		if i < len(text)-1 {
			after = text[i+1]
		}
		plain := r > unicode.MaxASCII || alphanumeric(r)
		switch r {
		case ' ', ',', '/', ';', '-', '+', '=', '(', ')', '\'', '"', '?', '%':
			plain = true
		case '.': // www. is a link
			plain = before != 'w' && before != 'W'
		case ':': // so is http:, and :tada: a picture
			plain = after == ' ' || after >= '0' && after <= '9'
		case '_':
			plain = alphanumeric(before) && alphanumeric(after)
		}
		if plain {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "&#%d;", r)
		}
	}
	return b.String()
}

func alphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}
