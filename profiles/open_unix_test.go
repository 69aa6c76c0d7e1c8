//go:build unix

package profiles

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWorkspaceFileMustBeAPlainFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink("/etc/hostname", path) },
		"loose end": func(path string) error { return os.Symlink("/nowhere", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"fifo":      func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		root := tree(t, map[string]string{"workspace/x": ""})
		if err := make(filepath.Join(root, "workspace", WorkspaceFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(options(root)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	o := options(tree(t, map[string]string{"workspace": "a file"}))
	load(t, o) // that the workspace is no directory is runner's to say
	o.Workspace += "/gone"
	load(t, o)
}
