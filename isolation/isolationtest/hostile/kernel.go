//go:build linux

package hostile

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Obsolete or rare calls that golang.org/x/sys names on few architectures are left out: the exhaustive test of the
// seccomp profile covers every number.
func kernelCases() []Case {
	const noRandomize = 0x0040000 // ADDR_NO_RANDOMIZE
	const quotaSync = 0x800001    // Q_SYNC: the one command that the kernel allows everybody
	null := cstring("/dev/null")
	empty := cstring("")
	return []Case{
		{"kernel/bpf", "eBPF programs in the kernel", Denied, func(*Host) error {
			attr := struct{ mapType, keySize, valueSize, maxEntries uint32 }{2, 4, 8, 1} // BPF_MAP_TYPE_ARRAY
			return raw(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		}},
		{"kernel/perf", "performance counters, and the kernel's code behind them", Denied, func(*Host) error {
			_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK}, 0, -1, -1, 0)
			return err
		}},
		{"kernel/userfaultfd", "races in the kernel, made easy", Denied, sys(unix.SYS_USERFAULTFD, 1)},
		{"kernel/io_uring", "system calls past the filter", Denied | Absent, func(*Host) error {
			params := [120]byte{}
			return raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)))
		}},
		{"kernel/io_uring_enter", "system calls past the filter", Denied | Absent, sys(unix.SYS_IO_URING_ENTER, 0, 1, 1, 0, 0, 0)},
		{"kernel/io_uring_register", "system calls past the filter", Denied | Absent, sys(unix.SYS_IO_URING_REGISTER, 0, 0, 0, 0)},
		{"kernel/add_key", "a key in the host's keyrings", Denied | Absent, func(*Host) error {
			_, err := unix.AddKey("user", "caisson", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
			return err
		}},
		{"kernel/keyctl", "the host's session keyring", Denied | Absent, func(*Host) error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
			return err
		}},
		{"kernel/keyctl_user", "the keyring of the user on the host", Denied | Absent, func(*Host) error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
			return err
		}},
		{"kernel/request_key", "a key, or a program run by the kernel on the host", Denied | Absent, func(*Host) error {
			_, err := unix.RequestKey("user", "caisson", "", unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		}},
		{"kernel/init_module", "a module in the kernel", Denied, sys(unix.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&kernelText[0])), 64, uintptr(unsafe.Pointer(empty)))},
		{"kernel/finit_module", "a module in the kernel", Denied, sys(unix.SYS_FINIT_MODULE, 0, uintptr(unsafe.Pointer(empty)), 0)},
		{"kernel/delete_module", "a module removed", Denied, sys(unix.SYS_DELETE_MODULE, uintptr(unsafe.Pointer(cstring("caisson_none"))), 0)},
		{"kernel/kexec_load", "another kernel", Denied | Absent, sys(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)},
		{"kernel/kexec_file_load", "another kernel", Denied | Absent, sys(unix.SYS_KEXEC_FILE_LOAD, 0, 0, 0, 0, 0)},
		{"kernel/reboot", "the host stopped", Denied, sys(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF, 0)},
		{"kernel/swapon", "swap", Denied, sys(unix.SYS_SWAPON, uintptr(unsafe.Pointer(null)), 0)},
		{"kernel/swapoff", "no swap", Denied, sys(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(null)))},
		{"kernel/acct", "process accounting", Denied | Absent, sys(unix.SYS_ACCT, 0)},
		{"kernel/quotactl", "disk quotas", Denied | Absent, sys(unix.SYS_QUOTACTL, quotaSync<<8, 0, 0, 0)},
		{"kernel/settimeofday", "the host's clock", Denied, func(*Host) error {
			var now unix.Timeval
			if err := unix.Gettimeofday(&now); err != nil {
				return err
			}
			return unix.Settimeofday(&now)
		}},
		{"kernel/clock_settime", "the host's clock", Denied, func(*Host) error {
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
				return err
			}
			return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
		}},
		{"kernel/adjtimex", "the host's clock", Denied, func(*Host) error {
			_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: 10000})
			return err
		}},
		{"kernel/sethostname", "another host name", Denied, func(*Host) error { return unix.Sethostname([]byte("escaped")) }},
		{"kernel/setdomainname", "another domain name", Denied, func(*Host) error { return unix.Setdomainname([]byte("escaped")) }},
		{"kernel/hostname", "the host's name", NoEffect, sameHostname},
		{"kernel/syslog", "the kernel's log", Denied, func(*Host) error {
			const readAll = 3
			_, err := unix.Klogctl(readAll, make([]byte, 256))
			return err
		}},
		{"kernel/vhangup", "a terminal hung up", Denied, sys(unix.SYS_VHANGUP)},
		{"kernel/personality", "a process without address randomization", Denied, sys(unix.SYS_PERSONALITY, noRandomize)},
		{"kernel/fanotify", "notice of all that happens on a mount", Denied, sys(unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_NOTIF, unix.O_RDONLY)},
		{"kernel/lookup_dcookie", "paths by cookies", Denied | Absent, sys(unix.SYS_LOOKUP_DCOOKIE, 0, 0, 0)},
		{"kernel/mbind", "memory policy", Denied | Invalid, sys(unix.SYS_SET_MEMPOLICY, unix.MPOL_BIND, 0, 0)},
		{"kernel/nfsservctl", "an in-kernel server", Denied | Absent, sys(unix.SYS_NFSSERVCTL, 0, 0, 0)},
	}
}

func sameHostname(h *Host) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	if name := unix.ByteSliceToString(u.Nodename[:]); name != h.Hostname {
		return refuse(NoEffect, "it is called %s", name)
	}
	return nil
}

func terminalCases() []Case {
	// A filter that compares 64 bits misses what the kernel, which takes 32, still obeys (CVE-2019-10063).
	const high = uintptr(1) << 32
	return []Case{
		{"tty/tiocsti", "keys typed into a terminal (CVE-2017-5226)", Denied, func(*Host) error { return ownTerminal(unix.TIOCSTI) }},
		{"tty/tiocsti_high_bits", "keys typed, with bits the kernel ignores (CVE-2019-10063)", Denied, func(*Host) error { return ownTerminal(unix.TIOCSTI | high) }},
		{"tty/tioclinux", "text pasted into a console (CVE-2023-28100)", Denied, func(*Host) error { return ownTerminal(unix.TIOCLINUX) }},
		{"tty/tioclinux_high_bits", "text pasted, with bits the kernel ignores", Denied, func(*Host) error { return ownTerminal(unix.TIOCLINUX | high<<1) }},
		{"tty/tiocsctty", "a terminal of another session", Denied | Absent, func(*Host) error { return raw(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 1) }},
		{"tty/tioccons", "the console's output", Denied | Absent, func(*Host) error { return ownTerminal(unix.TIOCCONS) }},
	}
}

// ownTerminal makes a terminal and asks for something that nobody may do to one. All requests take a pointer to a byte.
func ownTerminal(request uintptr) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	const peer = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, peer)
	if errno != 0 {
		return errno
	}
	key := byte('x')
	return raw(unix.SYS_IOCTL, slave, request, uintptr(unsafe.Pointer(&key)))
}
