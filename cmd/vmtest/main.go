// Command vmtest runs packages' tests in a virtual machine with pure cgroup v2 and an older kernel: Debian's
// linux-image-cloud-amd64 (6.1) in QEMU without hardware acceleration, so that it works on any host. The
// tests run as root on a busybox root filesystem: static test binaries, no Go, no shell but busybox.
//
//	go run ./cmd/vmtest                                # the packages that meet the kernel
//	go run ./cmd/vmtest -v -packages ./quota -run OOM
//
// The kernel is an installed one (/boot/vmlinuz-*cloud*) or one that `.ci/kernel` has unpacked below
// .cache/vmtest. The environment variable CAISSON_TEST_REQUIRE goes to the tests. The root is a disk
// with ext4, because the older kernel cannot idmap a tmpfs; two more, /mnt/ext4 and /mnt/xfs, have project quota.
//
// The exit status is 0 when every test passed, 1 when one failed or the machine did not finish in its time
// (kernel panics included), 2 when it could not be started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	Packages []string      // as `go list` takes them
	Run      string        // -test.run
	Verbose  bool          // -test.v
	Short    bool          // -test.short
	MemoryMB int           // of the machine
	Timeout  time.Duration // of the machine, from power-on
	Drives   []string      // raw disk images, from /dev/vdd on
	Kernel   string        // vmlinuz; modules in ../lib/modules/VERSION beside its directory
}

// defaultPackages are those whose behaviour depends on the kernel and the cgroup version.
const defaultPackages = "./quota,./quota/disk,./isolation/native,./isolation/isolationtest,./runner/snapshot,./runner,./cmd/caisson"

// errFailed means that a test in the machine failed, and that the output says which.
var errFailed = errors.New("tests failed in the virtual machine")

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, o, os.Stdout)
	stop()
	switch {
	case errors.Is(err, errFailed):
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		os.Exit(2)
	}
}

func parse(args []string, w io.Writer) (options, error) {
	var o options
	var packages, drives string
	f := flag.NewFlagSet("vmtest", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&packages, "packages", defaultPackages, "comma-separated `packages` to test")
	f.StringVar(&o.Run, "run", "", "run only tests that match the `pattern`")
	f.BoolVar(&o.Verbose, "v", false, "print every test's name and result")
	f.BoolVar(&o.Short, "short", true, "let tests that repeat something do so less often: the machine is slow")
	f.IntVar(&o.MemoryMB, "mem", 2048, "memory of the machine in `MiB`")
	f.DurationVar(&o.Timeout, "timeout", 15*time.Minute, "hard limit on the machine's running time")
	f.StringVar(&drives, "drive", "", "comma-separated raw disk `images`, /dev/vdd and so on in the machine")
	f.StringVar(&o.Kernel, "kernel", "", "the kernel `image` (default: the newest found)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintln(w, "vmtest:", err)
		return o, err
	}
	o.Packages, o.Drives = split(packages), split(drives)
	return o, nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}
