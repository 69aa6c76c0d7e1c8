//go:build !unix

package profiles

import (
	"io/fs"
	"os"
)

var errNotADirectory = fs.ErrNotExist

// openFile refuses a link by looking first: there is no sandbox on these systems that could exchange the file.
func openFile(path string, noFollow bool) (*os.File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if noFollow && !info.Mode().IsRegular() {
		return nil, &Error{Source: path, Message: "is not a regular file"}
	}
	return os.Open(path)
}

func writableByAll(fs.FileInfo) bool { return false }
