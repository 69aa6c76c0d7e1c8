package artifacts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
)

func put(t *testing.T, s *Store, text string) (gates.Artifact, bool) {
	t.Helper()
	a, cut, err := s.Put(func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	if err != nil {
		t.Fatal(err)
	}
	return a, cut
}

func TestPut(t *testing.T) {
	dir := t.TempDir()
	s := Of(dir)
	if _, err := os.Lstat(filepath.Join(dir, "evidence")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a directory before anything is in it:", err)
	}
	if a, cut := put(t, s, ""); a != (gates.Artifact{}) || cut {
		t.Errorf("an empty text is %+v", a)
	}
	a, cut := put(t, s, "one")
	sum := sha256.Sum256([]byte("one"))
	name := hex.EncodeToString(sum[:])
	if a != (gates.Artifact{Path: "evidence/" + name, Bytes: 3, SHA256: name}) || cut {
		t.Errorf("%+v", a)
	}
	if again, _ := put(t, s, "one"); again != a {
		t.Errorf("%+v", again)
	}
	if n, err := s.Size(a.Path); n != 3 || err != nil {
		t.Error(n, err)
	}
	if data, err := s.Read(a.Path); string(data) != "one" || err != nil {
		t.Errorf("%q %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(dir, a.Path), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(a.Path); !errors.Is(err, ErrChanged) {
		t.Error("a changed artifact is read:", err)
	}
	failed := errors.New("no")
	if _, _, err := s.Put(func(io.Writer) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// Of a text that is too long both ends stay, however it is written.
func TestBounded(t *testing.T) {
	for _, piece := range []int{7, 4096, 3 << 20} {
		s := Of(t.TempDir())
		text := "begin" + strings.Repeat("x", 3<<20) + "end"
		a, cut, err := s.Put(func(w io.Writer) error {
			for rest := text; rest != ""; {
				n := min(piece, len(rest))
				if _, err := io.WriteString(w, rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		})
		data, rerr := s.Read(a.Path)
		missing := fmt.Sprintf("[caisson: %d bytes are missing here]", len(text)-MaxOne)
		if err != nil || rerr != nil || !cut || a.Bytes > MaxOne+100 || !bytes.HasPrefix(data, []byte("begin")) || !bytes.HasSuffix(data, []byte("end")) ||
			!bytes.Contains(data, []byte(missing)) {
			t.Errorf("in pieces of %d: %+v %v %v %v", piece, a, cut, err, rerr)
		}
	}
}

// A path never leads out of the store.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"", "lock", "evidence", "evidence/", "evidence/../lock", "/etc/passwd", "evidence/" + strings.Repeat("A", 64), "evidence/" + strings.Repeat("a", 62)} {
		if _, err := Of(dir).Size(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", p, err)
		}
		if _, err := Of(dir).Read(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func TestRetain(t *testing.T) {
	dir := t.TempDir()
	s := Of(dir)
	if freed, err := s.Retain(nil); freed != 0 || err != nil {
		t.Error("of a store without anything:", freed, err)
	}
	log, _ := put(t, s, "log")
	report, _ := put(t, s, "report")
	put(t, s, "nobody's")
	if err := os.WriteFile(filepath.Join(dir, "evidence", ".new-1"), []byte("xx"), 0o600); err != nil {
		t.Fatal(err)
	}
	freed, err := s.Retain([]gates.Verdict{{}, {Evidence: []gates.Evidence{gates.OfLog(gates.Log{Artifact: log}), gates.OfFile("x")}},
		{Evidence: []gates.Evidence{gates.OfReport(gates.Report{Artifact: report})}}})
	left, lerr := os.ReadDir(filepath.Join(dir, "evidence"))
	if freed != 10 || err != nil || len(left) != 2 || lerr != nil {
		t.Error(freed, err, left, lerr)
	}
}

// The oldest go when there is too much.
func TestTrim(t *testing.T) {
	dir := t.TempDir()
	s := Of(dir)
	old, _ := put(t, s, "old")
	young, _ := put(t, s, "young")
	before := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Truncate(filepath.Join(dir, old.Path), MaxAll), os.Chtimes(filepath.Join(dir, old.Path), before, before)); err != nil {
		t.Fatal(err)
	}
	last, _ := put(t, s, "last")
	_, gone := s.Size(old.Path)
	_, err := s.Size(young.Path)
	_, lerr := s.Size(last.Path)
	if !errors.Is(gone, fs.ErrNotExist) || err != nil || lerr != nil {
		t.Error(gone, err, lerr)
	}
}
