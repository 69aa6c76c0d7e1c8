//go:build !linux

package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/delta"
)

// errPlatform is every answer on systems without overlayfs.
var errPlatform = fmt.Errorf("layers need Linux: %w", errors.ErrUnsupported)

type (
	View     struct{}
	Detail   struct{}
	Manifest = delta.Manifest
	detail   struct{}
)

func OpenView([]Root) (*View, error)                                         { return nil, errPlatform }
func (v *View) Close() error                                                 { return nil }
func Remove(context.Context, string, ...string) error                        { return errPlatform }
func (v *View) Layers() []Root                                               { return nil }
func (v *View) Open(string) (*os.File, error)                                { return nil, errPlatform }
func (v *View) Readlink(string) (string, error)                              { return "", errPlatform }
func (v *View) Lstat(string) (Stat, error)                                   { return Stat{}, errPlatform }
func (v *View) Walk(context.Context, func(string, Stat) error) error         { return errPlatform }
func (c *Change) Of(*View, *View) bool                                       { return false }
func (e *Entry) Old() (Seen, bool)                                           { return Seen{}, false }
func (e *Entry) Source() (root int, path string)                             { return 0, "" }
func Compare(context.Context, *View, *View, CompareOptions) (*Change, error) { return nil, errPlatform }
func Merge(context.Context, []Root, *View, string) error                     { return errPlatform }

func (c *Change) Select(func(*Entry) bool) *Change { return c }

func (c *Change) Reopen() (Pair, error) { return Pair{}, errPlatform }
func (p Pair) Close() error             { return nil }

func (p Pair) WriteDiff(context.Context, *Change, io.Writer, DiffOptions) error { return errPlatform }

func Restore(context.Context, *View, *View, string, RestoreOptions) ([]string, error) {
	return nil, errPlatform
}

func CopyDelta(context.Context, Root, *Manifest, string, DeltaOptions) (*Manifest, Delta, error) {
	return nil, Delta{}, errPlatform
}
