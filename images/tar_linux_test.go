package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

func reg(name, content string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), PAXRecords: map[string]string{"TEST.content": content}}
}

func entry(flag byte, name, link string, mode int64) *tar.Header {
	return &tar.Header{Typeflag: flag, Name: name, Linkname: link, Mode: mode}
}

// archive makes a tar of headers; reg carries its content in a record of its own.
func archive(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h := *h
		content := h.PAXRecords["TEST.content"]
		if content != "" {
			h.PAXRecords = nil
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func save(t testing.TB, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// xzOf asks the format's own tool: the library reads only.
func xzOf(t testing.TB, data []byte) []byte {
	t.Helper()
	path, err := exec.LookPath("xz")
	testenv.Need(t, "xz", err)
	c := exec.Command(path, "-9", "-c")
	c.Stdin = bytes.NewReader(data)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func zstdOf(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTar(t *testing.T) {
	then := time.Unix(1700000000, 0)
	late := func(h *tar.Header) *tar.Header { h.ModTime = then; return h }
	plain := archive(t,
		late(entry(tar.TypeDir, "./", "", 0o755)),
		late(entry(tar.TypeDir, "./usr/", "", 0o555)),
		late(reg("usr/bin/sh", "#!shell")),
		entry(tar.TypeSymlink, "bin", "usr/bin", 0o777),
		entry(tar.TypeSymlink, "etc/passwd", "/etc/shadow", 0o777),
		entry(tar.TypeLink, "usr/bin/dash", "./usr/bin/sh", 0),
		entry(tar.TypeReg, "usr/bin/su", "", 0o6755),
		entry(tar.TypeDir, "var/tmp", "", 0o7777),
		entry(tar.TypeChar, "dev/sda", "", 0o666),
		entry(tar.TypeBlock, "dev/vda", "", 0o666),
		entry(tar.TypeFifo, "run/pipe", "", 0o666),
		reg("twice", "first"), reg("twice", "second"),
		entry(tar.TypeSymlink, "turned", "/etc", 0o777), reg("turned", "a file now"),
		&tar.Header{Typeflag: tar.TypeReg, Name: "marked", Mode: 0o644, PAXRecords: map[string]string{
			"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "x", "SCHILY.xattr.trusted.overlay.redirect": "/etc",
		}},
		reg("new\nline \xff", "odd"),
	)
	for name, compress := range map[string]func(testing.TB, []byte) []byte{"plain": nil, "gzip": zip, "zstd": zstdOf, "xz": xzOf} {
		t.Run(name, func(t *testing.T) {
			data := plain
			if compress != nil {
				data = compress(t, plain)
			}
			r, err := Tar(save(t, data), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // a directory in it forbids writing
				if err := removeTree(r.Lower); err != nil {
					t.Error(err)
				}
			})
			if r.Kind != KindTar || !strings.HasPrefix(r.Digest, "sha256:") {
				t.Errorf("%+v", r)
			}
			checkTar(t, r.Lower, then)
		})
	}
}

func checkTar(t *testing.T, dir string, then time.Time) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, dir+"/")
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			got = append(got, rel+" -> "+target)
			return err
		case d.IsDir():
			got = append(got, fmt.Sprintf("%s/ %v", rel, fi.Mode()))
			return nil
		}
		b, err := os.ReadFile(p)
		got = append(got, fmt.Sprintf("%s %v %q", rel, fi.Mode(), b))
		if n, xerr := unix.Llistxattr(p, nil); xerr == nil && n > 0 {
			t.Errorf("%s has extended attributes", rel)
		}
		return err
	})
	want := []string{
		"bin -> usr/bin", "dev/ drwxr-xr-x", "etc/ drwxr-xr-x", "etc/passwd -> /etc/shadow",
		`marked -rw-r--r-- ""`, "new\nline \xff -rw-r--r-- \"odd\"",
		`turned -rw-r--r-- "a file now"`, `twice -rw-r--r-- "second"`,
		"usr/ dr-xr-xr-x", "usr/bin/ drwxr-xr-x", `usr/bin/dash -rw-r--r-- "#!shell"`, `usr/bin/sh -rw-r--r-- "#!shell"`, `usr/bin/su -rwxr-xr-x ""`,
		"var/ drwxr-xr-x", "var/tmp/ dtrwxrwxrwx",
	}
	want = slices.DeleteFunc(want, func(s string) bool { return s == "dev/ drwxr-xr-x" }) // held only devices
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\ngot  %q\nwant %q", err, got, want)
	}
	for _, p := range []string{".", "usr", "usr/bin/sh"} {
		if fi, err := os.Stat(filepath.Join(dir, p)); err != nil || !fi.ModTime().Equal(then) {
			t.Errorf("%s: modified %v, %v", p, fi.ModTime(), err)
		}
	}
	a, err1 := os.Stat(filepath.Join(dir, "usr/bin/sh"))
	b, err2 := os.Stat(filepath.Join(dir, "usr/bin/dash"))
	if err1 != nil || err2 != nil || !os.SameFile(a, b) {
		t.Error("a hard link became a copy", err1, err2)
	}
}

func TestTarAttacks(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim")
	writeFile(t, outside, "untouched")
	up := strings.Repeat("../", 30) + strings.TrimPrefix(outside, "/")
	huge := &tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: 1 << 40, Mode: 0o644}
	var promise bytes.Buffer
	if err := tar.NewWriter(&promise).WriteHeader(huge); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"dotdot":                  archive(t, reg(up, "owned")),
		"dotdot inside":           archive(t, reg("a/../b", "x")),
		"absolute":                archive(t, reg(outside, "owned")),
		"NUL":                     nulName(t),
		"through a link":          archive(t, entry(tar.TypeSymlink, "l", filepath.Dir(outside), 0), reg("l/victim", "owned")),
		"through a relative link": archive(t, entry(tar.TypeSymlink, "l", "..", 0), reg("l/x", "owned")),
		"through an inner link":   archive(t, entry(tar.TypeDir, "d", "", 0o755), entry(tar.TypeSymlink, "l", "d", 0), reg("l/x", "owned")),
		"mkdir through a link":    archive(t, entry(tar.TypeSymlink, "l", filepath.Dir(outside), 0), entry(tar.TypeDir, "l/d", "", 0o777)),
		"through two links":       archive(t, entry(tar.TypeSymlink, "a", "b", 0), entry(tar.TypeSymlink, "b", filepath.Dir(outside), 0), reg("a/victim", "x")),
		"below a file":            archive(t, reg("f", "x"), reg("f/x", "x")),
		"hard link outside":       archive(t, entry(tar.TypeLink, "h", outside, 0)),
		"hard link up":            archive(t, entry(tar.TypeLink, "h", up, 0)),
		"hard link to a link":     archive(t, entry(tar.TypeSymlink, "s", outside, 0), entry(tar.TypeLink, "h", "s", 0), reg("h", "owned")),
		"hard link past a link":   archive(t, entry(tar.TypeSymlink, "s", filepath.Dir(outside), 0), entry(tar.TypeLink, "h", "s/victim", 0)),
		"hard link to itself":     archive(t, reg("h", "x"), entry(tar.TypeLink, "h", "h", 0)),
		"hard link to nothing":    archive(t, entry(tar.TypeLink, "h", "later", 0), reg("later", "x")),
		"hard link to a dir":      archive(t, entry(tar.TypeDir, "d", "", 0o755), entry(tar.TypeLink, "h", "d", 0)),
		"file over a directory":   archive(t, entry(tar.TypeDir, "d", "", 0o755), reg("d", "x")),
		"link over a directory":   archive(t, reg("d/x", "x"), entry(tar.TypeSymlink, "d", "/etc", 0)),
		"root is a link":          archive(t, entry(tar.TypeSymlink, ".", "/etc", 0)),
		"empty link":              archive(t, reg("x", "x"), entry(tar.TypeSymlink, "l", "", 0)),
		"long path":               archive(t, reg(strings.Repeat("a/", 2100)+"x", "x")),
		"unknown type":            archive(t, entry('Z', "x", "", 0o644)),
		"nothing":                 archive(t),
		"an image":                archive(t, reg("manifest.json", "[]"), reg("abc/layer.tar", "x")),
		"promises a terabyte":     promise.Bytes(),
		"truncated":               archive(t, reg("x", strings.Repeat("x", 5000)))[:3000],
		"broken zstd":             zstdOf(t, archive(t, reg("x", "x")))[:30],
		"zstd of nothing":         {0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0},
		"xz of nothing":           {0xfd, '7', 'z', 'X', 'Z', 0, 0},
		"broken gzip":             zip(t, archive(t, reg("x", "x")))[:30],
		"no archive":              []byte(strings.Repeat("hello ", 200)),
		"empty":                   {},
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			r, err := Tar(save(t, data), cache)
			var ae *ArchiveError
			if !errors.As(err, &ae) {
				t.Errorf("%+v, %v; want an ArchiveError", r, err)
			} else if testing.Verbose() {
				t.Log(err)
			}
			if b, err := os.ReadFile(outside); err != nil || string(b) != "untouched" {
				t.Fatalf("the file outside: %q, %v", b, err)
			}
			for _, pattern := range []string{"tmp-*", "tar-*[0-9a-f]", "x", "index-*"} {
				if left, err := filepath.Glob(filepath.Join(cache, pattern)); err != nil || slices.ContainsFunc(left, func(s string) bool { return !strings.HasSuffix(s, lockSuffix) }) {
					t.Errorf("left behind: %q, %v", left, err)
				}
			}
		})
	}
}

// TestTarDamaged: of a compressed archive every byte counts, also those after the end of the archive in it; what follows it
// does not.
func TestTarDamaged(t *testing.T) {
	noise := make([]byte, 100_000) // is stored as it is: a changed bit in it is no error of the compression
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	plain := archive(t, reg("x", string(noise)), reg("y", "y"))
	for name, compress := range map[string]func(testing.TB, []byte) []byte{"gzip": zip, "zstd": zstdOf, "xz": xzOf} {
		t.Run(name, func(t *testing.T) {
			data := compress(t, plain)
			changed := bytes.Clone(data)
			changed[len(changed)/2] ^= 1
			for what, data := range map[string][]byte{"changed": changed, "short": data[:len(data)-1], "without its sum": data[:len(data)-12]} {
				r, err := Tar(save(t, data), t.TempDir())
				if _, ok := errors.AsType[*ArchiveError](err); !ok {
					t.Errorf("%s: %+v, %v; want an ArchiveError", what, r, err)
				}
			}
			half := len(plain) / 2
			for what, data := range map[string][]byte{
				"two streams": append(compress(t, plain[:half]), compress(t, plain[half:])...), "before zeros": append(bytes.Clone(data), make([]byte, 512)...),
				"before something else": append(bytes.Clone(data), "something else"...),
			} {
				r, err := Tar(save(t, data), t.TempDir())
				if err != nil {
					t.Errorf("%s: %v", what, err)
				} else if x, err := os.ReadFile(r.Lower + "/x"); err != nil || !bytes.Equal(x, noise) {
					t.Errorf("%s: %d bytes, %v", what, len(x), err)
				}
			}
		})
	}
}

// TestTarXzMemory: an archive that asks for more memory than is allowed is refused before it gets any.
func TestTarXzMemory(t *testing.T) {
	data := xzOf(t, archive(t, reg("x", "x")))
	const block, id, size = 12, 14, 8 // the block's header; its one filter, LZMA2, and the length of its properties; then these
	if !bytes.Equal(data[id:id+2], []byte{0x21, 1}) {
		t.Fatalf("%x", data[:32])
	}
	data[id+2] = 36 // 1 GiB
	binary.LittleEndian.PutUint32(data[block+size:], crc32.ChecksumIEEE(data[block:block+size]))
	if _, err := Tar(save(t, data), t.TempDir()); !errors.Is(err, xz.ErrMemlimit) {
		t.Error(err)
	}
}

// nulName has a NUL within a path, which only a PAX record can hold.
func nulName(t *testing.T) []byte {
	t.Helper()
	record := "18 path=a\x00/../../b\n"
	var b bytes.Buffer
	h := make([]byte, 512)
	copy(h, "pax")
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00", len(record)))
	copy(h[136:], "00000000000\x00")
	h[156] = 'x'
	copy(h[257:], "ustar\x0000")
	copy(h[148:], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	b.Write(h)
	b.WriteString(record)
	b.Write(make([]byte, 512-len(record)))
	b.Write(archive(t, reg("x", "x")))
	return b.Bytes()
}

func TestTarLimits(t *testing.T) {
	data := archive(t, reg("a", "12345"), reg("b", "12345"), entry(tar.TypeDir, "c", "", 0o755))
	for _, c := range []struct {
		l  limits
		ok bool
	}{{limits{3, 10}, true}, {limits{2, 10}, false}, {limits{3, 9}, false}} {
		if err := unpack(bytes.NewReader(data), t.TempDir(), c.l); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.l, err)
		}
	}
	bomb := zip(t, append(bytes.Clone(data), make([]byte, 3<<20)...))
	for most, ok := range map[int64]bool{1 << 20: false, 4 << 20: true} {
		if err := unpack(bytes.NewReader(bomb), t.TempDir(), limits{3, most}); (err == nil) != ok {
			t.Errorf("at most %d: %v", most, err)
		}
	}
}

func TestTarSparse(t *testing.T) {
	content := strings.Repeat("\x00", 8<<20) + "end"
	r, err := Tar(save(t, zip(t, archive(t, reg("holes", content)))), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(r.Lower, "holes"))
	if err != nil || fi.Size() != int64(len(content)) || fi.Sys().(*syscall.Stat_t).Blocks*512 > 1<<20 {
		t.Errorf("%d bytes in %d blocks, %v", fi.Size(), fi.Sys().(*syscall.Stat_t).Blocks, err)
	}
}

func TestTarOnce(t *testing.T) {
	name, cache := save(t, archive(t, reg("usr/x", "x"))), t.TempDir()
	dead := filepath.Join(cache, "tmp-tar-"+hash(string(must(os.ReadFile(name))(t))))
	if err := errors.Join(os.MkdirAll(filepath.Join(dead, "half"), 0o700), os.Chmod(dead, 0o500)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	roots := make([]Root, 8)
	for i := range roots {
		wg.Go(func() {
			r, err := Tar(name, cache)
			if err != nil {
				t.Error(err)
			}
			roots[i] = r
		})
	}
	wg.Wait()
	for _, r := range roots {
		if r.Lower != roots[0].Lower {
			t.Errorf("two roots: %s, %s", r.Lower, roots[0].Lower)
		}
	}
	if _, err := os.Stat(filepath.Join(roots[0].Lower, "half")); err == nil {
		t.Error("what a dead process left became part of the root")
	}
	if left, err := filepath.Glob(filepath.Join(cache, "tmp-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	writeFile(t, name, string(archive(t, reg("usr/y", "y"))))
	other, err := Tar(name, cache)
	if err != nil || other.Lower == roots[0].Lower {
		t.Errorf("new content, old root: %v, %v", other, err)
	}
}

// The digest of an archive that rests is remembered; one that was just written is read again.
func TestTarIndex(t *testing.T) {
	name, cache := save(t, archive(t, reg("usr/x", "x"))), t.TempDir()
	r, err := Tar(name, cache)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "index-*")); err != nil || len(left) > 0 {
		t.Errorf("remembered at once: %q, %v", left, err)
	}
	fi := must(os.Stat(name))(t)
	index := filepath.Join(cache, indexPrefix+hash(name+"\x00"+stamp(fi)))
	for _, torn := range []string{"", "abc", strings.Repeat("/", 64)} {
		writeFile(t, index, torn)
		if again, err := Tar(name, cache); err != nil || again.Lower != r.Lower {
			t.Errorf("index %q: %+v, %v", torn, again, err)
		}
	}
	writeFile(t, index, strings.Repeat("0", 64))
	if _, err := Tar(name, cache); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a wrong digest was believed: %v", err)
	}
}

func TestTarOwners(t *testing.T) {
	testenv.Need(t, "root", rootError())
	h := func(name string, uid, gid int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, Uid: uid, Gid: gid}
	}
	r, err := Tar(save(t, archive(t, h("a", 7, 8), h("b", 1<<20, 2))), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]uint32{"a": {7, 8}, "b": {65534, 2}} {
		st := must(os.Lstat(filepath.Join(r.Lower, name)))(t).Sys().(*syscall.Stat_t)
		if st.Uid != want[0] || st.Gid != want[1] || st.Mode&0o7777 != 0o640 {
			t.Errorf("%s: %d:%d %o", name, st.Uid, st.Gid, st.Mode)
		}
	}
}

func TestTarOfNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, fifo, filepath.Join(dir, "missing")} {
		if _, err := Tar(p, t.TempDir()); err == nil {
			t.Errorf("%s was taken", p)
		}
	}
}

func rootError() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	return nil
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"a", "./a/", "../a", "/a", "a/../../b", "a//b", "...", "a/.", "a\\..\\b", "\x00", ".", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := cleanName(s)
		if err != nil {
			return
		}
		if !filepath.IsLocal(got) || filepath.Clean(got) != got || strings.ContainsRune(got, 0) || len(got) > maxName {
			t.Errorf("cleanName(%q) = %q", s, got)
		}
		if slices.Contains(strings.Split(s, "/"), "..") {
			t.Errorf("cleanName(%q) took a .. element", s)
		}
		if again, err := cleanName(got); err != nil || again != got {
			t.Errorf("cleanName(%q) = %q, then %q, %v", s, got, again, err)
		}
	})
}

// FuzzUnpack gives damaged archives to the unpacker and looks at the directory around its own.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, reg("a/b", "x"), entry(tar.TypeSymlink, "l", "..", 0), entry(tar.TypeLink, "h", "a/b", 0)))
	f.Add(archive(f, entry(tar.TypeSymlink, "l", "/tmp", 0), reg("l/x", "x")))
	small, err := base64.StdEncoding.DecodeString("/Td6WFoAAATm1rRGAgAhAQwAAACPmEGc4Af/ADpdADCLyEAOUCcI/OcAtM3z4KiWGAAij0lL6cfJBhFZBSt1DLEuKu5fP28/uJ1etPW8HjAk/gGb3XFa1QAAAADbYbNCkoOOPgABVoAQAAAAOth9+LHEZ/sCAAAAAARZWg==")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small) // xz
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "in")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = unpack(bytes.NewReader(data), dir, limits{entries: 100, bytes: 1 << 20}) // any answer will do
		if e, err := os.ReadDir(top); err != nil || len(e) != 1 {
			t.Errorf("outside: %v, %v", e, err)
		}
		if err := removeTree(dir); err != nil {
			t.Error(err)
		}
	})
}
