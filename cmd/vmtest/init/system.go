//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
)

// newRoot is where the disk is mounted before it becomes the root.
const newRoot = "/.root"

// switchRoot moves the initramfs' content onto the disk and makes that the root. A disk and not a tmpfs: before Linux
// 6.3 a tmpfs cannot be idmapped, before 6.6 it has no user.* xattrs.
func switchRoot(modules []string) error {
	for _, m := range modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	if err := os.Mkdir(newRoot, 0o755); err != nil {
		return err
	}
	if err := mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return err
	}
	if err := mount(wire.Disks[0].Device, newRoot, wire.Disks[0].Type, 0, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/dev", 0); err != nil {
		return fmt.Errorf("umount /dev: %w", err)
	}
	if err := moveTree("/", newRoot); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// moveTree copies src to dst and frees each file at once, so that memory holds the content only once.
func moveTree(src, dst string) error {
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(src, e.Name()), filepath.Join(dst, e.Name())
		if from == newRoot {
			continue
		}
		if err := moveEntry(e, from, to); err != nil {
			return err
		}
	}
	return nil
}

func moveEntry(e fs.DirEntry, from, to string) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	switch {
	case e.IsDir():
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		if err := moveTree(from, to); err != nil {
			return err
		}
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case e.Type().IsRegular():
		if err := moveFile(from, to); err != nil {
			return err
		}
	default: // /dev/console: devtmpfs brings another one
		return nil
	}
	return os.Chmod(to, info.Mode())
}

func moveFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.Remove(from)
}

// mountAll mounts what needs no module.
func mountAll() error {
	for _, m := range []struct {
		source, target, fstype, data string
		flags                        uintptr
	}{
		{"proc", "/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "sysfs", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "devtmpfs", "", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "devpts", "mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "tmpfs", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return err
		}
	}
	for _, d := range wire.Disks[1:] {
		if err := os.MkdirAll(d.Dir, 0o755); err != nil {
			return err
		}
		if err := mount(d.Device, d.Dir, d.Type, 0, d.Options); err != nil {
			return err
		}
	}
	return nil
}

// prepare does the rest of what a system does before anybody can work.
func prepare() error {
	// Debian's kernel has a switch of its own for user namespaces.
	if err := os.WriteFile("/proc/sys/kernel/unprivileged_userns_clone", []byte("1"), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Chown("/home/user", 1001, 1001); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("vmtest")); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	if out, err := exec.Command("/usr/bin/ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("lo up: %w: %s", err, out)
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fstype, target, err)
	}
	return nil
}

// openPort opens a serial port for bytes as they are: no echo, no newline translation.
func openPort(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("termios of %s: %w", path, err), f.Close())
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, errors.Join(fmt.Errorf("termios of %s: %w", path, err), f.Close())
	}
	return f, nil
}

// drain waits until everything written has been sent.
func drain(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) }
