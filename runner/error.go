package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/images"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Exit codes that an Error carries; cmd/caisson has the table for verdicts.
const (
	ExitRefused  = 120 // we would not, or may not, do what was asked
	ExitGate     = 121
	ExitPerson   = 123 // somebody has to decide; the remedy is the command to type
	ExitInternal = 125 // we could not do what we should have
	ExitCanceled = 130
)

// The codes of an Error: stable words that a program may compare.
const (
	CodeUsage         = "usage"         // the request makes no sense as it stands
	CodeNotFound      = "not_found"     // no such feature or task
	CodeAmbiguous     = "ambiguous"     // a prefix that fits several features
	CodeExists        = "exists"        // the name is taken
	CodeBusy          = "busy"          // another process works on the feature
	CodeQueueFull     = "queue_full"    // backpressure
	CodeUnsupported   = "unsupported"   // a required control cannot be enforced here
	CodeWorkspace     = "workspace"     // missing, not a directory, contains the state directory
	CodeState         = "state_dir"     // the state directory cannot be used
	CodeStoreNewer    = "store_newer"   // written by a newer version
	CodeStoreCorrupt  = "store_corrupt" // not a store, or damaged
	CodeStore         = "store"         // any other failure of the store
	CodeConflict      = "conflict"      // the workspace changed underneath
	CodeRepository    = "repository"    // the workspace's git repository cannot take a branch
	CodeGate          = "gate"          // a gate blocks the promotion
	CodeDisk          = "disk_full"     // the host's file system is full
	CodeCancelled     = "cancelled"     // the caller gave up before the task ran
	CodeInternal      = "internal"      // everything else; please report
	CodeNothingToDo   = "nothing_to_do" // an empty change has nothing to promote
	CodePlatform      = "platform"      // not a Linux kernel
	CodeInvalidName   = "invalid_name"  // a feature's name or a label
	CodeRootFS        = "rootfs"        // the root file system cannot be made
	CodeMount         = "mount"         // a mount of the profile or of -v
	CodeConfiguration = "configuration" // a profile or option value
	CodeHeld          = "held"          // live processes hold the workspace or HOME
	CodeDamaged       = "damaged"       // a checkpoint or a feature's layers cannot be used
	CodeQuota         = "quota"         // the feature's own disk is full
	CodeNotLive       = "not_live"      // nothing of the feature runs
	CodePaused        = "paused"        // the feature stands still
	CodeKey           = "key"           // the idempotency key stands for something else
	CodeCommand       = "command"       // the gate command denies a step
	CodeAsk           = "ask"           // the gate command wants a person to decide about a step, and none has
	CodeApproval      = "approval"      // a gate blocks a promotion until a person lets it pass
	CodeResume        = "resume"        // a step was interrupted, and nobody said whether it may run again
)

// Error is a failure of ours or a refusal, never a task's: those are Results. Its JSON form is what
// `caisson --json` prints.
type Error struct {
	Code   string `json:"code"`             // one of the Code constants
	Cause  string `json:"cause"`            // one sentence
	Remedy string `json:"remedy,omitempty"` // what the user can do; a command where there is one
	Exit   int    `json:"exit"`             // the process's exit code
	Err    error  `json:"-"`                // what lies underneath, if anything
}

func (e *Error) Error() string {
	if e.Err == nil || strings.Contains(e.Cause, e.Err.Error()) {
		return e.Cause
	}
	return e.Cause + ": " + e.Err.Error()
}

// Unwrap gives what lies underneath.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Code: c}) compare by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Cause == "" && t.Err == nil
}

// CodeOf returns the code of the first Error in err's chain, CodeInternal for any other error and "" for nil.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// refuse is an Error with exit code 120.
func refuse(code, remedy, format string, args ...any) *Error {
	return &Error{Code: code, Cause: fmt.Sprintf(format, args...), Remedy: remedy, Exit: ExitRefused}
}

// typed gives an error of ours its code, cause and remedy. What has them keeps them; what is left is CodeInternal.
func typed(err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if e := typedByKind(err); e != nil {
		e.Err = err
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Code: CodeCancelled, Cause: doing + " was cancelled", Exit: ExitCanceled, Err: err}
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return stateFailure(err)
	}
	return &Error{Code: CodeInternal, Cause: doing, Exit: ExitInternal, Err: err}
}

// typedByKind knows the errors of the packages below that say themselves what is wrong and what helps.
func typedByKind(err error) *Error {
	if e, ok := errors.AsType[*isolation.ShortageError](err); ok {
		return refuse(CodeUnsupported, e.Remedy(), "%v", e)
	}
	if e, ok := errors.AsType[*isolation.UnsupportedError](err); ok {
		return refuse(CodeUnsupported, e.Remedy, "%v", e)
	}
	if e, ok := errors.AsType[*quota.UnavailableError](err); ok {
		return refuse(CodeUnsupported, e.Remedy, "%v", e)
	}
	if e, ok := errors.AsType[*disk.RoomError](err); ok {
		return refuse(CodeDisk, cmp.Or(e.Remedy, "ask for less with --disk, or free space with `caisson gc` and `caisson rm`"), "%v", e)
	}
	if errors.Is(err, disk.ErrResize) {
		return refuse(CodeQuota, "leave --disk and --inodes out, or start another feature with them", "%v", err)
	}
	if e, ok := errors.AsType[*quota.LimitError](err); ok {
		return refuse(CodeConfiguration, "", "%v", e)
	}
	if errors.Is(err, snapshot.ErrCheckpoint) {
		return refuse(CodeNotFound, "caisson checkpoint ls", "%v", err)
	}
	if errors.Is(err, snapshot.ErrHead) {
		return refuse(CodeHeld, "go back to another one first: caisson rollback", "%v", err)
	}
	if e, ok := errors.AsType[*isolation.HeldError](err); ok {
		return refuse(CodeHeld, "end them, or stop the feature", "%v", e)
	}
	if errors.Is(err, disk.ErrDamaged) || errors.Is(err, snapshot.ErrUnusableLayers) {
		return refuse(CodeDamaged, "caisson doctor --repair", "%v", err)
	}
	if e, ok := errors.AsType[*snapshot.WorkspaceError](err); ok {
		return refuse(CodeWorkspace, e.Remedy, "%v", e)
	}
	if e, ok := errors.AsType[*profiles.MountError](err); ok {
		return refuse(CodeMount, e.Remedy, "%v", e)
	}
	if e, ok := errors.AsType[*images.TargetError](err); ok {
		return refuse(CodeMount, e.Remedy, "cannot mount at %s: %s", e.Path, e.Reason)
	}
	_, damaged := errors.AsType[*images.ArchiveError](err)
	if _, ok := errors.AsType[*images.UnusableError](err); ok || damaged {
		return refuse(CodeRootFS, "name a root file system with --rootfs that works", "%v", err)
	}
	if errors.Is(err, images.ErrRegistry) {
		return refuse(CodeRootFS, "--rootfs host, dir:PATH or tar:PATH", "%v", err)
	}
	if errors.Is(err, snapshot.ErrUnsupported) {
		return refuse(CodeUnsupported, "", "%v", err)
	}
	return nil
}

// blockedError says which gates refuse a change, and the way on: protected paths take a word of the user, all else is
// corrected in the feature.
func blockedError(feature string, verdicts []gates.Verdict) *Error {
	var names []string
	word := true
	for _, v := range gates.Blocking(verdicts) {
		names = append(names, v.Gate)
		word = word && v.Status == gates.Fail && !slices.ContainsFunc(v.Findings, func(f gates.Finding) bool {
			return f.Severity == gates.SeverityBlock && !slices.Contains([]string{"protected", "protected-link", "git-repository"}, f.Rule)
		})
	}
	e := &Error{Code: CodeGate, Cause: "a gate refuses the change: " + strings.Join(names, ", "), Exit: ExitGate,
		Remedy: fmt.Sprintf("look at `caisson diff %s`; correct it in the feature and ask again: caisson gate run %s", feature, feature)}
	if word {
		e.Remedy = fmt.Sprintf("look at `caisson diff %s`; if it is what you want: caisson promote %s --allow-protected GLOB", feature, feature)
	}
	return e
}

// damaged says that a feature's layers cannot be used.
func damaged(err error, feature string) error {
	if e, ok := errors.AsType[*snapshot.DamageError](err); ok {
		return &Error{Code: CodeDamaged, Cause: "the layers of " + feature + " are damaged", Exit: ExitRefused, Err: e,
			Remedy: "caisson doctor --repair names what is left; caisson rm --force " + feature + " removes it"}
	}
	return err
}

// conflictError is the refusal of a change to what others changed meanwhile.
func conflictError(err *snapshot.ConflictError, feature string) *Error {
	e := refuse(CodeConflict, fmt.Sprintf("decide by name: caisson promote %s --ours PATH keeps the workspace's side, --theirs PATH takes the feature's", feature), "%v", err)
	e.Err = err
	return e
}
