//go:build linux

// Command leaks prints what caisson has left behind on this host, and fails when that is anything. .ci/run ends with it.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-dev/caisson/internal/leaktest"
)

func main() {
	found, err := leaktest.Find("caisson")
	for _, x := range found {
		fmt.Println("left behind:", x)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leaks:", err)
	}
	if err != nil || len(found) > 0 {
		os.Exit(1)
	}
	fmt.Println("no caisson mount, cgroup, network namespace, loop device, process or temporary directory is left")
}
