package images

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ ref, kind, arg string }{
		{"", KindHost, ""},
		{"host", KindHost, ""},
		{"/srv/root", KindDir, "/srv/root"},
		{"/srv/root/../x", KindDir, "/srv/x"},
		{"./root", KindDir, filepath.Join(wd, "root")},
		{"dir:root", KindDir, filepath.Join(wd, "root")},
		{"dir:/a.tar", KindDir, "/a.tar"},
		{"/a.tar", KindTar, "/a.tar"},
		{"/a.tgz", KindTar, "/a.tgz"},
		{"../a.tar.gz", KindTar, filepath.Join(filepath.Dir(wd), "a.tar.gz")},
		{"tar:/a", KindTar, "/a"},
		{"tar:/a:b", KindTar, "/a:b"},
	} {
		kind, arg, err := Parse(c.ref)
		if err != nil || kind != c.kind || arg != c.arg {
			t.Errorf("Parse(%q) = %q, %q, %v; want %q, %q", c.ref, kind, arg, err, c.kind, c.arg)
		}
	}
	for _, ref := range []string{"debian", "debian:12", "ghcr.io/a/b:c", "docker://x", "root/x"} {
		if _, _, err := Parse(ref); !errors.Is(err, ErrRegistry) {
			t.Errorf("Parse(%q): %v, want ErrRegistry", ref, err)
		}
	}
	for _, ref := range []string{"dir:", "tar:", "dir:a\x00b"} {
		if _, _, err := Parse(ref); err == nil || errors.Is(err, ErrRegistry) {
			t.Errorf("Parse(%q): %v", ref, err)
		}
	}
}

func TestEtcFiles(t *testing.T) {
	files := EtcFiles("caisson", "user", 1000, 1001, "")
	for name, want := range map[string]string{
		"etc/passwd":   "user:x:1000:1000:",
		"etc/group":    "user:x:1001:\n",
		"etc/hostname": "caisson\n",
		"etc/hosts":    "localhost caisson\n",
	} {
		want = strings.Replace(want, ":1000:1000:", ":1000:1001:", 1)
		if !strings.Contains(string(files[name]), want) {
			t.Errorf("%s lacks %q:\n%s", name, want, files[name])
		}
	}
	if got := files["etc/machine-id"]; got == nil || len(got) != 0 {
		t.Errorf("machine-id: %q, want an empty file", got)
	}
	if got := EtcFiles("h", "user", 0, 0, "abc"); strings.Count(string(got["etc/passwd"]), ":0:0:") != 1 || string(got["etc/machine-id"]) != "abc\n" {
		t.Errorf("for root: %q", got)
	}
	for _, n := range etcNames {
		if _, ok := files["etc/"+n]; !ok && n != "mtab" { // mtab is a link of the skeleton's
			t.Errorf("%s is hidden but not made", n)
		}
	}
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	r, err := Dir(dir)
	if err != nil || r.Kind != KindDir || r.Lower != dir || r.Digest == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if l, err := Dir(link); err != nil || l.Lower != r.Lower || l.Digest != r.Digest {
		t.Errorf("through a link: %+v, %v", l, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"/", "/etc", "/etc/ssl", "/usr", "/proc/self", "/dev", "/home", "/..", file, filepath.Join(dir, "missing")} {
		if r, err := Dir(bad); err == nil {
			t.Errorf("Dir(%q) = %+v", bad, r)
		}
	}
}
