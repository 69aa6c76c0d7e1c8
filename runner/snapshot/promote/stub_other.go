//go:build !linux

package promote

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// errPlatform is every answer on systems without overlayfs.
var errPlatform = fmt.Errorf("promoting needs Linux: %w", errors.ErrUnsupported)

type Bases struct{}

func OpenBases(string, string) (*Bases, error)                                { return nil, errPlatform }
func (b *Bases) Generation() int                                              { return 0 }
func (b *Bases) Above(int) []tree.Root                                        { return nil }
func (b *Bases) Touched(int) (map[string]bool, error)                         { return nil, errPlatform }
func (b *Bases) Collect(context.Context, int) (int64, error)                  { return 0, errPlatform }
func (b *Bases) Lock(context.Context, bool) (func(), error)                   { return nil, errPlatform }
func CollectUnused(context.Context, string, func(string) bool) (int64, error) { return 0, errPlatform }
func CanKeep(string) error                                                    { return errPlatform }
func Recover(string, *Bases) (bool, error)                                    { return false, errPlatform }
func Pending(string) ([]byte, bool, error)                                    { return nil, false, errPlatform }
func Generation(string) (int, error)                                          { return 0, errPlatform }
func Forget(string) error                                                     { return errPlatform }
func Touched(string) (map[string]tree.Seen, error)                            { return nil, errPlatform }

func Apply(context.Context, Target, *tree.Change, func(context.Context, int) error) (*tree.PromoteReport, error) {
	return nil, errPlatform
}

func Patch(context.Context, Target, *tree.Change, string) (*tree.PromoteReport, error) {
	return nil, errPlatform
}

func Resolve(context.Context, Target, *tree.Change, tree.Choice) (*tree.Change, error) {
	return nil, errPlatform
}

func Conflicts(context.Context, Target, *tree.Change) ([]tree.Conflict, error) {
	return nil, errPlatform
}
