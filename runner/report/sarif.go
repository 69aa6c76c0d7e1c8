package report

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
)

// The schema that the SARIF form keeps to.
const sarifSchema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

// sourceRoot is what artifact locations are relative to: the workspace.
const sourceRoot = "SRCROOT"

// writeSARIF writes SARIF 2.1.0: a result for each finding of a gate, a notification for what kept a gate from looking and
// for each step that did not end well.
func writeSARIF(w io.Writer, r *Report) error {
	run := sarifRun{Results: []sarifResult{}, ColumnKind: "utf16CodeUnits",
		Bases:   map[string]sarifArtifact{sourceRoot: {URI: "file://" + strings.TrimSuffix(uri(r.Task.Workspace), "/") + "/"}},
		Details: &sarifDetails{ID: "caisson/" + r.Task.Feature + "/" + r.Task.ID},
		Tool: sarifTool{Driver: sarifDriver{Name: "caisson", Version: r.Caisson, SemanticVersion: semantic(r.Caisson),
			URI: "https://github.com/caisson-dev/caisson", Rules: []sarifRule{}}},
		Properties: map[string]any{"task": r.Task.ID, "feature": r.Task.Feature, "state": r.Task.State, "verdict": r.Task.Verdict}}
	if r.Checkpoint != nil {
		run.Properties["checkpoint"] = r.Checkpoint.ID
	}
	invocation := sarifInvocation{Successful: r.Task.Verdict != "internal", Notifications: []sarifNotification{}}
	if !r.Task.Ended.IsZero() {
		invocation.Start, invocation.End = r.Task.Created.UTC().Format(sarifTime), r.Task.Ended.UTC().Format(sarifTime)
	}
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Verdict != "" && s.Verdict != "ok" {
			invocation.note("error", fmt.Sprintf("step %d, %s, ended with %s: %s", s.N, strings.Join(s.Args, " "), s.Verdict, end(s)))
		}
	}
	for i := range r.Gates {
		run.gate(&r.Gates[i], r, &invocation)
	}
	run.Invocations = []sarifInvocation{invocation}
	return encode(w, sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{run}}, "  ")
}

const sarifTime = "2006-01-02T15:04:05.000Z"

type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool        sarifTool                `json:"tool"`
	Details     *sarifDetails            `json:"automationDetails,omitempty"`
	Invocations []sarifInvocation        `json:"invocations"`
	Bases       map[string]sarifArtifact `json:"originalUriBaseIds"`
	Results     []sarifResult            `json:"results"`
	ColumnKind  string                   `json:"columnKind"`
	Properties  map[string]any           `json:"properties,omitempty"`

	seen map[string]int // fingerprints
}

type sarifDetails struct {
	ID string `json:"id"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name            string      `json:"name"`
	Version         string      `json:"version,omitempty"`
	SemanticVersion string      `json:"semanticVersion,omitempty"`
	URI             string      `json:"informationUri"`
	Rules           []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID         string            `json:"id"`
	Short      sarifText         `json:"shortDescription"`
	Full       sarifText         `json:"fullDescription"`
	Help       sarifText         `json:"help"`
	HelpURI    string            `json:"helpUri"`
	Default    sarifLevel        `json:"defaultConfiguration"`
	Properties map[string]string `json:"properties"`
}

type sarifLevel struct {
	Level string `json:"level"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifInvocation struct {
	Start         string              `json:"startTimeUtc,omitempty"`
	End           string              `json:"endTimeUtc,omitempty"`
	Successful    bool                `json:"executionSuccessful"`
	Notifications []sarifNotification `json:"toolExecutionNotifications"`
}

type sarifNotification struct {
	Level   string    `json:"level"`
	Message sarifText `json:"message"`
}

type sarifResult struct {
	RuleID       string             `json:"ruleId"`
	RuleIndex    int                `json:"ruleIndex"`
	Kind         string             `json:"kind"`
	Level        string             `json:"level"`
	Message      sarifText          `json:"message"`
	Locations    []sarifLocation    `json:"locations"`
	Fingerprints map[string]string  `json:"partialFingerprints"`
	Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	Properties   map[string]any     `json:"properties"`
}

type sarifLocation struct {
	Physical sarifPhysical `json:"physicalLocation"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   *sarifRegion  `json:"region,omitempty"`
}

type sarifArtifact struct {
	URI  string `json:"uri"`
	Base string `json:"uriBaseId,omitempty"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

type sarifSuppression struct {
	Kind          string `json:"kind"`
	Status        string `json:"status"`
	Justification string `json:"justification,omitempty"`
}

func (i *sarifInvocation) note(level, text string) {
	i.Notifications = append(i.Notifications, sarifNotification{level, sarifMessage(text)})
}

// gate adds what one gate found.
func (run *sarifRun) gate(g *Gate, r *Report, inv *sarifInvocation) {
	v := &g.Verdict
	for _, f := range gates.WorstFirst(v.Findings) {
		res := run.result(g, &f)
		if v.Approved {
			res.Suppressions = []sarifSuppression{{Kind: "external", Status: "accepted", Justification: r.approval(v.Gate)}}
		}
		run.Results = append(run.Results, res)
	}
	if v.Status == gates.Error {
		level := "warning"
		if g.Blocks {
			level, inv.Successful = "error", false
		}
		inv.note(level, fmt.Sprintf("the gate %s could not look: %s; %s", v.Gate, v.Reason, v.Remedy))
	}
	if v.Dropped > 0 {
		inv.note("note", fmt.Sprintf("the gate %s has %d more findings, which are not listed", v.Gate, v.Dropped))
	}
}

func (run *sarifRun) result(g *Gate, f *gates.Finding) sarifResult {
	id := sarifID(g.Verdict.Gate) + "/" + sarifID(f.Rule)
	res := sarifResult{RuleID: id, RuleIndex: run.rule(id, g, f.Rule), Kind: "fail", Level: sarifLevelOf(g.severity(f)), Message: sarifMessage(f.Message),
		Fingerprints: map[string]string{"caisson/v1": run.fingerprint(g.Verdict.Gate, f)},
		Properties:   map[string]any{"gate": g.Verdict.Gate, "mode": g.Verdict.Mode, "severity": f.Severity}}
	for key, text := range map[string]string{"remedy": f.Remedy, "reproduce": g.Reproduce} {
		if text != "" {
			res.Properties[key] = text
		}
	}
	at := sarifPhysical{Artifact: sarifArtifact{URI: "./", Base: sourceRoot}} // the change as a whole
	if f.Path != "" {
		at.Artifact.URI = uri(f.Path)
	}
	if f.Path != "" && f.Line > 0 {
		at.Region = &sarifRegion{f.Line}
	}
	res.Locations = []sarifLocation{{at}}
	return res
}

// rule is the index of a rule, which is added if it is new.
func (run *sarifRun) rule(id string, g *Gate, name string) int {
	driver := &run.Tool.Driver
	for i := range driver.Rules {
		if driver.Rules[i].ID == id {
			return i
		}
	}
	about := "a rule of the gate " + g.Verdict.Gate
	if info, ok := builtin.Find(g.Verdict.Gate); ok {
		about = "the gate " + info.Name + " looks at " + info.About
		for _, r := range info.Rules {
			if r.Name == name {
				about = r.About
			}
		}
	}
	level := "error"
	if !g.Blocks {
		level = "warning"
	}
	driver.Rules = append(driver.Rules, sarifRule{ID: id, Short: sarifMessage(about), Full: sarifMessage(about),
		Help:    sarifMessage("caisson gate explain " + g.Verdict.Gate + " says what it looks for."),
		HelpURI: "https://github.com/caisson-dev/caisson/blob/main/docs/gates.md", Default: sarifLevel{level},
		Properties: map[string]string{"gate": g.Verdict.Gate, "phase": string(g.Phase)}})
	return len(driver.Rules) - 1
}

// fingerprint tells a finding from others, also when lines have moved: of equal ones the first, the second and so on.
func (run *sarifRun) fingerprint(gate string, f *gates.Finding) string {
	if run.seen == nil {
		run.seen = map[string]int{}
	}
	key := fmt.Sprintf("%q %q %q %q", gate, f.Rule, f.Path, f.Message)
	run.seen[key]++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", key, run.seen[key]))
	return hex.EncodeToString(sum[:16])
}

// approval is why a person has let a gate pass.
func (r *Report) approval(gate string) string {
	for i := len(r.Approvals) - 1; i >= 0; i-- {
		if a := r.Approvals[i]; a.Gate == gate {
			return fmt.Sprintf("%s (%s, %s)", a.Reason, a.By, a.At.UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// sarifMessage is a text in which no link is found: [text](target) is one, also in SARIF's plain texts.
func sarifMessage(s string) sarifText {
	s = strings.ReplaceAll(s, "](", "] (")
	if s == "" {
		s = "(no text)"
	}
	return sarifText{s}
}

func sarifLevelOf(s gates.Severity) string {
	switch s {
	case gates.SeverityInfo:
		return "note"
	case gates.SeverityWarn:
		return "warning"
	}
	return "error"
}

// sarifID has a name's letters, digits and . _ -: a slash would make it a hierarchy of its own.
func sarifID(name string) string {
	return strings.Map(func(r rune) rune {
		if alphanumeric(r) || r == '.' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, name)
}

// semantic is a version if it is one as SemVer has them, else "".
func semantic(version string) string {
	v := strings.TrimPrefix(version, "v")
	if parts := strings.SplitN(v, ".", 3); len(parts) < 3 || strings.ContainsFunc(v, func(r rune) bool { return !alphanumeric(r) && !strings.ContainsRune(".-+", r) }) {
		return ""
	}
	return v
}

// uri is a path as a relative reference of a URI (RFC 3986): every byte but the unreserved ones and / is encoded, so that no
// byte has a meaning of its own, and those that are no UTF-8 come back as they were.
func uri(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if alphanumeric(rune(c)) || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
