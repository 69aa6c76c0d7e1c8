package images

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// TargetError says that a mount point cannot be made.
type TargetError struct {
	Path   string
	Reason string
	Remedy string
}

func (e *TargetError) Error() string {
	msg := fmt.Sprintf("cannot mount at %s: %s", e.Path, e.Reason)
	if e.Remedy != "" {
		msg += "; " + e.Remedy
	}
	return msg
}

// node is one entry of a skeleton: a directory, a link, or a file with content or copied from the host.
type node struct {
	dir  bool
	link string
	data []byte
	copy File
}

// skeleton is the tree to make: absolute paths inside to entries.
type skeleton map[string]node

// Skeleton returns the directory that is a root's newest layer: every mount point, the links and copied files
// of the root, and the given files ("etc/passwd" → content), directories 0755 and files 0644, owned by the
// calling process. It is made once per content and boot below cacheDir, appears there complete or not at all,
// and never changes; several processes may call at once. Nothing is synced: after a crash of the machine the
// boot is another one, and so is the skeleton.
//
// Targets are further mount points. Those at or below /workspace and /home/user lie in other mounts and are
// skipped. A *TargetError names one that cannot be made: below /proc, /sys, /dev or /tmp, behind a link, or
// missing in a directory of the host that is bound there, since that one is read-only.
func (r Root) Skeleton(cacheDir string, targets []Target, files map[string][]byte) (string, error) {
	s, err := r.plan(targets, files)
	if err != nil {
		return "", err
	}
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	final := filepath.Join(cacheDir, skeletonPrefix+boot+"-"+s.digest())
	if fi, err := os.Lstat(final); err == nil && fi.IsDir() {
		return final, nil
	}
	tmp, err := os.MkdirTemp(cacheDir, tmpPrefix+"skeleton-")
	if err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := s.write(tmp); err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	err = os.Rename(tmp, final)
	if errors.Is(err, fs.ErrExist) {
		err = nil // another process was faster; a directory with entries is never replaced
	}
	if err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	return final, nil
}

// plan makes the tree, without touching the disk but to look at the places of targets.
func (r Root) plan(targets []Target, files map[string][]byte) (skeleton, error) {
	s := skeleton{}
	for _, d := range append([]string{"/proc", "/sys", "/dev", "/tmp", "/run", "/etc", "/home/user", "/workspace", "/var"}, r.Dirs...) {
		s.dir(d)
	}
	if r.Lower == "" {
		s.dir("/root")
	}
	s["/var/tmp"] = node{link: "/tmp"}
	s["/etc/mtab"] = node{link: "/proc/self/mounts"}
	for _, l := range r.Symlinks {
		s.add(l.Path, node{link: l.Target})
	}
	for _, f := range r.Files {
		s.add(f.Path, node{copy: f})
	}
	for _, b := range r.Binds {
		fi, err := os.Stat(b.Source)
		if err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
		s.add(b.Target, node{dir: fi.IsDir()})
	}
	for name, data := range files {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("skeleton: %q is not a relative path", name)
		}
		s.add(path.Join("/", name), node{data: data})
	}
	for _, t := range targets {
		if err := r.addTarget(s, t); err != nil {
			return nil, err
		}
	}
	return s, s.check()
}

// add puts n at p and directories above it.
func (s skeleton) add(p string, n node) {
	s.dir(path.Dir(p))
	if !n.dir || s[p].empty() {
		s[p] = n
	}
}

func (n node) empty() bool { return !n.dir && n.link == "" && n.data == nil && n.copy.Path == "" }

func (s skeleton) dir(p string) {
	for ; p != "/"; p = path.Dir(p) {
		if _, ok := s[p]; !ok {
			s[p] = node{dir: true}
		}
	}
}

// check finds an entry that lies below one that is no directory.
func (s skeleton) check() error {
	for p := range s {
		for up := path.Dir(p); up != "/"; up = path.Dir(up) {
			if !s[up].dir {
				return fmt.Errorf("skeleton: %s lies below %s, which is not a directory", p, up)
			}
		}
	}
	return nil
}

// addTarget makes a mount point where nothing else provides it.
func (r Root) addTarget(s skeleton, t Target) error {
	p := path.Clean(t.Path)
	if within(p, "/workspace") || within(p, "/home/user") {
		return nil
	}
	if !path.IsAbs(t.Path) || p == "/" || strings.ContainsRune(p, 0) {
		return &TargetError{Path: t.Path, Reason: "not an absolute path below /"}
	}
	for _, d := range []string{"/proc", "/sys", "/dev", "/tmp"} {
		if within(p, d) {
			return &TargetError{Path: p, Reason: d + " is made afresh in every sandbox", Remedy: "choose a path outside it, such as /mnt/NAME"}
		}
	}
	for up := p; up != "/"; up = path.Dir(up) {
		if n := s[up]; n.link != "" {
			return behindLink(p, up, n.link)
		}
	}
	for _, b := range r.Binds {
		if within(p, b.Target) {
			return exists(p, b.Source+strings.TrimPrefix(p, b.Target), b.Source, t.Dir)
		}
	}
	if r.Lower != "" {
		if err := r.lookBelow(p); err != nil {
			return err
		}
	}
	if n, ok := s[p]; ok && n.dir != t.Dir {
		return &TargetError{Path: p, Reason: "a directory cannot be mounted over a file, nor a file over a directory"}
	}
	if _, ok := s[p]; !ok {
		s.add(p, node{dir: t.Dir, data: []byte{}})
	}
	return nil
}

func behindLink(p, link, target string) error {
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(link), target)
	}
	real := path.Join(target, strings.TrimPrefix(p, link))
	return &TargetError{Path: p, Reason: link + " is a link inside", Remedy: "name " + real + " instead"}
}

// exists looks for a mount point inside a bound directory, following no link below it.
func exists(p, name, top string, dir bool) error {
	for up := name; up != top; up = filepath.Dir(up) {
		fi, err := os.Lstat(up)
		switch {
		case err != nil:
			return &TargetError{
				Path: p, Reason: "it does not exist in the host's " + top + ", which is shown read-only",
				Remedy: "mount it at a path outside, such as /mnt/NAME",
			}
		case fi.Mode()&fs.ModeSymlink != 0:
			return &TargetError{Path: p, Reason: up + " is a link of the host", Remedy: "name where it leads"}
		case up == name && fi.IsDir() != dir:
			return &TargetError{Path: p, Reason: "a directory cannot be mounted over a file, nor a file over a directory"}
		}
	}
	return nil
}

// lookBelow refuses a mount point that would hide a link of the image, such as lib in a merged /usr.
func (r Root) lookBelow(p string) error {
	at, rest := r.Lower, strings.Split(strings.TrimPrefix(p, "/"), "/")
	for i, name := range rest {
		at = filepath.Join(at, name)
		fi, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the skeleton makes it, and what follows
		}
		if err != nil {
			return fmt.Errorf("skeleton: %w", err)
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(at)
			if err != nil {
				return fmt.Errorf("skeleton: %w", err)
			}
			return behindLink(p, "/"+strings.Join(rest[:i+1], "/"), target)
		}
	}
	return nil
}

// digest identifies the tree and who owns it.
func (s skeleton) digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "caisson skeleton 1\n%d %d\n", os.Geteuid(), os.Getegid())
	for _, p := range slices.Sorted(maps.Keys(s)) {
		n := s[p]
		fmt.Fprintf(h, "%q %t %q %q %q\n", p, n.dir, n.link, n.data, n.copy.Source+"\x00"+n.copy.Stamp)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// write makes the tree below top, parents first.
func (s skeleton) write(top string) error {
	if err := os.Chmod(top, 0o755); err != nil {
		return err
	}
	byDepth := func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	}
	for _, p := range slices.SortedFunc(maps.Keys(s), byDepth) {
		if err := s[p].write(filepath.Join(top, p)); err != nil {
			return err
		}
	}
	return nil
}

// write makes one entry; chmod undoes the process's umask.
func (n node) write(name string) error {
	switch {
	case n.link != "":
		return os.Symlink(n.link, name)
	case n.dir:
		return errors.Join(os.Mkdir(name, 0o755), os.Chmod(name, 0o755))
	case n.copy.Path != "":
		return n.copy.copyTo(name)
	}
	return errors.Join(os.WriteFile(name, n.data, 0o644), os.Chmod(name, 0o644))
}

func (f File) copyTo(name string) error {
	src, fi, err := openRegular(f.Source, false)
	if err != nil {
		return err
	}
	defer src.Close()
	if stamp(fi) != f.Stamp { // it may be another file by now, which not everybody may read
		return fmt.Errorf("%s changed while it was read; run the command again", f.Source)
	}
	data, err := io.ReadAll(io.LimitReader(src, maxCopy+1))
	if err == nil && int64(len(data)) != fi.Size() {
		err = fmt.Errorf("%s changed while it was read; run the command again", f.Source)
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(name, data, 0o644), os.Chmod(name, 0o644))
}
