package beneath

import (
	"errors"
	"strings"
)

// MaxPath is the longest path that is followed, in bytes.
const MaxPath = 16 << 10

// ErrPathTooLong is the error of a longer one, which only a hostile program makes.
var ErrPathTooLong = errors.New("path is too long")

// ComparePaths orders paths with '/' before every other byte: a directory, then everything below it.
func ComparePaths(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			return rank(a[i]) - rank(b[i])
		}
	}
	return len(a) - len(b)
}

func rank(c byte) int {
	if c == '/' {
		return 0
	}
	return int(c) + 1
}

// Below reports whether path lies in dir or is dir.
func Below(path, dir string) bool {
	if dir == "." || dir == "" {
		return true
	}
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}
