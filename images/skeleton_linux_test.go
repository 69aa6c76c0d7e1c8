package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func hostRoot(t *testing.T) (Root, string) {
	t.Helper()
	top := tree(t, "usr/bin/sh", "usr/local/go/", "usr/link -> local", "bin -> usr/bin", "etc/ld.so.cache", "etc/ssl/certs/ca")
	r, err := hostAt(top, HostList{Paths: []string{"/usr", "/bin"}, Etc: []string{"ld.so.cache", "ssl/certs"}})
	if err != nil {
		t.Fatal(err)
	}
	return r, top
}

func TestSkeleton(t *testing.T) {
	r, top := hostRoot(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	cache := t.TempDir()
	files := EtcFiles("caisson", "user", 1000, 1000, "")
	dir, err := r.Skeleton(cache, []Target{{"/mnt/data", true}, {"/etc/extra.conf", false}, {"/usr/local/go", true}, {"/workspace/x", true}, {"/home/user/.cache", true}}, files)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"proc": "d", "sys": "d", "dev": "d", "tmp": "d", "run": "d", "workspace": "d", "home/user": "d", "root": "d",
		"usr": "d", "etc/ssl/certs": "d", "mnt/data": "d", "etc/extra.conf": "-", "etc/machine-id": "-",
		"etc/passwd": "-", "etc/ld.so.cache": "-etc/ld.so.cache",
		"bin": "lusr/bin", "var/tmp": "l/tmp", "etc/mtab": "l/proc/self/mounts",
		"usr/local": "", "workspace/x": "", "home/user/.cache": "",
	} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case want == "":
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s exists: %v", name, err)
			}
			continue
		case err != nil:
			t.Error(err)
			continue
		}
		perm := fs.FileMode(0o755)
		switch want[0] {
		case '-':
			perm = 0o644
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || want != "-" && string(b) != want[1:] {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		case 'l':
			if l, err := os.Readlink(filepath.Join(dir, name)); err != nil || l != want[1:] {
				t.Errorf("%s: %q, %v", name, l, err)
			}
			continue
		}
		if fi.IsDir() != (want[0] == 'd') || fi.Mode().Perm() != perm {
			t.Errorf("%s: %v", name, fi.Mode())
		}
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("the root: %v, %v", fi.Mode(), err)
	}
	// A host file that changes gives another skeleton, and until Host runs again an error, not a mixture.
	writeFile(t, filepath.Join(top, "etc/ld.so.cache"), "new content")
	if _, err := r.Skeleton(cache, nil, files); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed file: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "tmp-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestSkeletonOnce(t *testing.T) {
	r, _ := hostRoot(t)
	cache := t.TempDir()
	var wg sync.WaitGroup
	paths := make([]string, 16)
	for i := range paths {
		wg.Go(func() {
			p, err := r.Skeleton(cache, []Target{{"/mnt/a", true}}, EtcFiles("h", "user", 1000, 1000, ""))
			if err != nil {
				t.Error(err)
			}
			paths[i] = p
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] {
			t.Errorf("two skeletons: %s, %s", p, paths[0])
		}
	}
	if e, err := os.ReadDir(cache); err != nil || len(e) != 1 {
		t.Errorf("the cache holds %v, %v", e, err)
	}
	other, err := r.Skeleton(cache, nil, EtcFiles("h", "user", 1000, 1000, ""))
	if err != nil || other == paths[0] {
		t.Errorf("without the target: %s, %v", other, err)
	}
}

func TestSkeletonRefusesTargets(t *testing.T) {
	r, _ := hostRoot(t)
	image := Root{Kind: KindDir, Lower: tree(t, "usr/lib/x", "lib -> usr/lib", "data/file")}
	for _, c := range []struct {
		root   Root
		target Target
		want   string
	}{
		{r, Target{"/", true}, "below /"},
		{r, Target{"mnt", true}, "absolute"},
		{r, Target{"/proc/x", true}, "afresh"},
		{r, Target{"/sys", true}, "afresh"},
		{r, Target{"/tmp/x", true}, "afresh"},
		{r, Target{"/mnt/../dev/x", true}, "afresh"},
		{r, Target{"/usr/nothing", true}, "read-only"},
		{r, Target{"/usr/bin/sh", true}, "over a file"},
		{r, Target{"/usr/link/go", true}, "link of the host"},
		{r, Target{"/bin/sh", false}, "name /usr/bin/sh"},
		{r, Target{"/etc/passwd", true}, "over a file"},
		{r, Target{"/var/tmp/x", true}, "is a link"},
		{image, Target{"/lib/x", false}, "name /usr/lib/x"},
	} {
		_, err := c.root.Skeleton(t.TempDir(), []Target{c.target}, EtcFiles("h", "user", 1000, 1000, ""))
		var te *TargetError
		if !errors.As(err, &te) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.target, err, c.want)
		}
	}
	for _, ok := range []Target{{"/usr/lib/x", false}, {"/data/new", true}, {"/etc/passwd", false}} {
		if _, err := image.Skeleton(t.TempDir(), []Target{ok}, EtcFiles("h", "user", 1000, 1000, "")); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	if _, err := r.Skeleton(t.TempDir(), nil, map[string][]byte{"../x": nil}); err == nil {
		t.Error("a file outside")
	}
	if _, err := r.Skeleton(t.TempDir(), []Target{{"/etc/passwd/x", true}}, EtcFiles("h", "user", 1000, 1000, "")); err == nil {
		t.Error("a mount point below a file")
	}
}

func TestPrune(t *testing.T) {
	r, _ := hostRoot(t)
	cache := t.TempDir()
	used, err := r.Skeleton(cache, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-48 * time.Hour)
	for _, d := range []string{"skeleton-otherboot-1/x", "tmp-skeleton-old", "tmp-skeleton-" + boot, "tar-old", "tar-new", "tar-kept", "tmp-tar-dead/x"} {
		if err := os.MkdirAll(filepath.Join(cache, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"tar-old.lock", "tar-new.lock", "tar-kept.lock", "index-old", "index-new"} {
		writeFile(t, filepath.Join(cache, f), "")
	}
	for _, f := range []string{"tmp-skeleton-old", "tar-old.lock", "tar-kept.lock", "index-old"} {
		if err := os.Chtimes(filepath.Join(cache, f), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(cache, "tmp-tar-dead"), 0o500); err != nil {
		t.Fatal(err)
	}
	keep := func(p string) bool { return filepath.Base(p) == "tar-kept" }
	want := []string{"index-old", "skeleton-otherboot-1", "tar-old", "tmp-skeleton-old", "tmp-tar-dead"}
	for _, dry := range []bool{true, false} {
		got, err := Prune(cache, 24*time.Hour, keep, dry)
		if err != nil || len(got) != len(want) {
			t.Fatalf("dry run %v: %q, %v", dry, got, err)
		}
		for i, p := range got {
			if p != filepath.Join(cache, want[i]) {
				t.Errorf("%s, want %s", p, want[i])
			}
			if _, err := os.Lstat(p); (err == nil) != dry {
				t.Errorf("dry run %v: %s: %v", dry, p, err)
			}
		}
	}
	if _, err := os.Stat(used); err != nil {
		t.Error(err)
	}
	if got, err := Prune(filepath.Join(cache, "missing"), 0, keep, false); err != nil || got != nil {
		t.Errorf("no cache: %q, %v", got, err)
	}
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkHost(b *testing.B) {
	for b.Loop() {
		if _, err := Host(DefaultHostList()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSkeletonAgain(b *testing.B) {
	r, err := Host(DefaultHostList())
	if err != nil {
		b.Fatal(err)
	}
	cache := b.TempDir()
	for b.Loop() {
		if _, err := r.Skeleton(cache, nil, EtcFiles("caisson", "user", 1000, 1000, "")); err != nil {
			b.Fatal(err)
		}
	}
}
