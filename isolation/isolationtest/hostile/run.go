//go:build linux

package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The subcommands of the program, for Main.
const (
	cmdAll  = "all"  // all HOST: runs every case, prints a Report
	cmdFrom = "from" // from N HOST: runs the cases from the Nth on, prints an Outcome after each
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

// Cases returns every case, in the order of names: some are made from maps, and children must agree about it.
func Cases() []Case {
	cases := slices.Concat(procCases(), sysCases(), deviceCases(), mountCases(), fileCases(), namespaceCases(), processCases(),
		credentialCases(), kernelCases(), networkCases(), ipcCases(), terminalCases(), archCases())
	slices.SortFunc(cases, func(a, b Case) int { return strings.Compare(a.Name, b.Name) })
	return cases
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
		r := &Report{UID: os.Getuid(), Inherited: inherited(), Outcomes: runAll(args[1])}
		return json.NewEncoder(os.Stdout).Encode(r)
	case len(args) == 3 && args[0] == cmdFrom:
		var h Host
		if err := json.Unmarshal([]byte(args[2]), &h); err != nil {
			return err
		}
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		out := json.NewEncoder(os.Stdout)
		for _, c := range Cases()[n:] {
			if err := out.Encode(judge(c, c.Try(&h))); err != nil {
				return err
			}
		}
		return nil
	case len(args) == 1 && args[0] == cmdLook:
		return json.NewEncoder(os.Stdout).Encode(&Report{UID: os.Getuid(), Inherited: inherited()})
	case len(args) == 1 && args[0] == cmdWhoami:
		return whoami()
	}
	return fmt.Errorf("usage: %s HOST | %s N HOST | %s | %s", cmdAll, cmdFrom, cmdLook, cmdWhoami)
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

// runAll runs every case in child processes: one runs as many as it survives, the next goes on behind the case that
// ended it. A process for each would take minutes on an emulated machine.
func runAll(host string) []Outcome {
	cases := Cases()
	var outcomes []Outcome
	for len(outcomes) < len(cases) {
		got, end := runFrom(len(outcomes), host)
		outcomes = append(outcomes, got...)
		if len(outcomes) < len(cases) {
			outcomes = append(outcomes, judge(cases[len(outcomes)], end))
		}
	}
	return outcomes
}

// runFrom starts a child at the nth case. It returns the outcomes that the child reported, and how it ended: a refusal
// of class Killed when a signal did that.
func runFrom(n int, host string) (got []Outcome, end error) {
	cmd := exec.Command("/proc/self/exe", cmdFrom, strconv.Itoa(n), host)
	cmd.Args[0] = os.Args[0]
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(caseTime, func() { _ = cmd.Process.Kill() }) // or it has ended
	for in := json.NewDecoder(out); ; {
		var o Outcome
		if err := in.Decode(&o); err != nil {
			break // the child has ended, as intended or not
		}
		got = append(got, o)
		timer.Reset(caseTime)
	}
	err = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !timer.Stop():
		return got, fmt.Errorf("no answer within %v", caseTime)
	case ok && status.Signaled():
		return got, refuse(Killed, "killed by %v", unix.SignalName(status.Signal()))
	}
	return got, fmt.Errorf("the process ended: %w", err)
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
