package gates

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// WriteText writes verdicts for people: per gate its answer, then its findings, the worst first, each with
// file, message and remedy. Names that could play tricks on a terminal are quoted.
func WriteText(w io.Writer, vs []Verdict) error {
	var b strings.Builder
	for _, v := range vs {
		fmt.Fprintf(&b, "gate %s: %s", v.Gate, v.Status)
		if v.Reason != "" {
			fmt.Fprintf(&b, ": %s", display(v.Reason))
		}
		if v.Mode == ModeWarn && v.Status != Pass {
			b.WriteString(" (warns only)")
		}
		b.WriteByte('\n')
		if v.Remedy != "" {
			fmt.Fprintf(&b, "  %s\n", display(v.Remedy))
		}
		for _, f := range WorstFirst(v.Findings) {
			f.write(&b)
		}
		if v.Dropped > 0 {
			fmt.Fprintf(&b, "  and %d more\n", v.Dropped)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WorstFirst returns findings with the worst first, otherwise in their order.
func WorstFirst(findings []Finding) []Finding {
	worst := slices.Clone(findings)
	slices.SortStableFunc(worst, func(x, y Finding) int { return cmp.Compare(y.Severity.rank(), x.Severity.rank()) })
	return worst
}

func (f Finding) write(b *strings.Builder) {
	where := cmp.Or(display(f.Path), "the change")
	if f.Line > 0 {
		where += ":" + strconv.Itoa(f.Line)
	}
	fmt.Fprintf(b, "  %-5s %s: %s [%s]\n", f.Severity, where, display(f.Message), f.Rule)
	if f.Remedy != "" {
		fmt.Fprintf(b, "        %s\n", display(f.Remedy))
	}
}

// display quotes what holds anything but printable characters.
func display(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
