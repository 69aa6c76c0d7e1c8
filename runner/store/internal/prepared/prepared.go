// Package prepared opens SQLite databases whose connections keep the statements that they have prepared. A store of a few
// dozen statements, of which a task needs some a handful of times, spends half of its time on preparing them.
package prepared

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite"
)

// most bounds the statements that a connection keeps.
const most = 64

// Open returns the database that dsn names, as sql.Open does; nothing is opened before the first use.
func Open(dsn string) *sql.DB { return sql.OpenDB(connector{dsn}) }

type connector struct{ dsn string }

func (connector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	s, ok := inner.(session)
	if !ok {
		return nil, errors.Join(errDriver, inner.Close())
	}
	return &conn{session: s, free: map[string]statement{}}, nil
}

// errDriver says that a new version of the driver is another one.
var errDriver = errors.New("the driver of SQLite has no contexts")

// session is what the driver's connections are.
type session interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// statement is what the driver prepares.
type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// conn is used by one goroutine at a time, as every driver.Conn; several of its queries may be open.
type conn struct {
	session
	free map[string]statement // that are prepared, and that no query uses
}

// take returns a statement that nobody else uses, until give.
func (c *conn) take(ctx context.Context, query string) (statement, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s, ok := c.free[query]; ok {
		delete(c.free, query)
		return s, nil
	}
	p, err := c.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s, ok := p.(statement)
	if !ok {
		return nil, errors.Join(errDriver, p.Close())
	}
	return s, nil
}

func (c *conn) give(query string, s statement) error {
	if _, twice := c.free[query]; twice || len(c.free) >= most {
		return s.Close()
	}
	c.free[query] = s
	return nil
}

// ExecContext runs a query to its end. ctx is looked at before it: for one that may be cancelled half way the driver starts a
// goroutine, and the store's take microseconds.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	r, err := s.ExecContext(context.WithoutCancel(ctx), args)
	return r, errors.Join(err, c.give(query, s))
}

// QueryContext begins a query. That the rows end with ctx is seen to by package sql.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	r, err := s.QueryContext(context.WithoutCancel(ctx), args)
	if err != nil {
		return nil, errors.Join(err, c.give(query, s))
	}
	return &rows{Rows: r, done: func() error { return c.give(query, s) }}, nil
}

func (c *conn) Close() error {
	var errs []error
	for _, s := range c.free {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.session.Close())...)
}

// rows give their statement back when they are closed.
type rows struct {
	driver.Rows
	done func() error
}

func (r *rows) Close() error {
	err := r.Rows.Close()
	if r.done != nil {
		err = errors.Join(err, r.done())
		r.done = nil
	}
	return err
}
