//go:build linux

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The subcommands of the program, for Main.
const (
	cmdAll  = "all"  // all HOST: runs every case, prints a Report
	cmdCase = "case" // case NAME HOST: runs one, prints an Outcome
	cmdLook = "look" // prints a Report of what is there without trying anything
)

// caseTime bounds one attempt; one that blocks is a failure.
const caseTime = 20 * time.Second

// Report is what the program found out, as JSON on stdout.
type Report struct {
	UID       int
	Inherited []string // descriptors beyond 2 that were open at the start
	Outcomes  []Outcome
}

// Outcome is how one case ended.
type Outcome struct {
	Name    string
	Gives   string
	Refused bool   // as expected
	Skipped bool   // does not apply to this architecture or user
	Detail  string // the answer
}

// Holes returns the outcomes that a sandbox must not have.
func (r *Report) Holes() []Outcome {
	return slices.DeleteFunc(slices.Clone(r.Outcomes), func(o Outcome) bool { return o.Refused || o.Skipped })
}

// Cases returns every case.
func Cases() []Case {
	return slices.Concat(procCases(), sysCases(), deviceCases(), mountCases(), fileCases(), namespaceCases(), processCases(),
		credentialCases(), kernelCases(), networkCases(), ipcCases(), terminalCases(), archCases())
}

// Args returns the arguments that make the program try everything.
func Args(h Host) ([]string, error) {
	data, err := json.Marshal(h)
	return []string{cmdAll, string(data)}, err
}

// Main is the program. It returns the exit status: 0 when it could do its work, whatever it found.
func Main(args []string) int {
	if err := command(args); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		return 1
	}
	return 0
}

func command(args []string) error {
	switch {
	case len(args) == 2 && args[0] == cmdAll:
		r := &Report{UID: os.Getuid(), Inherited: inherited()}
		for _, c := range Cases() {
			r.Outcomes = append(r.Outcomes, spawn(c, args[1]))
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	case len(args) == 3 && args[0] == cmdCase:
		var h Host
		if err := json.Unmarshal([]byte(args[2]), &h); err != nil {
			return err
		}
		for _, c := range Cases() {
			if c.Name == args[1] {
				return json.NewEncoder(os.Stdout).Encode(attempt(c, &h))
			}
		}
		return fmt.Errorf("no case %s", args[1])
	case len(args) == 1 && args[0] == cmdLook:
		return json.NewEncoder(os.Stdout).Encode(&Report{UID: os.Getuid(), Inherited: inherited()})
	case len(args) == 1 && args[0] == cmdWhoami:
		return whoami()
	}
	return fmt.Errorf("usage: %s HOST | %s NAME HOST | %s | %s", cmdAll, cmdCase, cmdLook, cmdWhoami)
}

// attempt runs a case in this process.
func attempt(c Case, h *Host) Outcome {
	return judge(c, c.Try(h))
}

func judge(c Case, err error) Outcome {
	o := Outcome{Name: c.Name, Gives: c.Gives}
	switch {
	case err == nil:
		o.Detail = "succeeded"
	case errors.Is(err, errNotHere):
		o.Skipped, o.Detail = true, err.Error()
	case classify(err)&c.Expect != 0:
		o.Refused, o.Detail = true, err.Error()
	default:
		o.Detail = fmt.Sprintf("%v (%v, expected %v)", err, classify(err), c.Expect)
	}
	return o
}

// spawn runs a case in a child process.
func spawn(c Case, host string) Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), caseTime)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", cmdCase, c.Name, host)
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && ctx.Err() == nil {
		return judge(c, refuse(Killed, "killed by %v", unix.SignalName(status.Signal())))
	}
	var o Outcome
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &o)
	}
	if err != nil {
		return Outcome{Name: c.Name, Gives: c.Gives, Detail: fmt.Sprintf("no answer: %v: %s", err, errOut.Bytes())}
	}
	return o
}

// LookArgs returns the arguments that make the program report without trying anything.
func LookArgs() []string { return []string{cmdLook} }

// inherited lists the descriptors beyond 2 that came through execve: those without close-on-exec, because a Go program
// opens its own with it. It asks for each number: reading /proc/self/fd would open one.
func inherited() []string {
	var open []string
	for fd := 3; fd < 1024; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			target = err.Error()
		}
		open = append(open, fmt.Sprintf("%d → %s", fd, target))
	}
	return open
}
