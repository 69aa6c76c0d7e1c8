package layertar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// tarOf makes an archive with the standard library, which writes what we would not.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg && h.Size > 0 {
			content = strings.Repeat("x", int(h.Size))
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func file(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3} }

func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func folder(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func xattr(name string) tar.Header {
	h := file("f")
	h.PAXRecords = map[string]string{"SCHILY.xattr." + name: "y"}
	return h
}

var hostile = []struct {
	name    string
	entries []tar.Header
}{
	{"dot dot", []tar.Header{file("../x")}},
	{"dot dot inside", []tar.Header{file("a/../../x")}},
	{"dot dot that stays", []tar.Header{file("a/../x")}},
	{"absolute", []tar.Header{file("/x")}},
	{"long component", []tar.Header{file(strings.Repeat("n", 256))}},
	{"long path", []tar.Header{file(strings.Repeat("n/", tree.MaxPath) + "n")}},
	{"through a link", []tar.Header{link("a", "/etc"), file("a/x")}},
	{"through a link to here", []tar.Header{link("a", "."), file("a/x")}},
	{"through a link, later", []tar.Header{folder("a"), link("b", "a"), folder("b/c")}},
	{"whiteout through a link", []tar.Header{link("a", "/"), file("a/.wh.etc")}},
	{"opaque through a link", []tar.Header{link("a", "/"), file("a/.wh..wh..opq")}},
	{"a link instead of a directory", []tar.Header{folder("a"), link("a", "/etc"), file("a/x")}},
	{"a file instead of a link", []tar.Header{link("a", "../../x"), file("a")}},
	{"twice", []tar.Header{file("a"), file("./a")}},
	{"below a file", []tar.Header{file("a"), file("a/b")}},
	{"hard link out", []tar.Header{hard("a", "../../etc/passwd")}},
	{"hard link to an absolute path", []tar.Header{hard("a", "/etc/passwd")}},
	{"hard link to nothing", []tar.Header{hard("a", "b")}},
	{"hard link to a directory", []tar.Header{folder("b"), hard("a", "b")}},
	{"hard link through a link", []tar.Header{link("a", "/etc"), hard("b", "a/passwd")}},
	{"hard link to itself", []tar.Header{hard("a", "a")}},
	{"hard link to a whiteout", []tar.Header{file(".wh.a"), hard("b", "a")}},
	{"character device", []tar.Header{{Name: "a", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}},
	{"whiteout as a device", []tar.Header{{Name: "a", Typeflag: tar.TypeChar}}},
	{"block device", []tar.Header{{Name: "a", Typeflag: tar.TypeBlock, Devmajor: 8}}},
	{"whiteout of nothing", []tar.Header{file(".wh.")}},
	{"whiteout of here", []tar.Header{file("a/.wh..")}},
	{"whiteout of above", []tar.Header{file("a/.wh...")}},
	{"whiteout of whiteouts", []tar.Header{file(".wh..wh.x")}},
	{"aufs", []tar.Header{file(".wh..wh.plnk/1")}},
	{"whiteout as a directory", []tar.Header{folder(".wh.a")}},
	{"in a whiteout", []tar.Header{file(".wh.a/b")}},
	{"made and deleted", []tar.Header{file("a"), file(".wh.a")}},
	{"root as a link", []tar.Header{link(".", "/etc")}},
	{"root as a file", []tar.Header{file(".")}},
	{"overlay mark", []tar.Header{xattr("trusted.overlay.redirect")}},
	{"overlay mark without privileges", []tar.Header{xattr("user.overlay.opaque")}},
	{"overlay mark, encoded", []tar.Header{xattr("user.overlay%2Eopaque"), xattr("user.overlay.%3D")}},
	{"owner", []tar.Header{{Name: "a", Typeflag: tar.TypeReg, Uid: 1<<32 - 1}}},
	{"unknown type", []tar.Header{{Name: "a", Typeflag: '7'}}},
}

// TestHostile: what is refused changes nothing outside of the layer.
func TestHostile(t *testing.T) {
	for _, c := range hostile {
		for _, whole := range []bool{false, true} {
			dir := tempDir(t)
			must(t, os.Mkdir(dir+"/upper", 0o755))
			must(t, os.WriteFile(dir+"/x", []byte("outside"), 0o644))
			_, err := Read(t.Context(), bytes.NewReader(tarOf(t, c.entries...)), dir+"/upper",
				Options{Whole: whole, UserXattr: userXattr()})
			if err == nil {
				t.Errorf("%s (whole %v): accepted", c.name, whole)
			}
			contained(t, dir)
		}
	}
}

// contained fails when anything but upper/ was touched, or when upper holds what no layer may.
func contained(t testing.TB, dir string) {
	t.Helper()
	data, err := os.ReadFile(dir + "/x")
	if names, _ := os.ReadDir(dir); err != nil || string(data) != "outside" || len(names) != 2 {
		t.Fatalf("outside: %q, %v, %d names", data, err, len(names))
	}
	must(t, filepath.WalkDir(dir+"/upper", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFBLK || kind == unix.S_IFCHR && st.Rdev != 0 {
			t.Fatalf("%q is a device", path)
		}
		buf := make([]byte, 64<<10)
		n, _ := unix.Llistxattr(path, buf)
		for name := range strings.SplitSeq(string(buf[:max(n, 0)]), "\x00") {
			if strings.Contains(name, "overlay.") && !strings.HasSuffix(name, "overlay.opaque") {
				t.Fatalf("%q has %s", path, name)
			}
		}
		return nil
	}))
}

// TestForeign reads what other programs write.
func TestForeign(t *testing.T) {
	dir := tempDir(t)
	for _, d := range []string{"upper", "base/lib/deep"} {
		must(t, os.MkdirAll(dir+"/"+d, 0o755))
	}
	must(t, os.Chmod(dir+"/base/lib", 0o711))
	must(t, os.Chtimes(dir+"/base/lib", time.Unix(5, 0), time.Unix(6, 0)))
	data := tarOf(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": "x"}},
		file("lib/deep/new"), file("made/up"), file("lib/.wh.gone"), file("lib/deep/.wh..wh..opq"), folder("lib/deep"),
		folder("lib/deep"), hard("lib/deep/again", "lib/deep/new"), file("old/.wh.x"), file(".wh.tree"), folder("tree"), file("tree/in"),
		xattr("security.capability"))
	r, err := Read(t.Context(), bytes.NewReader(data), dir+"/upper", Options{UserXattr: userXattr(), Below: view(t, dir+"/base")})
	must(t, err)
	if r.Full {
		t.Error("full")
	}
	got := show(t, view(t, dir+"/upper", dir+"/base"))
	if !strings.HasPrefix(got["lib"], "dir -rwx--x--x") || !strings.Contains(got["lib"], " 6000000000") {
		t.Errorf("lib is %s", got["lib"])
	}
	for _, path := range []string{"lib/deep/new", "lib/deep/again", "made/up", "old", "tree/in", "f"} {
		if got[path] == "" {
			t.Errorf("%s is missing", path)
		}
	}
}

func TestCompressed(t *testing.T) {
	plain := tarOf(t, file("a"))
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, err := g.Write(plain)
	must(t, errors.Join(err, g.Close()))
	z, err := zstd.NewWriter(&zs)
	must(t, err)
	_, err = z.Write(plain)
	must(t, errors.Join(err, z.Close()))
	digests := map[string]bool{}
	for _, data := range [][]byte{plain, gz.Bytes(), zs.Bytes()} {
		r, err := Read(t.Context(), bytes.NewReader(data), tempDir(t), Options{})
		must(t, err)
		digests[r.Digest] = true
		for _, n := range []int{0, 3, len(data) / 2, len(data) - 1} {
			if n < len(data)-1 || len(data) != len(plain) { // the last zero of a plain one is padding
				if _, err := Read(t.Context(), bytes.NewReader(data[:n]), tempDir(t), Options{}); err == nil {
					t.Errorf("%d of %d bytes accepted", n, len(data))
				}
			}
		}
	}
	if len(digests) != 1 {
		t.Errorf("digests: %v", digests)
	}
	// An end at an entry's boundary is no end.
	if _, err := Read(t.Context(), bytes.NewReader(plain[:1024]), tempDir(t), Options{}); !errors.Is(err, ErrTruncated) {
		t.Errorf("no end: %v", err)
	}
}

// zeroReader has no end.
type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestLimits(t *testing.T) {
	// A bomb: a gigabyte of zeros in a few kilobytes.
	var bomb bytes.Buffer
	z, err := zstd.NewWriter(&bomb)
	must(t, err)
	_, err = z.Write((&header{kind: typeFile, name: "f", size: 1 << 30}).encode())
	must(t, err)
	_, err = io.CopyN(z, zeroReader{}, 1<<30)
	must(t, errors.Join(err, z.Close()))
	dir := tempDir(t)
	if _, err := Read(t.Context(), &bomb, dir, Options{MaxBytes: 1 << 20}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a bomb: %v", err)
	}
	if info, err := os.Stat(dir + "/f"); err == nil && info.Size() > 2<<20 {
		t.Errorf("%d bytes were written", info.Size())
	}
	// Zeros after the end.
	if _, err := Read(t.Context(), zeroReader{}, tempDir(t), Options{MaxBytes: 1 << 20}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("no end: %v", err)
	}
	// A hole of four exbibytes.
	h := header{kind: typeFile, name: "f", size: 512, pax: map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f", "GNU.sparse.realsize": "4611686018427387904",
	}}
	data := append(h.encode(), sparseMap(nil, 1<<62)...)
	if _, err := Read(t.Context(), bytes.NewReader(append(data, make([]byte, 1024)...)), tempDir(t), Options{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a hole: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, zeroReader{}, tempDir(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// FuzzRead: whatever an archive holds, nothing outside of the layer changes.
func FuzzRead(f *testing.F) {
	for _, c := range hostile {
		f.Add(tarOf(f, c.entries...), false)
		f.Add(tarOf(f, c.entries...), true)
	}
	dir := tempDir(f)
	must(f, os.Mkdir(dir+"/base", 0o755))
	fill(f, dir+"/base")
	data, _ := archive(f, nil, view(f, dir+"/base"), Options{})
	f.Add(data, true)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 4, 0}, false)
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		dir := tempDir(t)
		must(t, os.Mkdir(dir+"/upper", 0o755))
		must(t, os.WriteFile(dir+"/x", []byte("outside"), 0o644))
		if whole {
			must(t, os.MkdirAll(dir+"/upper/a/b", 0o755))
			must(t, os.Symlink("..", dir+"/upper/l"))
		}
		_, err := Read(t.Context(), bytes.NewReader(data), dir+"/upper", Options{Whole: whole, UserXattr: userXattr(), MaxBytes: 1 << 20})
		contained(t, dir)
		if err != nil || whole {
			return
		}
		// What was accepted can be written, and read again to the same.
		v := view(t, dir+"/upper")
		var b bytes.Buffer
		if _, err := Write(t.Context(), nil, v, &b, Options{}); err != nil {
			t.Fatalf("an accepted layer cannot be written: %v", err)
		}
		must(t, os.Mkdir(dir+"/again", 0o755))
		if _, err := Read(t.Context(), &b, dir+"/again", Options{UserXattr: userXattr()}); err != nil {
			t.Fatalf("nor be read: %v", err)
		}
		same(t, "again", view(t, dir+"/again"), show(t, v))
	})
}
