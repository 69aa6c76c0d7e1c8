package images

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

// hostTrees belong to the host itself. A root of the kind dir is idmapped, and through an idmapped tree a
// sandbox reads what only root may: the host's own must never be one.
var hostTrees = []string{"/boot", "/dev", "/etc", "/proc", "/run", "/sys"}

// Dir returns the root filesystem in a directory, a link to which is followed now. It is an error for a path
// that is no directory, for one that contains the host's root, home or system directories, and for one inside
// those that hold its configuration and state. The digest says which directory it is, not what it holds.
func Dir(path string) (Root, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return Root{}, unusable("%w", err)
	}
	fi, err := os.Stat(abs)
	if err != nil {
		return Root{}, unusable("%w", err)
	}
	if !fi.IsDir() {
		return Root{}, unusable("%s is not a directory; for an archive write tar:%s", path, path)
	}
	for _, t := range hostTrees {
		if abs == "/" || within(abs, t) {
			return Root{}, unusable("%s belongs to the host; for the host's own programs write host", abs)
		}
	}
	for _, t := range []string{"/etc", "/home", "/root", "/usr", "/var"} {
		if within(t, abs) {
			return Root{}, unusable("%s holds more of the host than a root filesystem", abs)
		}
	}
	sum := sha256.Sum256([]byte(abs + "\x00" + identity(fi)))
	return Root{Kind: KindDir, Lower: abs, Digest: "dir:" + hex.EncodeToString(sum[:])}, nil
}
