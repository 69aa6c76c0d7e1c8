package quota

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func validLimits() Limits {
	return Limits{
		CPUs: 2 * CPU, Memory: 2 * GiB, Pids: 512, Timeout: Duration(10 * time.Minute), Output: 256 * MiB, Tmp: 512 * MiB,
	}
}

func TestValidate(t *testing.T) {
	if err := validLimits().Validate(); err != nil {
		t.Fatal(err)
	}
	negative, huge, one := Bytes(-1), Count(1<<50), Bytes(1)
	for field, change := range map[string][]func(*Limits){
		"cpus":    {func(l *Limits) { l.CPUs = 0 }, func(l *Limits) { l.CPUs = -1 }, func(l *Limits) { l.CPUs = 1 }, func(l *Limits) { l.CPUs = 1 << 60 }},
		"memory":  {func(l *Limits) { l.Memory = 0 }, func(l *Limits) { l.Memory = -5 }, func(l *Limits) { l.Memory = 5 }, func(l *Limits) { l.Memory = 2 * EiB }},
		"pids":    {func(l *Limits) { l.Pids = 0 }, func(l *Limits) { l.Pids = 1 }, func(l *Limits) { l.Pids = 1 << 40 }},
		"timeout": {func(l *Limits) { l.Timeout = 0 }, func(l *Limits) { l.Timeout = -1 }, func(l *Limits) { l.Timeout = 1 }},
		"output":  {func(l *Limits) { l.Output = 0 }, func(l *Limits) { l.Output = EiB }},
		"tmp":     {func(l *Limits) { l.Tmp = 0 }, func(l *Limits) { l.Tmp = 1 }},
		"disk":    {func(l *Limits) { l.Disk = new(Bytes) }, func(l *Limits) { l.Disk = &negative }, func(l *Limits) { l.Disk = &one }},
		"inodes":  {func(l *Limits) { l.Inodes = new(Count) }, func(l *Limits) { l.Inodes = &huge }},
	} {
		for i, c := range change {
			l := validLimits()
			c(&l)
			var e *LimitError
			if err := l.Validate(); !errors.As(err, &e) || e.Field != field {
				t.Errorf("%s, change %d: error %v", field, i, err)
			}
		}
	}
	l := validLimits()
	l.Memory = 0
	if err := l.Validate(); !strings.Contains(err.Error(), "memory") || !strings.Contains(err.Error(), "unlimited") {
		t.Errorf("the error does not say that zero is no limit: %v", err)
	}
}

func TestRlimits(t *testing.T) {
	l := validLimits()
	disk := 10 * GiB
	l.Disk = &disk
	got := map[string]uint64{}
	for _, r := range l.Rlimits() {
		if r.Hard != r.Soft || r.Hard == 0 {
			t.Errorf("%s: soft %d, hard %d", r.Type, r.Soft, r.Hard)
		}
		got[r.Type] = r.Hard
	}
	for kind, want := range map[string]uint64{
		"RLIMIT_AS": 2 << 30, "RLIMIT_NPROC": 512, "RLIMIT_CPU": 1201, "RLIMIT_FSIZE": 10 << 30,
	} {
		if got[kind] != want {
			t.Errorf("%s = %d, want %d", kind, got[kind], want)
		}
	}
	tiny := Limits{CPUs: 10, Memory: MiB, Pids: 2, Timeout: Duration(time.Millisecond)}
	for _, r := range tiny.Rlimits() {
		if r.Hard == 0 {
			t.Errorf("%s is 0", r.Type)
		}
	}
}

func TestUsageJSON(t *testing.T) {
	u := Usage{CPU: time.Second, MemoryCurrent: MiB, MemoryPeak: unknown, PidsCurrent: 3, PidsPeak: unknown, OOMKills: 1, PidsRefused: 2}
	data, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cpu_ns":1000000000,"memory_current_bytes":1048576,"memory_peak_bytes":null,"pids_current":3,"pids_peak":null,"oom_kills":1,"pids_refused":2}`
	if string(data) != want {
		t.Errorf("written as %s", data)
	}
	var again Usage
	if err := json.Unmarshal(data, &again); err != nil || again != u {
		t.Errorf("read back %+v, %v", again, err)
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"init", "step-1", "01JD8Z6Q4V0000000000000000", "my_feature"} {
		if err := checkName("id", name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", "cgroup.procs", "a\nb", "a\x00b", strings.Repeat("x", 201)} {
		if err := checkName("id", name); err == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}
