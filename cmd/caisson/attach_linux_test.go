package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// typist is a caisson command with a terminal of its own.
type typist struct {
	t      *testing.T
	cmd    *exec.Cmd
	tty    *os.File // we type here
	slave  *os.File
	screen *bufio.Reader
	before *unix.Termios
}

func startTyping(t *testing.T, args ...string) *typist {
	t.Helper()
	tty, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close(); slave.Close() })
	x := &typist{t: t, cmd: exec.Command("caisson", args...), tty: tty, slave: slave, screen: bufio.NewReader(tty), before: termios(t, slave)}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(20*time.Second, func() { // then reading the master ends, because nobody has the slave
		_ = x.cmd.Process.Kill()
		_ = slave.Close()
	})
	t.Cleanup(func() { watchdog.Stop() })
	return x
}

func (x *typist) send(text string) {
	x.t.Helper()
	if _, err := x.tty.WriteString(text); err != nil {
		x.t.Fatal(err)
	}
}

func (x *typist) sees(text string) {
	x.t.Helper()
	readUntil(x.t, x.screen, text)
}

// ends waits for the command's exit code, and for the terminal as it was.
func (x *typist) ends(code int) {
	x.t.Helper()
	_ = x.cmd.Wait() // the code is asked for below
	if got := x.cmd.ProcessState.ExitCode(); got != code {
		x.t.Errorf("exit code %d, want %d", got, code)
	}
	if after := termios(x.t, x.slave); *after != *x.before {
		x.t.Errorf("the terminal was not given back as it was:\n%+v\n%+v", *x.before, *after)
	}
}

// A detached command with a terminal is joined, let go of by the detach keys, joined again, and ends with its own code; a
// shell is one more command beside it.
func TestAttachAndShell(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", errors.New("not root"))
	}
	state, workspace := t.TempDir()+"/state", t.TempDir()
	caisson := func(args ...string) []string { return append([]string{"--state-dir", state}, args...) }
	t.Cleanup(func() {
		if out, err := exec.Command("caisson", caisson("stop", "--all", "--time", "0s")...).CombinedOutput(); err != nil {
			t.Errorf("stop --all: %v: %s", err, out)
		}
	})
	out, err := exec.Command("caisson", caisson("run", "-d", "-t", "--feature", "f", "--workspace", workspace, "--", "sh", "-c",
		`echo ready; while read line; do echo "got $line"; done; exit 7`)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	first := startTyping(t, caisson("attach", "f")...)
	first.sees("ready")
	first.send("hello\n")
	first.sees("got hello")
	first.send("\x10\x11") // ctrl-p, ctrl-q
	first.sees("detached")
	first.ends(0)

	shell := startTyping(t, caisson("shell", "f")...)
	shell.send("echo $((40+2))$((1+1))\n")
	shell.sees("422")
	shell.send("exit 5\n")
	shell.ends(5)

	second := startTyping(t, caisson("attach", "--detach-keys", "ctrl-a,x", "f")...)
	second.sees("got hello") // what was before
	second.send("again\n")
	second.sees("got again")
	second.send("\x04") // end of file
	second.ends(7)
}
