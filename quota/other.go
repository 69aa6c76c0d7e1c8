//go:build !linux

package quota

import (
	"context"
	"io/fs"
	"os"
	"runtime"
)

func probe() (*Cgroups, error) {
	return nil, unavailable("cgroups are a feature of Linux, and this is "+runtime.GOOS, "run it on Linux")
}

// Without a Cgroups nothing below is reached.

func awaitExits(context.Context, []int) error { return ErrUnavailable }

func watchOOM(context.Context, *os.File, chan<- struct{}, func(int64) (int64, error)) {}

func read(file string) ([]byte, error) { return os.ReadFile(file) }

func childless(fs.FileInfo) bool { return false }
