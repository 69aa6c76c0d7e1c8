package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// What the gate command wants a person to decide is asked at a terminal, and only a yes is one.
func TestConsent(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", os.ErrPermission)
	}
	dir := t.TempDir()
	profile := filepath.Join(dir, "block.yaml")
	if err := os.WriteFile(profile, []byte("extends: default\ngates: {command: {mode: block}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]int{"y\n": 7, "YES\n": 7, "\n": 120, "no\n": 120, "yesterday\n": 120, "\x04": 120} {
		cmd := exec.Command("caisson", "--state-dir", filepath.Join(dir, "state"), "run", "--rm", "--profile", profile, "--workspace", t.TempDir(), "--",
			"sh", "-c", "touch x; chmod 666 x; exit 7")
		tty, slave, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		watchdog := time.AfterFunc(20*time.Second, func() {
			_ = cmd.Process.Kill()
			_ = slave.Close()
		})
		if _, err := tty.WriteString(answer); err != nil { // the terminal keeps it until it is asked for
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, tty) }()
		_ = cmd.Wait() // the code is asked for below
		watchdog.Stop()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("the answer %q: exit code %d, want %d", answer, code, want)
		}
		_, _ = slave.Close(), tty.Close()
	}
}
