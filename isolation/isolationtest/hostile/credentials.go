//go:build linux

package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cmdWhoami prints an identity as JSON: what a setuid binary would have become.
const cmdWhoami = "whoami"

// identity is who a process is to the kernel.
type identity struct {
	UID, EUID, GID, EGID int
	Effective            string // capabilities, as in /proc/self/status
}

func whoami() error {
	effective, err := status("CapEff")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(identity{os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), effective})
}

// noCapabilities is how /proc prints the empty set.
const noCapabilities = "0000000000000000"

func credentialCases() []Case {
	cases := []Case{
		{"cred/no_new_privs", "setuid binaries that work", NoEffect, statusIs("NoNewPrivs", "1")},
		{"cred/seccomp", "unfiltered system calls", NoEffect, statusIs("Seccomp", "2")},
		{"cred/groups", "supplementary groups of the host", NoEffect, statusIs("Groups", "")},
		{"cred/setuid", "another user", Denied | Invalid, func(*Host) error { return raw(unix.SYS_SETUID, uintptr(otherID(os.Getuid()))) }},
		{"cred/setgid", "another group", Denied | Invalid, func(*Host) error { return raw(unix.SYS_SETGID, uintptr(otherID(os.Getgid()))) }},
		{"cred/setresuid", "another user", Denied | Invalid, func(*Host) error {
			id := uintptr(otherID(os.Getuid()))
			return raw(unix.SYS_SETRESUID, id, id, id)
		}},
		{"cred/setgroups", "more groups", Denied, func(*Host) error {
			group := uint32(os.Getgid())
			return raw(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&group)))
		}},
		{"cred/dropgroups", "no groups, where a group is what denies", Denied, sys(unix.SYS_SETGROUPS, 0, 0)},
		{"cred/setuid_binary", "root by a setuid binary", NoEffect | Denied, func(h *Host) error {
			return anyOf(h.Setuid, NoEffect|Denied, gains)
		}},
		{"cred/setuid_system", "root by the host's setuid binaries", NoEffect | Denied | Absent, func(h *Host) error {
			return anyOf([]string{"/usr/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/newgrp"}, NoEffect|Denied|Absent, setuidFlag)
		}},
		{"cred/capset", "capabilities", Denied, capset},
		{"cred/ambient", "ambient capabilities", Denied, func(*Host) error {
			return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
		}},
		{"cred/securebits", "other rules for root", Denied, func(*Host) error { return unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0) }},
		{"cred/unset_no_new_privs", "setuid binaries that work", Invalid | Denied, func(*Host) error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }},
		{"cred/unset_seccomp", "unfiltered system calls", Invalid | Denied, func(*Host) error { return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_DISABLED, 0, 0, 0) }},
		{"cred/set_mm", "a forged /proc/self/exe", Denied | Invalid, func(*Host) error {
			return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_START_BRK, 0x400000, 0, 0)
		}},
		{"cred/keepcaps_uid", "root inside", NoEffect, func(h *Host) error {
			if id := os.Getuid(); id != 0 || h.Mapped {
				return refuse(NoEffect, "uid %d", id)
			}
			return nil
		}},
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		cases = append(cases, Case{"cred/status_" + set, "capabilities", NoEffect, statusIs(set, noCapabilities)})
	}
	return cases
}

// otherID is an id that the process does not have.
func otherID(own int) int {
	if own == 0 {
		return 1000
	}
	return 0
}

// statusIs returns a try that succeeds when /proc/self/status says anything else.
func statusIs(field, want string) func(*Host) error {
	return func(*Host) error {
		got, err := status(field)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("a hole: %s is %q, not %q", field, got, want)
		}
		return refuse(NoEffect, "%s is %q", field, got)
	}
}

// gains runs this program as a planted binary and succeeds when that is more than this process.
func gains(path string) error {
	c := exec.Command(path, cmdWhoami)
	c.Args[0] = os.Args[0]
	out, err := c.Output()
	if err != nil {
		return err
	}
	var got identity
	if err := json.Unmarshal(out, &got); err != nil {
		return err
	}
	if got.EUID != os.Getuid() || got.EGID != os.Getgid() || got.Effective != noCapabilities {
		return nil
	}
	return refuse(NoEffect, "%s runs as %d", path, got.EUID)
}

// setuidFlag succeeds when a file is setuid to a mapped user on a mount that honours it.
func setuidFlag(path string) error {
	var st unix.Stat_t
	var fsStat unix.Statfs_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if err := unix.Statfs(path, &fsStat); err != nil {
		return err
	}
	if st.Mode&unix.S_ISUID != 0 && fsStat.Flags&unix.ST_NOSUID == 0 {
		return nil
	}
	return refuse(NoEffect, "%s lies on a nosuid mount", path)
}

func capset(*Host) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
	return unix.Capset(&header, &all[0])
}

// kernelText is what a harmless module or program image would be; nothing accepts it.
var kernelText = []byte(strings.Repeat("\x00", 64))
