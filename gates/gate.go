// Package gates checks a change before it may leave the sandbox.
//
// A gate sees a sealed change and never the live tree; it answers with findings. The pipeline turns them into
// a Verdict, which belongs to the change whose digest it names, with the Evidence that it rests on. Everything fails closed: a gate
// that panics, errs, runs out of time, checked nothing or has evidence that is not there blocks like one that found something,
// and so does a change that no gate was asked about.
//
// What each built-in gate must accept and must refuse is part of it, as Fixtures that prove that it can turn red. The gate
// paths is here; the others are in the packages below, and package builtin has them all.
package gates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
	"unicode/utf8"
)

// Gate checks changes. It is safe for concurrent use, and it stops when its context does.
type Gate interface {
	Name() string
	// Digest identifies the gate with its configuration: the same digest gives the same answer.
	Digest() string
	// Check fills Findings, Dropped, Evidence and Checked; the pipeline adds what the findings' files were and fills the rest. An error means that the
	// gate could not do its work, which counts as a failure; a *Failure says also what to do about it.
	Check(ctx context.Context, c *Change) (Verdict, error)
}

// Change is what a sealed layer differs in from the workspace.
type Change struct {
	Entries []Entry
	Digest  string
	// Tree identifies the entries, with their new content and with what they replace. Without it no answer is taken from a
	// cache, nor put into it.
	Tree string
	// Identify tells what is at a path of the workspace itself from what may be there later: the same text means the same
	// object with the same content. "" is not known. Where it is nil, an answer that rests on OpenOld, Lookup or Readlink
	// of a path that no entry replaces is not put into a cache.
	Identify func(path string) string
	// Open reads the new content of a path, following no link.
	Open func(path string) (io.ReadCloser, error)
	// OpenOld reads the content that a path has in the workspace itself, following no link. It may be nil where
	// no entry was there before.
	OpenOld func(path string) (io.ReadCloser, error)
	// Lookup says what is at a path of the workspace itself, following no link in its last element. It may be
	// nil: then nothing is known to be there.
	Lookup func(path string) (FileType, bool)
	// Since lists the entries that differ from the newest state which the gate with this digest has passed. It
	// may be nil, and ok false where there is no such state: then every entry counts.
	Since func(gate, digest string) (entries []Entry, ok bool)
	// Readlink gives the target of a symbolic link of the workspace itself, below the change. It may be
	// nil: then every path that the change does not name counts as no link.
	Readlink func(path string) (target string, ok bool)
}

// Entry is one changed path: relative, slash-separated, raw bytes.
type Entry struct {
	Path          string
	Kind          Kind
	Type, OldType FileType
	Mode, OldMode fs.FileMode // permissions, setuid, setgid, sticky
	Size, OldSize int64
	Link, OldLink string
	Binary        bool
	Xattrs        bool
}

// Kind says how a path changed.
type Kind string

// The kinds of a change.
const (
	KindAdded    Kind = "added"
	KindModified Kind = "modified"
	KindDeleted  Kind = "deleted"
	KindMode     Kind = "mode" // only the mode
	KindType     Kind = "type" // was another type of file
	KindLink     Kind = "link" // a symbolic link's target
)

// FileType is the type of a file.
type FileType string

// The types of files.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeFifo    FileType = "fifo"
	TypeSocket  FileType = "socket"
	TypeChar    FileType = "char"
	TypeBlock   FileType = "block"
)

// TypeOf is the type that a mode has; of an unknown one its letters.
func TypeOf(m fs.FileMode) FileType {
	switch m.Type() {
	case 0:
		return TypeFile
	case fs.ModeDir:
		return TypeDir
	case fs.ModeSymlink:
		return TypeSymlink
	case fs.ModeNamedPipe:
		return TypeFifo
	case fs.ModeSocket:
		return TypeSocket
	case fs.ModeDevice | fs.ModeCharDevice:
		return TypeChar
	case fs.ModeDevice:
		return TypeBlock
	}
	return FileType(m.Type().String())
}

// Severity is how much a finding matters.
type Severity string

// The severities. SeverityOff silences a rule in a configuration and is no severity of a finding.
const (
	SeverityBlock Severity = "block"
	SeverityWarn  Severity = "warn"
	SeverityInfo  Severity = "info"
	SeverityOff   Severity = "off"
)

var severities = []Severity{SeverityOff, SeverityInfo, SeverityWarn, SeverityBlock}

// ParseSeverity returns the severity called s.
func ParseSeverity(s string) (Severity, error) {
	if slices.Contains(severities, Severity(s)) {
		return Severity(s), nil
	}
	return "", fmt.Errorf("unknown severity %q; one of block, warn, info, off", s)
}

// rank orders severities; an unknown one counts as the worst.
func (s Severity) rank() int {
	if i := slices.Index(severities, s); i >= 0 {
		return i
	}
	if s == "" {
		return 0
	}
	return len(severities)
}

// Phase is when a gate is asked: a phase begins when all gates of the ones before it have answered, and only if none
// of them blocks.
type Phase string

// The phases, in their order.
const (
	PhasePre    Phase = "pre"    // before anything is read: admission
	PhaseStatic Phase = "static" // reads
	PhaseTest   Phase = "test"   // runs tools
	PhasePost   Phase = "post"   // looks at what those left
	PhaseDecide Phase = "decide" // a person, or a rule over all verdicts
)

// Phases lists every phase, in their order.
func Phases() []Phase { return []Phase{PhasePre, PhaseStatic, PhaseTest, PhasePost, PhaseDecide} }

// Mode is what a gate's failure does.
type Mode string

// The modes. A mandatory gate blocks and cannot be bypassed.
const (
	ModeOff       Mode = "off"
	ModeWarn      Mode = "warn"
	ModeBlock     Mode = "block"
	ModeMandatory Mode = "mandatory"
)

// Modes lists every mode, from the weakest to the strictest.
func Modes() []Mode { return []Mode{ModeOff, ModeWarn, ModeBlock, ModeMandatory} }

// ParseMode returns the mode called s.
func ParseMode(s string) (Mode, error) {
	if slices.Contains(Modes(), Mode(s)) {
		return Mode(s), nil
	}
	return "", fmt.Errorf("unknown gate mode %q; one of off, warn, block, mandatory", s)
}

// Status is a gate's answer.
type Status string

// The answers. Skipped is that of a gate which was not asked: its mode is off, or what it builds on did not pass.
const (
	Pass    Status = "pass"
	Fail    Status = "fail"
	Error   Status = "error"
	Skipped Status = "skipped"
)

// Finding is one thing that a gate saw.
type Finding struct {
	Rule     string   `json:"rule"`
	Path     string   `json:"path,omitempty"` // raw bytes; in JSON also path_base64 when not valid UTF-8
	Line     int      `json:"line,omitempty"` // from 1; 0 means the whole file
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy,omitempty"`
	Severity Severity `json:"severity"`
}

// rawPath is a path that JSON cannot hold as it is; nil for others.
func rawPath(path string) []byte {
	if utf8.ValidString(path) {
		return nil
	}
	return []byte(path)
}

// MarshalJSON keeps the bytes of a path that is not valid UTF-8.
func (f Finding) MarshalJSON() ([]byte, error) {
	type plain Finding
	return json.Marshal(struct {
		plain
		Raw []byte `json:"path_base64,omitempty"`
	}{plain(f), rawPath(f.Path)})
}

// UnmarshalJSON takes those bytes back.
func (f *Finding) UnmarshalJSON(data []byte) error {
	type plain Finding
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

// Verdict is what one gate says about one change.
type Verdict struct {
	Gate         string        `json:"gate"`
	GateDigest   string        `json:"gate_digest"`
	ChangeDigest string        `json:"change_digest"`
	Status       Status        `json:"status"`
	Severity     Severity      `json:"severity,omitempty"` // the worst of the findings
	Mode         Mode          `json:"mode"`
	Findings     []Finding     `json:"findings,omitempty"`
	Dropped      int           `json:"dropped,omitempty"` // findings counted but not listed
	Evidence     []Evidence    `json:"evidence,omitempty"`
	Checked      int           `json:"checked"`              // entries that the gate looked at
	Reason       string        `json:"reason,omitempty"`     // why Status is error, or skipped
	Remedy       string        `json:"remedy,omitempty"`     // what to do about Reason
	Cached       bool          `json:"cached,omitempty"`     // an earlier answer, on the same tree
	Approved     bool          `json:"approved,omitempty"`   // a person lets this failure pass, on this change alone
	Unresolved   string        `json:"unresolved,omitempty"` // the checkpoint whose failure stands, of a gate that does not block any more
	Started      time.Time     `json:"started"`
	Duration     time.Duration `json:"duration_ns"`

	UnresolvedMode Mode `json:"unresolved_mode,omitempty"` // of the gate when it failed there
}

// Approvable says whether a person may let the failure pass: a gate's that blocks, and is not mandatory, and was not when it
// failed.
func (v *Verdict) Approvable() bool {
	if v.Unresolved != "" {
		return v.Mode != ModeMandatory && v.UnresolvedMode == ModeBlock
	}
	return v.Mode == ModeBlock && v.Status != Skipped
}

// DigestOf is a gate's digest: of its name, of a version that changes when the same configuration would give another
// answer, and of its configuration, which JSON can hold.
func DigestOf(name string, version int, config any) string {
	data, err := json.Marshal(config)
	if err != nil {
		panic(err) // a configuration is texts and whole numbers
	}
	sum := sha256.Sum256(fmt.Appendf(data, "\n%s %d", name, version))
	return "sha256:" + hex.EncodeToString(sum[:])
}
