package native

import (
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// capHeader and capData are what capset(2) takes: version 3, the calling thread; two words per set.
type capHeader struct {
	version uint32
	pid     int32
}

type capData [2]struct{ effective, permitted, inheritable uint32 }

// sharedPID is where the kernel writes a pid that both processes see.
type sharedPID struct{ pid int32 }

const capVersion3 = 0x20080522

// securebits: uid 0 has no privilege by itself, a change of uid gives none, capabilities are not kept; all locked.
const secureNoRoot = 0x2f

// lastCap is the highest capability that this kernel knows.
func lastCap() int {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return unix.CAP_LAST_CAP
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return unix.CAP_LAST_CAP
	}
	return n
}

// dropBounding empties the bounding set and locks what root means, while that is still allowed.
func (p *plan) dropBounding(last int) {
	for c := 0; c <= last; c++ {
		p.add("drop capability "+strconv.Itoa(c), unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	p.add("securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureNoRoot, 0, 0, 0)
}

// become takes uid and gid and no group beside it. A sandbox with a single id has nothing to take: its only ids
// are the supervisor's, and groups cannot be dropped without privilege (SECURITY.md says what follows).
func (p *plan) become(uid, gid uint32, single bool) {
	if single {
		return
	}
	p.add("drop groups", unix.SYS_SETGROUPS, 0, nil)
	p.add("take gid", unix.SYS_SETRESGID, gid, gid, gid)
	p.add("take uid", unix.SYS_SETRESUID, uid, uid, uid)
}

// seal gives up what is left: capabilities, the way back to any, and system calls. Only execve follows.
func (p *plan) seal(filter *unix.SockFprog) {
	p.add("drop capabilities", unix.SYS_CAPSET, &capHeader{version: capVersion3}, &capData{})
	p.add("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	p.add("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, filter)
	p.add("unblock signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, make([]byte, 8), nil, 8)
}

var rlimitNumbers = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_AS": unix.RLIMIT_AS,
}

// setRlimits sets limits, never above what the supervisor itself may have: raising needs a privilege.
func (p *plan) setRlimits(limits []specs.POSIXRlimit) {
	for _, l := range limits {
		n, ok := rlimitNumbers[l.Type]
		if !ok {
			continue // Start has refused unknown names
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(n, &own); err != nil {
			own = unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		}
		r := &unix.Rlimit{Max: min(l.Hard, own.Max)}
		r.Cur = min(l.Soft, r.Max)
		p.add("limit "+l.Type, unix.SYS_PRLIMIT64, 0, n, r, nil)
	}
}
