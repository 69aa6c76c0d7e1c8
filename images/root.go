package images

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// The kinds of a Root.
const (
	KindHost = "host"
	KindDir  = "dir"
	KindTar  = "tar"
)

// Root is a root filesystem. Its layers are, newest first, the directory that Skeleton makes and Lower
// (empty for the host); Binds go over them.
type Root struct {
	Kind     string    `json:"kind"`
	Binds    []Bind    `json:"binds,omitempty"`
	Symlinks []Symlink `json:"symlinks,omitempty"`
	Dirs     []string  `json:"dirs,omitempty"`  // further directories of the skeleton, absolute
	Files    []File    `json:"files,omitempty"` // small host files that Skeleton copies
	// Lower is the host path of a whole root filesystem, to be idmapped and read-only.
	Lower string `json:"lower,omitempty"`
	// Digest identifies the root: of the lists and the copied files' identities (host), of the archive's
	// bytes (tar), or of the directory's identity, which says nothing about its content (dir).
	Digest string `json:"digest"`
	// Skipped are entries of the allow-list that exist but are not shown, with the reason.
	Skipped []Skip `json:"skipped,omitempty"`
}

// Bind shows the host's Source at Target inside, read-only. Both are absolute.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Symlink is a link at Path (absolute, inside) that reads Target, such as usr/bin at /bin.
type Symlink struct {
	Target string `json:"target"`
	Path   string `json:"path"`
}

// File is a world-readable regular file of the host that Skeleton copies, because a bind mount for each of
// them would cost more than all the rest of the root.
type File struct {
	Source string `json:"source"`
	Path   string `json:"path"`
	Stamp  string `json:"stamp"` // device, inode, size, mtime and ctime: another file has another stamp
}

// Skip is an allow-list entry that is not shown, and why.
type Skip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Target is a mount point that Skeleton makes: a directory, or an empty file.
type Target struct {
	Path string
	Dir  bool
}

// ErrRegistry says that a reference names an image of a registry.
var ErrRegistry = errors.New("images of registries are not available in this version")

// UnusableError says why what was named is no root filesystem.
type UnusableError struct{ Err error }

func (e *UnusableError) Error() string { return "root filesystem: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *UnusableError) Unwrap() error { return e.Err }

func unusable(format string, args ...any) error {
	return &UnusableError{Err: fmt.Errorf(format, args...)}
}

// Parse splits a reference into its kind and argument: "host" (also ""), "dir:/x" or "/x" for a directory,
// "tar:/x.tar" or "/x.tar" (".tar.gz", ".tgz", ".tar.bz2") for an archive. A relative path is made absolute.
// Anything that looks like a registry's name is an error that matches ErrRegistry.
func Parse(ref string) (kind, arg string, err error) {
	if ref == "" || ref == KindHost {
		return KindHost, "", nil
	}
	kind, arg, ok := strings.Cut(ref, ":")
	if !ok || (kind != KindDir && kind != KindTar) {
		kind, arg = kindOfPath(ref), ref
	}
	if kind == "" {
		return "", "", fmt.Errorf("root filesystem %q: %w; write host, dir:PATH or tar:PATH", ref, ErrRegistry)
	}
	if arg == "" || strings.ContainsRune(arg, 0) {
		return "", "", unusable("%q: %s: needs a path", ref, kind)
	}
	if arg, err = filepath.Abs(arg); err != nil {
		return "", "", fmt.Errorf("root filesystem %q: %w", ref, err)
	}
	return kind, arg, nil
}

func kindOfPath(ref string) string {
	if !filepath.IsAbs(ref) && !strings.HasPrefix(ref, "./") && !strings.HasPrefix(ref, "../") {
		return ""
	}
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.bz2"} {
		if strings.HasSuffix(ref, suffix) {
			return KindTar
		}
	}
	return KindDir
}
