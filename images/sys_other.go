//go:build !linux

package images

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

var errLinux = errors.New("root filesystems need Linux")

func bootID() (string, error)                                 { return "", errLinux }
func stamp(fs.FileInfo) string                                { return "" }
func identity(fs.FileInfo) string                             { return "" }
func changed(fi fs.FileInfo) time.Time                        { return fi.ModTime() }
func lock(string, bool) (func(), error)                       { return nil, errLinux }
func syncTree(string) error                                   { return errLinux }
func syncEntry(string) error                                  { return errLinux }
func openRegular(string, bool) (*os.File, fs.FileInfo, error) { return nil, nil, errLinux }
