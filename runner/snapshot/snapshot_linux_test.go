package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	must(t, errors.Join(os.MkdirAll(dir+"/ws/sub", 0o755), os.MkdirAll(dir+"/state/x", 0o755), os.WriteFile(dir+"/file", nil, 0o644),
		os.Symlink("ws", dir+"/alias")))
	for _, c := range []struct {
		workspace, state string
		want             error
	}{
		{"ws", "state", nil},
		{"alias", "state", nil},
		{"missing", "state", ErrMissing},
		{"file", "state", ErrNotDirectory},
		{"ws", "ws", ErrContainsState},
		{"ws", "ws/state/not/yet", ErrContainsState},
		{"ws", "alias/state/not/yet", ErrContainsState},
		{"alias", "ws/sub", ErrContainsState},
		{".", "state", ErrContainsState},
		{"state/x", "state", ErrInsideState},
	} {
		err := Check(filepath.Join(dir, c.workspace), filepath.Join(dir, c.state))
		var we *WorkspaceError
		if !errors.Is(err, c.want) || c.want != nil && (!errors.As(err, &we) || we.Remedy == "") {
			t.Errorf("Check(%s, %s) = %v, want %v", c.workspace, c.state, err, c.want)
		}
	}
	if err := Check("/", dir); !errors.Is(err, ErrContainsState) {
		t.Errorf("Check(/): %v", err)
	}
}
