package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
)

// modules are what the tests need and Debian's kernel does not have built in.
var modules = []string{"virtio_pci", "virtio_blk", "overlay", "loop", "tun", "quota_v2", "xfs"}

// initPackage is the program that is PID 1 in the machine.
const initPackage = "github.com/caisson-dev/caisson/cmd/vmtest/init"

// run builds everything, boots the machine and prints what its tests print. It returns errFailed when the
// machine ran and not every test passed; any other error means that it did not run.
func run(ctx context.Context, o options, stdout io.Writer) error {
	start := time.Now()
	dir, err := os.MkdirTemp("", "caisson-vmtest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	k, err := findKernel(ctx, o.Kernel)
	if err != nil {
		return err
	}
	img := filepath.Join(dir, "initramfs")
	config, err := buildImage(ctx, o, k, img)
	if err != nil {
		return err
	}
	var disks []string
	for i, d := range wire.Disks {
		disks = append(disks, filepath.Join(dir, fmt.Sprint("disk", i)))
		if err := makeDisk(ctx, disks[i], d); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "vmtest: kernel %s, %d packages, built in %.1fs\n", k.Version, len(config.Tests), time.Since(start).Seconds())
	m := machine{Kernel: k.Image, Initramfs: img, Console: filepath.Join(dir, "console"), Disks: append(disks, o.Drives...), MemoryMB: o.MemoryMB}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the machine did not finish within %v", o.Timeout))
	defer cancel()
	start = time.Now()
	err = m.run(ctx, len(config.Tests), stdout)
	fmt.Fprintf(stdout, "vmtest: machine ran %.1fs\n", time.Since(start).Seconds())
	return err
}

// buildImage compiles the tests and writes the initramfs.
func buildImage(ctx context.Context, o options, k kernel, img string) (*wire.Config, error) {
	tree, err := baseTree()
	if err != nil {
		return nil, err
	}
	config := &wire.Config{Env: testEnv()}
	if config.Modules, err = addModules(tree, k); err != nil {
		return nil, err
	}
	bin := img + ".bin"
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, err
	}
	if err := goCommand(ctx, "build", "-ldflags=-s -w", "-o", filepath.Join(bin, "init"), initPackage); err != nil {
		return nil, err
	}
	tree.file("init", filepath.Join(bin, "init"), 0o755)
	if err := addSources(ctx, tree); err != nil {
		return nil, err
	}
	packages, err := listPackages(ctx, o.Packages)
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		t, err := addTest(ctx, tree, p, bin)
		if err != nil {
			return nil, err
		}
		t.Args = testArgs(o)
		config.Tests = append(config.Tests, t)
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	tree.bytes(wire.ConfigPath[1:], data, 0o644)
	return config, tree.write(img)
}

// sources is where packages' directories are in the machine, below their import paths.
const sources = "/vmtest/src/"

// addSources adds what tests read of the repository beside their own testdata.
func addSources(ctx context.Context, tree *tree) error {
	c := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}}\t{{.Dir}}")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("go list -m: %w", err)
	}
	module, dir, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	for _, d := range []string{"docs", "examples"} {
		if err := tree.copyDir(path.Join(sources[1:], module, d), filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return nil
}

// testEnv is the environment of the tests.
func testEnv() []string {
	env := []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "USER=root", "LANG=C.UTF-8", "TMPDIR=/tmp"}
	var quotas []string
	for _, d := range wire.Disks {
		if d.Options != "" {
			quotas = append(quotas, d.Dir)
		}
	}
	env = append(env, wire.QuotaVariable+"="+strings.Join(quotas, ":"))
	if v, ok := os.LookupEnv("CAISSON_TEST_REQUIRE"); ok {
		env = append(env, "CAISSON_TEST_REQUIRE="+v)
	}
	return env
}

// testArgs are the arguments of every test binary. Only the machine's own time limit counts.
func testArgs(o options) []string {
	args := []string{"-test.timeout=0"}
	if o.Run != "" {
		args = append(args, "-test.run="+o.Run)
	}
	if o.Short {
		args = append(args, "-test.short")
	}
	if o.Verbose {
		args = append(args, "-test.v")
	}
	return args
}

// pkg is one package that has tests.
type pkg struct{ path, dir string }

// listPackages resolves patterns; one that matches nothing with tests is an error, so that a leg cannot
// become empty unnoticed.
func listPackages(ctx context.Context, patterns []string) ([]pkg, error) {
	var all []pkg
	for _, pattern := range patterns {
		c := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}", pattern)
		c.Env, c.Stderr = goEnv(), os.Stderr
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("go list %s: %w", pattern, err)
		}
		lines := strings.Fields(string(out)) // pairs: neither an import path nor our directories hold blanks
		if len(lines) == 0 || len(lines)%2 != 0 {
			return nil, fmt.Errorf("no tests in %s", pattern)
		}
		for i := 0; i < len(lines); i += 2 {
			all = append(all, pkg{lines[i], lines[i+1]})
		}
	}
	return all, nil
}

// addTest compiles one package's tests and puts the binary and its testdata into the tree.
func addTest(ctx context.Context, tree *tree, p pkg, bin string) (wire.Test, error) {
	name := strings.ReplaceAll(p.path, "/", "_") + ".test"
	file := filepath.Join(bin, name)
	if err := goCommand(ctx, "test", "-c", "-ldflags=-s -w", "-o", file, p.path); err != nil {
		return wire.Test{}, err
	}
	t := wire.Test{Package: p.path, Binary: "/vmtest/bin/" + name, Dir: sources + p.path}
	tree.file(t.Binary[1:], file, 0o755)
	tree.dir(t.Dir[1:], 0o755)
	err := tree.copyDir(path.Join(t.Dir[1:], "testdata"), filepath.Join(p.dir, "testdata"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return t, err
}

// goEnv is the environment for static binaries of the machine's architecture.
func goEnv() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
}

func goCommand(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Env, c.Stdout, c.Stderr = goEnv(), os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// makeDisk makes an empty file system in a sparse image.
func makeDisk(ctx context.Context, file string, d wire.Disk) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(d.Bytes), f.Close()); err != nil {
		return err
	}
	mkfs, err := exec.LookPath(d.Mkfs[0])
	if err != nil {
		mkfs = "/usr/sbin/" + d.Mkfs[0] // not in every user's PATH
	}
	c := exec.CommandContext(ctx, mkfs, append(d.Mkfs[1:], file)...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s (packages e2fsprogs, xfsprogs): %w: %s", d.Mkfs[0], err, out)
	}
	return nil
}
