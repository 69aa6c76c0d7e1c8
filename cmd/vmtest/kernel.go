package main

import (
	"bufio"
	"context"
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

// errNoKernel means that no kernel for the machine is here.
var errNoKernel = errors.New("no linux-image-cloud-amd64 kernel in /boot or .cache/vmtest/boot; `.ci/kernel` fetches one")

// kernel is a bootable image with its modules.
type kernel struct {
	Image   string
	Version string
	Modules string // lib/modules/VERSION
}

// findKernel returns the kernel of file, or without file the newest that is installed or unpacked.
func findKernel(ctx context.Context, file string) (kernel, error) {
	if file == "" {
		found, err := filepath.Glob("/boot/vmlinuz-*cloud-amd64")
		if err != nil {
			return kernel{}, err
		}
		if root, err := moduleRoot(ctx); err == nil {
			unpacked, err := filepath.Glob(filepath.Join(root, ".cache/vmtest/boot/vmlinuz-*cloud-amd64"))
			if err != nil {
				return kernel{}, err
			}
			found = append(found, unpacked...)
		}
		if len(found) == 0 {
			return kernel{}, errNoKernel
		}
		file = slices.MaxFunc(found, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	}
	version, ok := strings.CutPrefix(filepath.Base(file), "vmlinuz-")
	if !ok {
		return kernel{}, fmt.Errorf("%s: a kernel image must be called vmlinuz-VERSION", file)
	}
	k := kernel{Image: file, Version: version, Modules: filepath.Join(filepath.Dir(filepath.Dir(file)), "lib/modules", version)}
	for _, p := range []string{k.Image, k.Modules} {
		if _, err := os.Stat(p); err != nil {
			return kernel{}, err
		}
	}
	return k, nil
}

// moduleRoot is the directory of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// addModules puts the modules and what they depend on into the tree and returns them in loading order.
// Dependencies are read from the modules themselves: modules.dep exists only where depmod has run.
func addModules(tree *tree, k kernel) ([]string, error) {
	files, err := moduleFiles(k)
	if err != nil {
		return nil, err
	}
	var order []string
	var add func(name string) error
	add = func(name string) error {
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", k.Version, name)
		}
		target := "vmtest/modules/" + name + ".ko"
		if file == "" || slices.Contains(order, "/"+target) { // built in, or there already
			return nil
		}
		deps, err := moduleDepends(file)
		if err != nil {
			return err
		}
		for _, d := range deps {
			if err := add(d); err != nil {
				return err
			}
		}
		tree.file(target, file, 0o644)
		order = append(order, "/"+target)
		return nil
	}
	for _, m := range modules {
		if err := add(m); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleFiles maps a module's name to its file; a built-in one to "".
func moduleFiles(k kernel) (map[string]string, error) {
	files := map[string]string{}
	f, err := os.Open(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		files[moduleName(s.Text())] = ""
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(filepath.Join(k.Modules, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			files[moduleName(path)] = path
		}
		return err
	})
	return files, err
}

// moduleName turns a file's path into the name that the kernel uses.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// moduleDepends reads the names of the modules that must be loaded before file.
func moduleDepends(file string) ([]string, error) {
	e, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer e.Close()
	s := e.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%s: no section .modinfo", file)
	}
	info, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if deps, ok := strings.CutPrefix(field, "depends="); ok {
			return split(strings.ReplaceAll(deps, "-", "_")), nil
		}
	}
	return nil, nil
}
