package gitbranch

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// CheckName refuses what git check-ref-format --branch does, and what would be a surprise: names of other namespaces.
func CheckName(name string) error {
	bad := func(why string) error {
		return &Error{Reason: fmt.Sprintf("%q cannot be a branch: %s", name, why), Remedy: "name one such as " + Prefix + "fix with --branch"}
	}
	switch {
	case name == "":
		return bad("it is empty")
	case name == "HEAD", name == "@", strings.HasPrefix(name, "refs/"):
		return bad("git gives it another meaning")
	case strings.HasPrefix(name, "-"):
		return bad("it begins with -")
	case strings.Contains(name, ".."), strings.Contains(name, "@{"), strings.HasSuffix(name, "."):
		return bad("it holds .. or @{, or ends with a full stop")
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) }):
		return bad(`it holds a blank, a control character or one of ~^:?*[\`)
	case !utf8.ValidString(name), len(name) > 200:
		return bad("it is no UTF-8, or longer than 200 bytes")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return bad("a part of it is empty, begins with a full stop or ends with .lock")
		}
	}
	return nil
}

// forbidden tells why no tree may hold a path, as verify_path of git's read-cache.c does with all of its protections on, so that
// the commit can be checked out everywhere. "" for all others.
func forbidden(path string, link bool) string {
	parts := strings.Split(path, "/")
	if len(parts) > maxDepth {
		return "it lies too deep for git"
	}
	for _, p := range parts {
		switch {
		case p == "", p == ".", p == "..":
			return "git knows no such name"
		case isDot(p, "git", "git~1"):
			return "git keeps its own files under such a name"
		}
	}
	if link && isDot(parts[len(parts)-1], "gitmodules", "gitmod~1") {
		return "git refuses .gitmodules as a symbolic link"
	}
	return ""
}

// maxDepth is core.maxTreeDepth of git.
const maxDepth = 2048

// isDot reports whether a filesystem somewhere takes a name for "."+what: in capitals or small letters, HFS+ without the
// characters that it ignores, NTFS as the short name, with dots, blanks or a stream after it, or before a backslash.
func isDot(name, what, short string) bool {
	for part := range strings.SplitSeq(name, `\`) {
		part = strings.Map(func(r rune) rune {
			if r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff {
				return -1
			}
			return r
		}, part)
		part, _, _ = strings.Cut(part, ":")
		part = strings.TrimRight(part, " .")
		if strings.EqualFold(part, "."+what) || strings.EqualFold(part, short) {
			return true
		}
	}
	return false
}
