//go:build !linux

package process

import (
	"errors"
	"os"
	"syscall"
)

// OwnSession is not to be had here.
func OwnSession() *syscall.SysProcAttr { return nil }

// KeepFiles is not to be had here.
func KeepFiles() error { return errors.ErrUnsupported }

// Redirect is not to be had here.
func Redirect(*os.File) error { return errors.ErrUnsupported }
