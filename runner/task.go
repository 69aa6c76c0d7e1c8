package runner

import (
	"io"
	"os"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

// The kinds of promotion.
const (
	PromoteNone  = "none"  // keep the change for diff, promote or discard
	PromoteApply = "apply" // write it to the workspace
	PromotePatch = "patch" // write it to a file

	PromoteBranch = "branch" // commit it to a branch of the workspace's git repository
)

// Request is one task: steps to run in a feature, on a workspace, under a profile.
type Request struct {
	Workspace string // host directory; made absolute, links resolved
	Feature   string // name; "" makes a fresh one. An existing feature gets one more task
	Steps     []Step // run in order until one fails; at least one
	Profile   *profiles.Effective

	Promote        string // PromoteNone ("" too), PromoteApply, PromotePatch, PromoteBranch: what happens when all went well
	PatchFile      string // for PromotePatch
	Branch         BranchOptions
	AllowProtected []string // globs of protected paths that may be changed all the same
	OwnOnly        bool     // gates reject the task only for what they did not object to before it; not with Promote
	Consent        bool     // a person has read what the gate command asks about, and wants it
	Remove         bool     // --rm: the feature goes away with its change when the task has ended
	Labels         map[string]string

	Detach      bool              // the sandbox stays until Stop; Steps may then be empty
	Key         string            // idempotency key: a second request with it answers the task of the first
	TTL, Idle   time.Duration     // of a detached feature, over the profile's; 0: the profile's
	Checkpoints *CheckpointPolicy // over the profile's; nil: the profile's

	Learn   string           // LearnAllow, LearnEnforce; "": not at all
	Publish []egress.Publish // ports that the host shows: of a task until its end, of a detached feature until Stop

	// TTY allocates a terminal inside; Terminal is then used instead of Stdin, Stdout and Stderr. What is read (Stdin, or
	// Terminal.In) may be nil: the command then reads end of file. Interactive is for the record.
	TTY, Interactive bool
	Stdin            io.Reader
	Stdout, Stderr   io.Writer // nil: the output goes to the log alone
	Terminal         Terminal
	Signals          <-chan os.Signal // forwarded to the step's first process; a second SIGINT or SIGTERM cancels
	Progress         func(Progress)   // called from one goroutine at a time; must not block
	Environ          []string         // where pass_env of the profile looks; nil: os.Environ()
	taken            []string         // names of the secrets that Environ has given to a resumed task
}

// Terminal is the caller's end of a PTY.
type Terminal struct {
	In     io.Reader
	Out    io.Writer
	Name   string // TERM inside; "" means xterm
	Size   Winsize
	Resize <-chan Winsize // nil: the size never changes
}

// Step is one command.
type Step struct {
	Args     []string       `json:"args,omitempty"`
	Env      []string       `json:"-"`                 // KEY=VALUE, over the profile's
	Cwd      string         `json:"cwd,omitempty"`     // inside; relative to /workspace; "" means /workspace
	UID, GID *uint32        `json:"-"`                 // inside; nil means 1000
	Timeout  time.Duration  `json:"timeout,omitempty"` // 0: the profile's
	Limits   *quota.Limits  `json:"limits,omitempty"`  // nil: only the feature's; else on the step's own cgroup
	Name     string         `json:"name,omitempty"`    // of the profile's steps, whose rule then holds
	Network  *egress.Policy `json:"rule,omitempty"`    // with the profile's groups and denials; nil: what the profile has for Name
	Reach    *Reach         `json:"reach,omitempty"`   // put over that rule
	Retry    bool           `json:"retry,omitempty"`   // it may be run again after it was interrupted
}

// Reach is what a caller says of the network on top of a step's rule, of which the rest holds.
type Reach struct {
	Mode  egress.Mode `json:"mode,omitempty"`  // instead of the rule's; "": the rule's, and allow instead of none where Allow has something
	Allow []string    `json:"allow,omitempty"` // besides the rule's
}

// CheckpointPolicy is when checkpoints are made by themselves.
type CheckpointPolicy struct {
	Off      bool          `json:"off,omitempty"`         // only before what destroys
	Every    time.Duration `json:"every_ns,omitempty"`    // in a long step; 0: never by time
	Files    int           `json:"files,omitempty"`       // after so many changed files; 0: never by count
	Debounce time.Duration `json:"debounce_ns,omitempty"` // how long nothing must have changed
}

// Progress is told at each change of state.
type Progress struct {
	TaskID  string
	Feature string
	State   State
	Step    int    // 1-based while running, else 0
	Steps   int    // how many there are
	Message string // for a person
	Ports   []Port // that are shown from now on
}

// Result is how a task ended. A task that failed has a Result, not an error.
type Result struct {
	TaskID    string `json:"task"`
	Feature   string `json:"feature"` // its name
	FeatureID string `json:"feature_id"`
	Workspace string `json:"workspace"`

	State    State     `json:"state"`
	Verdict  Verdict   `json:"verdict"`
	ExitCode int       `json:"exit_code"`        // of the last step that ran: its own, or 128+n after a signal
	Signal   string    `json:"signal,omitempty"` // SIGSEGV, …
	Limit    *LimitHit `json:"limit,omitempty"`

	Code   string `json:"code,omitempty"` // when not ok: a stable word
	Cause  string `json:"cause,omitempty"`
	Remedy string `json:"remedy,omitempty"`

	Weaker          []Weakness              `json:"weaker,omitempty"` // what was not enforced, because the user said so
	Layers          *Layering               `json:"layers,omitempty"`
	FromEnvironment []string                `json:"from_environment,omitempty"` // names of the secrets that a resume took from who resumed
	Steps           []StepResult            `json:"steps"`
	Change          *ChangeSummary          `json:"change,omitempty"`
	Judged          []Judged                `json:"judged,omitempty"`     // steps that the gate command, in mode warn, would have refused
	Checkpoint      string                  `json:"checkpoint,omitempty"` // id of the state at its end, which the gates judged
	Gates           []gates.Verdict         `json:"gates,omitempty"`      // as they were at the task's end
	Approvals       []Approval              `json:"approvals,omitempty"`  // that let gates pass which had failed
	FollowUp        *FollowUp               `json:"follow_up,omitempty"`  // what was put back because gates refused the change
	Unjudged        bool                    `json:"unjudged,omitempty"`   // the profile has switched the gates off
	Promoted        *snapshot.PromoteReport `json:"promoted,omitempty"`
	Kept            bool                    `json:"kept"`                  // the feature still exists: see diff, promote, discard
	Checkpoints     []Checkpoint            `json:"checkpoints,omitempty"` // of this task, oldest first
	LastGood        string                  `json:"last_good,omitempty"`   // id of the feature's last good checkpoint
	Disk            *DiskUsage              `json:"disk,omitempty"`        // of the feature, at the end
	Ports           []Port                  `json:"ports,omitempty"`       // that were shown
	Usage           Usage                   `json:"usage"`
	Truncated       bool                    `json:"truncated,omitempty"` // the log does not hold all of the output
	Created         time.Time               `json:"created"`
	Started         time.Time               `json:"started,omitzero"`
	Ended           time.Time               `json:"ended,omitzero"`
	Profile         string                  `json:"profile"`
	ProfileDigest   string                  `json:"profile_digest"`
}

// OK reports whether everything that was asked for happened.
func (r *Result) OK() bool { return r.Verdict == VerdictOK }

// What package steps says of a step.
type (
	StepResult = steps.Result   // how one step ended
	LimitHit   = steps.LimitHit // which limit ended it
	Usage      = steps.Usage    // what was measured from outside
	Winsize    = steps.Winsize  // a terminal's size in characters
)

// Layering is how a feature's layers are kept.
type Layering struct {
	Driver string `json:"driver"`           // overlay, copy
	Reason string `json:"reason,omitempty"` // why the host decided for copies
}

// Weakness is a control that was waived and could not be enforced.
type Weakness struct {
	Control isolation.Control `json:"control"`
	Reason  string            `json:"reason"`
}

// ChangeSummary is a change in figures.
type ChangeSummary struct {
	Added    int    `json:"added"`
	Modified int    `json:"modified"`
	Deleted  int    `json:"deleted"`
	Bytes    int64  `json:"bytes"` // content of added and modified files
	Digest   string `json:"digest"`
}

// Empty reports whether nothing changed.
func (c *ChangeSummary) Empty() bool { return c == nil || c.Added+c.Modified+c.Deleted == 0 }

// DiskUsage is what a feature takes of its disk unit.
type DiskUsage struct {
	Mechanism  string `json:"mechanism"`
	Used       int64  `json:"used"`  // bytes
	Limit      int64  `json:"limit"` // bytes
	Inodes     int64  `json:"inodes"`
	InodeLimit int64  `json:"inode_limit,omitempty"` // 0: there is none
}
