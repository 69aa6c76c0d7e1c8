package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
	"github.com/caisson-dev/caisson/internal/testenv"
)

// TestVM is a part of the cgroup v2 leg that takes seconds. The whole of it takes longer than `go test` lets a package
// run: `go run ./cmd/vmtest`, which .ci/run does.
func TestVM(t *testing.T) {
	needVM(t)
	o := defaults(t)
	o.Packages = []string{"../../quota"}
	if err := run(t.Context(), o, t.Output()); err != nil {
		t.Fatal(err)
	}
}

// TestHarness proves that the leg can turn red.
func TestHarness(t *testing.T) {
	needVM(t)
	t.Setenv("CAISSON_TEST_REQUIRE", "sample")
	for _, tt := range []struct {
		test    string
		timeout time.Duration
		want    string // in the error; empty: success
	}{
		{"Pass", time.Minute, ""},
		{"Fail", time.Minute, "exit status 1"},
		{"KernelPanic", time.Minute, "Kernel panic"},
		{"PowerOff", time.Minute, "stopped before its tests were done"},
		{"Hang", 8 * time.Second, "did not finish within 8s"},
	} {
		t.Run(tt.test, func(t *testing.T) {
			o := defaults(t)
			o.Packages, o.Run, o.Timeout = []string{"./testdata/sample"}, "Test"+tt.test+"$", tt.timeout
			var out bytes.Buffer
			err := run(t.Context(), o, &out)
			if tt.want == "" {
				if err != nil {
					t.Fatalf("%v\n%s", err, out.Bytes())
				}
				if n := strings.Count(out.String(), "\nline "); n != 20000 { // sample_test.go prints so many
					t.Errorf("%d lines of 20000 came out", n)
				}
			} else if !errors.Is(err, errFailed) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q\n%s", err, tt.want, out.Bytes())
			}
		})
	}
}

func defaults(t *testing.T) options {
	t.Helper()
	o, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// needVM says what is missing on this host.
func needVM(t *testing.T) {
	t.Helper()
	_, err := findKernel(t.Context(), "")
	for _, tool := range []string{qemu, "busybox", "go"} {
		_, lookErr := exec.LookPath(tool)
		err = errors.Join(err, lookErr)
	}
	testenv.Need(t, "vm", err)
}

func TestFollow(t *testing.T) {
	begin := wire.Message{Seq: 1, Kind: wire.Begin, Package: "p"}
	for _, tt := range []struct {
		name     string
		messages []wire.Message
		out      string
		failed   int
		err      string
	}{
		{"pass", []wire.Message{begin, {Seq: 2, Kind: wire.Output, Output: []byte("x\n")}, {Seq: 3, Kind: wire.End, Package: "p"}, {Seq: 4, Kind: wire.Done}}, "x\nok  \tp\t0.000s [vm]\n", 0, ""},
		{"fail", []wire.Message{begin, {Seq: 2, Kind: wire.End, Package: "p", Error: "exit status 2"}, {Seq: 3, Kind: wire.Done}}, "FAIL\tp\t0.000s [vm]\n", 1, ""},
		{"lost", []wire.Message{begin, {Seq: 3, Kind: wire.Output, Output: []byte("x\n")}}, "", 0, "message 3 came where 2 was due"},
		{"not run", []wire.Message{{Seq: 1, Kind: wire.Done}}, "", 0, "1 tests did not run"},
		{"stopped", []wire.Message{begin}, "", 0, "stopped before"},
		{"broken", []wire.Message{{Seq: 1, Kind: wire.Broken, Error: "no disk"}}, "", 0, "init: no disk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var in, out bytes.Buffer
			enc := json.NewEncoder(&in)
			for _, m := range tt.messages {
				if err := enc.Encode(m); err != nil {
					t.Fatal(err)
				}
			}
			failed, err := follow(json.NewDecoder(&in), 1, &out)
			if out.String() != tt.out || len(failed) != tt.failed {
				t.Errorf("output %q, failed %v", out.String(), failed)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// TestInitramfs unpacks with the cpio of busybox, an independent reader.
func TestInitramfs(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	testenv.Need(t, "vm", err)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr := &tree{entries: map[string]entry{}}
	tr.bytes("a/b/c", []byte("12345"), 0o640)
	tr.file("a/copy", source, 0o755)
	tr.link("a/link", "b/c")
	img := filepath.Join(dir, "img")
	if err := tr.write(img); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(busybox, "cpio", "-i", "-F", img)
	c.Dir = out
	if msg, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	for name, want := range map[string]string{"a/link": "12345", "a/copy": "from the host"} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(out, "a/b/c")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode: %v, %v", info, err)
	}
}

func TestParse(t *testing.T) {
	if _, err := parse([]string{"stray"}, io.Discard); err == nil {
		t.Error("a stray argument was accepted")
	}
	o, err := parse([]string{"-packages", "./a,./b", "-drive", "x,y", "-mem", "512"}, io.Discard)
	if err != nil || len(o.Packages) != 2 || len(o.Drives) != 2 || o.MemoryMB != 512 {
		t.Errorf("%+v, %v", o, err)
	}
}
