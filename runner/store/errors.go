package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/caisson-dev/caisson/runner"
)

// failure gives every error its type. The journal's own and the context's pass as they are.
func failure(err error) error {
	if err == nil {
		return nil
	}
	for _, own := range []error{runner.ErrNotFound, runner.ErrExists, runner.ErrQueueFull, runner.ErrStale,
		runner.ErrTransition, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, own) {
			return err
		}
	}
	if _, ok := errors.AsType[*runner.Error](err); ok {
		return err
	}
	if errors.Is(err, sql.ErrNoRows) {
		return runner.ErrNotFound
	}
	e := &runner.Error{Code: runner.CodeStore, Cause: "the store failed", Exit: runner.ExitInternal, Err: err}
	if se, ok := errors.AsType[*sqlite.Error](err); ok {
		return sqliteFailure(se, e)
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrNotExist):
		unwritable(e)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		full(e)
	}
	return e
}

func sqliteFailure(se *sqlite.Error, e *runner.Error) error {
	switch se.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fmt.Errorf("%w: %w", runner.ErrExists, se)
	case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return fmt.Errorf("%w: %w", runner.ErrNotFound, se)
	case sqlite3.SQLITE_CONSTRAINT_TRIGGER:
		return fmt.Errorf("%w: %w", runner.ErrTransition, se)
	}
	const primary = 0xff // the other bits say where in SQLite it happened
	switch se.Code() & primary {
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		unwritable(e)
	case sqlite3.SQLITE_FULL:
		full(e)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		e.Code, e.Cause = runner.CodeStoreCorrupt, "the store is damaged"
		e.Remedy = "caisson doctor --repair, which finds the features and their checkpoints again"
	case sqlite3.SQLITE_BUSY:
		e.Cause, e.Remedy = "the store is locked by another process", "try again"
	}
	return e
}

func unwritable(e *runner.Error) {
	e.Code, e.Cause, e.Exit = runner.CodeState, "the state directory cannot be written", runner.ExitRefused
	e.Remedy = "make it writable, or choose another: CAISSON_STATE=DIR"
}

func full(e *runner.Error) {
	e.Code, e.Cause, e.Exit = runner.CodeDisk, "the state directory's file system is full", runner.ExitInternal
	e.Remedy = "free space, for example with `caisson gc` and `caisson rm`; or choose another directory: CAISSON_STATE=DIR"
}
