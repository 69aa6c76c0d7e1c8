package profiles

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckMount(t *testing.T) {
	root := tree(t, map[string]string{
		"plain/sub/file": "x", "state/store.db": "", "workspace/f": "", "socket/deep/er/x": "", "home/data/x": "", "state2/x": "",
	})
	listener, err := net.Listen("unix", filepath.Join(root, "socket/deep/s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Symlink("/", root+"/slash"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root+"/plain", root+"/link"); err != nil {
		t.Fatal(err)
	}
	o := MountCheck{StateDir: root + "/state", Workspace: root + "/workspace", Home: root + "/home"}
	allowed := map[string]string{
		root + "/plain": root + "/plain", root + "/plain/sub/file": root + "/plain/sub/file", root + "/link": root + "/plain",
		"~/data": root + "/home/data", root + "/state2": root + "/state2", root + "/workspace": root + "/workspace",
	}
	for source, want := range allowed {
		if got, err := CheckMount(Mount{Source: source, ReadOnly: true}, o); got != want || err != nil {
			t.Errorf("%s: %q %v", source, got, err)
		}
	}
	refused := map[string]string{
		"/": "the whole host", root + "/slash": "the whole host", "/proc": "/proc, which", "/proc/sys": "/proc, which", "/sys": "/sys,",
		"/dev/null": "/dev, which", "/run": "/run,", root + "/state": "own state", root + "/state/store.db": "own state",
		root: "own state", root + "/socket": "/socket/deep/s", root + "/socket/deep/s": "a socket", root + "/gone": "no such file",
	}
	for source, want := range refused {
		_, err := CheckMount(Mount{Source: source, ReadOnly: true}, o)
		var m *MountError
		if !errors.As(err, &m) || !strings.Contains(m.Reason, want) || m.Remedy == "" || m.Source != source {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
		_, err = CheckMount(Mount{Source: source, ReadOnly: true, Trusted: true}, o)
		if exists := source != root+"/gone"; exists != (err == nil) {
			t.Errorf("%s, trusted: %v", source, err)
		}
	}
	for _, source := range []string{root + "/workspace", root + "/workspace/f", root} {
		if _, err := CheckMount(Mount{Source: source, Trusted: true}, o); err == nil {
			t.Errorf("%s is writable", source)
		}
	}
}

// TestTrustOfAMount: -v may show what a trusted profile names, and the workspace's file names nothing.
func TestTrustOfAMount(t *testing.T) {
	root := tree(t, map[string]string{
		"user/default.yaml":       "mounts: [{source: /run/s, target: /s}]\n",
		"workspace/.caisson.yaml": "mounts: [{source: /run/s, target: /s}]\n",
	})
	o := options(root)
	o.Flags = map[string][]string{"volume": {"/run/s:/other", "/run/t:/t"}}
	got := map[string]bool{}
	for _, m := range load(t, o).Mounts {
		got[m.Target] = m.Trusted
	}
	if len(got) != 3 || !got["/s"] || !got["/other"] || got["/t"] {
		t.Errorf("%v", got)
	}
}

func TestCacheMounts(t *testing.T) {
	root := tree(t, map[string]string{"home/go/pkg/mod/x": "", "home/file": "", "abs/x": ""})
	if err := os.Symlink(root+"/abs", root+"/home/linked"); err != nil {
		t.Fatal(err)
	}
	p := &Profile{Caches: []string{"~/go/pkg/mod", "~/gone", "~/file", "~/linked", root + "/abs"}}
	want := []Mount{
		{root + "/home/go/pkg/mod", "/home/user/go/pkg/mod", true, true},
		{root + "/abs", "/home/user/linked", true, true},
		{root + "/abs", root + "/abs", true, true},
	}
	got := p.CacheMounts(root + "/home")
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
	if n := len(p.CacheMounts("")); n != 1 {
		t.Errorf("%d caches without a home", n)
	}
}
