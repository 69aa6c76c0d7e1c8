package layertar

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir is removed whatever modes lie in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "caisson-tar")
	must(t, err)
	t.Cleanup(func() { must(t, tree.Remove(context.Background(), dir)) })
	return dir
}

func userXattr() bool { return os.Geteuid() != 0 }

func view(t testing.TB, dirs ...string) *tree.View {
	t.Helper()
	var roots []tree.Root
	for i, dir := range dirs {
		roots = append(roots, tree.Root{Path: dir, UserXattr: userXattr(), Base: i > 0 && i == len(dirs)-1, Layer: i})
	}
	v, err := tree.OpenView(roots)
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

// fill makes a base with everything that there is.
func fill(t testing.TB, dir string) {
	t.Helper()
	write := func(path, content string) {
		must(t, os.MkdirAll(filepath.Dir(dir+"/"+path), 0o755))
		must(t, os.WriteFile(dir+"/"+path, []byte(content), 0o644))
	}
	write("a/file", "content\n")
	write("a/gone", "soon\n")
	write("b/c/deep", "deep\n")
	write("b/other", "other\n")
	write("turns/into/file", "x")
	write("was-file", "file")
	write("links/one", "linked")
	must(t, os.Link(dir+"/links/one", dir+"/links/two"))
	write("links/kept1", "kept")
	must(t, os.Link(dir+"/links/kept1", dir+"/links/kept2"))
	write("\xff\xfe\nü %=", "odd")
	write(strings.Repeat("long", 60)+"/"+strings.Repeat("name", 60), "long")
	must(t, os.Symlink("/etc/passwd", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o640))
	must(t, unix.Setxattr(dir+"/a/file", "user.a=b%", []byte("v\x00\n"), 0))
	must(t, unix.Setxattr(dir+"/b", "user.dir", []byte("d"), 0))
	must(t, unix.Chmod(dir+"/a/file", 0o4755))
	sparse(t, dir+"/sparse", 5<<20)
	must(t, os.Chtimes(dir+"/a/file", time.Time{}, time.Unix(-3, 5)))
	must(t, os.Chtimes(dir+"/b", time.Time{}, time.Unix(1e9, 123456789)))
}

func sparse(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	_, err = f.WriteAt([]byte("begin"), 0)
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("middle"), 1000), size/2+11)
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.Close())
}

// change makes an overlay layer over what fill made.
func change(t testing.TB, upper string) {
	t.Helper()
	for _, d := range []string{"a", "b", "b/new", "was-file", "links"} {
		must(t, os.Mkdir(upper+"/"+d, 0o750))
	}
	hide := func(path string) { must(t, unix.Mknod(upper+"/"+path, unix.S_IFCHR, 0)) }
	hide("a/gone")
	hide("b/other")
	must(t, os.WriteFile(upper+"/turns", []byte("file now"), 0o600))
	must(t, os.WriteFile(upper+"/was-file/in", []byte("dir now"), 0o600))
	must(t, os.WriteFile(upper+"/links/one", []byte("broken"), 0o600))
	must(t, os.WriteFile(upper+"/links/kept1", []byte("kept"), 0o644)) // with a third name
	must(t, os.Link(upper+"/links/kept1", upper+"/links/kept3"))
	must(t, os.Symlink("../../..", upper+"/b/new/up"))
	must(t, os.Mkdir(upper+"/moved", 0o700))
	mark := "trusted.overlay."
	if userXattr() {
		mark = "user.overlay."
	}
	must(t, unix.Setxattr(upper+"/moved", mark+"redirect", []byte("/b/c"), 0))
	hide("b/c")
	must(t, os.Mkdir(upper+"/opaque", 0o700))
	must(t, unix.Setxattr(upper+"/opaque", mark+"opaque", []byte("y"), 0))
	sparse(t, upper+"/a/holes", 1<<20)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: upper + "/socket"}))
}

// show lists a view in everything that an archive keeps.
func show(t testing.TB, v *tree.View) map[string]string {
	t.Helper()
	all, groups := map[string]string{}, map[inode][]string{}
	must(t, v.Walk(context.Background(), func(path string, s tree.Stat) error {
		if s.Type == tree.Socket {
			return nil
		}
		line := fmt.Sprintf("%s %v %d:%d %q %q %d", s.Type, s.Mode, s.UID, s.GID, s.Link, s.Xattrs, s.Mtime.UnixNano())
		if s.Type != tree.Dir {
			groups[inodeOf(&s)] = append(groups[inodeOf(&s)], path)
		}
		if s.Type == tree.File {
			f, err := v.Open(path)
			must(t, err)
			h := sha256.New()
			_, err = io.Copy(h, f)
			must(t, errors.Join(err, f.Close()))
			line += fmt.Sprintf(" %d %x sparse %v", s.Size, h.Sum(nil)[:6], s.Size > 256<<10 && s.Blocks*512 < s.Size/2)
		}
		all[path] = line
		return nil
	}))
	for _, paths := range groups {
		for _, path := range paths {
			all[path] += fmt.Sprintf(" %q", paths)
		}
	}
	return all
}

// same compares two views.
func same(t testing.TB, what string, got *tree.View, want map[string]string) {
	t.Helper()
	now := show(t, got)
	for path := range want {
		if now[path] != want[path] {
			t.Errorf("%s: %q is\n%s\nand should be\n%s", what, path, now[path], want[path])
		}
		delete(now, path)
	}
	for path := range now {
		t.Errorf("%s: %q should not be there", what, path)
	}
}

func archive(t testing.TB, old, new *tree.View, o Options) ([]byte, Result) {
	t.Helper()
	var b bytes.Buffer
	r, err := Write(context.Background(), old, new, &b, o)
	must(t, err)
	return b.Bytes(), r
}

// TestRoundTrip reads what was written, on another layer and into a plain tree, and writes it again.
func TestRoundTrip(t *testing.T) {
	dir := tempDir(t)
	for _, d := range []string{"base", "upper", "again", "whole", "full"} {
		must(t, os.Mkdir(dir+"/"+d, 0o755))
	}
	fill(t, dir+"/base")
	change(t, dir+"/upper")
	old, new := view(t, dir+"/base"), view(t, dir+"/upper", dir+"/base")
	want := show(t, new)

	data, wrote := archive(t, old, new, Options{})
	if len(wrote.Skipped) != 1 || wrote.Skipped[0] != "socket" || wrote.Full || int64(len(data)) != wrote.Bytes {
		t.Errorf("result %+v of %d bytes", wrote, len(data))
	}
	o := Options{UserXattr: userXattr(), Below: old}
	read, err := Read(t.Context(), bytes.NewReader(data), dir+"/again", o)
	must(t, err)
	if read.Digest != wrote.Digest || read.Bytes != wrote.Bytes || read.Full {
		t.Errorf("read %+v, wrote %+v", read, wrote)
	}
	again := view(t, dir+"/again", dir+"/base")
	same(t, "after reading the layer", again, want)
	if data2, _ := archive(t, old, again, Options{}); !bytes.Equal(data, data2) {
		t.Error("the archive is not the same again")
	}

	fill(t, dir+"/whole")
	copyTimes(t, dir+"/base", dir+"/whole")
	_, err = Read(t.Context(), bytes.NewReader(data), dir+"/whole", Options{Whole: true})
	must(t, err)
	same(t, "after applying it to a tree", view(t, dir+"/whole"), want)

	all, wrote := archive(t, nil, new, Options{Zstd: true, Parallel: 2})
	read, err = Read(t.Context(), bytes.NewReader(all), dir+"/full", Options{UserXattr: userXattr()})
	must(t, err)
	if !read.Full || !wrote.Full || read.Digest != wrote.Digest {
		t.Errorf("full: read %+v, wrote %+v", read, wrote)
	}
	same(t, "after reading a full archive", view(t, dir+"/full"), want)
}

// copyTimes makes two trees equal that were made alike.
func copyTimes(t *testing.T, from, to string) {
	var paths []string
	must(t, filepath.WalkDir(from, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path[len(from):])
		return err
	}))
	for i := len(paths) - 1; i >= 0; i-- {
		var st unix.Stat_t
		must(t, unix.Lstat(from+paths[i], &st))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, to+paths[i], []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// TestGNUTar has the system's tar read an archive.
func TestGNUTar(t *testing.T) {
	if userXattr() {
		testenv.Need(t, "root", errors.New("tar restores owners as root only"))
	}
	dir := tempDir(t)
	must(t, os.Mkdir(dir+"/base", 0o755))
	must(t, os.Mkdir(dir+"/out", 0o755))
	fill(t, dir+"/base")
	must(t, os.Chtimes(dir+"/base/a/file", time.Time{}, time.Unix(3, 5))) // before 1970, tar is a second off
	base := view(t, dir+"/base")
	data, _ := archive(t, nil, base, Options{})
	cmd := exec.Command("tar", "-x", "-p", "--xattrs", "--xattrs-include=user.*", "--numeric-owner", "-C", dir+"/out")
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	must(t, os.Remove(dir+"/out/"+opaque))
	copyTimes(t, dir+"/base", dir+"/out") // only of the root, which the marker's removal touched
	same(t, "tar", view(t, dir+"/out"), show(t, base))
}

// TestGoTar has archive/tar read the headers that we write.
func TestGoTar(t *testing.T) {
	for _, h := range []header{
		{kind: typeFile, name: "plain", mode: 0o4755, uid: 7, gid: 8, mtime: time.Unix(5, 0)},
		{kind: typeFile, name: strings.Repeat("x/", 400) + "ü\n\xff", uid: 1<<30 + 5, gid: 1 << 31, mtime: time.Unix(1700000000, 1)},
		{kind: typeDir, name: "d/", mtime: time.Unix(-1, 999999999)},
		{kind: typeSymlink, name: "l", link: strings.Repeat("t", 300), mode: 0o777, mtime: time.Unix(-1e9, 1)},
		{kind: typeLink, name: "h", link: "plain", mtime: time.Unix(0, 0)},
	} {
		got, err := tar.NewReader(bytes.NewReader(append(h.encode(), make([]byte, 1024)...))).Next()
		must(t, err)
		if got.Name != h.name || got.Linkname != h.link || got.Mode != h.mode || uint32(got.Uid) != h.uid ||
			uint32(got.Gid) != h.gid || !got.ModTime.Equal(h.mtime) || got.Typeflag != h.kind {
			t.Errorf("%+v\nis read as %+v", h, got)
		}
	}
}

func TestNames(t *testing.T) {
	dir := tempDir(t)
	must(t, os.WriteFile(dir+"/.wh.trap", nil, 0o600))
	if _, err := Write(t.Context(), nil, view(t, dir), io.Discard, Options{}); !errors.Is(err, ErrName) {
		t.Errorf("a name like a whiteout's: %v", err)
	}
}

// TestSparse: what is a hole follows from the content.
func TestSparse(t *testing.T) {
	dir := tempDir(t)
	buf := make([]byte, 256<<10)
	random := bytes.Repeat([]byte("r"), 4096)
	for i, c := range []struct {
		size  int64
		data  []int64 // offsets of 4 KiB
		spans int
		holes bool
	}{
		{0, nil, 1, false},
		{60 << 10, nil, 1, false},
		{1 << 20, nil, 0, true},
		{1 << 20, []int64{0}, 1, true},
		{1<<20 + 5, []int64{4096, 8192, 1<<20 - 4096}, 2, true},
		{1 << 40, []int64{1 << 39}, 1, true},
		{1 << 20, []int64{100}, 1, true},
	} {
		path := fmt.Sprintf("%s/%d", dir, i)
		f, err := os.Create(path)
		must(t, err)
		must(t, f.Truncate(c.size))
		for _, off := range c.data {
			_, err := f.WriteAt(random, off)
			must(t, err)
		}
		spans, holes, err := dataSpans(f, c.size, buf)
		must(t, err)
		if len(spans) != c.spans || holes != c.holes {
			t.Errorf("%d: spans %v, sparse %v", i, spans, holes)
		}
		must(t, f.Close())
	}
	// Many small holes become fewer, larger ones.
	f, err := os.Create(dir + "/comb")
	must(t, err)
	defer f.Close()
	size := int64(3 * maxSpans * 2 * hole)
	must(t, f.Truncate(size))
	for off := int64(0); off < size; off += 2 * hole {
		_, err := f.WriteAt([]byte("x"), off)
		must(t, err)
	}
	spans, _, err := dataSpans(f, size, buf)
	must(t, err)
	if len(spans) > maxSpans {
		t.Errorf("%d spans", len(spans))
	}
}
