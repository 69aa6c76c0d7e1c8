package runner

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Copy copies a file or a tree between the host and a feature. Out of a feature the host reads the layers itself; what goes
// in is unpacked by a task inside, so that the host writes nothing where the sandbox could have planted a link.
func (s *Supervisor) Copy(ctx context.Context, from, to CopyPath) error {
	var err error
	switch {
	case (from.Ref == "") == (to.Ref == ""):
		return refuse(CodeUsage, "write FEATURE:PATH for one of them", "one of the two must be in a feature, and the other on the host")
	case from.Ref != "":
		err = s.copyOut(ctx, from, to.Path)
	default:
		err = s.copyIn(ctx, from.Path, to)
	}
	return typed(err, "copying")
}

// below is a path of a feature relative to the workspace.
func below(p string) (string, error) {
	if !path.IsAbs(p) {
		p = path.Join(snapshot.WorkspaceTarget, p)
	}
	rest, ok := strings.CutPrefix(path.Clean(p)+"/", snapshot.WorkspaceTarget+"/")
	if !ok {
		return "", refuse(CodeUsage, "name a path below /workspace", "%s is not in the workspace", p)
	}
	return path.Clean(rest), nil
}

func (s *Supervisor) copyOut(ctx context.Context, from CopyPath, to string) error {
	ref, err := ParseRef(from.Ref)
	if err != nil {
		return err
	}
	rest, err := below(from.Path)
	if err != nil {
		return err
	}
	if to, err = landing(to, rest); err != nil {
		return err
	}
	a := reading
	if ref.Checkpoint == "" {
		a = writing // what is current has to be sealed, if it is a directory
	}
	return s.use(ctx, ref.Feature, a, func(x *session) error {
		at, err := x.state(ctx, ref)
		if err != nil {
			return err
		}
		if rest != "." {
			f, err := x.layers.OpenFile(at, rest)
			if err == nil {
				return errors.Join(writeFile(ctx, to, f), f.Close())
			}
		}
		if at == snapshot.Current {
			c, err := x.checkpoint(ctx, ReasonManual, CheckpointOptions{})
			if err != nil {
				return err
			}
			at = c.ID
		}
		return x.unpackTo(ctx, at, rest, to)
	})
}

// landing is where something copied out lands: at to, or in it when it is a directory. A link there is not followed: an
// earlier copy may have brought it.
func landing(to, rest string) (string, error) {
	if to == "" {
		return "", refuse(CodeUsage, "name a path of the host", "no destination")
	}
	to = filepath.Clean(to) // a slash at the end would have a link followed
	if info, err := os.Lstat(to); err == nil && info.IsDir() && rest != "." {
		to = filepath.Join(to, path.Base(rest))
	}
	if info, err := os.Lstat(to); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", refuse(CodeUsage, "remove it, or name what it points to", "%s is a link, which is not followed", to)
	}
	return to, nil
}

// writeFile puts a file in the place of what is there, and writes through nothing.
func writeFile(ctx context.Context, to string, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return replaceFile(ctx, dir, filepath.Base(to), from, info.Mode().Perm())
}

// replaceFile writes a file under a name of its own and gives it its name when it is whole.
func replaceFile(ctx context.Context, dir *os.Root, name string, from io.Reader, mode fs.FileMode) error {
	tmp := path.Join(path.Dir(name), fmt.Sprintf(".caisson-%x", rand.Uint64()))
	f, err := dir.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if err = errors.Join(copySparse(ctx, f, from), f.Close()); err == nil {
		err = dir.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(tmp))
	}
	return nil
}

// unpackTo writes a directory of a state to the host.
func (x *session) unpackTo(ctx context.Context, at, rest, to string) error {
	made := os.Mkdir(to, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	if info, err := os.Lstat(to); err != nil || !info.IsDir() {
		return errors.Join(err, refuse(CodeUsage, "name a directory", "%s is no directory", to))
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := x.layers.Export(ctx, at, w, snapshot.ExportOptions{Full: true})
		done <- errors.Join(err, w.CloseWithError(err))
	}()
	n, err := unpack(ctx, root, tar.NewReader(r), rest)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // it may have found early what was asked for
	}
	_ = r.CloseWithError(err)
	if sent := <-done; err == nil {
		err = sent
	}
	if err == nil && n == 0 {
		err = refuse(CodeNotFound, "", "%s has no file or directory %s", x.feature.Name, rest)
	}
	if err != nil && made == nil {
		_ = os.Remove(to) // if nothing came into it
	}
	return err
}

// unpack writes what lies below a directory of an archive; nothing leaves root, whatever links there are.
func unpack(ctx context.Context, root *os.Root, archive *tar.Reader, dir string) (n int, err error) {
	p := unpacker{ctx, root, archive, dir}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		name := path.Clean(h.Name)
		if dir != "." {
			rest, ok := strings.CutPrefix(name, dir+"/")
			if name == dir && h.Typeflag == tar.TypeDir {
				n++
			}
			if name == dir && h.Typeflag == tar.TypeSymlink { // whoever opens the copy would follow it to where the sandbox says
				return 0, refuse(CodeUsage, "copy what it points to, or the directory that it is in", "%s is a link to %q", dir, h.Linkname)
			}
			if !ok {
				continue
			}
			name = rest
		}
		n++
		if err := p.one(h, name); err != nil {
			return n, fmt.Errorf("%s: %w", name, err)
		}
	}
}

// unpacker writes what of an archive lies below dir.
type unpacker struct {
	ctx     context.Context
	root    *os.Root
	archive io.Reader
	dir     string
}

func (p *unpacker) one(h *tar.Header, name string) error {
	root, dir := p.root, p.dir
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeReg:
		return replaceFile(p.ctx, root, name, p.archive, mode)
	case tar.TypeSymlink:
		if info, err := root.Lstat(name); err == nil && !info.IsDir() {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		old, ok := strings.CutPrefix(path.Clean(h.Linkname), dir+"/")
		if dir == "." {
			old, ok = path.Clean(h.Linkname), true
		}
		if ok {
			return root.Link(old, name)
		}
	}
	return nil // pipes, devices and links to elsewhere stay where they are
}

// putScript unpacks an archive of one thing, $2, at $1: into a directory, or under another name.
const putScript = `set -e
if [ -d "$1" ]; then tar -xof - -C "$1"
elif [ "$3" = dir ]; then mkdir -p -- "$1"; tar -xof - -C "$1" --strip-components=1
else mkdir -p -- "$(dirname -- "$1")"; tar -xOf - > "$1"; chmod "$3" -- "$1"
fi`

func (s *Supervisor) copyIn(ctx context.Context, from string, to CopyPath) error {
	ref, err := ParseRef(to.Ref)
	if err != nil {
		return err
	}
	if ref.Checkpoint != "" {
		return refuse(CodeUsage, "copy to "+ref.Feature, "a checkpoint never changes")
	}
	info, err := os.Stat(from)
	if err != nil {
		return refuse(CodeUsage, "name a file or directory of the host", "%v", err)
	}
	f, err := s.opt.Journal.Feature(ctx, ref.Feature)
	if err != nil {
		return explain(err, "feature", ref.Feature)
	}
	policy, err := s.policy(ctx, &f)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%o", info.Mode().Perm())
	if info.IsDir() {
		what = "dir"
	}
	target := to.Path
	if !path.IsAbs(target) {
		target = path.Join(snapshot.WorkspaceTarget, target)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(pack(from, w)) }()
	var errs strings.Builder
	res, err := s.Run(ctx, Request{Workspace: f.Workspace, Feature: f.Name, Profile: policy, Stdin: r, Stderr: &errs,
		Steps: []Step{{Args: []string{"sh", "-c", putScript, "sh", target, filepath.Base(from), what}, UID: nil}}})
	_ = r.Close()
	if err == nil && !res.OK() && res.Verdict != VerdictGate { // gates are asked again before a promote
		err = &Error{Code: CodeInternal, Exit: ExitInternal, Cause: fmt.Sprintf("copying into %s: %s %s", f.Name, res.Cause, strings.TrimSpace(errs.String()))}
	}
	return err
}

// pack writes an archive of a file or a tree of the host, whose names begin with its own.
func pack(from string, w io.Writer) error {
	archive := tar.NewWriter(w)
	base := filepath.Base(from)
	err := filepath.WalkDir(from, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(p)
		if p == from && err == nil {
			info, err = os.Stat(p)
		}
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
			return err
		}
		rest, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		return packOne(archive, p, path.Join(base, filepath.ToSlash(rest)), info)
	})
	return errors.Join(err, archive.Close())
}

func packOne(archive *tar.Writer, p, name string, info fs.FileInfo) (err error) {
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if err := archive.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return errors.Join(err, f.Close())
}
