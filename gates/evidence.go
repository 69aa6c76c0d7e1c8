package gates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// EvidenceKind says what a piece of evidence is, and which field of it is set.
type EvidenceKind string

// The kinds of evidence.
const (
	EvidenceExitCode    EvidenceKind = "exit_code"   // how a command ended
	EvidenceCommand     EvidenceKind = "command"     // the text of a command that was judged
	EvidenceFile        EvidenceKind = "file"        // a file of the change, as it was judged
	EvidenceReport      EvidenceKind = "report"      // what a tool wrote, kept as an artifact
	EvidenceLog         EvidenceKind = "log"         // what a command printed, kept as an artifact
	EvidenceMeasurement EvidenceKind = "measurement" // a number
)

// Evidence is one thing that a verdict rests on. Exactly the field that Kind names is set.
type Evidence struct {
	Kind        EvidenceKind `json:"kind"`
	ExitCode    *ExitCode    `json:"exit_code,omitempty"`
	Command     *Command     `json:"command,omitempty"`
	File        *File        `json:"file,omitempty"`
	Report      *Report      `json:"report,omitempty"`
	Log         *Log         `json:"log,omitempty"`
	Measurement *Measurement `json:"measurement,omitempty"`
}

// ExitCode is how a command ended.
type ExitCode struct {
	Step    int    `json:"step,omitempty"`    // of the task, from 1; 0 for a command of the gate's own
	Verdict string `json:"verdict,omitempty"` // why it ended that way, which comes before the code: ok, nonzero, memory, …
	Code    int    `json:"code"`              // its own, or 128+n after a signal
}

// Command is a command's text: its words with a NUL after each.
type Command struct {
	Step   int    `json:"step,omitempty"` // of the task, from 1; 0: of all its steps, before each how many words it has
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // hexadecimal, as everywhere here
}

// File is a regular file of a change.
type File struct {
	Path   string `json:"path"` // raw bytes; in JSON also path_base64 when not valid UTF-8
	Size   int64  `json:"size"` // in bytes
	SHA256 string `json:"sha256,omitempty"`
	Unread string `json:"unread,omitempty"` // why there is no digest
}

// Report is what a tool wrote. An empty one proves nothing, and is a failure.
type Report struct {
	Format string `json:"format"` // sarif, junit, json, text
	Artifact
}

// Log is what a command printed. One that is empty has no artifact.
type Log struct {
	Step      int  `json:"step,omitempty"`      // of the task, from 1; 0: of all its steps
	Truncated bool `json:"truncated,omitempty"` // there was more
	Artifact
}

// Artifact is a text that is kept beside the verdict, after everything secret has been taken out of it.
type Artifact struct {
	Path   string `json:"path,omitempty"` // in the feature's directory: evidence/SHA256
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
}

// Measurement is a number that a gate found, with the bound that it was held against.
type Measurement struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit,omitempty"`
	Value float64 `json:"value"` // never NaN or infinite in a Verdict: then the gate has failed
	Limit float64 `json:"limit,omitempty"`
}

// Artifacts finds artifacts by Artifact.Path and says how many bytes each has.
type Artifacts func(path string) (int64, error)

// OfMeasurement is a number as evidence.
func OfMeasurement(m Measurement) Evidence {
	return Evidence{Kind: EvidenceMeasurement, Measurement: &m}
}

// OfExit is a command's end as evidence.
func OfExit(e ExitCode) Evidence { return Evidence{Kind: EvidenceExitCode, ExitCode: &e} }

// OfLog is what a command printed as evidence.
func OfLog(l Log) Evidence { return Evidence{Kind: EvidenceLog, Log: &l} }

// OfReport is what a tool wrote as evidence.
func OfReport(r Report) Evidence { return Evidence{Kind: EvidenceReport, Report: &r} }

// OfFile is a file of the change as evidence; the pipeline reads its size and digest.
func OfFile(path string) Evidence { return Evidence{Kind: EvidenceFile, File: &File{Path: path}} }

// OfCommand is the text of a task's step as evidence; as step 0, that of all.
func OfCommand(step int, args []string) Evidence {
	sum := sha256.New()
	n := int64(0)
	for _, a := range args {
		w, _ := sum.Write(append([]byte(a), 0)) // a hash takes everything
		n += int64(w)
	}
	return Evidence{Kind: EvidenceCommand, Command: &Command{Step: step, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}}
}

// Measurements are the numbers among the evidence.
func (v *Verdict) Measurements() (list []Measurement) {
	for _, e := range v.Evidence {
		if e.Measurement != nil {
			list = append(list, *e.Measurement)
		}
	}
	return list
}

// sound says what is wrong with a piece of evidence.
func (e *Evidence) sound(artifacts Artifacts) error {
	set := map[EvidenceKind]bool{EvidenceExitCode: e.ExitCode != nil, EvidenceCommand: e.Command != nil, EvidenceFile: e.File != nil,
		EvidenceReport: e.Report != nil, EvidenceLog: e.Log != nil, EvidenceMeasurement: e.Measurement != nil}
	for kind, there := range set {
		if there != (kind == e.Kind) {
			return &Failure{fmt.Sprintf("evidence of the kind %q is none", e.Kind), "this is a mistake in the gate: report it"}
		}
	}
	if _, known := set[e.Kind]; !known {
		return &Failure{fmt.Sprintf("evidence of the unknown kind %q", e.Kind), "this is a mistake in the gate: report it"}
	}
	switch e.Kind {
	case EvidenceReport:
		if e.Report.Bytes <= 0 {
			return &Failure{"the report is empty", "see why the tool wrote nothing: a tool that did not run proves nothing"}
		}
		return e.Report.there(artifacts)
	case EvidenceLog:
		if e.Log.Bytes > 0 {
			return e.Log.there(artifacts)
		}
	case EvidenceMeasurement:
		m := e.Measurement
		if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || math.IsNaN(m.Limit) || math.IsInf(m.Limit, 0) {
			return &Failure{fmt.Sprintf("%s is %v of %v, which is no number", m.Name, m.Value, m.Limit), "look at what is measured, and at its limit"}
		}
	}
	return nil
}

// there says what is wrong with an artifact where it is kept.
func (a *Artifact) there(artifacts Artifacts) error {
	err := errors.New("there is no place where artifacts are kept")
	n := int64(0)
	if artifacts != nil {
		n, err = artifacts(a.Path)
	}
	if err == nil && n != a.Bytes {
		err = fmt.Errorf("it has %d bytes, and had %d", n, a.Bytes)
	}
	if err != nil {
		return &Failure{fmt.Sprintf("the artifact %s is not there: %v", Quote(a.Path), err), "ask the gates again: caisson gate run"}
	}
	return nil
}

// Bounds of what is read to say what a verdict rests on: a digest of more than that is not worth the time.
var evidenceBounds = Bounds{Files: 1000, File: 64 << 20, Total: 256 << 20}

// judgedBy completes the evidence of a gate's answer: a file that it names has to be there; of each that it has found fault
// with, what it was.
func judgedBy(ctx context.Context, c *Change, v *Verdict) ([]Evidence, error) {
	r := NewReader(ctx, c, evidenceBounds)
	list := slices.Clone(v.Evidence)
	named := map[string]bool{}
	for i, e := range list {
		if e.Kind != EvidenceFile || e.File == nil {
			continue
		}
		f, err := r.file(e.File.Path)
		if err != nil {
			return nil, missing(e.File.Path, err)
		}
		if e.File.SHA256 != "" && (e.File.SHA256 != f.SHA256 || e.File.Size != f.Size) {
			return nil, missing(e.File.Path, errors.New("it is another one"))
		}
		list[i].File, named[f.Path] = f, true
	}
	found, err := r.found(v.Findings, named)
	return append(list, found...), err
}

func missing(path string, err error) error {
	if errors.As(err, new(*ReadError)) {
		err = errors.Unwrap(err)
	}
	return &Failure{fmt.Sprintf("the evidence %s is not there: %v", Quote(path), err), "see why the file is missing, and ask again"}
}

// found is what the files with findings were, those that are no regular files or have gone left out.
func (r *Reader) found(findings []Finding, named map[string]bool) (list []Evidence, _ error) {
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Path != "" && !named[f.Path] }) {
		return nil, nil
	}
	entries := make(map[string]*Entry, len(r.c.Entries))
	for i := range r.c.Entries {
		entries[r.c.Entries[i].Path] = &r.c.Entries[i]
	}
	for _, finding := range findings {
		e := entries[finding.Path]
		if e == nil || named[e.Path] || e.Type != TypeFile || e.Kind == KindDeleted {
			continue
		}
		named[e.Path] = true
		f, err := r.file(e.Path)
		if errors.As(err, new(*ReadError)) {
			f, err = &File{Path: e.Path, Size: e.Size, Unread: errors.Unwrap(err).Error()}, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Evidence{Kind: EvidenceFile, File: f})
	}
	return list, nil
}

// file reads what a file is.
func (r *Reader) file(p string) (*File, error) {
	sum := sha256.New()
	n, more, err := r.copy(sum, p, r.c.Open, r.b.File)
	if err == nil && more {
		err = &ReadError{p, fmt.Errorf("%w: %d bytes of a file", ErrBounds, r.b.File)}
	}
	if err != nil {
		return nil, err
	}
	return &File{Path: p, Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// MarshalJSON keeps the bytes of a path that is not valid UTF-8.
func (f File) MarshalJSON() ([]byte, error) {
	type plain File
	return json.Marshal(struct {
		plain
		Raw []byte `json:"path_base64,omitempty"`
	}{plain(f), rawPath(f.Path)})
}

// UnmarshalJSON takes those bytes back.
func (f *File) UnmarshalJSON(data []byte) error {
	type plain File
	x := struct {
		*plain
		Raw []byte `json:"path_base64"`
	}{plain: (*plain)(f)}
	err := json.Unmarshal(data, &x)
	if len(x.Raw) > 0 {
		f.Path = string(x.Raw)
	}
	return err
}

// UnmarshalJSON reads what this version writes, and what the first one did, whose measurements stood for themselves.
func (v *Verdict) UnmarshalJSON(data []byte) error {
	type plain Verdict
	x := struct {
		*plain
		Measured []Measurement `json:"measured"`
	}{plain: (*plain)(v)}
	err := json.Unmarshal(data, &x)
	for _, m := range x.Measured {
		v.Evidence = append(v.Evidence, OfMeasurement(m))
	}
	return err
}
