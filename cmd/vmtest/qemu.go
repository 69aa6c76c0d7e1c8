package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
)

// qemu is the emulator's program.
const qemu = "qemu-system-x86_64"

// kernelArgs: panic=-1 with -no-reboot ends the machine at once on a panic, and an oops is one too.
const kernelArgs = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off audit=0 cgroup_no_v1=all rdinit=/init"

// consoleTail bounds how much of the kernel's console is shown after a failure, in bytes.
const consoleTail = 8 << 10

// machine is one virtual machine.
type machine struct {
	Kernel, Initramfs string
	Console           string   // file that receives the kernel's console
	Disks             []string // raw images
	MemoryMB          int
}

func (m machine) args() []string {
	args := []string{
		"-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(m.MemoryMB),
		"-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "file:" + m.Console, "-serial", "stdio", // ttyS0: the console; ttyS1: wire.Port
		"-kernel", m.Kernel, "-initrd", m.Initramfs, "-append", kernelArgs,
	}
	for _, d := range m.Disks {
		// A comma in a file name is written twice.
		args = append(args, "-drive", "if=virtio,format=raw,cache=unsafe,file="+strings.ReplaceAll(d, ",", ",,"))
	}
	return args
}

// run boots the machine, prints the tests' output, and returns nil only when all of them ran and passed.
func (m machine) run(ctx context.Context, tests int, stdout io.Writer) error {
	c := exec.CommandContext(ctx, qemu, m.args()...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	port, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%s (package qemu-system-x86): %w", qemu, err)
	}
	failed, readErr := follow(json.NewDecoder(port), tests, stdout)
	if readErr != nil && !errors.Is(readErr, io.ErrUnexpectedEOF) {
		_ = c.Process.Kill() // what it says makes no sense: do not wait for the rest
	}
	waitErr := c.Wait()
	if ctx.Err() != nil {
		waitErr = context.Cause(ctx)
	}
	if err := errors.Join(readErr, waitErr, m.panicked()); err != nil {
		m.showConsole(stdout)
		return fmt.Errorf("%w: %w %s", errFailed, err, bytes.TrimSpace(stderr.Bytes()))
	}
	if len(failed) > 0 {
		return fmt.Errorf("%w: %s", errFailed, strings.Join(failed, ", "))
	}
	return nil
}

// follow prints the machine's messages until the last and returns the packages that failed. An error means
// that messages are missing or out of order; io.ErrUnexpectedEOF that the machine stopped before it was done.
func follow(d *json.Decoder, tests int, stdout io.Writer) (failed []string, err error) {
	for seq := 1; ; seq++ {
		var m wire.Message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return failed, fmt.Errorf("the machine stopped before its tests were done: %w", io.ErrUnexpectedEOF)
		} else if err != nil {
			return failed, fmt.Errorf("message %d: %w", seq, err)
		}
		if m.Seq != seq {
			return failed, fmt.Errorf("message %d came where %d was due", m.Seq, seq)
		}
		switch m.Kind {
		case wire.Output:
			if _, err := stdout.Write(m.Output); err != nil {
				return failed, err
			}
		case wire.End:
			tests--
			word := "ok  "
			if m.Error != "" {
				word = "FAIL"
				failed = append(failed, m.Package+" ("+m.Error+")")
			}
			fmt.Fprintf(stdout, "%s\t%s\t%.3fs [vm]\n", word, m.Package, m.Took.Seconds())
		case wire.Broken:
			return failed, fmt.Errorf("init: %s", m.Error)
		case wire.Done:
			if tests != 0 {
				return failed, fmt.Errorf("%d tests did not run", tests)
			}
			return failed, nil
		}
	}
}

// panicked looks for a kernel panic on the console.
func (m machine) panicked() error {
	console, err := os.ReadFile(m.Console)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(console) {
		for _, bad := range []string{"Kernel panic", "BUG:", "Oops:"} {
			if bytes.Contains(line, []byte(bad)) {
				return errors.New(string(bytes.TrimSpace(line)))
			}
		}
	}
	return nil
}

func (m machine) showConsole(w io.Writer) {
	console, err := os.ReadFile(m.Console)
	if err != nil {
		return
	}
	fmt.Fprintf(w, "--- end of the machine's console ---\n%s\n---\n", bytes.TrimSpace(console[max(0, len(console)-consoleTail):]))
}
