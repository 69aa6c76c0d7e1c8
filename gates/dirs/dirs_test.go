//go:build unix

package dirs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func layout(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for p, s := range files {
		full := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch target, isLink := strings.CutPrefix(s, "link:"); {
		case isLink:
			err = os.Symlink(target, full)
		case s == "fifo":
			err = syscall.Mkfifo(full, 0o644)
		default:
			err = os.WriteFile(full, []byte(s), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCompare(t *testing.T) {
	base := layout(t, map[string]string{"same": "1", "changed": "1", "grown": "1", "gone/x": "1", "mode": "1", "l": "link:a", "kind": "1"})
	dir := layout(t, map[string]string{"same": "1", "changed": "2", "grown": "11\x00", "mode": "1", "l": "link:/etc/passwd", "kind": "link:same", "new/pipe": "fifo", "new.x": "1"})
	if err := os.Chmod(filepath.Join(dir, "mode"), 0o755|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), dir, base)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var got []string
	for _, e := range d.Change.Entries {
		got = append(got, fmt.Sprintf("%s %s %s>%s", e.Path, e.Kind, e.OldType, e.Type))
	}
	want := "changed modified file>file, gone deleted dir>, gone/x deleted file>, grown modified file>file, kind type file>symlink, l link symlink>symlink, mode mode file>file, new added >dir, new/pipe added >fifo, new.x added >file"
	if strings.Join(got, ", ") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, ", "), want)
	}
	for _, e := range d.Change.Entries {
		if e.Path == "grown" && (!e.Binary || e.Size != 3 || e.OldSize != 1) || e.Path == "l" && (e.Link != "/etc/passwd" || e.OldLink != "a") || e.Path == "mode" && e.Mode&fs.ModeSetuid == 0 {
			t.Errorf("%+v", e)
		}
	}
	read := func(open func(string) (io.ReadCloser, error), p string) string {
		f, err := open(p)
		if err != nil {
			return "error"
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	c := &d.Change
	for p, want := range map[string][2]string{"changed": {"2", "1"}, "gone/x": {"error", "1"}, "l": {"error", "error"}, "new/pipe": {"error", "error"}, "../x": {"error", "error"}} {
		if now, old := read(c.Open, p), read(c.OpenOld, p); now != want[0] || old != want[1] {
			t.Errorf("%s: %q, %q", p, now, old)
		}
	}
	if target, ok := c.Readlink("l"); !ok || target != "a" {
		t.Error(target, ok)
	}
	if _, ok := c.Lookup("nobody"); ok {
		t.Error("what is not there")
	}
	// A file that is exchanged meanwhile is not read.
	if err := errors.Join(os.Remove(filepath.Join(dir, "changed")), os.Symlink("same", filepath.Join(dir, "changed"))); err != nil {
		t.Fatal(err)
	}
	if s := read(c.Open, "changed"); s != "error" {
		t.Errorf("%q", s)
	}
}

func TestWithoutABase(t *testing.T) {
	d, err := Open(t.Context(), layout(t, map[string]string{"a/b": "1"}), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if len(d.Change.Entries) != 2 || d.Change.Digest == "" {
		t.Errorf("%+v", d.Change)
	}
	for _, dir := range []string{"/nonexistent", "dirs_test.go"} {
		if _, err := Open(t.Context(), dir, ""); err == nil {
			t.Error(dir)
		}
		if _, err := Open(t.Context(), ".", dir); err == nil {
			t.Error(dir)
		}
	}
}
