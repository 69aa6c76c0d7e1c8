//go:build !linux

package hostfile

import (
	"errors"
	"io/fs"
	"os"
)

// FilesystemOf is known on Linux only.
func FilesystemOf(string) (Filesystem, error) { return Filesystem{}, errors.ErrUnsupported }

// Plain is about Linux only.
func (Filesystem) Plain() bool { return false }

// Proc is about Linux only.
func (Filesystem) Proc() bool { return false }

// OneName is known on Linux only.
func OneName(fs.FileInfo) bool { return false }

// Identity is known on Linux only.
func Identity(*os.Root, string) string { return "" }
