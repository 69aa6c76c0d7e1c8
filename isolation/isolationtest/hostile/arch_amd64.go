//go:build linux

package hostile

import "golang.org/x/sys/unix"

// int80 makes the system call getpid the way a 32-bit program does.
func int80() int32

func archCases() []Case {
	const x32 = 0x40000000
	return []Case{
		{"arch/x32", "system calls under other numbers", Absent | Denied | Killed, sys(x32 | unix.SYS_GETPID)},
		{"arch/x32_unshare", "namespaces under another number", Absent | Denied | Killed, sys(x32|unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
		{"arch/int80", "32-bit system calls, which have other numbers", Killed | Absent | Denied, func(*Host) error {
			if got := int80(); got < 0 {
				return unix.Errno(-got)
			}
			return nil
		}},
		{"arch/modify_ldt", "segments of one's own", Denied | Absent, sys(unix.SYS_MODIFY_LDT, 0, 0, 0)},
		{"arch/iopl", "the hardware's ports", Denied | Absent, sys(unix.SYS_IOPL, 3)},
		{"arch/ioperm", "the hardware's ports", Denied | Absent, sys(unix.SYS_IOPERM, 0x70, 1, 1)},
		{"arch/uselib", "an old way to map a library", Denied | Absent, sys(unix.SYS_USELIB, 0)},
		{"arch/ustat", "facts of a mounted file system", Denied | Absent, sys(unix.SYS_USTAT, 0, 0)},
		{"arch/sysfs", "the kernel's file systems", Denied | Absent, sys(unix.SYS_SYSFS, 3)},
		{"arch/create_module", "a module in the kernel", Denied | Absent, sys(unix.SYS_CREATE_MODULE, 0, 0)},
		{"arch/vserver", "a call that no kernel has", Absent | Denied, sys(unix.SYS_VSERVER, 0)},
	}
}
