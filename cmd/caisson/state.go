package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
	"github.com/caisson-dev/caisson/runner/store"
)

// resolveStateDir is the state directory's absolute path: --state-dir, CAISSON_STATE, /var/lib/caisson for root,
// else $XDG_STATE_HOME/caisson. It is not made here.
func (a *app) resolveStateDir() (string, error) {
	if dir := cmp.Or(a.stateDir, os.Getenv("CAISSON_STATE")); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/lib/caisson", nil
	}
	// The XDG specification: a relative path is to be ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "caisson"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &runner.Error{
			Code: runner.CodeState, Cause: "no place for the state directory", Err: err,
			Remedy: "set CAISSON_STATE to a directory of your own", Exit: exitRefused,
		}
	}
	return filepath.Join(home, ".local", "state", "caisson"), nil
}

// maxTasks is the value of --max-tasks: at least 1, or 0 where it is not set.
type maxTasks int

// Set parses the flag's value.
func (m *maxTasks) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("must be a number of at least 1")
	}
	*m = maxTasks(n)
	return nil
}

func (m *maxTasks) String() string {
	if *m == 0 {
		return ""
	}
	return strconv.Itoa(int(*m))
}

// Type is how help shows it.
func (*maxTasks) Type() string { return "int" }

// resolveMaxTasks is --max-tasks, CAISSON_MAX_TASKS, or 0 for runner's default.
func (a *app) resolveMaxTasks() (int, error) {
	text := os.Getenv("CAISSON_MAX_TASKS")
	if a.maxTasks > 0 || text == "" {
		return int(a.maxTasks), nil
	}
	var n maxTasks
	if err := n.Set(text); err != nil {
		return 0, usage("CAISSON_MAX_TASKS=%q: %v", text, err)
	}
	return int(n), nil
}

// open opens the state directory for commands that start nothing.
func (a *app) open(ctx context.Context) (*runner.Supervisor, error) {
	return a.openWith(ctx, runner.Options{})
}

// openExisting is open, but makes no state directory.
func (a *app) openExisting(ctx context.Context) (*runner.Supervisor, error) {
	dir, err := a.resolveStateDir()
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		return nil, err
	}
	return a.open(ctx)
}

// openEngine opens the state directory with the engine that this platform has. Closing the supervisor does not
// close the engine.
func (a *app) openEngine(ctx context.Context, o native.Options) (*runner.Supervisor, isolation.Engine, error) {
	return a.openEngineWith(ctx, o, runner.Options{})
}

func (a *app) openEngineWith(ctx context.Context, n native.Options, o runner.Options) (*runner.Supervisor, isolation.Engine, error) {
	engine, err := native.New(n)
	if err != nil {
		return nil, nil, err
	}
	o.Engine = engine
	s, err := a.openWith(ctx, o)
	if err != nil {
		engine.Close()
		return nil, nil, err
	}
	return s, engine, nil
}

// openWith completes o and opens what it names.
func (a *app) openWith(ctx context.Context, o runner.Options) (*runner.Supervisor, error) {
	dir, err := a.resolveStateDir()
	if err != nil {
		return nil, err
	}
	n, err := a.resolveMaxTasks()
	if err != nil {
		return nil, err
	}
	if a.persistence != "disk" && a.persistence != "memory" {
		return nil, usage("--state-persistence %q: one of disk, memory", a.persistence)
	}
	o.StateDir, o.Memory, o.MaxTasks = dir, a.persistence == "memory", n
	o.Redact = a.redact
	o.Cgroups, o.CgroupsErr = quota.Probe()
	o.Daemon = daemon.Peers(dir)
	if err := makeStateDir(dir); err != nil {
		return nil, err
	}
	if o.Disk, err = disk.OpenStore(dir); err != nil {
		return nil, err
	}
	if err := storeIsThere(&o); err != nil && !a.repairing {
		return nil, err
	}
	if o.Journal, err = openJournal(ctx, &o); err != nil {
		return nil, err
	}
	return runner.New(ctx, o)
}

// storeFile is the store's name in the state directory.
const storeFile = "store.db"

// storeIsThere refuses a state directory that has features and no store: a new one would give what they have to others.
func storeIsThere(o *runner.Options) error {
	if _, err := os.Lstat(filepath.Join(o.StateDir, storeFile)); o.Memory || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	features, err := runner.OnDisk(o.StateDir)
	if err != nil || len(features) == 0 {
		return err
	}
	return &runner.Error{Code: runner.CodeStoreCorrupt, Exit: exitRefused,
		Cause:  fmt.Sprintf("%s is gone, and there are %d features", filepath.Join(o.StateDir, storeFile), len(features)),
		Remedy: "put it back; or caisson doctor --repair, which finds the features and their checkpoints again, but not their tasks"}
}

func openJournal(ctx context.Context, o *runner.Options) (runner.Journal, error) {
	open := func() (*store.Store, error) { return store.Open(ctx, filepath.Join(o.StateDir, storeFile)) }
	if o.Memory {
		open = func() (*store.Store, error) { return store.Memory(ctx) }
	}
	s, err := open()
	if err != nil {
		return nil, err
	}
	s.Redact = o.Redact
	return s, nil
}

// makeStateDir makes the state directory: 0711, because sandboxes with ids of their own pass through it. One that
// others own or may write is refused: they could put anything in the place of a feature.
func makeStateDir(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		if err = os.Mkdir(dir, 0o711); err == nil {
			err = os.Chmod(dir, 0o711) // whatever the umask says
		} else if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if err == nil {
		err = checkOwner(dir)
	}
	if err == nil {
		return nil
	}
	return &runner.Error{
		Code: runner.CodeState, Cause: "the state directory cannot be used", Err: err,
		Remedy: "set CAISSON_STATE to a directory of your own", Exit: exitRefused,
	}
}

func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case ownerOf(info) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d", dir, ownerOf(info))
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others", dir)
	}
	return nil
}
