//go:build !linux

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// errPlatform is every answer on systems without overlayfs.
var errPlatform = fmt.Errorf("workspaces need Linux: %w", errors.ErrUnsupported)

func Create(CreateOptions) (*Workspace, error)                              { return nil, errPlatform }
func Open(string) (*Workspace, error)                                       { return nil, errPlatform }
func Recover(string) error                                                  { return errPlatform }
func Remove(context.Context, string, ...string) error                       { return errPlatform }
func (w *Workspace) Prepare() error                                         { return errPlatform }
func (w *Workspace) HomeMountpoint(string, bool, Owner) error               { return errPlatform }
func (w *Workspace) Change(context.Context) (*Change, error)                { return nil, errPlatform }
func (w *Workspace) OpenChanged(string) (*os.File, error)                   { return nil, errPlatform }
func (w *Workspace) Discard(context.Context, ...string) error               { return errPlatform }
func (w *Workspace) Conflicts(context.Context, *Change) ([]Conflict, error) { return nil, errPlatform }

func (w *Workspace) WriteDiff(context.Context, *Change, io.Writer, DiffOptions) error {
	return errPlatform
}

func (w *Workspace) Promote(context.Context, *Change, PromoteOptions) (*PromoteReport, error) {
	return nil, errPlatform
}
