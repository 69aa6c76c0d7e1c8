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

// WriteText writes verdicts for people, those that block first: per gate its answer, then its findings, the worst first,
// each with file, message and remedy. Of each gate it lists at most this many findings, so that the noise of one does not
// hide another; 0 is all. Texts that could play tricks on a terminal are quoted.
func WriteText(w io.Writer, vs []Verdict, most int) error {
	blockFirst := slices.Clone(vs)
	slices.SortStableFunc(blockFirst, func(x, y Verdict) int {
		switch {
		case x.accepts() == y.accepts():
			return 0
		case y.accepts():
			return -1
		}
		return 1
	})
	var b strings.Builder
	for i := range blockFirst {
		blockFirst[i].write(&b, most)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (v *Verdict) write(b *strings.Builder, most int) {
	fmt.Fprintf(b, "gate %s: %s", v.Gate, v.Status)
	if v.Reason != "" {
		fmt.Fprintf(b, ": %s", Quote(v.Reason))
	}
	if v.Mode == ModeWarn && v.Status != Pass {
		b.WriteString(" (warns only)")
	}
	if v.Approved {
		b.WriteString(" (approved)")
	}
	if v.Unresolved != "" && !v.Approved {
		fmt.Fprintf(b, ": its failure at checkpoint %s stands, until it passes: switching it off does not resolve that", v.Unresolved)
	}
	b.WriteByte('\n')
	if v.Remedy != "" {
		fmt.Fprintf(b, "  %s\n", Quote(v.Remedy))
	}
	listed := v.told()
	if most > 0 && len(listed) > most {
		listed = listed[:most]
	}
	for _, f := range listed {
		fmt.Fprintf(b, "  %-5s %s\n", f.Severity, f.text())
		if f.Remedy != "" {
			fmt.Fprintf(b, "        %s\n", Quote(f.Remedy))
		}
	}
	if more := len(v.Findings) - len(listed) + v.Dropped; more > 0 {
		fmt.Fprintf(b, "  and %d more\n", more)
	}
}

// Warning says on one line what a gate in mode warn would have refused; "" of any other, and when it would not.
func (v *Verdict) Warning() string {
	if v.Mode != ModeWarn || v.Status != Fail && v.Status != Error {
		return ""
	}
	why, more := Quote(v.Reason), ""
	if findings := v.told(); why == "" && len(findings) > 0 {
		why = findings[0].text()
		if n := len(findings) - 1 + v.Dropped; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}
	}
	return fmt.Sprintf("the gate %s would refuse: %s%s", v.Gate, why, more)
}

// told is what is said of the findings, the worst first: those of a gate that only warns do not block.
func (v *Verdict) told() []Finding {
	findings := WorstFirst(v.Findings)
	if v.Mode == ModeWarn {
		findings = capped(findings, SeverityWarn)
	}
	return findings
}

// WorstFirst returns findings with the worst first, otherwise in their order.
func WorstFirst(findings []Finding) []Finding {
	worst := slices.Clone(findings)
	slices.SortStableFunc(worst, func(x, y Finding) int { return cmp.Compare(y.Severity.rank(), x.Severity.rank()) })
	return worst
}

// text is the finding on one line.
func (f *Finding) text() string {
	where := cmp.Or(Quote(f.Path), "the change")
	if f.Line > 0 {
		where += ":" + strconv.Itoa(f.Line)
	}
	return fmt.Sprintf("%s: %s [%s]", where, Quote(f.Message), f.Rule)
}

// Quote returns a text as a terminal may have it, on one line: quoted as in Go when it holds anything but printable
// characters.
func Quote(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
