//go:build linux

// Command init is PID 1 of the virtual machine that cmd/vmtest boots. It loads the modules,
// leaves the initramfs for a disk (pivot_root and user namespaces refuse to work on the former), mounts what a system
// has, runs the tests one after another and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
)

// testsArg makes the program run the tests instead of being PID 1.
const testsArg = "tests"

func main() {
	if len(os.Args) > 1 && os.Args[1] == testsArg {
		if err := tests(); err != nil {
			os.Exit(1)
		}
		return
	}
	if err := boot(); err != nil {
		fmt.Println("vmtest init:", err) // to the console, which the harness shows when the port stays silent
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// boot sets the machine up and waits for the process that runs the tests. PID 1 does not run them itself:
// it inherits every orphan and must reap with wait4(-1), which would steal the tests' statuses.
func boot() error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	if err := switchRoot(c.Modules); err != nil {
		return err
	}
	if err := mountAll(); err != nil {
		return err
	}
	child, err := os.StartProcess("/init", []string{"init", testsArg}, &os.ProcAttr{
		Env:   []string{"PATH=/usr/bin:/bin"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait4: %w", err)
		case pid == child.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the process that runs the tests ended with %#x", int(status))
		case pid == child.Pid:
			return nil
		}
	}
}

// tests runs every test of the configuration and reports on the port.
func tests() error {
	port, err := openPort(wire.Port)
	if err != nil {
		fmt.Println("vmtest init:", err)
		return err
	}
	// The last message must have left the machine before PID 1 turns it off.
	defer func() { _ = drain(port) }()
	r := &reporter{enc: json.NewEncoder(port)}
	c, err := readConfig()
	if err == nil {
		err = prepare()
	}
	if err != nil {
		r.send(wire.Message{Kind: wire.Broken, Error: err.Error()})
		return err
	}
	r.send(wire.Message{Kind: wire.Booted})
	for _, t := range c.Tests {
		runTest(r, t, c.Env)
	}
	r.send(wire.Message{Kind: wire.Done})
	return nil
}

func readConfig() (*wire.Config, error) {
	data, err := os.ReadFile(wire.ConfigPath)
	if err != nil {
		return nil, err
	}
	c := &wire.Config{}
	return c, json.Unmarshal(data, c)
}

// reporter numbers messages and writes them whole.
type reporter struct {
	mu  sync.Mutex
	enc *json.Encoder
	seq int
}

// send has no error to return: when the port is broken there is nobody to tell, and the harness notices.
func (r *reporter) send(m wire.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	m.Seq = r.seq
	_ = r.enc.Encode(m)
}
