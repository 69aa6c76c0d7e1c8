package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

// writeJUnit writes JUnit's XML: a suite of the steps, one of each phase that has gates, a case for each step and gate. A
// failure is the task's own, an error means that nobody knows how it would have ended. What ended the task otherwise is a case
// of the suite "task". What XML cannot hold is U+FFFD.
func writeJUnit(w io.Writer, r *Report) error {
	doc := junitSuites{Name: "caisson " + r.Task.Feature}
	doc.add("steps", r, r.junitSteps())
	for _, phase := range gates.Phases() {
		doc.add("gates "+string(phase), r, r.junitGates(phase))
	}
	if bad := r.Task.Verdict != "" && r.Task.Verdict != runner.VerdictOK; bad && doc.Failures+doc.Errors == 0 {
		message := &junitMessage{Type: string(r.Task.Verdict), Message: r.Task.Cause, Text: r.Task.Remedy}
		c := junitCase{Class: "caisson.task", Name: "task"}
		if r.Task.Verdict == runner.VerdictInternal || r.Task.Verdict == runner.VerdictInterrupted || r.Task.Verdict == runner.VerdictCancelled {
			c.Error = message
		} else {
			c.Failure = message
		}
		doc.add("task", r, []junitCase{c})
	}
	doc.Time = seconds(doc.took)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`

	took time.Duration
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Timestamp  string          `xml:"timestamp,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	File    string        `xml:"file,attr,omitempty"`
	Skipped *junitMessage `xml:"skipped"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Out     string        `xml:"system-out,omitempty"`

	took time.Duration
}

type junitMessage struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// add adds a suite, unless it is empty, and counts its cases.
func (d *junitSuites) add(name string, r *Report, cases []junitCase) {
	if len(cases) == 0 {
		return
	}
	s := junitSuite{Name: name, Tests: len(cases), Timestamp: r.Task.Created.UTC().Format("2006-01-02T15:04:05"), Cases: cases,
		Properties: []junitProperty{{"task", r.Task.ID}, {"feature", r.Task.Feature}, {"profile", r.Task.ProfileDigest}}}
	if r.Checkpoint != nil {
		s.Properties = append(s.Properties, junitProperty{"checkpoint", r.Checkpoint.ID})
	}
	var took time.Duration
	for i := range cases {
		c := &cases[i]
		c.Time = seconds(c.took)
		took += c.took
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
	s.Time = seconds(took)
	d.Suites = append(d.Suites, s)
	d.Tests, d.Failures, d.Errors, d.Skipped, d.took = d.Tests+s.Tests, d.Failures+s.Failures, d.Errors+s.Errors, d.Skipped+s.Skipped, d.took+took
}

func (r *Report) junitSteps() []junitCase {
	cases := make([]junitCase, len(r.Steps))
	for i := range r.Steps {
		s := &r.Steps[i]
		c := junitCase{Class: "caisson.steps", Name: fmt.Sprintf("%d: %s", s.N, strings.Join(s.Args, " ")), took: s.Duration}
		message := &junitMessage{Type: string(s.Verdict), Message: end(s)}
		if s.Limit != nil {
			message.Text = s.Limit.Hint
		}
		switch s.Verdict {
		case runner.VerdictOK:
		case "":
			c.Skipped = &junitMessage{Message: string(s.State)}
		case runner.VerdictInternal, runner.VerdictInterrupted, runner.VerdictCancelled:
			c.Error = message
		default:
			c.Failure = message
		}
		if text := network(s); text != "" {
			c.Out = "network: " + text
		}
		cases[i] = c
	}
	return cases
}

func (r *Report) junitGates(phase gates.Phase) (cases []junitCase) {
	for i := range r.Gates {
		g := &r.Gates[i]
		if g.Phase != phase {
			continue
		}
		v := &g.Verdict
		c := junitCase{Class: "caisson.gates." + string(phase), Name: v.Gate, took: v.Duration}
		var text strings.Builder
		_ = gates.WriteText(&text, []gates.Verdict{*v}, 0) // a Builder takes everything
		if g.Reproduce != "" {
			fmt.Fprintf(&text, "reproduce: %s\n", g.Reproduce)
		}
		message := &junitMessage{Type: string(v.Status), Message: g.summary(), Text: text.String()}
		switch {
		case g.Blocks && v.Status == gates.Error:
			c.Error = message
		case v.Status == gates.Skipped:
			c.Skipped = &junitMessage{Message: skippedBecause(v)}
		case g.Blocks:
			c.Failure = message
		default:
			c.Out = text.String() // what only warns, or was approved
		}
		if i := firstFile(v); c.Failure != nil && i >= 0 {
			c.File = v.Findings[i].Path
		}
		cases = append(cases, c)
	}
	return cases
}

// summary is a gate's answer on one line.
func (g *Gate) summary() string {
	v := &g.Verdict
	worst := gates.WorstFirst(v.Findings)
	switch {
	case v.Reason != "":
		return v.Reason
	case len(worst) == 0:
		return g.outcome()
	}
	text := worst[0].Message
	if worst[0].Path != "" {
		text = gates.Quote(place(&worst[0])) + ": " + text
	}
	if n := len(worst) - 1 + v.Dropped; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

func skippedBecause(v *gates.Verdict) string {
	if v.Reason == "" {
		return "mode " + string(v.Mode)
	}
	return v.Reason
}

func firstFile(v *gates.Verdict) int {
	for i, f := range v.Findings {
		if f.Path != "" && f.Severity == gates.SeverityBlock {
			return i
		}
	}
	return -1
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
