// Package files has the gates that read what a change consists of: links, exec, size, scope, immutable, lock.
//
// Each has a configuration whose zero value is a sensible one, and a function that makes a gates.Gate of it. They follow no
// link, read within gates.DefaultBounds, and run nothing. What a gate cannot read is a finding that blocks.
package files

import (
	"cmp"
	"context"
	"fmt"

	"github.com/caisson-dev/caisson/gates"
)

// gate is a check with its name and digest.
type gate struct {
	name, digest string
	check        func(ctx context.Context, c *gates.Change) (gates.Verdict, error)
}

func (g gate) Name() string   { return g.name }
func (g gate) Digest() string { return g.digest }
func (g gate) Check(ctx context.Context, c *gates.Change) (gates.Verdict, error) {
	return g.check(ctx, c)
}

// level is a severity of a configuration with its default.
type level struct {
	value *gates.Severity
	def   gates.Severity
}

// fill puts defaults in the place of what is not set.
func fill(gate string, levels ...level) error {
	for _, l := range levels {
		*l.value = cmp.Or(*l.value, l.def)
		if _, err := gates.ParseSeverity(string(*l.value)); err != nil {
			return fmt.Errorf("gate %s: %w", gate, err)
		}
	}
	return nil
}

// globs reads the lists of a configuration.
func globs(gate string, lists ...[]string) ([]gates.Globs, error) {
	out := make([]gates.Globs, len(lists))
	for i, list := range lists {
		var err error
		if out[i], err = gates.ParseGlobs(list); err != nil {
			return nil, fmt.Errorf("gate %s: %w", gate, err)
		}
	}
	return out, nil
}

// each calls look for every entry until the context ends.
func each(ctx context.Context, c *gates.Change, look func(e *gates.Entry)) error {
	for i := range c.Entries {
		if i%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		look(&c.Entries[i])
	}
	return nil
}

// unread adds the finding about what could not be read, and returns any other error.
func unread(l *gates.List, err error) error {
	f, ok := gates.Unread(err)
	if !ok {
		return err
	}
	l.Add(f)
	return nil
}
