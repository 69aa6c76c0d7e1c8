//go:build linux

package isolationtest

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

var terminalTests = []test{
	{"terminal", (*suite).testTerminal, nil},
	{"window size", (*suite).testWindowSize, nil},
	{"interrupt", (*suite).testInterrupt, nil},
	{"end of input", (*suite).testEndOfInput, nil},
	{"hangup", (*suite).testHangup, nil},
}

// screen is the master side of a sandbox's terminal.
type screen struct {
	*bufio.Reader
	master *os.File
	x      isolation.Execution
}

func (b *box) terminal(t *testing.T) *screen {
	t.Helper()
	p := b.process(t, "tty")
	p.Terminal = true
	x, err := b.Exec(t.Context(), p)
	must(t, err)
	master := x.Terminal()
	if master == nil {
		t.Fatal("no terminal")
	}
	end := func() { _ = x.Signal(unix.SIGKILL) } // often it has ended
	late := time.AfterFunc(patience, end)        // a terminal takes no read deadline everywhere
	t.Cleanup(func() { late.Stop(); end(); _ = master.Close() })
	return &screen{bufio.NewReader(master), master, x}
}

// expect reads lines until one contains want.
func (s *screen) expect(t *testing.T, want string) string {
	t.Helper()
	var seen []string
	for {
		line, err := s.ReadString('\n')
		if strings.Contains(line, want) {
			return line
		}
		seen = append(seen, line)
		if err != nil {
			t.Fatalf("no %q on the terminal (%v): %q", want, err, seen)
		}
	}
}

func (s *suite) testTerminal(t *testing.T) {
	b := s.start(t)
	line := b.terminal(t).expect(t, "size")
	for _, want := range []string{"leader true", "foreground true", "name /dev/pts/", "uid 1000"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not say %q", line, want)
		}
	}
}

func (s *suite) testWindowSize(t *testing.T) {
	term := s.start(t).terminal(t)
	term.expect(t, "size")
	for _, size := range []unix.Winsize{{Col: 132, Row: 43}, {Col: 80, Row: 24}} {
		must(t, unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &size))
		if size.Col == 132 {
			term.expect(t, "size 132x43")
		} else {
			term.expect(t, "size 80x24")
		}
	}
}

// testInterrupt: control-C at the terminal is a signal inside, and not one outside.
func (s *suite) testInterrupt(t *testing.T) {
	term := s.start(t).terminal(t)
	term.expect(t, "size")
	_, err := term.master.WriteString("\x03")
	must(t, err)
	term.expect(t, "interrupted")
	_, err = term.master.WriteString("typed\n")
	must(t, err)
	term.expect(t, `line "typed\n"`)
}

func (s *suite) testEndOfInput(t *testing.T) {
	term := s.start(t).terminal(t)
	term.expect(t, "size")
	_, err := term.master.WriteString("\x04")
	must(t, err)
	term.expect(t, "end of input")
	if st := wait(t, term.x); st.Code != 0 || st.Signal != 0 {
		t.Errorf("%+v", st)
	}
}

// testHangup: when the master side goes away, the session gets SIGHUP.
func (s *suite) testHangup(t *testing.T) {
	term := s.start(t).terminal(t)
	term.expect(t, "size")
	must(t, term.master.Close())
	wait(t, term.x) // by the signal or by the end of input, whichever it sees first
}
