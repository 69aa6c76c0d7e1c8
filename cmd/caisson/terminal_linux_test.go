package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// A terminal inside has the size of the one outside, follows it, and gives it back as it was: also when caisson
// is told to end.
func TestTerminal(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", os.ErrPermission)
	}
	for name, end := range map[string]func(tty *os.File, p *os.Process) error{
		"exit":   func(tty *os.File, _ *os.Process) error { _, err := tty.WriteString("\n"); return err },
		"signal": func(_ *os.File, p *os.Process) error { return p.Signal(unix.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) { testTerminal(t, end) })
	}
}

func testTerminal(t *testing.T, end func(*os.File, *os.Process) error) {
	dir := t.TempDir()
	cmd := exec.Command("caisson", "--state-dir", dir+"/state", "run", "--rm", "-t", "--workspace", t.TempDir(), "--",
		"sh", "-c", `trap "stty size; echo resized" WINCH; trap "exit 7" TERM
			until [ "$(stty size)" = "33 77" ]; do :; done; echo ready; until read line; do :; done; exit 7`)
	tty, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer slave.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	before := termios(t, slave)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(20*time.Second, func() { // then reading the master ends, because nobody has the slave
		_ = cmd.Process.Kill()
		_ = slave.Close()
	})
	defer watchdog.Stop()

	screen := bufio.NewReader(tty)
	readUntil(t, screen, "ready")
	if during := termios(t, slave); during.Lflag&unix.ICANON != 0 || during.Lflag&unix.ECHO != 0 {
		t.Error("the terminal is not raw while the command runs")
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	readUntil(t, screen, "40 100")
	readUntil(t, screen, "resized")
	if err := end(tty, cmd.Process); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code is asked for below
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want the command's 7", code)
	}
	if after := termios(t, slave); *after != *before {
		t.Errorf("the terminal was not given back as it was:\n%+v\n%+v", *before, *after)
	}
}

func termios(t *testing.T, tty *os.File) *unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readUntil(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	var seen strings.Builder
	for {
		line, err := r.ReadString('\n')
		seen.WriteString(line)
		if strings.Contains(line, want) {
			return
		}
		if err != nil {
			t.Fatalf("%q has not come: %v after %q", want, err, seen.String())
		}
	}
}
