package runner

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Why a checkpoint was made.
const (
	ReasonStart    = "start"    // before a task's first step
	ReasonStep     = "step"     // after a step
	ReasonAuto     = "auto"     // in a long step, by time or by count of files
	ReasonManual   = "manual"   // somebody asked
	ReasonRollback = "rollback" // what a rollback or a resume was about to throw away
	ReasonPromote  = "promote"  // before a promote
	ReasonImport   = "import"
	ReasonStop     = "stop" // the last state of a live feature
)

// Checkpoint is a state that a feature can go back to.
type Checkpoint struct {
	ID        string   `json:"id"`
	Feature   string   `json:"feature"` // its name
	FeatureID string   `json:"feature_id"`
	Parent    string   `json:"parent,omitempty"` // "" is the workspace
	TaskID    string   `json:"task,omitempty"`   // that ran when it was made
	Step      int      `json:"step,omitempty"`   // 1-based; 0 before the first and outside of tasks
	Reason    string   `json:"reason"`           // one of the Reason constants
	Label     string   `json:"label,omitempty"`
	AliasOf   string   `json:"alias_of,omitempty"` // the parent, to which it is equal
	Aliases   []string `json:"aliases,omitempty"`  // ids that mean this one

	Created    time.Time             `json:"created"`
	Generation int                   `json:"generation"` // of the workspace: how many promotes it had had
	Counts     snapshot.ChangeCounts `json:"counts"`     // against the parent; once indexed
	Bytes      int64                 `json:"bytes"`      // of its own layer, allocated; once indexed
	Digest     string                `json:"digest,omitempty"`
	Verdicts   []gates.Verdict       `json:"verdicts,omitempty"`

	Head     bool `json:"head,omitempty"` // the current state goes on from it
	LastGood bool `json:"last_good,omitempty"`
	Promoted bool `json:"promoted,omitempty"`
	Indexed  bool `json:"indexed"` // counts, bytes and digest are known
	Durable  bool `json:"durable"` // it survives a loss of power
	Lost     bool `json:"lost,omitempty"`

	Damaged string `json:"damaged,omitempty"` // why it cannot be used
}

// CheckpointOptions are how Supervisor.Checkpoint makes one.
type CheckpointOptions struct {
	Label string
	Key   string // idempotency key: a second call with it answers the checkpoint of the first
	Wait  bool   // until it is indexed and durable
}

// ImportOptions are how Supervisor.Import makes a checkpoint of an archive.
type ImportOptions struct {
	Label    string
	Home     bool   // the archive is of HOME
	Digest   string // that the uncompressed archive must have, sha256:HEX; "" does not check
	MaxBytes int64  // more is refused; 0: 1 GiB
}

func (o *ImportOptions) check() error {
	if err := checkLabel(o.Label); err != nil {
		return err
	}
	if o.Digest != "" && !digestRule().MatchString(o.Digest) {
		return refuse(CodeUsage, "write it as export prints it: sha256: and 64 hexadecimal digits", "%q is no digest", o.Digest)
	}
	return nil
}

var digestRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^sha256:[0-9a-f]{64}$") })

// Ref names a feature, or one of its checkpoints.
type Ref struct {
	Feature    string // a name, an id, or a unique beginning of an id
	Checkpoint string // an id, a unique beginning of one, a label, or one of the Ref constants; "" is the current state
}

// What Ref.Checkpoint may say besides ids and labels.
const (
	RefHead     = "head"      // that the current state goes on from
	RefLastGood = "last-good" // the newest that gates accepted, or that was promoted
	RefStart    = "start"     // the oldest
	RefBase     = "base"      // the workspace
)

// ParseRef reads FEATURE[@CHECKPOINT].
func ParseRef(s string) (Ref, error) {
	feature, checkpoint, found := strings.Cut(s, "@")
	if feature == "" || found && checkpoint == "" || strings.ContainsAny(s, " \t\n/") {
		return Ref{}, refuse(CodeUsage, "write FEATURE or FEATURE@CHECKPOINT", "%q names neither a feature nor a checkpoint", s)
	}
	return Ref{Feature: feature, Checkpoint: checkpoint}, nil
}

func (r Ref) String() string {
	if r.Checkpoint == "" {
		return r.Feature
	}
	return r.Feature + "@" + r.Checkpoint
}

// RollbackOptions are what Rollback goes back to, and how.
type RollbackOptions struct {
	To       string   // as in Ref.Checkpoint; "" is the newest on the way back from what there is now that differs from it
	LastGood bool     // to RefLastGood, or where that cannot be read to the newest good one that can
	Paths    []string // globs: only these
	Smart    []string // paths: only these, which something found fault with
	Named    bool     // only the paths that gates named at the newest checkpoint which they judged
	DryRun   bool
	Keep     bool // live processes go on; refused with CodeHeld while one holds the workspace or HOME
	NoUndo   bool // do not seal first: what is thrown away is gone
}

// RollbackResult is what Rollback did.
type RollbackResult struct {
	Undo     *Checkpoint          `json:"undo,omitempty"` // roll back to this one to take it back
	To       Checkpoint           `json:"to"`
	PassedBy []PassedBy           `json:"passed_by,omitempty"` // newer good ones that cannot be read, of LastGood
	Report   snapshot.ResetReport `json:"report"`
	Stopped  []isolation.Holder   `json:"stopped,omitempty"` // processes that were in the way
	DryRun   bool                 `json:"dry_run,omitempty"`
	Took     time.Duration        `json:"took_ns"`
}

// ResumeOptions are how Resume goes on with a task.
type ResumeOptions struct {
	RetryInterrupted bool // run the interrupted step again
	SkipInterrupted  bool // take it for done
	Detach           bool
	Environ          []string // as Request.Environ, of who resumes

	Profile        *profiles.Effective // to compare its digest with the task's; nil: the task's own is used
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Signals        <-chan os.Signal
	Progress       func(Progress)
}

// StopOptions are how Stop stops.
type StopOptions struct {
	Grace time.Duration // between SIGTERM and the end
	Seal  bool          // make a checkpoint of the last state
}

// CopyPath is one end of Copy: a path of the host, or one inside a feature.
type CopyPath struct {
	Ref  string // FEATURE[@CHECKPOINT]; "" is the host
	Path string // on the host, or inside: absolute or relative to /workspace
}

// Stats is what a feature takes, and how long things took in it.
type Stats struct {
	Feature   string                 `json:"feature"`
	FeatureID string                 `json:"feature_id"`
	Live      bool                   `json:"live"`
	CPU       time.Duration          `json:"cpu_ns"`
	Memory    int64                  `json:"memory"` // bytes, now; -1 where the kernel does not tell
	Pids      int64                  `json:"pids"`
	Disk      *DiskUsage             `json:"disk,omitempty"`
	Watch     string                 `json:"watch,omitempty"` // inotify, scan
	Times     map[string]Percentiles `json:"times"`           // by kind of Timing
}

// Percentiles sum up how long something took.
type Percentiles struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50_ns"`
	P95 time.Duration `json:"p95_ns"`
	P99 time.Duration `json:"p99_ns"`
}

// Event is a row of the audit trail, something that happened to a file, or something that a sandbox wanted of the network.
type Event struct {
	Seq     int64     `json:"seq"` // grows; EventOptions.Since
	At      time.Time `json:"at"`
	Feature string    `json:"feature"` // id
	TaskID  string    `json:"task,omitempty"`
	Step    int       `json:"step,omitempty"`
	Kind    string    `json:"kind"`           // submit, move, step, checkpoint …; of files: added, modified, deleted, mode; network
	Path    string    `json:"path,omitempty"` // absolute, inside
	Size    int64     `json:"size,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`

	Network *egress.Event   `json:"network,omitempty"` // of kind network
	Detail  json.RawMessage `json:"detail,omitempty"`  // as in AuditRecord
}

// EventOptions pick events.
type EventOptions struct {
	Feature string // as in Ref.Feature; "" is all
	Task    string // id
	Since   int64  // only later ones
	Limit   int    // at most so many; 0: all
	Follow  bool   // go on until the context ends
	Network bool   // only those of kind network
}
