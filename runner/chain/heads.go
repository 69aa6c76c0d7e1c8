package chain

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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

// ParseHead reads SEQ:HASH.
func ParseHead(text string) (h Head, err error) {
	seq, hash, ok := strings.Cut(text, ":")
	if h.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil || !ok || h.Seq < 1 {
		return h, fmt.Errorf("%q is not NUMBER:HASH", text)
	}
	return h, h.Hash.UnmarshalText([]byte(hash))
}

const (
	maxHeads  = 256 << 10 // bytes of the file; then it is written anew
	keepHeads = 1000      // tasks that it has then, the newest
	noTask    = "-"
)

// AppendHead appends a head to the file at path, a line of TASK SEQ HASH, and makes the file (0600). Writers take turns. It
// does not wait for the disk: a head that was lost vouches for nothing, and is no damage.
func AppendHead(path string, h Head) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
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
	return compact(path)
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

// ReadHeads reads the file at path: the newest head of each task, oldest first. Lines that were torn are passed over.
// fs.ErrNotExist.
func ReadHeads(path string) ([]Head, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := bytes.Split(text, []byte{'\n'})
	lines = lines[:len(lines)-1] // what has no newline is not whole
	var list []Head
	for _, line := range lines {
		if h, ok := parseLine(string(line)); ok {
			list = append(list, h)
		}
	}
	return newest(list), nil
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

// newest keeps the last head of each task.
func newest(list []Head) []Head {
	at := map[string]int{}
	for i, h := range list {
		at[h.Task] = i
	}
	kept := list[:0:0]
	for i, h := range list {
		if at[h.Task] == i {
			kept = append(kept, h)
		}
	}
	return kept
}

// compact writes the file anew, with the newest tasks' heads. It waits for the disk, which one append in a thousand does, so
// that the old file is not lost for one that is empty after a power cut.
func compact(path string) error {
	list, err := ReadHeads(path)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, h := range list[max(0, len(list)-keepHeads):] {
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
