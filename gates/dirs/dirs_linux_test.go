package dirs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// What cannot be read is a change, and an error for whoever reads it.
func TestUnreadable(t *testing.T) {
	dir, base := layout(t, map[string]string{"a": "1"}), layout(t, map[string]string{"a": "1"})
	if err := os.Chmod(filepath.Join(dir, "a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // who reads everything, but not as somebody else
		runtime.LockOSThread()
		if err := syscall.Setfsuid(65534); err != nil { // of this thread only
			t.Fatal(err)
		}
		defer func() {
			if err := syscall.Setfsuid(0); err != nil {
				t.Error(err)
			}
			runtime.UnlockOSThread()
		}()
	}
	d, err := Open(t.Context(), dir, base)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if len(d.Change.Entries) != 1 {
		t.Errorf("%+v", d.Change.Entries)
	}
	if _, err := d.Change.Open("a"); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}
