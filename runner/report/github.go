package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

// writeGitHub writes workflow commands, one on a line, which GitHub shows beside the lines of a change: what findings say,
// gates that could not look, and steps that did not end well. Files are relative to the workspace.
func writeGitHub(w io.Writer, r *Report) error {
	var b strings.Builder
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Verdict != "" && s.Verdict != runner.VerdictOK {
			text := fmt.Sprintf("step %d, %s, ended with %s: %s", s.N, strings.Join(s.Args, " "), s.Verdict, end(s))
			if s.Limit != nil {
				text += "; " + s.Limit.Hint
			}
			annotate(&b, annotation{level: "error", title: fmt.Sprintf("caisson: step %d", s.N), text: text})
		}
	}
	for i := range r.Gates {
		g := &r.Gates[i]
		v := &g.Verdict
		title := "caisson: gate " + v.Gate
		for _, f := range gates.WorstFirst(v.Findings) {
			text := fmt.Sprintf("%s [%s]", f.Message, f.Rule)
			if f.Remedy != "" {
				text += ": " + f.Remedy
			}
			annotate(&b, annotation{level: level(g.severity(&f)), file: f.Path, line: f.Line, title: title, text: text})
		}
		if v.Status == gates.Error {
			l := gates.SeverityWarn
			if g.Blocks {
				l = gates.SeverityBlock
			}
			annotate(&b, annotation{level: level(l), title: title, text: fmt.Sprintf("it could not look: %s; %s", v.Reason, v.Remedy)})
		}
		if v.Dropped > 0 {
			annotate(&b, annotation{level: "notice", title: title, text: fmt.Sprintf("%d more findings are not listed", v.Dropped)})
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// level is a severity in the words of workflow commands.
func level(s gates.Severity) string {
	switch s {
	case gates.SeverityInfo:
		return "notice"
	case gates.SeverityWarn:
		return "warning"
	}
	return "error"
}

type annotation struct {
	level, file, title, text string
	line                     int
}

// annotate writes one workflow command. Whatever the texts are, it stays one line and one command.
func annotate(b *strings.Builder, a annotation) {
	fmt.Fprintf(b, "::%s ", a.level)
	if a.file != "" && a.file != "." {
		fmt.Fprintf(b, "file=%s,", githubProperty(a.file))
		if a.line > 0 {
			fmt.Fprintf(b, "line=%d,", a.line)
		}
	}
	fmt.Fprintf(b, "title=%s::%s\n", githubProperty(a.title), githubData(a.text))
}

// githubData is a text as the message of a workflow command: https://docs.github.com/actions/reference/workflow-commands,
// and the toolkit's escapeData. What would not be printed is U+FFFD, because logs obey terminal controls.
func githubData(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\r' || r == '\n' || r == '\t' || unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, s)
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(s)
}

// githubProperty is a text as the value of a property, the toolkit's escapeProperty.
func githubProperty(s string) string {
	return strings.NewReplacer(":", "%3A", ",", "%2C").Replace(githubData(s))
}
