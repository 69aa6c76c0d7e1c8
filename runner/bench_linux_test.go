package runner_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/store"
)

// bench is a supervisor with a state directory and a workspace of one file.
type bench struct {
	*runner.Supervisor
	state, workspace string
	profile          *profiles.Effective
	journal          runner.Journal
	disk             *disk.Store
}

var snapshotDiff = snapshot.DiffOptions{}

func newBench(t *testing.T, o runner.Options) *bench {
	t.Helper()
	b := &bench{state: t.TempDir(), workspace: t.TempDir(), profile: loadProfile(t, map[string][]string{"disk": {"50m"}, "driver": {driver}})}
	b.write(t, "file", "old\n")
	b.open(t, o)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// open opens a supervisor on the bench's state directory.
func (b *bench) open(t *testing.T, o runner.Options) {
	t.Helper()
	var err error
	o.StateDir = b.state
	if o.Memory {
		o.Journal, err = store.Memory(t.Context())
	} else {
		o.Journal, err = store.Open(t.Context(), filepath.Join(b.state, "store.db"))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.journal = o.Journal
	if _, ok := o.Engine.(*fake); !ok { // it knows no mounts that are attached nowhere
		if o.Disk, err = disk.OpenStore(b.state); err != nil {
			t.Fatal(err)
		}
	}
	b.disk = o.Disk
	if b.Supervisor, err = runner.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func loadProfile(t *testing.T, flags map[string][]string) *profiles.Effective {
	t.Helper()
	p, err := profiles.Load(profiles.LoadOptions{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (b *bench) request(args ...string) runner.Request {
	return runner.Request{Workspace: b.workspace, Profile: b.profile, Steps: []runner.Step{{Args: args}}}
}

func (b *bench) sh(script string) runner.Request { return b.request("sh", "-c", script) }

func (b *bench) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.workspace, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (b *bench) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// clean fails the test when there is more in the state directory than the features that are known.
func (b *bench) clean(t *testing.T) {
	t.Helper()
	list, err := b.Features(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range list {
		known[f.ID] = true
	}
	dirs, err := os.ReadDir(filepath.Join(b.state, "features"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if !known[d.Name()] {
			t.Errorf("features/%s was left behind", d.Name())
		}
	}
	if dirs, _ = os.ReadDir(filepath.Join(b.state, "tmp")); len(dirs) != 0 {
		t.Errorf("tmp/%s was left behind", dirs[0].Name())
	}
}

func run(t *testing.T, b *bench, r runner.Request) (*runner.Result, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	r.Stdout, r.Stderr = &out, &errs
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := b.Run(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return res, out.String(), errs.String()
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
