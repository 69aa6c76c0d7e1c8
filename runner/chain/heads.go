package chain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Head is an entry by its number and hash. It vouches for every entry before it.
type Head struct {
	Task string `json:"task,omitempty"` // whose entry it is; "" when of none
	Seq  int64  `json:"seq"`
	Hash Hash   `json:"hash"`
	From string `json:"-"` // who keeps it, for people
}

// String is SEQ:HASH.
func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

// maxSeq leaves room for numbers after any that is read: no log comes near it.
const maxSeq = 1 << 62

// ParseHead reads SEQ:HASH.
func ParseHead(text string) (h Head, err error) {
	seq, hash, ok := strings.Cut(text, ":")
	if h.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil || !ok || h.Seq < 1 || h.Seq > maxSeq {
		return h, fmt.Errorf("%q is not NUMBER:HASH", text)
	}
	return h, h.Hash.UnmarshalText([]byte(hash))
}

const (
	maxHeads  = 256 << 10 // bytes of the file; then it is written anew
	keepHeads = 1000      // tasks that it has then, the newest, and of those that the log contradicts
	tailHeads = 1 << 10   // bytes at its end, in which the last line is
	noTask    = "-"
)

// AppendHead appends a head to the file at path, a line of TASK SEQ HASH. Writers take turns. It does not wait for the disk: a
// head that was lost vouches for nothing, and is no damage. A file that is gone is fs.ErrNotExist, and stays gone: that is
// for a check to tell. When the file has become too long it is written anew with the newest heads of the newest tasks, and
// with those of which denied says that the log has another entry in their place: they are evidence.
func AppendHead(path string, h Head, denied func(Head) bool) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	line := h.line()
	last := []byte{'\n'}
	if n := info.Size(); n > 0 {
		if _, err := f.ReadAt(last, n-1); err != nil {
			return err
		}
	}
	if last[0] != '\n' { // the line before was torn: it is not to spoil this one
		line = "\n" + line
	}
	if _, err = f.WriteString(line); err != nil || info.Size()+int64(len(line)) <= maxHeads {
		return err
	}
	return compact(path, denied)
}

func (h *Head) line() string {
	task := h.Task
	if task == "" {
		task = noTask
	}
	return task + " " + strconv.FormatInt(h.Seq, 10) + " " + h.Hash.String() + "\n"
}

// MakeHeads makes the file at path, unless it is there.
func MakeHeads(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// LastHead is the newest line of the file at path; the zero Head where it has none. It reads the file's end. fs.ErrNotExist.
func LastHead(path string) (h Head, err error) {
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return h, err
	}
	tail := make([]byte, min(info.Size(), tailHeads))
	n, err := f.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && !errors.Is(err, io.EOF) {
		return h, err
	}
	list := parseHeads(tail[:n])
	if len(list) == 0 && info.Size() > tailHeads { // much of it was torn
		if list, err = ReadHeads(path); err != nil {
			return h, err
		}
	}
	if len(list) == 0 {
		return h, nil
	}
	return list[len(list)-1], nil
}

// ReadHeads reads the file at path, oldest first. Lines that were torn are passed over. fs.ErrNotExist.
func ReadHeads(path string) ([]Head, error) {
	text, err := os.ReadFile(path)
	return parseHeads(text), err
}

func parseHeads(text []byte) (list []Head) {
	lines := bytes.Split(text, []byte{'\n'})
	lines = lines[:len(lines)-1] // what has no newline is not whole
	for _, line := range lines {
		if h, ok := parseLine(string(line)); ok {
			list = append(list, h)
		}
	}
	return list
}

func parseLine(line string) (h Head, ok bool) {
	words := strings.Split(line, " ")
	if len(words) != 3 || words[0] == "" {
		return h, false
	}
	h, err := ParseHead(words[1] + ":" + words[2])
	if words[0] != noTask {
		h.Task = words[0]
	}
	return h, err == nil
}

// kept is what stays of a list: the last head of each of the newest tasks, and the oldest of those that the log denies.
func kept(list []Head, denied func(Head) bool) []Head {
	stays := make([]bool, len(list))
	tasks := map[string]bool{}
	for i, h := range slices.Backward(list) {
		stays[i] = !tasks[h.Task] && len(tasks) < keepHeads
		tasks[h.Task] = true
	}
	evidence := 0
	for i, h := range list {
		if evidence < keepHeads && denied(h) {
			stays[i] = true
			evidence++
		}
	}
	var rest []Head
	for i, h := range list {
		if stays[i] {
			rest = append(rest, h)
		}
	}
	return rest
}

// compact writes the file anew. It waits for the disk, which one append in a thousand does, so that the old file is not lost
// for one that is empty after a power cut.
func compact(path string, denied func(Head) bool) error {
	list, err := ReadHeads(path)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, h := range kept(list, denied) {
		text.WriteString(h.line())
	}
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text.String())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
