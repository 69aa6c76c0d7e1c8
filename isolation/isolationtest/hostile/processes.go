//go:build linux

package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneFlags are the namespaces that exist, as flags of clone and unshare.
var cloneFlags = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
	"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP,
}

func namespaceCases() []Case {
	var cases []Case
	for name, flag := range cloneFlags {
		cases = append(cases,
			Case{"ns/unshare_" + name, "a namespace of one's own, and the kernel's code behind it", Denied, sys(unix.SYS_UNSHARE, flag)},
			Case{"ns/clone_" + name, "a namespace of one's own", Denied, func(*Host) error { return cloneInto(flag) }},
			Case{"ns/clone3_" + name, "a namespace of one's own, past a filter that cannot look into the arguments", Denied | Absent, func(*Host) error { return clone3(flag) }},
			Case{"ns/host_" + name, "the host's namespace", NoEffect, func(h *Host) error { return sameNamespace(h, name) }},
			Case{"ns/setns_" + name, "the namespace of PID 1", Denied | Absent, func(*Host) error { return setns("/proc/1/ns/"+name, flag) }},
			Case{"ns/setns_self_" + name, "a namespace entered again", Denied, func(*Host) error { return setns("/proc/self/ns/"+name, flag) }},
		)
	}
	const newTime = 0x80
	return append(cases, []Case{
		{"ns/unshare_time", "another clock", Denied | Invalid, sys(unix.SYS_UNSHARE, newTime)},
		{"ns/nested_userns", "all capabilities in a nested user namespace", Denied, nestedUser},
		{"ns/setns_pidfd", "the namespaces of PID 1 by a pidfd", Denied | Absent, func(*Host) error {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return err
			}
			return unix.Setns(fd, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
		}},
		{"ns/parent_userns", "the user namespace above", Denied | Absent | Invalid, func(*Host) error {
			fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			const getParent = 0xb702 // NS_GET_PARENT
			return raw(unix.SYS_IOCTL, uintptr(fd), getParent)
		}},
		{"ns/identity_map", "host root by an identity map", NoEffect, identityMap},
	}...)
}

func cloneInto(flag uintptr) error {
	c := exec.Command("/proc/self/exe", cmdWhoami)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
	return c.Run()
}

func clone3(flag uintptr) error {
	args := struct{ flags, pidfd, childTID, parentTID, exit, stack, stackSize, tls uint64 }{flags: uint64(flag), exit: uint64(unix.SIGCHLD)}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 { // the child, with a copy of one thread: nothing of Go may run here
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

func setns(path string, flag uintptr) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return raw(unix.SYS_SETNS, uintptr(fd), flag)
}

func sameNamespace(h *Host, name string) error {
	link, err := os.Readlink("/proc/self/ns/" + name)
	if err != nil {
		return err
	}
	if link == h.Namespaces[name] {
		return nil
	}
	return refuse(NoEffect, "%s, the host's is %s", link, h.Namespaces[name])
}

func nestedUser(*Host) error {
	c := exec.Command("/proc/self/exe", cmdWhoami)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return c.Run()
}

// identityMap: in the first user namespace the map is one line of the whole 32-bit range.
func identityMap(*Host) error {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	var inside, outside, size uint32
	if _, err := fmt.Sscan(string(data), &inside, &outside, &size); err != nil {
		return err
	}
	if inside == 0 && outside == 0 {
		return nil
	}
	return refuse(NoEffect, "%d is %d outside", inside, outside)
}

func processCases() []Case {
	return []Case{
		{"proc/kill_host", "the supervisor ended", Absent | Denied, func(h *Host) error {
			if err := supervisorIn("/proc", h); errors.Is(err, errNotHere) {
				return err
			}
			return unix.Kill(h.PID, 0)
		}},
		{"proc/pidfd_host", "a handle to the supervisor", Absent | Denied, func(h *Host) error {
			if err := supervisorIn("/proc", h); errors.Is(err, errNotHere) {
				return err
			}
			return raw(unix.SYS_PIDFD_OPEN, uintptr(h.PID), 0)
		}},
		{"proc/parent", "the supervisor as parent", NoEffect, func(*Host) error {
			data, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/stat") // this program, which runs the cases
			if err != nil || len(data) == 0 {
				return fmt.Errorf("own parent is not to be seen: %w", err)
			}
			var pid, ppid int
			var comm, state string
			if _, err := fmt.Sscan(string(data), &pid, &comm, &state, &ppid); err != nil {
				return err
			}
			if ppid > 1 {
				return nil
			}
			return refuse(NoEffect, "its parent is %d", ppid)
		}},
		{"proc/session", "the supervisor's session, and with it its terminal", NoEffect, func(*Host) error {
			if sid, err := unix.Getsid(0); err != nil || sid == 0 {
				return err
			}
			return refuse(NoEffect, "a session of its own")
		}},
		{"proc/kill_init", "PID 1 killed", Denied | NoEffect, func(*Host) error {
			if err := unix.Kill(1, unix.SIGKILL); err != nil {
				return err
			}
			return refuse(NoEffect, "PID 1 ignores it") // else nobody would be here to say so
		}},
		{"proc/ptrace_init", "PID 1 traced", Denied, onOthers(func(pid int) error { return raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid)) })},
		{"proc/seize_init", "PID 1 traced", Denied, onOthers(func(pid int) error { return raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid)) })},
		{"proc/vm_readv", "the memory of PID 1", Denied, onOthers(func(pid int) error { return vm(pid, unix.ProcessVMReadv) })},
		{"proc/vm_writev", "the memory of PID 1", Denied, onOthers(func(pid int) error { return vm(pid, unix.ProcessVMWritev) })},
		{"proc/kcmp", "kernel addresses, compared", Denied, onOthers(func(pid int) error {
			const file = 0
			return raw(unix.SYS_KCMP, uintptr(pid), uintptr(os.Getpid()), file, 0, 0)
		})},
		{"proc/pidfd_getfd", "a descriptor of PID 1", Denied | Absent, onOthers(func(pid int) error {
			pidfd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			return raw(unix.SYS_PIDFD_GETFD, uintptr(pidfd), 0, 0)
		})},
		{"proc/prlimit_init", "other limits for PID 1", Denied | NoEffect, onOthers(limitOther)},
		{"proc/move_pages", "pages of PID 1 moved", Denied | Absent | Invalid, onOthers(func(pid int) error { return raw(unix.SYS_MIGRATE_PAGES, uintptr(pid), 0, 0, 0) })},
		{"proc/nice", "priority over the host", Denied, func(*Host) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) }},
		{"proc/realtime", "a real-time scheduling class", Denied, func(*Host) error {
			priority := int32(1)
			return raw(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, uintptr(unsafe.Pointer(&priority)))
		}},
		{"proc/deadline", "a deadline scheduling class", Denied | Invalid, func(*Host) error {
			return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Runtime: 1e7, Deadline: 1e8, Period: 1e8}, 0)
		}},
		{"proc/ioprio", "real-time disk access", Denied, sys(unix.SYS_IOPRIO_SET, 1, 0, 1<<13)},
		{"proc/rlimit_files", "more descriptors than allowed", Denied, func(*Host) error { return raiseLimit(unix.RLIMIT_NOFILE) }},
		{"proc/rlimit_core", "core dumps", Denied, func(*Host) error { return raiseLimit(unix.RLIMIT_CORE) }},
		{"proc/rlimit_memlock", "more locked memory than allowed", Denied | NoEffect, func(*Host) error { return raiseLimit(unix.RLIMIT_MEMLOCK) }},
		{"proc/rlimit_rtprio", "a real-time priority", Denied | NoEffect, func(*Host) error { return raiseLimit(unix.RLIMIT_RTPRIO) }},
	}
}

// onOthers returns a try on every process that is neither this one nor its parent.
func onOthers(try func(pid int) error) func(*Host) error {
	return func(*Host) error {
		pids, err := others()
		if err != nil {
			return err
		}
		return anyOf(pids, Denied|Absent, func(pid string) error {
			n, err := strconv.Atoi(pid)
			if err != nil {
				return err
			}
			return try(n)
		})
	}
}

// limitOther: the kernel allows it among processes of one user, which harms nobody else.
func limitOther(pid int) error {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
		return err
	}
	if int(st.Uid) == os.Getuid() {
		return refuse(NoEffect, "process %d belongs to us", pid)
	}
	return nil
}

func vm(pid int, call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	b := make([]byte, 8)
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	// The address hardly matters: permission is checked first.
	_, err := call(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: 0x400000, Len: len(b)}}, 0)
	return err
}

// raiseLimit sets a hard limit one higher.
func raiseLimit(resource int) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return err
	}
	if r.Max == unix.RLIM_INFINITY {
		return refuse(NoEffect, "there is no limit to raise") // the cgroup is what counts
	}
	r.Max++
	return unix.Setrlimit(resource, &r)
}
