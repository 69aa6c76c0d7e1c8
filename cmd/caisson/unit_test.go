package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/uplink"
)

// Every verdict and every waiting state has an exit code, and docs/cli.md names the same.
func TestExitCodes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d+|its own) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = m[2]
	}
	for _, v := range runner.Verdicts() {
		want, ok := exitCodes[v]
		if !ok {
			t.Errorf("verdict %s has no exit code", v)
		}
		text := "its own"
		if want != exitOwn {
			data, _ := json.Marshal(want)
			text = string(data)
		}
		if documented[string(v)] != text {
			t.Errorf("verdict %s: docs/cli.md says %q, the table %q", v, documented[string(v)], text)
		}
	}
	for _, c := range []struct {
		r    runner.Result
		want int
	}{
		{runner.Result{Verdict: runner.VerdictOK}, 0},
		{runner.Result{Verdict: runner.VerdictNonzero, ExitCode: 126}, 126},
		{runner.Result{Verdict: runner.VerdictSignalled, ExitCode: 139}, 139},
		{runner.Result{Verdict: runner.VerdictMemory}, 122},
		{runner.Result{Verdict: runner.VerdictOK, State: runner.StateAwaitingApproval}, 123},
		{runner.Result{Verdict: "nonesuch"}, 125},
		{runner.Result{}, 125},
	} {
		if got := exitCode(&c.r); got != c.want {
			t.Errorf("%s/%s: exit code %d, want %d", c.r.State, c.r.Verdict, got, c.want)
		}
	}
}

// Every command and every flag is in docs/cli.md.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Hidden {
			return
		}
		if !bytes.Contains(doc, []byte(cmd.CommandPath())) {
			t.Errorf("docs/cli.md does not mention %q", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.LocalFlags().FlagUsages()) {
			if name := regexp.MustCompile(`--[a-z-]+`).FindString(line); name != "--help" && !bytes.Contains(doc, []byte("`"+name)) {
				t.Errorf("docs/cli.md does not mention %s of %s", name, cmd.CommandPath())
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRootCommand(newApp(nil)))
}

func TestEventStream(t *testing.T) {
	var out bytes.Buffer
	s := (&eventWriter{out: &out}).stream("stdout")
	const text = "grüße, 世界\n"
	for i := range len(text) {
		if n, err := s.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = s.Write([]byte{0xff, 0xfe, 'x', 0xe4, 0xb8}) // the last two begin a rune that never ends
	s.flush()
	var got []byte
	for line := range bytes.Lines(out.Bytes()) {
		var e outputEvent
		if err := json.Unmarshal(line, &e); err != nil || e.Event != "output" || e.Stream != "stdout" {
			t.Fatalf("%s: %v", line, err)
		}
		raw, err := base64.StdEncoding.DecodeString(e.Raw)
		if err != nil {
			t.Fatal(err)
		}
		got = append(append(got, e.Data...), raw...)
	}
	if want := text + "\xff\xfex\xe4\xb8"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTail(t *testing.T) {
	var out, errs bytes.Buffer
	for _, c := range []struct {
		lines          int
		stdout, stderr string
	}{
		{0, "", ""}, {1, "", "e2\n"}, {2, "", "e1\ne2\n"}, {3, "one longer line\n", "e1\ne2\n"}, {9, "first\none longer line\n", "e1\ne2\n"},
	} {
		out.Reset()
		errs.Reset()
		x := &tail{lines: c.lines}
		o, e := x.stream(&out), x.stream(&errs)
		for _, w := range []struct {
			to   io.Writer
			text string
		}{{o, "first\none "}, {e, "e1\n"}, {o, "longer line\n"}, {e, "e2\n"}} {
			if _, err := io.WriteString(w.to, w.text); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.replay(); err != nil || out.String() != c.stdout || errs.String() != c.stderr {
			t.Errorf("%d lines: %q and %q, %v", c.lines, out.String(), errs.String(), err)
		}
	}
}

// What the sandbox wrote cannot talk to the user's terminal through a diff.
func TestDiffWriter(t *testing.T) {
	var out bytes.Buffer
	w := &diffWriter{out: bufio.NewWriter(&out), terminal: true, colour: true}
	for _, piece := range []string{"diff --git a/x b/x\n@@ -1 +1 @@\n-o", "ld\n+n\x1b]0;title\x07ew\tü\r\n", "no end"} {
		if _, err := w.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	want := bold + "diff --git a/x b/x" + reset + "\n" + cyan + "@@ -1 +1 @@" + reset + "\n" + red + "-old" + reset + "\n" +
		green + "+n^[]0;title^Gew\tü^M" + reset + "\nno end"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestProgress(t *testing.T) {
	var none *progress
	none.set("nothing happens")
	var out bytes.Buffer
	p := &progress{w: &out}
	p.set("quick")
	p.set("")
	if out.Len() > 0 {
		t.Errorf("something quick was drawn: %q", out.String())
	}
	p.set("slow")
	p.late() // as the timer does
	p.set("slower")
	p.set("")
	if want := "\r\x1b[Kcaisson: slow …\r\x1b[Kcaisson: slower …\r\x1b[K"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59 * time.Second: "59s", time.Hour - 1: "59m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestReportNetwork: nothing that a sandbox has made up writes to a terminal.
func TestReportNetwork(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := &app{stderr: f}
	a.reportNetwork(&runner.Result{Steps: []runner.StepResult{{Network: &uplink.Use{Destinations: []uplink.Destination{{To: "\x1b[2J", Verdict: egress.VerdictRefused}}}}}})
	if b, err := os.ReadFile(f.Name()); err != nil || strings.Contains(string(b), "\x1b") || !strings.Contains(string(b), "2J") {
		t.Errorf("%q, %v", b, err)
	}
}

func TestExplain(t *testing.T) {
	a := &app{parsed: true, command: "caisson run"}
	e := a.explain(errors.New("surprise"))
	if e.Code != runner.CodeInternal || e.Exit != 125 {
		t.Errorf("an unknown error is %+v", e)
	}
	a.parsed = false
	e = a.explain(errors.New("unknown flag"))
	if e.Code != runner.CodeUsage || e.Exit != 120 || e.Remedy != "caisson run --help" {
		t.Errorf("a flag error is %+v", e)
	}
}
