package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names below the cache directory.
const (
	tarPrefix      = "tar-"      // an unpacked archive, by the digest of its bytes
	indexPrefix    = "index-"    // the digest of an archive, by its path and stamp
	skeletonPrefix = "skeleton-" // a skeleton, by boot and content
	tmpPrefix      = "tmp-"      // half made
	lockSuffix     = ".lock"     // of one unpacked archive; its mtime is when it was last asked for
)

// racy is how old an archive's last change must be for its digest to be remembered: within one tick of the
// clock, a further change would leave no trace.
const racy = 2 * time.Second

// Tar returns the root filesystem in an archive (tar, or tar compressed with gzip, bzip2, xz or zstd), unpacked below
// cacheDir once per content. It appears there complete or not at all, also after a crash of the machine; of
// several processes one unpacks and the others wait. An *ArchiveError says what is wrong with the archive.
//
// Nothing in an archive can reach outside: entries with absolute or ".." paths, that lie behind a link of the
// archive, or that link to anything but a file of it are errors. Devices, fifos, extended attributes and the
// setuid and setgid bits are left out: they have no use in a sandbox, and on the host they might have one.
func Tar(path, cacheDir string) (Root, error) {
	f, fi, err := openRegular(path, true)
	if err != nil {
		return Root{}, unusable("%w", err)
	}
	defer f.Close()
	abs, err := filepath.Abs(path)
	if err != nil {
		return Root{}, fmt.Errorf("root filesystem: %w", err)
	}
	index := filepath.Join(cacheDir, indexPrefix+hash(abs+"\x00"+stamp(fi)))
	digest := remembered(index)
	if digest == "" {
		if digest, err = sum(f); err != nil {
			return Root{}, fmt.Errorf("root filesystem: %w", err)
		}
	}
	final := filepath.Join(cacheDir, tarPrefix+digest)
	if err := provide(f, path, final, digest); err != nil {
		return Root{}, fmt.Errorf("root filesystem: %w", err)
	}
	if time.Since(changed(fi)) > racy {
		if err := os.WriteFile(index, []byte(digest), 0o600); err != nil {
			return Root{}, fmt.Errorf("root filesystem: %w", err)
		}
	}
	return Root{Kind: KindTar, Lower: final, Digest: "sha256:" + digest}, nil
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// remembered is the digest in an index entry, or "": one torn by a crash is no digest.
func remembered(index string) string {
	b, err := os.ReadFile(index)
	if s := string(b); err == nil && len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == "" {
		return s
	}
	return ""
}

func sum(f *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// provide makes sure that final holds the unpacked archive. The archive may have changed since its digest was
// taken; then it is an error.
func provide(f *os.File, path, final, digest string) error {
	unlock, err := lock(final+lockSuffix, true)
	if err != nil {
		return err
	}
	defer unlock()
	now := time.Now()
	if err := os.Chtimes(final+lockSuffix, now, now); err != nil {
		return err
	}
	if fi, err := os.Lstat(final); err == nil && fi.IsDir() {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(final), tmpPrefix+filepath.Base(final))
	if err := removeTree(tmp); err != nil { // of one who died: we hold the lock
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err = unpackFile(f, path, tmp, digest)
	if err == nil {
		err = syncTree(tmp) // before the name says that it is complete
	}
	if err == nil {
		err = os.Rename(tmp, final)
	}
	if err == nil {
		return syncEntry(filepath.Dir(final))
	}
	return errors.Join(err, removeTree(tmp))
}

// unpackFile unpacks an open archive into dir and compares what it read with digest.
func unpackFile(f *os.File, path, dir, digest string) error {
	h := sha256.New()
	raw := io.TeeReader(f, h)
	err := unpack(raw, dir, defaultLimits)
	if err == nil {
		_, err = io.Copy(io.Discard, raw) // what follows the archive's end counts too
	}
	if err != nil {
		return &ArchiveError{Path: path, Err: err}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != digest {
		return &ArchiveError{Path: path, Err: errors.New("it changed while it was read")}
	}
	return nil
}

// ArchiveError says what is wrong with an archive.
type ArchiveError struct {
	Path string
	Err  error
}

func (e *ArchiveError) Error() string { return fmt.Sprintf("archive %s: %v", e.Path, e.Err) }

// Unwrap gives the cause.
func (e *ArchiveError) Unwrap() error { return e.Err }

// removeTree removes dir also where directories in it forbid their owner to write.
func removeTree(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && err == nil {
			err = root.Chmod(p, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
