// Package artifacts keeps what verdicts rest on besides a change: logs of commands and reports of tools. They lie beside each
// other in one directory of a feature, each under the digest of its content, so that the same text is there once and a changed
// one is found out. Each is bounded, and so are all of them. Whoever puts one in has taken out what is secret.
package artifacts

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
)

// The bounds, in bytes: of one artifact, and of all that a feature has. Beyond that the oldest go.
const (
	MaxOne = 1 << 20
	MaxAll = 64 << 20
)

// folder is where they lie in a feature's directory.
const folder = "evidence"

// ErrChanged is the error of an artifact whose content is not what its name says.
var ErrChanged = errors.New("the artifact is not what it was")

// Store is one feature's artifacts. Its directory is made with the first. Several processes may use it at once.
type Store struct{ dir string }

// Of is the store of the feature whose directory this is.
func Of(featureDir string) *Store { return &Store{dir: filepath.Join(featureDir, folder)} }

// Put keeps what write writes: all of it, or of more than MaxOne bytes the beginning and the end, and then cut is true.
// An empty text has no path.
func (s *Store) Put(write func(io.Writer) error) (a gates.Artifact, cut bool, err error) {
	text := &ends{most: MaxOne / 2}
	if err := write(text); err != nil {
		return a, false, err
	}
	data, cut := text.bytes()
	if len(data) == 0 {
		return a, false, nil
	}
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	a = gates.Artifact{Path: folder + "/" + name, Bytes: int64(len(data)), SHA256: name}
	return a, cut, s.keep(name, data)
}

// keep writes a file whole, or not at all.
func (s *Store) keep(name string, data []byte) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return s.trim(name)
}

// trim removes the oldest until all take no more than MaxAll, but never the one called last.
func (s *Store) trim(last string) error {
	list, total, err := s.list()
	for _, f := range list {
		if err != nil || total <= MaxAll {
			break
		}
		if f.Name() != last {
			total -= f.Size()
			err = remove(filepath.Join(s.dir, f.Name()))
		}
	}
	return err
}

// list has the files, oldest first, and how many bytes they have together.
func (s *Store) list() (list []fs.FileInfo, total int64, err error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // another process may have removed it
			list = append(list, info)
			total += info.Size()
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return list, total, err
}

// Size says how many bytes an artifact has, by its Path. It is what gates.Options.Artifacts wants.
func (s *Store) Size(path string) (int64, error) {
	name, err := nameOf(path)
	if err != nil {
		return 0, err
	}
	info, err := os.Lstat(filepath.Join(s.dir, name))
	if err != nil {
		return 0, errors.Unwrap(err) // whoever is told knows the path
	}
	return info.Size(), nil
}

// Read returns an artifact. ErrChanged when it is not what it was.
func (s *Store) Read(path string) ([]byte, error) {
	name, err := nameOf(path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
		return nil, ErrChanged
	}
	return data, nil
}

// Retain removes those that no verdict rests on, and what a dead process left half made. Nobody may put one in meanwhile. It
// returns how many bytes became free.
func (s *Store) Retain(verdicts []gates.Verdict) (freed int64, err error) {
	named := map[string]bool{}
	for i := range verdicts {
		for _, e := range verdicts[i].Evidence {
			if e.Report != nil {
				named[e.Report.SHA256] = true
			}
			if e.Log != nil {
				named[e.Log.SHA256] = true
			}
		}
	}
	list, _, err := s.list()
	for _, f := range list {
		if named[f.Name()] || err != nil {
			continue
		}
		if err = remove(filepath.Join(s.dir, f.Name())); err == nil {
			freed += f.Size()
		}
	}
	return freed, err
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// nameOf is the name of a file in the store: 64 hexadecimal digits, and nothing that leads elsewhere.
func nameOf(path string) (string, error) {
	name, ok := strings.CutPrefix(path, folder+"/")
	if raw, err := hex.DecodeString(name); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(name) != name {
		return "", fmt.Errorf("%q is no artifact: %w", path, fs.ErrNotExist)
	}
	return name, nil
}

// ends keeps the first and the last bytes that are written to it, at most most of each.
type ends struct {
	most       int
	head, tail []byte
	missing    int64 // between the two
}

func (e *ends) Write(p []byte) (int, error) {
	n := len(p)
	k := min(n, e.most-len(e.head))
	e.head, p = append(e.head, p[:k]...), p[k:]
	e.tail = append(e.tail, p...)
	if len(e.tail) > 2*e.most { // seldom, so that it costs little
		e.cut()
	}
	return n, nil
}

func (e *ends) cut() {
	if over := len(e.tail) - e.most; over > 0 {
		e.missing += int64(over)
		e.tail = append(e.tail[:0], e.tail[over:]...)
	}
}

func (e *ends) bytes() (data []byte, cut bool) {
	e.cut()
	if e.missing == 0 {
		return append(e.head, e.tail...), false
	}
	var b bytes.Buffer
	b.Write(e.head)
	fmt.Fprintf(&b, "\n[caisson: %d bytes are missing here]\n", e.missing)
	b.Write(e.tail)
	return b.Bytes(), true
}
