package hostfile

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestOwner(t *testing.T) {
	uid, gid, err := Owner(t.TempDir())
	if err != nil || int(uid) != os.Geteuid() || int(gid) != os.Getegid() {
		t.Fatal(uid, gid, err)
	}
	if _, _, err := Owner("/nonexistent"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}
