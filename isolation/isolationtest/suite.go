//go:build linux

// Package isolationtest is the suite that every isolation.Engine passes: the contract of Engine, Sandbox,
// Process and Execution, and a hostile program that tries to get out.
//
// The package under test gives its TestMain to the suite, because the test binary is also the program that
// runs inside the sandboxes; so the suite needs no compiler, no shell and no tool where it runs:
//
//	func TestMain(m *testing.M) { isolationtest.Main(m) }
//
//	func TestSuite(t *testing.T) {
//		isolationtest.Run(t, func(t *testing.T) isolation.Engine { … }, isolationtest.Options{Seccomp: seccomp.Default()})
//	}
//
// Run works as root and as an unprivileged user; what only one of them can do is tested only there.
package isolationtest

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest/hostile"
	"github.com/caisson-dev/caisson/quota"
)

// Options say what the engine is given and what it can do.
type Options struct {
	Seccomp *specs.LinuxSeccomp // the filter of every sandbox
	Cgroups *quota.Cgroups      // nil: cgroups are waived, and nothing about them is tested
	Weaker  []isolation.Control // controls that are waived on this host
	Shallow bool                // this kernel's overlay takes few layers
}

// suite is one run.
type suite struct {
	newEngine func(*testing.T) isolation.Engine
	engine    isolation.Engine
	o         Options
	prefix    string // of the sandboxes' ids; nobody else on this host has it
	count     atomic.Uint32
}

// Names under which the test binary is another program. The suite links them to it inside the sandboxes.
const (
	helperName  = "helper"
	hostileName = "hostile"
)

// Main is for TestMain: it runs the tests, unless the binary has been started inside a sandbox as the suite's
// program. It does not return.
func Main(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case helperName:
		os.Exit(helper(os.Args[1:]))
	case hostileName:
		os.Exit(hostile.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// Run runs the suite. newEngine is called once for all tests, and again where a test needs an engine of its own; it
// registers the engine's Close with the test.
func Run(t *testing.T, newEngine func(t *testing.T) isolation.Engine, o Options) {
	s := &suite{newEngine: newEngine, o: o, prefix: "suite" + rand.Text()[:8]}
	if dieAsSupervisor(t, s) {
		return
	}
	secretEnvironment(t)
	leaktest.Check(t, s.prefix)
	before := holdings(t)
	t.Run("tests", func(t *testing.T) { // engine.Close runs when this ends
		s.engine = newEngine(t)
		for _, group := range []struct {
			name  string
			tests []test
		}{
			{"lifecycle", lifecycleTests}, {"exec", execTests}, {"terminal", terminalTests}, {"tree", treeTests},
			{"files", fileTests}, {"exchange", exchangeTests}, {"network", networkTests}, {"escape", escapeTests},
		} {
			t.Run(group.name, func(t *testing.T) {
				for _, x := range group.tests {
					if x.needs == nil || x.needs(s) {
						t.Run(x.name, func(t *testing.T) { x.run(s, t) })
					}
				}
			})
		}
	})
	checkHoldings(t, before)
}

// test is one of the suite's tests. Those that make no sense in this run, by needs, are not in it.
type test struct {
	name  string
	run   func(*suite, *testing.T)
	needs func(*suite) bool
}

// id returns a fresh sandbox id.
func (s *suite) id() string { return fmt.Sprintf("%s-%d", s.prefix, s.count.Add(1)) }

// cgroups says whether sandboxes have one.
func (s *suite) cgroups() bool { return s.o.Cgroups != nil }

// root says whether the suite runs as root, so that sandboxes have a range of ids.
func (s *suite) root() bool { return os.Geteuid() == 0 }
