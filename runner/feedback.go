package runner

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/rootfs"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Where a feature finds, and acknowledges, what gates said of it. The directory lies in the feature's disk unit, so that what is
// written there counts, and in neither of its stacks: it is no part of a change, and stays over rollbacks.
const (
	feedbackTarget = rootfs.Feedback
	feedbackName   = "feedback.jsonl"
)

// The bounds of what is written and read there.
const (
	maxFeedback     = 1 << 20  // bytes of the file: with more it begins anew
	maxFeedbackLine = 64 << 10 // bytes; a longer one is no acknowledgement
	maxSaid         = 500      // lines of one verdict after another, at a time
)

// said is one line of feedback: a finding of a gate that refuses the feature's change.
type said struct {
	ID         string         `json:"id"`
	Gate       string         `json:"gate"`
	Severity   gates.Severity `json:"severity"`
	File       string         `json:"file,omitempty"`        // relative to the workspace
	Raw        string         `json:"file_base64,omitempty"` // where it is not valid UTF-8
	Line       int            `json:"line,omitempty"`
	Rule       string         `json:"rule,omitempty"`
	Message    string         `json:"message"`
	Suggestion string         `json:"suggestion,omitempty"`
	Checkpoint string         `json:"checkpoint"`
}

// pending is what of the newest feedback nobody has acknowledged. It lies beside the feature's lock, where no task reaches.
type pending struct {
	Change string   `json:"change"` // the digest of what was judged
	IDs    []string `json:"ids"`
}

func (x *session) feedbackDir() string { return filepath.Join(x.base(), "feedback") }
func (x *session) pendingFile() string { return filepath.Join(x.dir, "feedback.json") }

// feedbackBind shows the directory inside, where it belongs to the command's user.
func (x *session) feedbackBind() isolation.Bind {
	return isolation.Bind{Source: x.feedbackDir(), Target: feedbackTarget, Writable: true}
}

// makeFeedback makes the directory, before anything runs.
func (x *session) makeFeedback() (err error) {
	if x.ids == (isolation.IDs{}) { // a session that only looks
		if x.ids, err = x.s.idsOf(&x.feature); err != nil {
			return err
		}
	}
	dir, owner := x.feedbackDir(), x.owner()
	err = os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil && int(owner.UID) != os.Geteuid() {
		err = os.Lchown(dir, int(owner.UID), int(owner.GID))
	}
	return err
}

// inFeedback opens the directory. Unprivileged, its owner inside may have taken it from us.
func (x *session) inFeedback(do func(*os.Root) error) error {
	if err := errors.Join(x.makeFeedback(), os.Chmod(x.feedbackDir(), 0o755)); err != nil {
		return err
	}
	root, err := os.OpenRoot(x.feedbackDir())
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return do(root)
}

// replaceFeedback puts a new file in the place of whatever a task may have put there.
func (x *session) replaceFeedback(root *os.Root, text []byte) error {
	const tmp = feedbackName + ".new"
	if err := clearName(root, tmp); err != nil {
		return err
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	owner := x.owner()
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chown(int(owner.UID), int(owner.GID)), f.Close()); err != nil {
		return err
	}
	if info, err := root.Lstat(feedbackName); err == nil && info.IsDir() {
		if err := clearName(root, feedbackName); err != nil {
			return err
		}
	}
	return root.Rename(tmp, feedbackName)
}

// clearName removes what has a name, without following it. A directory that is not empty is moved out of the way: what a task
// has put into it may take long to remove.
func clearName(root *os.Root, name string) error {
	err := root.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return root.Rename(name, fmt.Sprintf("%s.%d", name, time.Now().UnixNano()))
}

// openFeedback opens the file when it is a plain one, which nobody else has another name for; nil when it is not.
func openFeedback(root *os.Root, flag int) (*os.File, int64) {
	info, err := root.Lstat(feedbackName)
	if err != nil || !info.Mode().IsRegular() {
		return nil, 0
	}
	f, err := root.OpenFile(feedbackName, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0
	}
	now, err := f.Stat()
	if err != nil || !os.SameFile(info, now) || !hostfile.OneName(now) {
		_ = f.Close()
		return nil, 0
	}
	return f, now.Size()
}

// inform tells the feature what gates refuse of it, once for each change that they refuse; and when they do not, that nothing is
// to be acknowledged any more. That it cannot be told is noted.
func (x *session) inform(ctx context.Context, state *judged, verdicts []gates.Verdict) {
	if state.at == snapshot.Current || x.layers == nil {
		return
	}
	if !gates.Blocked(verdicts) {
		if err := os.Remove(x.pendingFile()); err == nil {
			x.alarm(false)
		}
		return
	}
	if p, ok := x.pending(); ok && p.Change == state.change.Digest {
		return
	}
	lines, ids := sayings(verdicts, state.at)
	err := x.evenFull(ctx, func() error { return x.tell(lines) })
	if err == nil {
		err = x.expectAck(pending{state.change.Digest, ids})
	}
	a := AuditRecord{FeatureID: x.feature.ID, Event: "feedback", To: state.at, Cause: fmt.Sprintf("%d findings", len(ids))}
	if err != nil {
		a.Cause = "could not be told: " + err.Error()
	} else {
		x.alarm(true)
	}
	_ = x.s.opt.Journal.Note(ctx, a) // the verdicts are kept in any case
}

// sayings are verdicts as lines of feedback.
func sayings(verdicts []gates.Verdict, checkpoint string) (lines []byte, ids []string) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	add := func(s said) {
		if len(ids) == maxSaid {
			return
		}
		s.ID, s.Checkpoint = fmt.Sprintf("%s-%d", checkpoint, len(ids)+1), checkpoint
		if !utf8.ValidString(s.File) {
			s.Raw = base64.StdEncoding.EncodeToString([]byte(s.File))
		}
		if enc.Encode(s) == nil {
			ids = append(ids, s.ID)
		}
	}
	for _, v := range gates.Blocking(verdicts) {
		if v.Unresolved != "" || v.Status != gates.Fail {
			message := cmp.Or(v.Reason, "its failure at checkpoint "+v.Unresolved+" stands")
			add(said{Gate: v.Gate, Severity: gates.SeverityBlock, Message: message, Suggestion: v.Remedy})
		}
		for _, f := range gates.WorstFirst(v.Findings) {
			add(said{Gate: v.Gate, Severity: f.Severity, File: f.Path, Line: f.Line, Rule: f.Rule, Message: f.Message, Suggestion: f.Remedy})
		}
	}
	return b.Bytes(), ids
}

// tell appends lines to the file, or begins it anew when a task has made something else of it, or much of it.
func (x *session) tell(lines []byte) error {
	return x.inFeedback(func(root *os.Root) error {
		f, size := openFeedback(root, os.O_WRONLY|os.O_APPEND)
		if f != nil && size+int64(len(lines)) <= maxFeedback {
			_, err := f.Write(lines)
			return errors.Join(err, f.Close())
		}
		if f != nil {
			_ = f.Close()
		}
		return x.replaceFeedback(root, lines)
	})
}

func (x *session) pending() (p pending, ok bool) {
	text, err := os.ReadFile(x.pendingFile())
	return p, err == nil && json.Unmarshal(text, &p) == nil
}

// expectAck records what has to be acknowledged.
func (x *session) expectAck(p pending) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(x.pendingFile()+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(x.pendingFile()+".new", x.pendingFile())
}

// acknowledged reads what the feature has acknowledged: lines {"ack": ID}, {"ack": [ID, …]}, of a finding or, for all of its, of a
// checkpoint. Everything else in the file is passed by.
func (x *session) acknowledged() (acks []string) {
	_ = x.inFeedback(func(root *os.Root) error {
		f, _ := openFeedback(root, os.O_RDONLY)
		if f == nil {
			return nil
		}
		defer f.Close()
		r := bufio.NewReaderSize(io.LimitReader(f, 2*maxFeedback), maxFeedbackLine)
		for {
			line, long, err := r.ReadLine()
			for long && err == nil {
				line = nil
				_, long, err = r.ReadLine()
			}
			if err != nil {
				return nil
			}
			acks = append(acks, acksOf(line)...)
		}
	})
	return acks
}

func acksOf(line []byte) []string {
	var one struct{ Ack json.RawMessage }
	if !bytes.Contains(line, []byte("ack")) || json.Unmarshal(line, &one) != nil {
		return nil
	}
	var id string
	if json.Unmarshal(one.Ack, &id) == nil {
		return []string{id}
	}
	var ids []string
	_ = json.Unmarshal(one.Ack, &ids) // else there are none
	return ids
}

// unacknowledged counts what is left; what is done with is forgotten.
func (x *session) unacknowledged() int {
	p, ok := x.pending()
	if !ok {
		return 0
	}
	acks := x.acknowledged()
	p.IDs = slices.DeleteFunc(p.IDs, func(id string) bool {
		return slices.ContainsFunc(acks, func(a string) bool { return a != "" && (a == id || strings.HasPrefix(id, a+"-")) })
	})
	return len(p.IDs)
}

// alarm begins the time that a live feature has to acknowledge what it was told, or ends it.
func (x *session) alarm(on bool) {
	if x.alarms == nil {
		return
	}
	select {
	case <-x.alarms: // what was not yet heard is old
	default:
	}
	select {
	case x.alarms <- on:
	default: // somebody else is telling it
	}
}

// heed escalates when a live feature has not acknowledged in time what gates said of it. It is told once of each time.
func (x *session) heed(ctx context.Context) {
	patience := time.Duration(x.policy.Gates.Feedback.Timeout)
	if patience <= 0 {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	if _, ok := x.pending(); !ok {
		timer.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case on := <-x.alarms:
			timer.Stop()
			if on {
				timer.Reset(patience)
			}
		case <-timer.C:
			x.escalate(ctx, x.unacknowledged(), patience)
		}
	}
}

// escalate does what the profile says of so much feedback that nobody acknowledged.
func (x *session) escalate(ctx context.Context, left int, patience time.Duration) {
	a := AuditRecord{FeatureID: x.feature.ID, Event: "feedback", To: "acknowledged"}
	how := cmp.Or(x.policy.Gates.Feedback.Escalate, profiles.EscalateNone)
	if left > 0 {
		a.To, a.Cause = "ignored", fmt.Sprintf("%d findings not acknowledged in %s: %s", left, patience, how)
	}
	_ = x.s.opt.Journal.Note(ctx, a) // what follows is noted too
	if left == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	switch how {
	case profiles.EscalatePause:
		go func() { _ = x.s.Pause(ctx, x.feature.ID) }() // it has ended meanwhile, or does so
	case profiles.EscalateStop:
		go func() { _ = x.s.Stop(ctx, []string{x.feature.ID}, StopOptions{Grace: stopGrace, Seal: true}) }() // which waits for us
	}
}

// stopGrace is what a feature that is stopped for its silence gets to end.
const stopGrace = 5 * time.Second
