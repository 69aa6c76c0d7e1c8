package quota

import (
	"encoding/json"
	"time"
)

// unknown stands for what this kernel does not count.
const unknown = -1

// Usage is what a group or leaf has used. -1 means unknown: this kernel does not count it.
type Usage struct {
	CPU           time.Duration // user and system time of everything that ever ran in it
	MemoryCurrent Bytes         // page cache included
	MemoryPeak    Bytes
	PidsCurrent   Count // threads included
	PidsPeak      Count // may exceed the limit a little: the kernel counts a fork before it refuses it

	// OOMKills is how many processes the OOM killer has killed, and PidsRefused how many forks were refused for the limit
	// of the leaf, or of the group while the leaf existed. On version 1 a group counts those of its present leaves.
	OOMKills    int64
	PidsRefused int64
}

// usageJSON is Usage as machines read it: plain numbers, and null for what is unknown.
type usageJSON struct {
	CPU           *int64 `json:"cpu_ns"`
	MemoryCurrent *int64 `json:"memory_current_bytes"`
	MemoryPeak    *int64 `json:"memory_peak_bytes"`
	PidsCurrent   *int64 `json:"pids_current"`
	PidsPeak      *int64 `json:"pids_peak"`
	OOMKills      int64  `json:"oom_kills"`
	PidsRefused   int64  `json:"pids_refused"`
}

// MarshalJSON writes plain numbers (bytes, nanoseconds), and null for what is unknown.
func (u Usage) MarshalJSON() ([]byte, error) {
	known := func(n int64) *int64 {
		if n == unknown {
			return nil
		}
		return &n
	}
	return json.Marshal(usageJSON{
		CPU:           known(int64(u.CPU)),
		MemoryCurrent: known(int64(u.MemoryCurrent)),
		MemoryPeak:    known(int64(u.MemoryPeak)),
		PidsCurrent:   known(int64(u.PidsCurrent)),
		PidsPeak:      known(int64(u.PidsPeak)),
		OOMKills:      u.OOMKills,
		PidsRefused:   u.PidsRefused,
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (u *Usage) UnmarshalJSON(data []byte) error {
	var j usageJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	known := func(n *int64) int64 {
		if n == nil {
			return unknown
		}
		return *n
	}
	*u = Usage{
		CPU:           time.Duration(known(j.CPU)),
		MemoryCurrent: Bytes(known(j.MemoryCurrent)),
		MemoryPeak:    Bytes(known(j.MemoryPeak)),
		PidsCurrent:   Count(known(j.PidsCurrent)),
		PidsPeak:      Count(known(j.PidsPeak)),
		OOMKills:      j.OOMKills,
		PidsRefused:   j.PidsRefused,
	}
	return nil
}
