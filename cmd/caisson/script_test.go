package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/quota"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"caisson": main})
}

// TestScripts runs testdata/script/*.txtar, each with a state directory of its own. Beside testscript's commands:
//
//	need FEATURE…               what the script cannot do without; see internal/testenv
//	code N [asuser] CMD…        run CMD, which must exit with N
//	within D code N CMD…        … in less than D
//	asuser CMD…                 run CMD as an ordinary user with a home of its own
//	listing DIR FILE            write DIR's whole listing: content, modes, mtimes, xattrs
//	tmpfs DIR OPTIONS           mount a tmpfs until the script ends
//	waitfile PATH, waitout TEXT wait until a file exists, or holds a text
//	killbg SIGNAL               send a signal to the newest background command
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setupScript,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"need": cmdNeed, "code": cmdCode, "within": cmdWithin, "asuser": cmdAsUser,
			"listing": cmdListing, "tmpfs": cmdTmpfs, "waitfile": cmdWaitFile, "waitout": cmdWaitOut, "killbg": cmdKill,
		},
	})
}

type testingKey struct{}

func setupScript(env *testscript.Env) error {
	env.Values[testingKey{}] = env.T()
	// The test binary is in the PATH as caisson. Its directory and the script's are open to the ordinary user.
	for _, dir := range []string{env.WorkDir, filepath.Dir(env.WorkDir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	env.Setenv("CAISSON_STATE", filepath.Join(env.WorkDir, ".state"))
	env.Setenv("CAISSON_TEST_REQUIRE", os.Getenv("CAISSON_TEST_REQUIRE"))
	env.Setenv("NO_COLOR", "1")
	return nil
}
