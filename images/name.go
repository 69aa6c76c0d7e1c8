package images

import (
	"errors"
	"path"
	"strings"
)

// maxName is PATH_MAX of the kernel; a longer name could not be opened afterwards.
const maxName = 4096

var (
	errAbsolute = errors.New("its path is absolute")
	errDotDot   = errors.New(`its path has a ".." element`)
	errNUL      = errors.New("its path holds a NUL byte")
	errLong     = errors.New("its path is longer than 4096 bytes")
	errEmpty    = errors.New("its path is empty")
)

// cleanName turns the path of a tar entry into one that is relative, has no empty, "." or ".." element and
// no trailing slash, or refuses it. "." is the root itself. What is refused is refused whole: archives with
// such paths are not made by accident, and repairing them is how they get in.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", errEmpty
	case len(name) > maxName:
		return "", errLong
	case strings.ContainsRune(name, 0):
		return "", errNUL
	case name[0] == '/':
		return "", errAbsolute
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return "", errDotDot
		}
	}
	return path.Clean(name), nil
}
