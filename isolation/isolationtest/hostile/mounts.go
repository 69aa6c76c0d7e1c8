//go:build linux

package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mountCases() []Case {
	tmpfs := cstring("tmpfs")
	root := cstring("/")
	return []Case{
		{"mount/tmpfs", "a mount of one's own", Denied, func(*Host) error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }},
		{"mount/bind", "a bind mount", Denied, func(*Host) error { return unix.Mount("/", "/tmp", "", unix.MS_BIND|unix.MS_REC, "") }},
		{"mount/overlay", "an overlay (CVE-2021-3493)", Denied, func(*Host) error {
			return unix.Mount("overlay", "/tmp", "overlay", 0, "lowerdir=/usr:/etc")
		}},
		{"mount/fuse", "a file system served by oneself", Denied, func(*Host) error {
			return unix.Mount("fuse", "/tmp", "fuse", 0, "fd=0,rootmode=40000,user_id=0,group_id=0")
		}},
		{"mount/block", "the host's disk", Denied, func(*Host) error { return unix.Mount("/dev/vda", "/tmp", "ext4", unix.MS_RDONLY, "") }},
		{"mount/remount_root", "a writable root", Denied, func(*Host) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		{"mount/remount_usr", "a writable /usr", Denied, func(*Host) error { return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		{"mount/remount_workspace", "devices and setuid in the workspace", Denied, func(*Host) error {
			return unix.Mount("", "/workspace", "", unix.MS_REMOUNT|unix.MS_BIND, "")
		}},
		{"mount/shared", "mounts that propagate", Denied, func(*Host) error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
		{"mount/move", "a mount moved away", Denied, func(*Host) error { return unix.Mount("/proc", "/tmp", "", unix.MS_MOVE, "") }},
		{"mount/umount_workspace", "what the workspace hides", Denied, func(*Host) error { return unix.Unmount("/workspace", unix.MNT_DETACH) }},
		{"mount/umount_root", "the root that was before", Denied, func(*Host) error { return unix.Unmount("/", unix.MNT_DETACH) }},
		{"mount/umount_tmp", "an unbounded /tmp", Denied, func(*Host) error { return unix.Unmount("/tmp", unix.MNT_DETACH) }},
		{"mount/pivot_root", "another root", Denied, func(*Host) error { return unix.PivotRoot("/tmp", "/tmp") }},
		{"mount/chroot", "the old root by chroot and dot-dot", Denied, func(*Host) error { return unix.Chroot("/tmp") }},
		{"mount/fsopen", "a mount by the new calls", Denied | Absent, sys(unix.SYS_FSOPEN, uintptr(unsafe.Pointer(tmpfs)), 0)},
		{"mount/fspick", "a reconfigured root", Denied | Absent, sys(unix.SYS_FSPICK, fdcwd, uintptr(unsafe.Pointer(root)), 0)},
		{"mount/open_tree", "a copy of the mounts", Denied | Absent, sys(unix.SYS_OPEN_TREE, fdcwd, uintptr(unsafe.Pointer(root)), unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)},
		{"mount/move_mount", "a mount moved", Denied | Absent, func(*Host) error { return unix.MoveMount(unix.AT_FDCWD, "/proc", unix.AT_FDCWD, "/tmp", 0) }},
		{"mount/setattr", "a writable /usr", Denied | Absent, func(*Host) error {
			return unix.MountSetattr(unix.AT_FDCWD, "/usr", unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID})
		}},
		{"mount/flags", "setuid, devices or writing by a mount without flags", NoEffect, mountFlags},
		{"mount/host_paths", "a mount of the host's root or state", NoEffect, hostMounts},
		{"mount/stacked", "what lies under the root", Absent | Denied, func(h *Host) error {
			return anyOf(h.Files, Absent|Denied, func(f string) error { return shows(h, "/../../../.."+f) })
		}},
	}
}

// fdcwd is AT_FDCWD as a raw argument.
var fdcwd = func() uintptr { fd := unix.AT_FDCWD; return uintptr(fd) }()

// mountPoint is one line of /proc/self/mountinfo.
type mountPoint struct {
	root, path, fstype string
	options            []string
}

func mountPoints() ([]mountPoint, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var list []mountPoint
	for line := range bytes.Lines(data) {
		before, after, ok := strings.Cut(string(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 1 {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		list = append(list, mountPoint{f[3], f[4], g[0], strings.Split(f[5], ",")})
	}
	return list, nil
}

// mountFlags: every mount is nosuid; nodev but those that hold the device nodes; read-only but the few that are meant
// to be written.
func mountFlags(h *Host) error {
	list, err := mountPoints()
	if err != nil {
		return err
	}
	mayWrite := append([]string{"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"}, h.Writable...)
	var bad []error
	for _, m := range list {
		if m.fstype == "devtmpfs" && m.root != "/" { // a single node of /dev, or a mask
			continue
		}
		for option, exempt := range map[string]bool{
			"nosuid": m.path == "/", // no_new_privs covers it, and a bind may not
			"nodev":  m.path == "/" || m.path == "/dev" || m.path == "/dev/pts",
			"ro":     slices.Contains(mayWrite, m.path),
		} {
			if !exempt && !slices.Contains(m.options, option) {
				bad = append(bad, fmt.Errorf("%s (%s) is not %s", m.path, m.fstype, option))
			}
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("a hole: %w", errors.Join(bad...))
	}
	return refuse(NoEffect, "%d mounts, all with their flags", len(list))
}

// hostMounts looks for mounts that show more of the host than a named directory.
func hostMounts(*Host) error {
	list, err := mountPoints()
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.fstype == "cgroup" || m.fstype == "cgroup2" || m.fstype == "sysfs" || m.fstype == "debugfs" || m.fstype == "tracefs" || m.fstype == "securityfs" {
			return nil
		}
	}
	return refuse(NoEffect, "none of %d mounts is a kernel interface but proc", len(list))
}

func fileCases() []Case {
	return []Case{
		{"file/host", "the host's files", Absent | Denied, func(h *Host) error { return anyOf(h.Files, Absent|Denied, func(f string) error { return shows(h, f) }) }},
		{"file/host_by_link", "the host's files through links in the workspace", Absent | Denied, func(h *Host) error {
			return anyOf(h.Links, Absent|Denied, func(f string) error { return shows(h, f) })
		}},
		{"file/host_by_own_link", "the host's files through links made inside", Absent | Denied, func(h *Host) error {
			return anyOf(h.Files, Absent|Denied, func(f string) error { return throughLink(h, f) })
		}},
		{"file/rootonly", "host files that only root may read", Denied, func(h *Host) error {
			return anyOf(h.RootOnly, Denied, func(f string) error { return shows(h, f) })
		}},
		{"file/rootonly_chmod", "host files that only root may read", Denied | ReadOnly, func(h *Host) error {
			return anyOf(h.RootOnly, Denied|ReadOnly, func(f string) error { return os.Chmod(f, 0o644) })
		}},
		{"file/rootonly_link", "host files by a hard link", Denied | Invalid | Absent, func(h *Host) error {
			return anyOf(h.RootOnly, Denied|Invalid|Absent, func(f string) error { return os.Link(f, h.Writable[0]+"/hardlink") })
		}},
		{"file/shadow", "the host's password hashes", Absent | Denied | Empty, anyReadable("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers")},
		{"file/ssh", "the host's keys", Absent | Denied | Empty, anyReadable("/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key", "/root/.ssh/id_rsa", "/root/.ssh/id_ed25519", "/etc/ssl/private/ssl-cert-snakeoil.key")},
		{"file/machine_id", "the host's machine id", Absent | Denied | Empty, reads("/var/lib/dbus/machine-id")},
		{"file/sockets", "a daemon of the host", Absent | Denied, func(*Host) error {
			return anyOf([]string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/udev/control", "/tmp/.X11-unix/X0"}, Absent|Denied, func(p string) error {
				_, err := os.Lstat(p)
				return err
			})
		}},
		{"file/write_anywhere", "a place to write beside those meant for it", NoEffect, writableAnywhere},
		{"file/write_host", "a change of the host's files", ReadOnly | Denied | Absent, func(*Host) error {
			return anyOf([]string{"/usr/bin/env", "/etc/passwd", "/etc/hosts", "/etc/hostname", "/etc/machine-id", "/etc/ld.so.preload", "/etc/resolv.conf"}, ReadOnly|Denied|Absent, writable)
		}},
		{"file/remove_host", "a host file removed", ReadOnly | Denied | Busy | Absent, func(*Host) error {
			return anyOf([]string{"/usr/bin/env", "/etc/passwd", "/bin", "/usr/local"}, ReadOnly|Denied|Busy|Absent, func(p string) error { return unix.Rename(p, p+".gone") })
		}},
		{"file/handle", "any file of a file system by its inode (shocker)", Denied, openByHandle},
		{"file/immutable", "an immutable file that nobody can remove", Denied | Absent, func(h *Host) error { return setFlags(h, 0x10) }},
		{"file/trusted_xattr", "overlay's own attributes (a whiteout or redirect of one's own)", Denied | Absent, func(h *Host) error {
			return anyOf(h.Writable, Denied|Absent, func(dir string) error { return unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0) })
		}},
		{"file/capability_xattr", "a file with capabilities", Denied | Absent | Invalid, capabilityXattr},
		{"file/chown", "files of another user", Denied | Invalid, func(h *Host) error {
			return inFile(h, func(path string) error { return os.Chown(path, 12345, 12345) })
		}},
	}
}

func anyReadable(paths ...string) func(*Host) error {
	return func(*Host) error { return anyOf(paths, Absent|Denied|Empty, readable) }
}

// throughLink reads target by a link made here.
func throughLink(h *Host, target string) error {
	link := h.Writable[0] + "/link"
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	defer os.Remove(link)
	return shows(h, link)
}

// inFile gives try a new file in the first writable directory.
func inFile(h *Host, try func(path string) error) error {
	f, err := os.CreateTemp(h.Writable[0], "hostile-")
	if err != nil {
		return fmt.Errorf("no file to try with: %w", err)
	}
	defer os.Remove(f.Name())
	return errors.Join(try(f.Name()), f.Close())
}

// writableAnywhere walks every directory and asks the kernel whether it may be written.
func writableAnywhere(h *Host) error {
	skip := append([]string{"/proc", "/dev/pts", "/dev/shm", "/dev/mqueue"}, h.Writable...)
	var found []string
	n := 0
	err := filepath.WalkDir("/", func(p string, d fs.DirEntry, err error) error {
		if slices.Contains(skip, p) {
			return fs.SkipDir
		}
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // what cannot be looked into is another case's matter
		}
		n++
		if unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) == nil {
			found = append(found, p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("a hole: writable are %q", found)
	}
	return refuse(NoEffect, "none of %d directories", n)
}

// openByHandle asks for inode 2, the root of most file systems, of every mount at hand.
func openByHandle(h *Host) error {
	return anyOf(append([]string{"/", "/usr", "/opt"}, h.Writable...), Denied|Absent, func(dir string) error {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const fileID32 = 1 // inode and generation
		got, err := unix.OpenByHandleAt(fd, unix.NewFileHandle(fileID32, []byte{2, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY)
		if err != nil {
			return err
		}
		return unix.Close(got)
	})
}

// setFlags sets inode flags (chattr) on a new file.
func setFlags(h *Host, flags int) error {
	return inFile(h, func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	})
}

// capabilityXattr writes cap_sys_admin+ep as file capabilities of version 2, which name no user namespace.
func capabilityXattr(h *Host) error {
	value := []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return inFile(h, func(path string) error { return unix.Setxattr(path, "security.capability", value, 0) })
}
