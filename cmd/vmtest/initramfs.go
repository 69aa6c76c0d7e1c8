package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// File type bits of st_mode, as cpio stores them.
const (
	typeFile = 0o100000
	typeDir  = 0o040000
	typeLink = 0o120000
	typeChar = 0o020000
)

// entry is one object of the initramfs.
type entry struct {
	mode         uint32
	data         []byte // content, or a link's target
	source       string // host file to copy instead of data
	major, minor int
}

// tree collects the initramfs by path, without a leading slash. Parents are made on demand.
type tree struct{ entries map[string]entry }

func (t *tree) put(name string, e entry) {
	if p := path.Dir(name); p != "." {
		if _, ok := t.entries[p]; !ok {
			t.dir(p, 0o755)
		}
	}
	t.entries[name] = e
}

func (t *tree) dir(name string, perm uint32) { t.put(name, entry{mode: typeDir | perm}) }
func (t *tree) link(name, target string) {
	t.put(name, entry{mode: typeLink | 0o777, data: []byte(target)})
}
func (t *tree) bytes(name string, b []byte, p uint32) {
	t.put(name, entry{mode: typeFile | p, data: b})
}
func (t *tree) file(name, source string, perm uint32) {
	t.put(name, entry{mode: typeFile | perm, source: source})
}

// copyDir adds a host directory; only plain files, directories and links.
func (t *tree) copyDir(name, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target, perm := path.Join(name, filepath.ToSlash(rel)), uint32(info.Mode().Perm())
		switch {
		case d.IsDir():
			t.dir(target, perm)
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			t.link(target, to)
		case d.Type().IsRegular():
			t.file(target, p, perm)
		}
		return nil
	})
}

// baseTree is a minimal merged-usr system around a static busybox.
func baseTree() (*tree, error) {
	t := &tree{entries: map[string]entry{}}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("busybox (package busybox-static): %w", err)
	}
	out, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	for _, d := range []string{"dev", "etc/ssl/certs", "home", "mnt", "opt", "proc", "run", "srv", "sys", "usr/lib", "usr/lib64", "usr/local/bin", "usr/sbin", "usr/share", "var/lib"} {
		t.dir(d, 0o755)
	}
	t.dir("root", 0o700)
	t.dir("tmp", 0o1777)
	t.dir("var/tmp", 0o1777)
	t.dir("home/user", 0o750)
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		t.link(d, "usr/"+d)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		t.link("usr/bin/"+applet, "busybox")
	}
	t.file("usr/bin/busybox", busybox, 0o755)
	t.put("dev/console", entry{mode: typeChar | 0o600, major: 5, minor: 1})
	t.bytes("etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser:x:1001:1001::/home/user:/bin/sh\n"), 0o644)
	t.bytes("etc/group", []byte("root:x:0:\nnogroup:x:65534:\nuser:x:1001:\n"), 0o644)
	t.bytes("etc/shadow", []byte("root:*:19000:0:99999:7:::\n"), 0o600)
	t.bytes("etc/hosts", []byte("127.0.0.1 localhost vmtest\n"), 0o644)
	t.bytes("etc/nsswitch.conf", []byte("passwd: files\ngroup: files\nhosts: files\n"), 0o644)
	return t, addHostTools(t)
}

// write writes the tree as a cpio archive in the newc format (Linux: Documentation/driver-api/early-userspace/buffer-format.rst).
func (t *tree) write(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := &cpioWriter{w: bufio.NewWriterSize(f, 1<<20)}
	// A parent sorts before what is in it.
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.add(name, t.entries[name]); err != nil {
			return errors.Join(fmt.Errorf("initramfs: %s: %w", name, err), f.Close())
		}
	}
	return errors.Join(w.close(), f.Close())
}

type cpioWriter struct {
	w   *bufio.Writer
	ino int
	n   int64
}

func (c *cpioWriter) add(name string, e entry) error {
	var content io.Reader = strings.NewReader(string(e.data))
	size := int64(len(e.data))
	if e.source != "" {
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		content, size = io.LimitReader(f, info.Size()), info.Size()
	}
	c.ino++
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, e.mode, 0, 0, 1, 0, size, 0, 0, e.major, e.minor, len(name)+1, 0, name)
	if err := c.copy(strings.NewReader(head), int64(len(head))); err != nil {
		return err
	}
	return c.copy(content, size)
}

// copy writes exactly size bytes and pads to four.
func (c *cpioWriter) copy(r io.Reader, size int64) error {
	if _, err := io.CopyN(c.w, r, size); err != nil {
		return err
	}
	c.n += size
	pad := -c.n & 3
	c.n += pad
	_, err := c.w.Write(make([]byte, pad))
	return err
}

func (c *cpioWriter) close() error {
	if err := c.add("TRAILER!!!", entry{}); err != nil {
		return err
	}
	return c.w.Flush()
}
