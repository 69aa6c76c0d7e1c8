// Package loop attaches files to loop devices.
package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Control is the device that gives out others.
const Control = "/dev/loop-control"

const (
	major     = 7
	label     = "caisson" // of every device of ours, as losetup shows it
	blockSize = 4096
)

// Available says why no device can be had; nil when one can. It takes none.
func Available() error {
	control, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return os.NewSyscallError("LOOP_CTL_GET_FREE", err)
	}
	l, err := open(n)
	if err != nil {
		return err
	}
	return l.Close()
}

// Attach makes a loop device for an image. It goes away when nobody uses it any more. Two devices on one image would
// destroy it: the caller knows that it has none, and has the store's lock unless nobody else knows the image yet.
func Attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	// Between the two calls somebody else may take the device: then the next free one. Each turn one of us gets on.
	const turns = 256
	for range turns {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		l, err := open(n)
		if err != nil {
			return nil, err
		}
		err = configure(l, image)
		if err == nil {
			return l, nil
		}
		_ = l.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no loop device in %d turns: %w", turns, unix.EBUSY)
}

// open opens a device, and makes its's node where /dev is not the kernel's own (in containers).
func open(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	l, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// configure sets everything in one call, so that no half-configured device is ever seen (kernel 5.8).
func configure(l, image *os.File) error {
	c := unix.LoopConfig{Fd: uint32(image.Fd()), Size: blockSize}
	c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	copy(c.Info.File_name[:], label)
	if err := unix.IoctlLoopConfigure(int(l.Fd()), &c); err != nil {
		return os.NewSyscallError("LOOP_CONFIGURE", err)
	}
	return nil
}

// Find finds the device that has an image, in whose path hint is; nil when there is none.
func Find(image *os.File, hint string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, file := range bound {
		name, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(name), hint) {
			continue // gone meanwhile, or not of ours
		}
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(file))), "loop"))
		if err != nil {
			continue
		}
		// Once it is open it cannot go away; so it is looked at after that.
		l, err := open(n)
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(l.Fd()))
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			return l, nil
		}
		_ = l.Close()
	}
	return nil, nil
}
