package tree

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Kind is what happened to a path. A rename is a deletion and an addition.
type Kind string

const (
	Added    Kind = "added"
	Modified Kind = "modified" // content, device number or extended attributes; the mode may differ too
	Deleted  Kind = "deleted"
	ModeOnly Kind = "mode"
	TypeOnly Kind = "type" // another type of file than before
	LinkOnly Kind = "link" // a symbolic link with another target
)

// FileType is a path's type.
type FileType string

const (
	File    FileType = "file"
	Dir     FileType = "dir"
	Symlink FileType = "symlink"
	Fifo    FileType = "fifo"
	Socket  FileType = "socket"
	Char    FileType = "char"
	Block   FileType = "block"
)

// Change is the difference between the base and what the sandbox sees at /workspace. Owners and times are no part of
// it: a file of which only these differ is not listed.
type Change struct {
	// Entries are sorted by path with '/' before every other byte: a directory, then everything below it. Below a
	// directory that was added or deleted, everything is listed.
	Entries []Entry `json:"entries"`

	Added    int   `json:"added"`
	Modified int   `json:"modified"` // modified, mode, type and link
	Deleted  int   `json:"deleted"`
	Bytes    int64 `json:"bytes"` // sizes of the added and modified files, in all

	// Digest is the SHA-256, in hexadecimal, of every entry's metadata and new content: what a verdict is bound to.
	Digest string `json:"digest"`

	// Resolved is set in a change whose conflicts were resolved.
	Resolved *Resolved `json:"-"`

	// From and To are the caller's names of the two sides.
	From string `json:"-"`
	To   string `json:"-"`

	detail *detail // what promoting needs; nil in a Change that Compare did not read
}

// Entry is one path of a Change. Fields named Old describe the base, the others the sandbox's view; those of a side
// on which there is nothing are zero.
type Entry struct {
	Path     string // relative to the workspace, raw bytes; "." is its root
	Kind     Kind
	Type     FileType
	OldType  FileType
	Mode     fs.FileMode // permissions, and fs.ModeSetuid, ModeSetgid and ModeSticky
	OldMode  fs.FileMode
	Size     int64 // of files, in bytes
	OldSize  int64
	Link     string // a symbolic link's target, raw bytes
	OldLink  string
	Binary   bool   // the new content has a NUL among its first 8,000 bytes
	Xattrs   bool   // user.* attributes differ
	HardLink string // the first path of the change that is the same file, if that is another

	detail *Detail
}

// entryJSON is Entry in JSON. A string that is not UTF-8 has U+FFFD in place of the bad bytes, and its raw bytes
// stand beside it in base64.
type entryJSON struct {
	Path       string   `json:"path"`
	PathRaw    string   `json:"path_base64,omitempty"`
	Kind       Kind     `json:"kind"`
	Type       FileType `json:"type,omitempty"`
	OldType    FileType `json:"old_type,omitempty"`
	Mode       string   `json:"mode,omitempty"` // octal, four digits
	OldMode    string   `json:"old_mode,omitempty"`
	Size       int64    `json:"size,omitempty"`
	OldSize    int64    `json:"old_size,omitempty"`
	Link       string   `json:"link,omitempty"`
	LinkRaw    string   `json:"link_base64,omitempty"`
	OldLink    string   `json:"old_link,omitempty"`
	OldLinkRaw string   `json:"old_link_base64,omitempty"`
	Binary     bool     `json:"binary,omitempty"`
	Xattrs     bool     `json:"xattrs,omitempty"`
	Hard       string   `json:"hard_link,omitempty"`
	HardRaw    string   `json:"hard_link_base64,omitempty"`
}

// MarshalJSON writes paths that are not UTF-8 twice: readable, and exact as path_base64. Modes are octal strings.
func (e Entry) MarshalJSON() ([]byte, error) {
	j := entryJSON{
		Kind: e.Kind, Type: e.Type, OldType: e.OldType,
		Size: e.Size, OldSize: e.OldSize, Binary: e.Binary, Xattrs: e.Xattrs,
	}
	j.Path, j.PathRaw = encodeRaw(e.Path)
	j.Link, j.LinkRaw = encodeRaw(e.Link)
	j.OldLink, j.OldLinkRaw = encodeRaw(e.OldLink)
	j.Hard, j.HardRaw = encodeRaw(e.HardLink)
	if e.Type != "" {
		j.Mode = Octal(e.Mode)
	}
	if e.OldType != "" {
		j.OldMode = Octal(e.OldMode)
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var j entryJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*e = Entry{
		Kind: j.Kind, Type: j.Type, OldType: j.OldType,
		Size: j.Size, OldSize: j.OldSize, Binary: j.Binary, Xattrs: j.Xattrs,
	}
	for _, f := range []struct {
		to         *string
		text, base string
	}{
		{&e.Path, j.Path, j.PathRaw}, {&e.Link, j.Link, j.LinkRaw},
		{&e.OldLink, j.OldLink, j.OldLinkRaw}, {&e.HardLink, j.Hard, j.HardRaw},
	} {
		raw, err := decodeRaw(f.text, f.base)
		if err != nil {
			return fmt.Errorf("entry %q: %w", j.Path, err)
		}
		*f.to = raw
	}
	for _, m := range []struct {
		to   *fs.FileMode
		text string
	}{{&e.Mode, j.Mode}, {&e.OldMode, j.OldMode}} {
		if m.text == "" {
			continue
		}
		bits, err := strconv.ParseUint(m.text, 8, 12)
		if err != nil {
			return fmt.Errorf("entry %q: mode: %w", j.Path, err)
		}
		*m.to = FileMode(uint32(bits))
	}
	return nil
}

func encodeRaw(s string) (text, raw string) {
	if utf8.ValidString(s) {
		return s, ""
	}
	return strings.ToValidUTF8(s, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(s))
}

func decodeRaw(text, raw string) (string, error) {
	if raw == "" {
		return text, nil
	}
	b, err := base64.StdEncoding.DecodeString(raw)
	return string(b), err
}

// Octal prints a mode as four octal digits or more.
func Octal(m fs.FileMode) string { return fmt.Sprintf("%04o", UnixMode(m)) }

// UnixMode returns the low twelve bits of a Unix mode.
func UnixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// FileMode is the inverse of UnixMode; higher bits are ignored.
func FileMode(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	if bits&0o4000 != 0 {
		m |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		m |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// Quote returns a path as git prints it: unchanged, or in double quotes with C escapes and octal bytes when it holds
// control characters, quotes, backslashes or bytes outside of ASCII.
func Quote(path string) string { return beneath.Quote(path) }

// ComparePaths orders paths as Change.Entries are.
func ComparePaths(a, b string) int { return beneath.ComparePaths(a, b) }

// Below reports whether path lies in dir or is dir.
func Below(path, dir string) bool { return beneath.Below(path, dir) }
