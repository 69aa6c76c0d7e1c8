package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hostTools are programs that tests use in ways that busybox does not know. Each replaces the applet of its name in the
// machine, with its shared libraries; one that this host does not have is left to busybox.
var hostTools = []string{
	"bash", "cat", "chmod", "cp", "cut", "date", "dash", "dd", "env", "false", "head", "id", "ln", "ls", "mkdir", "mv", "rm", "seq", "sleep",
	"sort", "stat", "tail", "tee", "timeout", "touch", "tr", "true", "wc", "yes", "tar", "unshare", "mkfs.ext4", "e2fsck",
}

// libraryDirs are where Debian's, Fedora's and Arch's loaders look.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"}

// addHostTools copies the tools and what they are linked with.
func addHostTools(t *tree) error {
	for _, name := range hostTools {
		file, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err := addProgram(t, "usr/bin/"+name, file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if name == "dash" {
			t.link("usr/bin/sh", "dash")
		}
	}
	return nil
}

// addProgram adds a program or library and, if they are not there yet, those that it needs.
func addProgram(t *tree, target, source string) error {
	f, err := elf.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	t.file(target, source, 0o755)
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		path := make([]byte, p.Filesz-1) // a C string
		if _, err := p.ReadAt(path, 0); err != nil {
			return err
		}
		needed = append(needed, string(path))
	}
	for _, name := range needed {
		source, err := findLibrary(name)
		if err != nil {
			return err
		}
		target := strings.TrimPrefix(source, "/") // the machine's loader looks where the host's does
		if !strings.HasPrefix(target, "usr/") {
			target = "usr/" + target // merged: /lib and /lib64 are links
		}
		if _, ok := t.entries[target]; ok {
			continue
		}
		if err := addProgram(t, target, source); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
	}
	return nil
}

func findLibrary(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	i := slices.IndexFunc(libraryDirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return !errors.Is(err, fs.ErrNotExist)
	})
	if i < 0 {
		return "", fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
	}
	return filepath.Join(libraryDirs[i], name), nil
}
