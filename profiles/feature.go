package profiles

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson/quota"
)

// featureKeys say how long a feature lives, and what is kept of it.
func featureKeys() []key {
	return []key{
		{path: "checkpoints.off", about: "true: no automatic checkpoints within a step",
			kind: of[bool]{scalar[bool]{
				load: func(p *Profile) (bool, bool) {
					return p.Checkpoints.Off != nil && *p.Checkpoints.Off, p.Checkpoints.Off != nil
				},
				store:  func(p *Profile, v bool) { p.Checkpoints.Off = &v },
				parse:  yes,
				format: strconv.FormatBool,
				narrow: func(have, v bool) bool { return have || !v },
				shape:  map[string]any{"type": "boolean"},
			}}},
		{path: "checkpoints.every", flag: "checkpoint-every", about: "time between automatic checkpoints of a step",
			kind: quantity(func(p *Profile) *quota.Duration { return &p.Checkpoints.Every }, atLeast(quota.Duration(time.Second)))},
		{path: "checkpoints.files", flag: "checkpoint-files", about: "changed files after which a step gets an automatic checkpoint",
			kind: quantity(func(p *Profile) *quota.Count { return &p.Checkpoints.Files }, quota.ParseCount)},
		{path: "checkpoints.debounce", flag: "checkpoint-debounce", about: "time without changes that an automatic checkpoint waits for",
			kind: quantity(func(p *Profile) *quota.Duration { return &p.Checkpoints.Debounce }, atLeast(quota.Duration(100*time.Millisecond)))},
		{path: "retention.count", about: "checkpoints of a feature that are kept",
			kind: kept(quantity(func(p *Profile) *quota.Count { return &p.Retention.Count }, quota.ParseCount))},
		{path: "retention.age", about: "how long a checkpoint is kept",
			kind: kept(quantity(func(p *Profile) *quota.Duration { return &p.Retention.Age }, quota.ParseDuration))},
		{path: "retention.bytes", maybe: true, about: "bytes of checkpoints that are kept",
			kind: kept(optional(func(p *Profile) **quota.Bytes { return &p.Retention.Bytes }, quota.ParseBytes))},
		{path: "retention.export", about: "what happens to checkpoints that are not kept: none, zstd (kept as compressed archives)",
			kind: kept(word(func(p *Profile) *string { return &p.Retention.Export }, "none", "zstd"))},
		{path: "ttl", flag: "ttl", maybe: true, about: "how long a feature stays live after its start, such as 8h",
			kind: optional(func(p *Profile) **quota.Duration { return &p.TTL }, quota.ParseDuration)},
		{path: "idle", flag: "idle", maybe: true, about: "how long a feature stays live when nothing runs in it",
			kind: optional(func(p *Profile) **quota.Duration { return &p.Idle }, quota.ParseDuration)},
		{path: "base", flag: "base", about: "what lies below a feature: overlay (the workspace), copy (a copy of it)",
			kind: kept(word(func(p *Profile) *string { return &p.Base }, "overlay", "copy"))},
		{path: "driver", flag: "driver", about: "how layers are kept: auto, overlay, copy",
			kind: kept(word(func(p *Profile) *string { return &p.Driver }, "auto", "overlay", "copy"))},
	}
}

// inodes is a limit that can be switched off, which is wider than any.
func inodes() kind {
	const none = quota.Count(-1)
	return of[quota.Count]{scalar[quota.Count]{
		load: func(p *Profile) (quota.Count, bool) {
			if p.NoInodeLimit {
				return none, true
			}
			if p.Limits.Inodes == nil {
				return 0, false
			}
			return *p.Limits.Inodes, true
		},
		store: func(p *Profile, v quota.Count) {
			p.Limits.Inodes, p.NoInodeLimit = &v, v == none
			if p.NoInodeLimit {
				p.Limits.Inodes = nil
			}
		},
		parse: func(s string) (quota.Count, error) {
			if s == "none" {
				return none, nil
			}
			return positive(quota.ParseCount)(s)
		},
		format: func(v quota.Count) string {
			if v == none {
				return "none"
			}
			return v.String()
		},
		narrow: func(have, v quota.Count) bool { return have == none || v != none && v <= have },
		shape:  map[string]any{"type": []string{"string", "number"}},
	}}
}

// kept is a value that a file in the workspace cannot change: it has no narrower side, or the history is at stake.
func kept(k kind) kind { return keptKind{k} }

type keptKind struct{ kind }

func (k keptKind) narrower(have, v any) string {
	if have == nil || reflect.DeepEqual(have, v) {
		return ""
	}
	return fmt.Sprintf("says %v, and only the trusted side can change it", v)
}

// atLeast parses a duration that is not so short that it would be work without end.
func atLeast(least quota.Duration) func(string) (quota.Duration, error) {
	return func(s string) (quota.Duration, error) {
		d, err := quota.ParseDuration(s)
		if err == nil && d < least {
			err = fmt.Errorf("%s is shorter than %s", d, least)
		}
		return d, err
	}
}

func yes(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, fmt.Errorf("%q must be true or false", s)
	}
	return s == "true", nil
}
