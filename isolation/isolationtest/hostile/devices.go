//go:build linux

package hostile

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// devices are nodes that give the host's hardware or kernel.
var devices = []string{
	"mem", "kmem", "port", "kmsg", "fuse", "net/tun", "kvm", "loop0", "loop-control", "vda", "sda", "nvme0n1", "dm-0", "mapper/control",
	"vhost-net", "vhost-vsock", "vsock", "tty0", "tty1", "ttyS0", "console", "rtc0", "snapshot", "hpet", "cpu/0/msr", "autofs",
	"btrfs-control", "userfaultfd", "uinput", "input/event0", "dri/card0", "nvram", "ppp", "rfkill", "watchdog", "vfio/vfio", "hwrng", "zram0", "ptp0",
}

// devAllowed is what a private /dev holds: seven nodes, three file systems, and links to descriptors.
var devAllowed = map[string]bool{
	"null": true, "zero": true, "full": true, "random": true, "urandom": true, "tty": true, "ptmx": true,
	"pts": true, "shm": true, "mqueue": true, "fd": true, "stdin": true, "stdout": true, "stderr": true, "core": true,
}

func deviceCases() []Case {
	var cases []Case
	for _, name := range devices {
		cases = append(cases, Case{"dev/open_" + strings.ReplaceAll(name, "/", "_"), "a device of the host", Absent | Denied, opens("/dev/"+name, unix.O_RDWR)})
	}
	for name, node := range map[string]struct {
		kind uint32
		dev  uint64
	}{
		"mem": {unix.S_IFCHR, unix.Mkdev(1, 1)}, "kmsg": {unix.S_IFCHR, unix.Mkdev(1, 11)}, "null": {unix.S_IFCHR, unix.Mkdev(1, 3)},
		"sda": {unix.S_IFBLK, unix.Mkdev(8, 0)}, "vda": {unix.S_IFBLK, unix.Mkdev(254, 0)}, "loop0": {unix.S_IFBLK, unix.Mkdev(7, 0)},
	} {
		cases = append(cases, Case{"dev/mknod_" + name, "a device of the host", Denied, func(h *Host) error {
			return anyOf(h.Writable, Denied, func(dir string) error {
				path := filepath.Join(dir, "node_"+name)
				if err := unix.Mknod(path, node.kind|0o666, int(node.dev)); err != nil {
					return err
				}
				return os.Remove(path)
			})
		}})
	}
	return append(cases, []Case{
		{"dev/extra", "more devices than a private /dev has", NoEffect, extraDevices},
		{"dev/planted", "a device node that lies in the workspace", Denied, func(h *Host) error {
			return anyOf(h.Devices, Denied, func(p string) error { return opens(p, unix.O_RDONLY)(h) })
		}},
		{"dev/create", "a file in /dev", Denied | ReadOnly, func(*Host) error { return os.WriteFile("/dev/caisson", nil, 0o600) }},
		{"dev/replace", "another /dev/null", Denied | ReadOnly | Busy, func(*Host) error { return os.Rename("/dev/null", "/dev/zero") }},
		{"dev/mount_devtmpfs", "all devices", Denied, func(*Host) error { return unix.Mount("devtmpfs", "/tmp", "devtmpfs", 0, "") }},
		{"dev/tty", "the host's terminal", Absent, opens("/dev/tty", unix.O_RDWR)},
	}...)
}

func extraDevices(*Host) error {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	var extra []string
	for _, e := range entries {
		if !devAllowed[e.Name()] {
			extra = append(extra, e.Name())
		}
	}
	if len(extra) > 0 {
		return nil
	}
	return refuse(NoEffect, "%d entries, all expected", len(entries))
}

// sysSwitches are files of /sys that change the kernel or make it run a program.
var sysSwitches = []string{
	"kernel/uevent_helper", "kernel/uevent_seqnum", "kernel/mm/transparent_hugepage/enabled", "kernel/debug/sched/features",
	"kernel/security/apparmor/.load", "fs/cgroup/release_agent", "fs/cgroup/memory/release_agent", "fs/cgroup/rdma/release_agent",
	"fs/cgroup/cgroup.procs", "fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes", "fs/cgroup/pids/pids.max",
	"fs/cgroup/devices/devices.allow", "power/state", "module/overlay/parameters/redirect_max", "block/vda/queue/scheduler",
	"firmware/efi/vars/new_var", "devices/system/cpu/cpu0/online",
}

func sysCases() []Case {
	var cases []Case
	for _, name := range sysSwitches {
		cases = append(cases, Case{"sys/write_" + strings.ReplaceAll(name, "/", "_"), "a change of the host's kernel", Denied | Absent | ReadOnly | Masked, opensForWriting("/sys/" + name)})
	}
	return append(cases, []Case{
		{"sys/listing", "the host's devices and kernel", Empty | Absent | Denied, listing("/sys")},
		{"sys/mount_sysfs", "a sysfs", Denied, func(*Host) error { return unix.Mount("sysfs", "/tmp", "sysfs", 0, "") }},
		{"sys/mount_debugfs", "debugfs", Denied, func(*Host) error { return unix.Mount("debugfs", "/tmp", "debugfs", 0, "") }},
		{"cgroup/mount_v1", "a release_agent, run on the host as root (CVE-2022-0492)", Denied, func(*Host) error { return unix.Mount("cgroup", "/tmp", "cgroup", 0, "rdma") }},
		{"cgroup/mount_v2", "the cgroup tree, and with it no limits", Denied, func(*Host) error { return unix.Mount("cgroup2", "/tmp", "cgroup2", 0, "") }},
		{"cgroup/unshare_mount", "a release_agent through namespaces of one's own (CVE-2022-0492)", Denied, func(*Host) error {
			if err := unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP); err != nil {
				return err
			}
			return unix.Mount("cgroup", "/tmp", "cgroup", 0, "rdma")
		}},
		{"cgroup/path", "the place in the host's cgroup tree", NoEffect, cgroupPath},
	}...)
}

// listing returns a try that succeeds when the directory has entries.
func listing(dir string) func(*Host) error {
	return func(*Host) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return refuse(Empty, "%s is empty", dir)
		}
		return nil
	}
}

// cgroupPath: in a cgroup namespace paths are relative to its root, so that nothing of the host's tree shows.
func cgroupPath(*Host) error {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if strings.Contains(string(data), "caisson") {
		return nil
	}
	return refuse(NoEffect, "%q", data)
}
