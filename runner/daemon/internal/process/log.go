// Package process is how a program starts itself again in the background, and what it writes to then.
package process

import (
	"os"
	"sync"
)

// MaxLog is how large a log grows before it becomes PATH.1, in bytes.
const MaxLog = 8 << 20

// OpenLog opens a log for appending; a full one becomes PATH.1.
func OpenLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > MaxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// Log is a supervisor's log: two files of MaxLog bytes at most, the last line of a process that panics too.
type Log struct {
	Path string
	Turn func(*os.File) error // told of each new file; may be nil

	mu   sync.Mutex
	file *os.File
}

// Write appends whole lines.
func (j *Log) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		info, err := j.file.Stat() // others write to it as well: the runtime, when it panics
		if err == nil && info.Size()+int64(len(p)) <= MaxLog {
			return j.file.Write(p)
		}
		_ = j.file.Close()
		j.file = nil
		if err := os.Rename(j.Path, j.Path+".1"); err != nil {
			return 0, err
		}
	}
	f, err := OpenLog(j.Path)
	if err != nil {
		return 0, err
	}
	j.file = f
	if j.Turn != nil {
		if err := j.Turn(f); err != nil {
			return 0, err
		}
	}
	return f.Write(p)
}

// Close closes the file.
func (j *Log) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}
