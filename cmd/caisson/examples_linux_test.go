package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// TestExamples runs the commands that the examples' README files name, in copies of the examples. Scripts find these
// below $EXAMPLES.
func TestExamples(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(examples)
	testenv.Need(t, "go", err) // a test binary may be run without the source, as in the virtual machine
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/example",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			return setupScript(env)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"need": cmdNeed, "listing": cmdListing},
	})
}
