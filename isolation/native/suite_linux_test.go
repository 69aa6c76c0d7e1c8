package native

import (
	"errors"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest"
	"github.com/caisson-dev/caisson/quota"
)

// TestSuite runs the contract of every engine and the hostile program, with cgroups where there are some.
func TestSuite(t *testing.T) {
	needUserns(t)
	o := isolationtest.Options{Seccomp: testFilter, Shallow: !kernelAtLeast(6, 8)}
	c, err := quota.Probe()
	if errors.Is(err, quota.ErrUnavailable) {
		o.Weaker = []isolation.Control{isolation.ControlCgroups}
		if privileged() {
			testenv.Need(t, "cgroups", err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	o.Cgroups = c
	isolationtest.Run(t, func(t *testing.T) isolation.Engine { return testEngine(t) }, o)
}
