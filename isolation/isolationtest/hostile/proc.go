//go:build linux

package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// procSecrets are the files of /proc that tell about the kernel or other users.
var procSecrets = []string{
	"kcore", "kmsg", "keys", "key-users", "kpagecount", "kpageflags", "kpagecgroup", "timer_list", "sched_debug", "slabinfo",
	"vmallocinfo", "latency_stats", "interrupts", "acpi/event", "asound/cards", "scsi/scsi", "pagetypeinfo",
}

// procSwitches are files of /proc whose writing changes the kernel.
var procSwitches = []string{
	"sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/kernel/ns_last_pid",
	"sys/kernel/sysrq", "sys/kernel/yama/ptrace_scope", "sys/kernel/randomize_va_space", "sys/kernel/panic", "sys/kernel/hotplug",
	"sys/kernel/shmmax", "sys/kernel/msgmax", "sys/vm/overcommit_memory", "sys/vm/drop_caches", "sys/vm/panic_on_oom",
	"sys/fs/file-max", "sys/fs/binfmt_misc/register", "sys/fs/suid_dumpable", "sys/net/ipv4/ip_forward",
	"sys/net/ipv4/ping_group_range", "sys/user/max_user_namespaces", "irq/0/smp_affinity", "irq/default_smp_affinity", "mtrr",
	"dynamic_debug/control", "bus/pci/devices", "kmsg", "kcore", "apm", "acpi/wakeup",
}

// secretClass: a file that the kernel keeps from us, or that is masked.
const secretClass = Denied | Absent | Masked | Empty | ReadOnly | Invalid

func procCases() []Case {
	var cases []Case
	for _, name := range procSecrets {
		cases = append(cases, Case{"proc/read_" + strings.ReplaceAll(name, "/", "_"), "kernel memory, addresses or other users' data", secretClass, reads("/proc/" + name)})
	}
	for _, name := range procSwitches {
		cases = append(cases, Case{"proc/write_" + strings.ReplaceAll(name, "/", "_"), "a change of the host's kernel", secretClass, opensForWriting("/proc/" + name)})
	}
	return append(cases, []Case{
		{"proc/kallsyms", "kernel addresses", secretClass, addresses("/proc/kallsyms", " ")},
		{"proc/iomem", "physical addresses", secretClass, addresses("/proc/iomem", " : ")},
		{"proc/ioports", "the hardware's ports", secretClass, addresses("/proc/ioports", " : ")},
		{"proc/sys_create", "a directory entry in /proc/sys", Denied | ReadOnly | Absent, func(*Host) error { return os.WriteFile("/proc/sys/caisson", nil, 0o600) }},
		{"proc/self_exe_write", "the supervisor's binary overwritten (CVE-2019-5736)", Denied | Busy | ReadOnly, opensForWriting("/proc/self/exe")},
		{"proc/self_exe_fd_write", "the binary overwritten through a descriptor (CVE-2019-5736)", Denied | Busy | ReadOnly, selfExeFD},
		{"proc/cwd_outside", "a working directory outside the root (CVE-2024-21626)", NoEffect, cwdOutside},
		{"proc/fd_directory", "a directory outside through /proc/self/fd (CVE-2024-21626)", Absent, fdDirectories},
		{"proc/self_root", "the host through /proc/self/root", Absent | Denied, func(h *Host) error { return throughRoot(h, "/proc/self/root") }},
		{"proc/init_root", "the host through /proc/1/root", Absent | Denied, func(h *Host) error { return throughRoot(h, "/proc/1/root") }},
		{"proc/init_cwd", "the host through /proc/1/cwd", Absent | Denied, func(h *Host) error { return throughRoot(h, "/proc/1/cwd") }},
		{"proc/init_exe", "the supervisor's binary", Denied, func(*Host) error { return ofOthers("exe", os.O_RDONLY) }},
		{"proc/init_exe_write", "the supervisor's binary overwritten", Denied | Busy | ReadOnly, func(*Host) error { return ofOthers("exe", os.O_WRONLY) }},
		{"proc/others_mem", "the memory of PID 1", Denied | Absent, func(*Host) error { return ofOthers("mem", os.O_RDWR) }},
		{"proc/others_maps", "the addresses of PID 1", Denied | Absent | Empty, func(*Host) error { return ofOthers("maps", os.O_RDONLY) }},
		{"proc/others_environ", "the environment of the supervisor", Denied | Empty, environs},
		{"proc/others_fd", "the descriptors of PID 1", Denied | Absent, fdsOfOthers},
		{"proc/uid_map", "other ids by a new map", Denied | Invalid, func(*Host) error { return os.WriteFile("/proc/self/uid_map", []byte("0 0 1"), 0) }},
		{"proc/setgroups", "setgroups allowed again", Denied | Invalid, func(*Host) error { return os.WriteFile("/proc/self/setgroups", []byte("allow"), 0) }},
		{"proc/oom_score", "protection from the OOM killer", Denied, func(*Host) error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }},
		{"proc/timens", "another clock offset", Denied | Invalid, func(*Host) error {
			return os.WriteFile("/proc/self/timens_offsets", []byte("monotonic 1000 0"), 0)
		}},
		{"proc/host_pid", "the supervisor's process", Absent, func(h *Host) error { return supervisorIn("/proc", h) }},
		{"proc/remount", "another proc without masks", Denied, func(*Host) error { return unix.Mount("proc", "/tmp", "proc", 0, "") }},
		{"proc/umount_masks", "what the masks hide", Denied | Invalid, func(*Host) error {
			return anyOf([]string{"/proc/kcore", "/proc/sys", "/proc/keys", "/proc"}, Denied|Invalid, func(p string) error { return unix.Unmount(p, unix.MNT_DETACH) })
		}},
	}...)
}

// addresses returns a try that succeeds when the first column has one. The names beside them are public; the kernel
// prints zeros to the unprivileged.
func addresses(path, separator string) func(*Host) error {
	return func(*Host) error {
		data, err := readSome(path)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(data) {
			if a, _, ok := bytes.Cut(line, []byte(separator)); ok && len(bytes.Trim(a, " 0-")) > 0 {
				return nil
			}
		}
		return refuse(Empty, "no addresses")
	}
}

func selfExeFD(*Host) error {
	fd, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return writable(fmt.Sprintf("/proc/self/fd/%d", fd))
}

func cwdOutside(*Host) error {
	cwd, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(cwd, "/") || strings.HasSuffix(cwd, " (deleted)") {
		return nil
	}
	// getcwd prefixes what lies outside the root with "(unreachable)".
	if wd := make([]byte, unix.PathMax); true {
		n, err := unix.Getcwd(wd)
		if err != nil {
			return err
		}
		if n > 0 && wd[0] != '/' {
			return nil
		}
	}
	return refuse(NoEffect, "the working directory is %s", cwd)
}

// fdDirectories looks for a directory among the descriptors that were inherited from whoever started us.
func fdDirectories(*Host) error {
	for fd := range 1024 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil
		}
	}
	return refuse(Absent, "no directory is open")
}

func throughRoot(h *Host, root string) error {
	return anyOf(h.Files, Absent|Denied, func(f string) error {
		return anyOf([]string{root + f, root + "/.." + f, root + "/../../../../../../../.." + f}, Absent|Denied, func(p string) error { return shows(h, p) })
	})
}

// ofOthers opens a file of every other process.
func ofOthers(file string, flags int) error {
	pids, err := others()
	if err != nil {
		return err
	}
	return anyOf(pids, Denied|Absent, func(pid string) error {
		f, err := os.OpenFile("/proc/"+pid+"/"+file, flags, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if flags != os.O_RDONLY {
			return nil
		}
		n, err := f.Read(make([]byte, 16))
		if n == 0 {
			return errors.Join(err, refuse(Empty, "%s of %s is empty", file, pid))
		}
		return nil
	})
}

// environs looks for the host's secret: the suite puts it into the supervisor's environment.
func environs(h *Host) error {
	pids, err := others()
	if err != nil {
		return err
	}
	return anyOf(append(pids, "self"), Denied|Empty|Absent, func(pid string) error { return shows(h, "/proc/"+pid+"/environ") })
}

func fdsOfOthers(*Host) error {
	pids, err := others()
	if err != nil {
		return err
	}
	return anyOf(pids, Denied|Absent, func(pid string) error {
		fds, err := os.ReadDir("/proc/" + pid + "/fd")
		if err != nil {
			return err
		}
		return anyOf(fds, Denied|Absent, func(fd os.DirEntry) error {
			f, err := os.Open("/proc/" + pid + "/fd/" + fd.Name())
			if err != nil {
				return err
			}
			return f.Close()
		})
	})
}

// supervisorIn looks for the supervisor's process id in a proc. A small pid namespace does not reach its number.
func supervisorIn(proc string, h *Host) error {
	if h.PID < 200 { // a virtual machine that has just booted: the number means nothing
		return errNotHere
	}
	_, err := os.Stat(fmt.Sprintf("%s/%d", proc, h.PID))
	return err
}
