package snapshottest

import (
	"fmt"
	"os"
	"testing"
)

// Main is the TestMain of a driver's tests: the suite starts the test program again, as the child that is killed and as
// the one that mounts without privileges.
func Main(m *testing.M, harnesses ...Harness) {
	if os.Getenv(mounterVariable) != "" {
		if err := serveMounts(); err != nil {
			fmt.Fprintln(os.Stderr, "mounter:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
