package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Stack is an overlay to mount.
type Stack struct {
	Lower       []string // newest first
	Upper, Work string   // "": read-only
	UserXattr   bool
}

// InNamespace runs f on a thread with a mount namespace of its own, which dies with it.
func InNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Show mounts a stack where only f sees it, and unmounts it.
func Show(at string, s Stack, f func() error) error {
	return InNamespace(func() error {
		if err := Mount(at, s); err != nil {
			return err
		}
		return errors.Join(f(), unix.Unmount(at, unix.MNT_DETACH))
	})
}

// Mount mounts a stack with the engine's options.
func Mount(at string, s Stack) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	options := [][2]string{{"index", "off"}, {"metacopy", "off"}, {"xino", "auto"}}
	if s.UserXattr {
		options = append(options, [2]string{"userxattr"})
	} else {
		options = append(options, [2]string{"redirect_dir", "on"})
	}
	if s.Upper != "" {
		options = append(options, [2]string{"volatile"})
	}
	layers, closeAll, err := open(s)
	defer closeAll()
	if err != nil {
		return err
	}
	for _, o := range append(options, layers...) {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fd, o[0])
		} else {
			err = unix.FsconfigSetString(fd, o[0], o[1])
		}
		if err != nil {
			return fmt.Errorf("overlay option %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// open names the layers by descriptor, as the engine does.
func open(s Stack) (options [][2]string, closeAll func(), err error) {
	var fds []int
	closeAll = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	name := func(path string) string {
		fd, e := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if e != nil {
			err = errors.Join(err, &os.PathError{Op: "open", Path: path, Err: e})
			return "/"
		}
		fds = append(fds, fd)
		return fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	if len(s.Lower) == 1 && s.Upper == "" {
		return nil, closeAll, errors.New("overlayfs shows no single layer")
	}
	joined := ""
	for _, l := range s.Lower {
		path := name(l)
		options = append(options, [2]string{"lowerdir+", path})
		joined += ":" + path
	}
	if !perLayer() {
		options = [][2]string{{"lowerdir", joined[1:]}}
	}
	if s.Upper != "" {
		options = append(options, [2]string{"upperdir", name(s.Upper)}, [2]string{"workdir", name(s.Work)})
	}
	return options, closeAll, err
}

// perLayer reports a kernel that knows lowerdir+ (6.8 for the legacy filesystem context of overlayfs).
var perLayer = sync.OnceValue(func() bool {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.FsconfigSetString(fd, "lowerdir+", "/") == nil
})
