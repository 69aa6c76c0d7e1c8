package images

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes files below a new directory: "dir/", "link -> target", "path mode" with its own path as content.
func tree(t *testing.T, entries ...string) string {
	t.Helper()
	top := t.TempDir()
	for _, e := range entries {
		name, target, isLink := strings.Cut(e, " -> ")
		name, perm, _ := strings.Cut(name, " ")
		p := filepath.Join(top, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		switch {
		case isLink:
			err = os.Symlink(target, p)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		case err == nil:
			mode := fs.FileMode(0o644)
			if perm == "private" {
				mode = 0o600
			}
			err = os.WriteFile(p, []byte(name), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func targets(r Root) (out []string) {
	for _, b := range r.Binds {
		out = append(out, "bind "+b.Target)
	}
	for _, l := range r.Symlinks {
		out = append(out, "link "+l.Path+" -> "+l.Target)
	}
	for _, f := range r.Files {
		out = append(out, "file "+f.Path)
	}
	for _, s := range r.Skipped {
		out = append(out, "skip "+s.Path)
	}
	slices.Sort(out)
	return out
}

func TestHostShowsTheListAndNothingElse(t *testing.T) {
	top := tree(t,
		"usr/bin/sh", "usr/lib/os-release", "usr/local/secret private", "bin -> usr/bin", "lib -> usr/lib",
		"data/opt/", "opt -> data/opt", "sbin -> ../../../etc", "srv/tools/x", "home/user/x",
		"lib64/ld.so", "lib32 -> nowhere",
		"etc/ld.so.cache", "etc/private private", "etc/shadow private", "etc/shadow-copy", "etc/passwd",
		"etc/os-release -> ../usr/lib/os-release", "etc/localtime -> ../home/user/x", "etc/mtab -> ../proc/mounts",
		"etc/link -> shadow", "etc/inner -> ld.so.cache", "etc/fonts/conf", "etc/ssl/certs/ca", "etc/ssl/private/key",
		"etc/java-17/x", "etc/java-21/x", "etc/pki -> ssl", "etc/unlisted",
	)
	if err := unix.Mkfifo(filepath.Join(top, "etc/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := hostAt(top, HostList{
		Paths: []string{"/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sbin", "/usr/local", "/srv/tools/"},
		Etc: []string{
			"ld.so.cache", "private", "s*", "os-release", "localtime", "link", "inner", "fonts", "fonts/conf",
			"ssl/certs", "java-*", "pki/certs", "fifo", "missing", "/etc/ld.so.cache",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bind /etc/fonts", "bind /etc/java-17", "bind /etc/java-21", "bind /etc/private", "bind /etc/ssl/certs",
		"bind /lib64", "bind /srv/tools", "bind /usr",
		"file /etc/ld.so.cache", "file /etc/shadow-copy",
		"link /bin -> usr/bin", "link /etc/inner -> ld.so.cache", "link /etc/os-release -> ../usr/lib/os-release", "link /lib -> usr/lib",
		"skip /etc/fifo", "skip /etc/link", "skip /etc/localtime", "skip /etc/pki/certs", "skip /lib32", "skip /opt", "skip /sbin",
	}
	if got := targets(r); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	again, err := hostAt(top, HostList{Paths: []string{"/usr"}})
	if err != nil || again.Digest == r.Digest || len(again.Binds) != 1 {
		t.Errorf("another list: %+v, %v", again, err)
	}
	if empty, err := hostAt(top, HostList{}); err != nil || len(targets(empty)) != 0 {
		t.Errorf("an empty list shows %q, %v", targets(empty), err)
	}
}

func TestHostRefuses(t *testing.T) {
	for _, p := range []string{"", "usr", "/", "/..", "/home", "/home/x", "/root/x", "/var/lib", "/proc", "/sys/fs", "/dev", "/run/x", "/etc", "/etc/ssl", "/usr/../etc", "/tmp/x"} {
		if r, err := Host(HostList{Paths: []string{p}}); err == nil {
			t.Errorf("path %q: %q", p, targets(r))
		}
	}
	for _, p := range []string{"", ".", "..", "../usr", "a/../b", "/usr", "shadow", "ssl", "ssl/private", "ssl/private/key", "sudoers.d", "ssh/ssh_host_rsa_key", "passwd", "machine-id", "[", "/etc/gshadow"} {
		if r, err := Host(HostList{Etc: []string{p}}); err == nil {
			t.Errorf("etc %q: %q", p, targets(r))
		}
	}
}

// On this host: everything shown exists, nothing of it is a refused tree, a secret or a private file's copy.
func TestHostHere(t *testing.T) {
	r, err := Host(DefaultHostList())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Binds) == 0 {
		t.Fatal("nothing is shown")
	}
	for _, b := range r.Binds {
		if _, err := os.Lstat(b.Source); err != nil {
			t.Error(err)
		}
		if rel, ok := strings.CutPrefix(b.Target, "/etc/"); ok && secret(rel) || !ok && withinAny(b.Target, refusedTrees) {
			t.Errorf("%s is shown", b.Target)
		}
	}
	for _, f := range r.Files {
		fi, err := os.Stat(f.Source)
		if err != nil || fi.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s is copied: %v, %v", f.Path, fi.Mode(), err)
		}
	}
	r2, err := Host(DefaultHostList())
	if err != nil || r2.Digest != r.Digest {
		t.Errorf("two digests: %s, %s, %v", r.Digest, r2.Digest, err)
	}
}
