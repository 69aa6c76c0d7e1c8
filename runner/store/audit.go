package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
	"github.com/caisson-dev/caisson/runner/redact"
)

// headsFile is the name of the file beside the store that has the log's heads.
const headsFile = "audit.heads"

// transaction is one of SQLite's, and what it appends to the log, which is written at its end: who writes has the store to
// himself, so that the newest row is the one before ours, and all of ours are one statement.
type transaction struct {
	*sql.Tx
	hide    *redact.Redactor
	entries []chain.Entry
	head    *chain.Head // the newest row, once it is known
	heads   string      // path of the file that has those before it; "" for a store in memory

	named *atomic.Pointer[source] // one that the store knows: Store.named
	last  *source                 // it will know, too
}

// record is the body of an entry that is one event.
type record struct {
	From   string          `json:"from,omitempty"`
	To     string          `json:"to,omitempty"`
	Cause  string          `json:"cause,omitempty"`
	Detail json.RawMessage `json:"detail,omitempty"`
}

// note appends an entry to the log.
func note(_ context.Context, tx *transaction, a runner.AuditRecord) error {
	return noteEvents(tx, a, 1)
}

// kindCommand is an entry that stands for two events: of a step's move, and of its command, which begins or ends with it. There
// are as many of them as of checkpoints.
const kindCommand = "command"

func noteCommand(tx *transaction, a runner.AuditRecord) error {
	a.Event = kindCommand
	return noteEvents(tx, a, 2)
}

func noteEvents(tx *transaction, a runner.AuditRecord, count int64) error {
	body, err := text(record{a.From, a.To, a.Cause, a.Detail})
	if err != nil {
		return err
	}
	tx.add(chain.Entry{Count: count, At: a.At, Feature: a.FeatureID, Task: a.TaskID, Step: a.Step, Kind: a.Event, Body: body})
	return nil
}

// text is JSON in one line, for people too: < and > stay what they are.
func text(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), err
}

// add appends an entry, without the secrets in it. Everything that the log says comes through here.
func (tx *transaction) add(e chain.Entry) {
	e.Body = tx.hide.JSON(e.Body)
	tx.entries = append(tx.entries, e)
}

// rowsAtOnce bounds the variables of a statement, of which SQLite takes 32,766.
const rowsAtOnce = 500

// append chains what was added and writes it. It may be called before the end, by who needs the rows there.
func (tx *transaction) append(ctx context.Context) error {
	if len(tx.entries) == 0 {
		return nil
	}
	if tx.head == nil {
		if err := tx.goOn(ctx); err != nil {
			return err
		}
	}
	list := tx.entries
	tx.entries = nil
	if err := tx.name(ctx, list); err != nil {
		return err
	}
	for len(list) > 0 {
		n := min(len(list), rowsAtOnce)
		args := make([]any, 0, n*9)
		for i := range list[:n] {
			e := &list[i]
			*tx.head = e.Link(*tx.head)
			args = append(args, e.Seq, e.Count, e.At.UnixNano(), e.Feature, e.Task, e.Step, e.Kind, string(e.Body), e.Hash[:])
		}
		const row = "(?, ?, ?, (SELECT id FROM sources WHERE feature = ? AND task = ?), ?, ?, ?, ?)"
		_, err := tx.ExecContext(ctx, "INSERT INTO log (seq, count, at, source, step, kind, body, hash) VALUES "+row+
			strings.Repeat(", "+row, n-1), args...)
		if err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// goOn finds where the log goes on: after its newest row. Where a head is known of one after that, the end of the log has gone;
// the next entry says so, and has the numbers that went, which no other entry then gets.
func (tx *transaction) goOn(ctx context.Context) error {
	head, err := newest(ctx, tx)
	if err != nil {
		return err
	}
	tx.head = &head
	if tx.heads == "" {
		return nil
	}
	known, err := chain.LastHead(tx.heads)
	if err != nil || known.Seq <= head.Seq {
		return nil //nolint:nilerr // what cannot be read is for Verify to tell: work goes on
	}
	detail, err := text(chain.Gaps{Gaps: []chain.Gap{{First: head.Seq + 1, Last: known.Seq, Hash: known.Hash}}})
	if err != nil {
		return err
	}
	body, err := text(record{Cause: fmt.Sprintf("the log ended with entry %d, and had reached %d", head.Seq, known.Seq), Detail: detail})
	lost := chain.Entry{Count: known.Seq - head.Seq + 1, At: time.Now(), Kind: chain.KindLost, Body: body}
	tx.entries = slices.Insert(tx.entries, 0, lost)
	return err
}

// denied reports whether the log has another entry in the place of a head.
func (s *Store) denied(ctx context.Context) func(chain.Head) bool {
	return func(h chain.Head) bool {
		var hash []byte
		err := s.db.QueryRowContext(ctx, "SELECT hash FROM log WHERE seq = ?", h.Seq).Scan(&hash)
		return err == nil && !bytes.Equal(hash, h.Hash[:])
	}
}

// source is whose entries are.
type source struct{ feature, task string }

// name has the store know whose entries are. Most are of the same task as those of the transaction before.
func (tx *transaction) name(ctx context.Context, list []chain.Entry) error {
	last := tx.named.Load()
	for i := range list {
		s := source{list[i].Feature, list[i].Task}
		if last != nil && *last == s {
			continue
		}
		last = &s
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO sources (feature, task) VALUES (?, ?)", s.feature, s.task); err != nil {
			return err
		}
	}
	tx.last = last
	return nil
}

// newest is the head of the log; of an empty one it is number 0, with a hash of zeros.
func newest(ctx context.Context, q querier) (h chain.Head, err error) {
	var hash []byte
	err = q.QueryRowContext(ctx, "SELECT seq, hash FROM log ORDER BY seq DESC LIMIT 1").Scan(&h.Seq, &hash)
	if errors.Is(err, sql.ErrNoRows) {
		return h, nil
	}
	copy(h.Hash[:], hash)
	return h, err
}

// Note appends an entry to the log.
func (s *Store) Note(ctx context.Context, a runner.AuditRecord) error {
	if a.At.IsZero() {
		a.At = time.Now()
	}
	return failure(s.tx(ctx, func(tx *transaction) error { return note(ctx, tx, a) }))
}

// headsOf is where the heads of the log of a store are kept.
func headsOf(path string) string { return filepath.Join(filepath.Dir(path), headsFile) }

// begun begins the log of a new store. Where heads tell of one before it, the new one goes on from the newest of them, and
// says so: what was lost is not to look as if it had never been.
func begun(ctx context.Context, tx *transaction, heads []chain.Head) error {
	if len(heads) == 0 {
		return nil
	}
	last := heads[len(heads)-1]
	for _, h := range heads {
		if h.Seq > last.Seq {
			last = h
		}
	}
	detail, err := text(chain.Gaps{Gaps: []chain.Gap{{First: 1, Last: last.Seq, Hash: last.Hash}}})
	if err != nil {
		return err
	}
	tx.head = &last
	return note(ctx, tx, runner.AuditRecord{At: time.Now(), Event: chain.KindLost, Detail: detail,
		Cause: fmt.Sprintf("the store was made anew; the log before had reached entry %d", last.Seq)})
}

// EntryOptions pick entries of the log; "" is all.
type EntryOptions struct {
	Feature string // id
	Task    string // id
}

// Entries calls do for each entry of the log as it is stored, oldest first, with the hash of the entry before it, which may
// have been removed.
func (s *Store) Entries(ctx context.Context, o EntryOptions, do func(*chain.Entry) error) (err error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // one state of the log for both questions
	if err != nil {
		return failure(err)
	}
	var theirs error // of do, which is no failure of the store
	defer func() {
		if err = failure(errors.Join(err, tx.Rollback())); theirs != nil {
			err = theirs
		}
	}()
	removed := map[int64]chain.Hash{} // by the number of the last event
	err = each(ctx, tx, "SELECT "+entries+" WHERE l.kind IN ('trim', 'lost')", nil, func(r scanner) error {
		e, err := scanEntry(r)
		said, _ := e.Gaps() // one that cannot be read is for Verify to tell
		for _, g := range said.Gaps {
			removed[g.Last] = g.Hash
		}
		return err
	})
	if err != nil {
		return err
	}
	var last chain.Head
	return each(ctx, tx, "SELECT "+entries+" ORDER BY l.seq", nil, func(r scanner) error {
		e, err := scanEntry(r)
		if err != nil {
			return err
		}
		e.Prev = last.Hash
		if before := e.Seq - e.Count; before != last.Seq {
			e.Prev = removed[before]
		}
		last = chain.Head{Seq: e.Seq, Hash: e.Hash}
		if o.Feature != "" && e.Feature != o.Feature || o.Task != "" && e.Task != o.Task {
			return nil
		}
		theirs = do(&e)
		return theirs
	})
}

// entries are what scanEntry reads: also a row whose types were altered, or whose source is gone, and which then is not what
// it was.
const (
	entryColumns = `l.seq, coalesce(CAST(l.count AS INTEGER), 0), coalesce(CAST(l.at AS INTEGER), 0), coalesce(CAST(s.feature AS TEXT), ''),
		coalesce(CAST(s.task AS TEXT), ''), coalesce(CAST(l.step AS INTEGER), 0), coalesce(CAST(l.kind AS TEXT), ''),
		coalesce(CAST(l.body AS BLOB), x''), coalesce(CAST(l.hash AS BLOB), x'')`
	entries = entryColumns + " FROM log l LEFT JOIN sources s ON s.id = l.source"
)

func scanEntry(r scanner) (e chain.Entry, err error) {
	var at int64
	var hash []byte
	err = r.Scan(&e.Seq, &e.Count, &at, &e.Feature, &e.Task, &e.Step, &e.Kind, &e.Body, &hash)
	e.At = time.Unix(0, at)
	if len(hash) == len(e.Hash) { // else it is wrong, and stays zero
		copy(e.Hash[:], hash)
	}
	return e, err
}

// Verify checks the log of the store at path, and that it has the heads that are kept beside it, and those that the caller has
// kept. The report says what is wrong; the error is for a store that cannot be read. Where there is no store, and no head, an
// empty log is whole.
func Verify(ctx context.Context, path string, kept ...chain.Head) (*chain.Report, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		s, err := Open(ctx, path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = s.Close() }()
		return s.Verify(ctx, kept...)
	}
	heads, err := readHeads(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failure(err)
	}
	c := chain.Checker{Heads: heads, Kept: kept}
	return c.Finish(), nil
}

// Verify is the function of that name, for a store that is open.
func (s *Store) Verify(ctx context.Context, kept ...chain.Head) (*chain.Report, error) {
	c := chain.Checker{Kept: kept, Trimmed: func(kind string) bool { _, ok := pools[kind]; return ok }}
	var err error
	if s.path != "" {
		c.Heads, err = readHeads(s.path) // before the log is read, which grows
		c.NoHeads = errors.Is(err, fs.ErrNotExist)
		if err != nil && !c.NoHeads {
			return nil, failure(err)
		}
	}
	err = s.Entries(ctx, EntryOptions{}, func(e *chain.Entry) error { c.Add(e); return nil })
	if err != nil {
		return nil, err
	}
	return c.Finish(), nil
}

// headless reports whether the file of the log's heads is gone.
func (s *Store) headless() bool {
	if s.path == "" {
		return false
	}
	_, err := os.Lstat(headsOf(s.path))
	return errors.Is(err, fs.ErrNotExist)
}

// readHeads are the heads beside the store at path. fs.ErrNotExist.
func readHeads(path string) ([]chain.Head, error) {
	heads, err := chain.ReadHeads(headsOf(path))
	for i := range heads {
		heads[i].From = headsFile
	}
	return heads, err
}
