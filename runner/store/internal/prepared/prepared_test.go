package prepared

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	db := Open("file::memory:?_pragma=foreign_keys(1)")
	db.SetMaxOpenConns(1) // a database in memory is its connection
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE n (v INTEGER PRIMARY KEY); INSERT INTO n VALUES (1), (2)"); err != nil {
		t.Fatal(err)
	}
	return db
}

// kept is how many statements lie ready.
func kept(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Raw(func(c any) error { n = len(c.(*conn).free); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

const all = "SELECT v FROM n ORDER BY v"

func values(t *testing.T, q interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}) (list []int) {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v int
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestStatementsAreUsedAgain(t *testing.T) {
	db := open(t)
	values(t, db)
	before := kept(t, db)
	for v := 3; v < 6; v++ {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO n VALUES (?)", v); err != nil {
			t.Fatal(err)
		}
	}
	if got := values(t, db); !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Error(got)
	}
	if n := kept(t, db); n != before+1 {
		t.Errorf("%d statements are kept, before the new one it were %d", n, before)
	}
}

// The same query within its own rows is a statement of its own.
func TestWithinItself(t *testing.T) {
	db := open(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		if got := values(t, tx); !slices.Equal(got, []int{1, 2}) {
			t.Error(got)
		}
	}
	if err := rows.Err(); err != nil || n != 2 {
		t.Error(n, err)
	}
}

func TestAfterAnError(t *testing.T) {
	db := open(t)
	const insert = "INSERT INTO n VALUES (?)"
	if _, err := db.ExecContext(t.Context(), insert, 1); err == nil {
		t.Fatal("the same key twice")
	}
	if _, err := db.ExecContext(t.Context(), insert, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := db.QueryContext(t.Context(), "SELECT nothing FROM nowhere"); err == nil {
		t.Fatal("there is no such table")
	}
}

func TestAfterTheSchemaChanged(t *testing.T) {
	db := open(t)
	values(t, db)
	if _, err := db.ExecContext(t.Context(), "ALTER TABLE n ADD COLUMN w INTEGER"); err != nil {
		t.Fatal(err)
	}
	if got := values(t, db); !slices.Equal(got, []int{1, 2}) {
		t.Error(got)
	}
}

func TestCancelled(t *testing.T) {
	db := open(t)
	values(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	rows, err := db.QueryContext(ctx, all)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for rows.Next() {
	}
	if err := rows.Err(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := rows.Close(); err != nil {
		t.Error(err)
	}
	if _, err := db.ExecContext(ctx, "DELETE FROM n"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := values(t, db); !slices.Equal(got, []int{1, 2}) {
		t.Error(got)
	}
}

func TestManyStatements(t *testing.T) {
	db := open(t)
	for i := range 2 * most {
		if _, err := db.ExecContext(t.Context(), "DELETE FROM n WHERE v = "+string(rune('0'+i%10))+" -- "+string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
	}
	if n := kept(t, db); n != most {
		t.Errorf("%d are kept", n)
	}
}
