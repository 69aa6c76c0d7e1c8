// Package store keeps a supervisor's journal in SQLite: features, tasks, steps and the audit trail.
//
// Many processes share one file. It is in WAL mode, has one connection per process, and begins every writing
// transaction with BEGIN IMMEDIATE, so that a lock is waited for (10 s) and never upgraded. A transition is one
// transaction that compares the old state, writes the new one and appends the audit row; what runner.Transitions
// does not name is refused by a trigger, whoever asks. SQLite calls for durability at checkpoints only
// (synchronous=NORMAL): a power cut may lose the newest transitions, never the order or the integrity.
//
// A new file is made under a temporary name and renamed, so that nobody sees a half-made one. A file of a newer
// version is refused; an older one is migrated under a lock.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/redact"
	"github.com/caisson-dev/caisson/runner/store/internal/prepared"
)

//go:embed migrations/*.sql
var migrations embed.FS

// pragmas of every connection. WAL mode is a property of the file and set once, when it is made.
//
// wal_autocheckpoint bounds the log that every process reads when it opens the store (pages; SQLite's default is 1,000):
// a task writes a few dozen. temp_store has the journals of single statements in pieces of 1 KB; else each is a mapping of 64.
var pragmas = []string{"busy_timeout(10000)", "synchronous(NORMAL)", "foreign_keys(1)", "wal_autocheckpoint(250)", "temp_store(MEMORY)"}

// patience is how long a writer waits for others, which take milliseconds.
const patience = time.Minute

// errWriter says that another process, which may have been stopped, does not end its transaction.
var errWriter = &runner.Error{Code: runner.CodeStore, Exit: runner.ExitInternal,
	Cause: "the store is locked by another process", Remedy: "see whether a caisson was stopped (`ps`), and try again"}

// Store is a runner.Journal in SQLite.
type Store struct {
	Redact *redact.Redactor // what keeps secrets out of the log; nil knows those with a telling shape

	db   *sql.DB
	path string // "" in memory

	named atomic.Pointer[source] // whose entries were appended last
}

var _ runner.Journal = (*Store)(nil)

// Open opens the store at path, making it (0600) when it is missing; its directory must exist. The errors are
// *runner.Error: CodeStoreNewer, CodeStoreCorrupt, CodeState, CodeDisk, CodeStore.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, failure(err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(ctx, path); err != nil {
			return nil, failure(err)
		}
	}
	s, err := connect(dsn(path, "rw"))
	if err != nil {
		return nil, failure(err)
	}
	s.path = path
	if err := s.check(ctx, path); err != nil {
		_ = s.db.Close()
		return nil, failure(err)
	}
	return s, nil
}

// Memory returns a store that is gone when it is closed.
func Memory(ctx context.Context) (*Store, error) {
	s, err := connect(dsn(":memory:", ""))
	if err != nil {
		return nil, failure(err)
	}
	if err := s.migrate(ctx, 0); err != nil {
		_ = s.db.Close()
		return nil, failure(err)
	}
	return s, nil
}

// Close closes the store. Its log stays; see keepLog.
func (s *Store) Close() error {
	if s.path != "" {
		defer keepLog(s.path)()
	}
	return failure(s.db.Close())
}

func connect(dsn string) (*Store, error) {
	db := prepared.Open(dsn)
	db.SetMaxOpenConns(1) // one writer; and a memory store is its connection
	db.SetConnMaxLifetime(0)
	return &Store{db: db}, nil
}

func dsn(path, mode string, more ...string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": append(slices.Clone(pragmas), more...)}
	if mode != "" {
		q.Set("mode", mode)
	}
	// A path is bytes: everything that a URI gives a meaning to is escaped.
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// create makes a whole store under another name and gives it its own. Who loses the race finds it made.
func create(ctx context.Context, path string) error {
	l, err := flock.Acquire(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	tmp := path + ".new"
	if err := removeAll(tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	s, err := connect(dsn(tmp, "rw", "journal_mode(WAL)"))
	if err != nil {
		return err
	}
	err = chain.MakeHeads(headsOf(path))
	var heads []chain.Head
	if err == nil {
		heads, err = readHeads(path)
	}
	if err == nil {
		err = s.migrate(ctx, 0, heads...)
	}
	if err := errors.Join(err, s.db.Close()); err != nil { // closing writes the log back into the file
		return errors.Join(err, removeAll(tmp))
	}
	return os.Rename(tmp, path)
}

// MoveAside gives the files of a store that cannot be used another name, which it returns.
func MoveAside(path string, at time.Time) (string, error) {
	l, err := flock.Acquire(context.Background(), path+".lock")
	if err != nil {
		return "", failure(err)
	}
	defer func() { _ = l.Release() }()
	aside := path + ".damaged-" + at.UTC().Format("20060102T150405")
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", failure(err)
		}
	}
	return aside, nil
}

func removeAll(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *Store) check(ctx context.Context, path string) error {
	have, err := userVersion(ctx, s.db)
	switch {
	case err != nil:
		return err
	case have == version:
		return nil
	case have == 0:
		return &runner.Error{Code: runner.CodeStoreCorrupt, Exit: runner.ExitInternal,
			Cause: path + " is not a caisson store", Remedy: "caisson doctor --repair, which moves it away"}
	case have > version:
		return &runner.Error{Code: runner.CodeStoreNewer, Exit: runner.ExitRefused,
			Cause:  fmt.Sprintf("%s was written by a newer caisson (version %d; this one knows %d)", path, have, version),
			Remedy: "update caisson, or use another state directory: CAISSON_STATE=DIR"}
	}
	l, err := flock.Acquire(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	if have, err = userVersion(ctx, s.db); err != nil {
		return err
	}
	if have < versionLog {
		err = unused(filepath.Dir(path))
		if err == nil {
			err = chain.MakeHeads(headsOf(path))
		}
		if err != nil {
			return err
		}
	}
	return s.migrate(ctx, have)
}

// tx writes. Of many processes the one that has waited longest comes first: SQLite itself would look again after sleeps that
// grow to 100 ms, and some would never get their turn.
func (s *Store) tx(ctx context.Context, do func(*transaction) error) error {
	if s.path != "" {
		waiting, cancel := context.WithTimeoutCause(ctx, patience, errWriter)
		l, err := flock.Acquire(waiting, s.path+".writer")
		cancel()
		if err != nil {
			return err
		}
		defer func() { _ = l.Release() }()
	}
	begun, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	tx := &transaction{Tx: begun, hide: s.Redact, named: &s.named}
	if s.path != "" {
		tx.heads = headsOf(s.path)
	}
	if err = do(tx); err == nil {
		err = tx.append(ctx)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if tx.last != nil {
		s.named.Store(tx.last)
	}
	if s.path != "" && tx.head != nil {
		_ = chain.AppendHead(tx.heads, *tx.head, s.denied(ctx)) // what was recorded is; a head that lags vouches for less
	}
	return nil
}
