//go:build !linux || !(amd64 || arm64)

package native

import (
	"runtime"

	"github.com/caisson-dev/caisson/isolation"
)

// New refuses: sandboxes need Linux on amd64 or arm64.
func New(Options) (isolation.Engine, error) {
	return nil, &isolation.UnsupportedError{
		Control: isolation.ControlUserNS,
		Reason:  "the native engine needs Linux on amd64 or arm64; this is " + runtime.GOOS + "/" + runtime.GOARCH,
		Remedy:  "run caisson on a Linux host or in a Linux virtual machine",
	}
}
