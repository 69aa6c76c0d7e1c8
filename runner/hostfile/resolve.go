package hostfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrProc says that a path leads into /proc, as /dev/stdout does. A link there to an open file is no name of it, whatever it
// reads as: nothing can be renamed to it.
var ErrProc = errors.New("it leads into /proc, where no file can be put")

// maxLinks is what the kernel follows, too.
const maxLinks = 40

// Resolve returns the absolute path, without a link in it, that a file has to be renamed to for the path to name it: a rename
// replaces a link, where open(2) follows it. The file need not be there, its directory has to.
func Resolve(path string) (string, error) {
	name := path
	if !filepath.IsAbs(name) {
		wd, err := os.Getwd()
		if err != nil {
			return "", err
		}
		name = wd + "/" + name // not cleaned: what is above a link's directory is not what is above the link
	}
	for range maxLinks {
		dir, base := filepath.Split(name)
		if base == "." || base == ".." {
			dir, base = name+"/", ""
		}
		if _, err := os.Stat(dir + "."); err != nil {
			return "", err
		}
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return "", err
		}
		if on, err := FilesystemOf(dir); err == nil && on.Proc() {
			return "", &fs.PathError{Op: "resolve", Path: path, Err: ErrProc}
		}
		name = filepath.Join(dir, base)
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != fs.ModeSymlink {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		// The kernel says whether the link may be followed: not one that somebody else left in /tmp (fs.protected_symlinks).
		if _, err := os.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = dir + "/" + to
		}
		name = to
	}
	return "", &fs.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
}
