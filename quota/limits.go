package quota

import (
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Limits is what a feature or a step may use. Every field must be set: zero is never "unlimited".
// Disk and Inodes are nil when no disk quota is asked.
type Limits struct {
	CPUs    CPUs     `yaml:"cpus" json:"cpus"`
	Memory  Bytes    `yaml:"memory" json:"memory"` // without swap
	Pids    Count    `yaml:"pids" json:"pids"`     // processes and threads
	Timeout Duration `yaml:"timeout" json:"timeout"`
	Output  Bytes    `yaml:"output" json:"output"` // of stdout and stderr together
	Tmp     Bytes    `yaml:"tmp" json:"tmp"`       // size of /tmp; what is in it counts as memory too
	Disk    *Bytes   `yaml:"disk,omitempty" json:"disk,omitempty"`
	Inodes  *Count   `yaml:"inodes,omitempty" json:"inodes,omitempty"`
}

// LimitError says which limit makes no sense.
type LimitError struct {
	Field  string // as in a profile: "memory"
	Value  string
	Reason string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("limit %s: %s %s", e.Field, e.Value, e.Reason)
}

type bound struct {
	field         string
	value         int64
	least, most   int64
	format        func(int64) string
	belongsToStep bool // enforced by cgroups
}

func text[T interface{ ~int64 }](f func(T) string) func(int64) string {
	return func(v int64) string { return f(T(v)) }
}

// bounds is the table of what makes sense. Least is what a sandbox needs to start at all, or what the kernel can
// express; most is beyond any host.
func (l Limits) bounds() []bound {
	bytes, count := text(Bytes.String), text(Count.String)
	list := []bound{
		// The kernel's shortest quota is 1 ms in a period of 100 ms.
		{"cpus", int64(l.CPUs), 10, 8192 * int64(CPU), text(CPUs.String), true},
		{"memory", int64(l.Memory), int64(MiB), int64(PiB), bytes, true},
		// PID 1 and the command; the most is the kernel's PID_MAX_LIMIT.
		{"pids", int64(l.Pids), 2, 1 << 22, count, true},
		{"timeout", int64(l.Timeout), int64(time.Millisecond), int64(366 * 24 * time.Hour), text(Duration.String), false},
		{"output", int64(l.Output), 1, int64(PiB), bytes, false},
		{"tmp", int64(l.Tmp), int64(4 * KiB), int64(PiB), bytes, false},
	}
	if l.Disk != nil {
		list = append(list, bound{"disk", int64(*l.Disk), int64(MiB), int64(EiB), bytes, false})
	}
	if l.Inodes != nil {
		list = append(list, bound{"inodes", int64(*l.Inodes), 16, 1 << 40, count, false})
	}
	return list
}

// Validate returns a *LimitError for the first limit that is zero, negative or absurd.
func (l Limits) Validate() error {
	return l.check(false)
}

// check looks at all limits, or only at those that a cgroup enforces.
func (l Limits) check(cgroupOnly bool) error {
	for _, b := range l.bounds() {
		if cgroupOnly && !b.belongsToStep {
			continue
		}
		reason := ""
		switch {
		case b.value == 0:
			reason = "is not a limit; zero does not mean unlimited"
		case b.value < 0:
			reason = "is negative"
		case b.value < b.least:
			reason = "is less than the least that works, " + b.format(b.least)
		case b.value > b.most:
			reason = "is more than the most that makes sense, " + b.format(b.most)
		default:
			continue
		}
		return &LimitError{Field: b.field, Value: b.format(b.value), Reason: reason}
	}
	return nil
}

// Rlimits returns what the kernel can enforce of l without cgroups, for when these were waived. It is weaker:
//
//   - memory limits the address space of each process, not the memory of all together (RLIMIT_AS), and a program
//     that reserves much and uses little fails early;
//   - pids counts every process of the same user in the sandbox's user namespace (RLIMIT_NPROC);
//   - CPUs cannot be limited; the CPU time of each process is bounded by CPUs × timeout (RLIMIT_CPU);
//   - one file cannot exceed the disk limit where there is one (RLIMIT_FSIZE), the sum can;
//   - nothing is counted, so usage and the verdict memory are unknown.
func (l Limits) Rlimits() []specs.POSIXRlimit {
	cpuSeconds := max(1, (int64(l.Timeout)/int64(time.Millisecond))*int64(l.CPUs)/1_000_000+1)
	list := []specs.POSIXRlimit{
		rlimit("RLIMIT_AS", int64(l.Memory)),
		rlimit("RLIMIT_CPU", cpuSeconds),
		rlimit("RLIMIT_NPROC", int64(l.Pids)),
	}
	if l.Disk != nil {
		list = append(list, rlimit("RLIMIT_FSIZE", int64(*l.Disk)))
	}
	return list
}

func rlimit(kind string, v int64) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: kind, Hard: uint64(v), Soft: uint64(v)}
}
