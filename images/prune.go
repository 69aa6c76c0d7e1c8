package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// abandoned is the age from which a half-made skeleton has no maker: it takes milliseconds to make one.
const abandoned = 10 * time.Minute

// Prune removes what nobody can want any more below cacheDir and returns the paths: skeletons of earlier
// boots, what dead processes left half made, and unpacked archives that nobody asked for during the given
// time and that keep does not want. A path that cannot be removed does not stop it; the errors come joined.
// With dryRun it only lists.
func Prune(cacheDir string, unused time.Duration, keep func(path string) bool, dryRun bool) ([]string, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(cacheDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	var removed []string
	var errs []error
	for _, e := range entries {
		p := filepath.Join(cacheDir, e.Name())
		if !stale(e, p, boot, unused) || keep(p) {
			continue
		}
		gone, err := dryRun, error(nil)
		if !dryRun {
			gone, err = remove(p, unused)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("prune: %w", err))
		} else if gone {
			removed = append(removed, p)
		}
	}
	return removed, errors.Join(errs...)
}

// remove removes p, unless it belongs to an archive that somebody uses at this moment.
func remove(p string, unused time.Duration) (bool, error) {
	archive := strings.TrimPrefix(filepath.Base(p), tmpPrefix)
	if strings.HasPrefix(archive, tarPrefix) {
		lockName := filepath.Join(filepath.Dir(p), archive+lockSuffix)
		unlock, err := lock(lockName, false)
		if errors.Is(err, errLocked) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer unlock()
		if archive == filepath.Base(p) && !older(lockName, unused) { // asked for since we looked
			return false, nil
		}
	}
	if fi, err := os.Lstat(p); err == nil && !fi.IsDir() {
		return true, os.Remove(p)
	}
	return true, removeTree(p)
}

var errLocked = errors.New("locked by another process")

func stale(e fs.DirEntry, p, boot string, unused time.Duration) bool {
	name := e.Name()
	switch {
	case strings.HasPrefix(name, skeletonPrefix):
		return !strings.HasPrefix(name, skeletonPrefix+boot+"-")
	case strings.HasPrefix(name, tmpPrefix+"skeleton-"):
		return older(p, abandoned)
	case strings.HasPrefix(name, tmpPrefix+tarPrefix):
		return true // whether its maker lives, its lock says
	case strings.HasPrefix(name, tarPrefix) && e.IsDir():
		return older(p+lockSuffix, unused)
	case strings.HasPrefix(name, indexPrefix):
		return older(p, unused)
	}
	return false
}

// older says whether a file was last written longer ago than d; one that is missing is.
func older(name string, d time.Duration) bool {
	fi, err := os.Lstat(name)
	return err != nil || time.Since(fi.ModTime()) > d
}
