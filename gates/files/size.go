package files

import (
	"context"
	"fmt"

	"github.com/caisson-dev/caisson/gates"
)

// SizeConfig configures the gate size. Zero is the default, never "unlimited".
type SizeConfig struct {
	Files    int64          `json:"files,omitempty"`    // changed paths that are no directories, deleted ones included; 0: 2000
	Bytes    int64          `json:"bytes,omitempty"`    // of all added and modified files; 0: 64 MiB
	File     int64          `json:"file,omitempty"`     // of each; 0: 8 MiB
	Binaries gates.Severity `json:"binaries,omitempty"` // new or changed files that are no text; "": block
	Allowed  []string       `json:"allowed,omitempty"`  // globs of what may be binary; nil: DefaultBinaries
}

// DefaultBinaries returns globs of binary files that are normal in a source tree: pictures and fonts.
func DefaultBinaries() []string {
	return []string{"**/*.{png,jpg,jpeg,gif,webp,avif,ico,bmp,svgz}", "**/*.{woff,woff2,ttf,otf,eot}"}
}

// Validate names the first value that makes no sense.
func (c SizeConfig) Validate() error {
	_, err := Size(c)
	return err
}

const sizeVersion = 1

// Size returns the gate that counts: files, bytes, binaries.
func Size(c SizeConfig) (gates.Gate, error) {
	for _, n := range []struct {
		value *int64
		def   int64
	}{{&c.Files, 2000}, {&c.Bytes, 64 << 20}, {&c.File, 8 << 20}} {
		if *n.value < 0 {
			return nil, fmt.Errorf("gate size: %d is no limit", *n.value)
		}
		if *n.value == 0 {
			*n.value = n.def
		}
	}
	if err := fill("size", level{&c.Binaries, gates.SeverityBlock}); err != nil {
		return nil, err
	}
	if c.Allowed == nil {
		c.Allowed = DefaultBinaries()
	}
	lists, err := globs("size", c.Allowed)
	if err != nil {
		return nil, err
	}
	return gate{"size", gates.DigestOf("size", sizeVersion, c), func(ctx context.Context, change *gates.Change) (gates.Verdict, error) {
		return c.check(ctx, change, lists[0])
	}}, nil
}

func (c SizeConfig) check(ctx context.Context, change *gates.Change, allowed gates.Globs) (gates.Verdict, error) {
	var list gates.List
	var files, size int64
	err := each(ctx, change, func(e *gates.Entry) {
		if e.Type == gates.TypeDir || e.Kind == gates.KindDeleted && e.OldType == gates.TypeDir {
			return
		}
		files++
		if e.Type != gates.TypeFile || e.Kind == gates.KindDeleted || e.Kind == gates.KindMode {
			return
		}
		size += e.Size
		if e.Size > c.File {
			list.Add(gates.Finding{Rule: "file", Path: e.Path, Severity: gates.SeverityBlock,
				Message: fmt.Sprintf("%d bytes; a file may have %d", e.Size, c.File), Remedy: "leave it out, or raise gates.size.file"})
		}
		if _, ok := allowed.Match(e.Path); e.Binary && !ok {
			list.Add(gates.Finding{Rule: "binary", Path: e.Path, Severity: c.Binaries,
				Message: "is no text: nobody can read it in a review", Remedy: "make it from its source where it is used, or name it in gates.size.allowed"})
		}
	})
	for _, m := range []struct {
		rule, unit   string
		value, limit int64
	}{{"files", "", files, c.Files}, {"bytes", "B", size, c.Bytes}} {
		list.Measure(gates.Measurement{Name: m.rule, Unit: m.unit, Value: float64(m.value), Limit: float64(m.limit)})
		if m.value > m.limit {
			list.Add(gates.Finding{Rule: m.rule, Severity: gates.SeverityBlock,
				Message: fmt.Sprintf("the change has %d %s; it may have %d", m.value, m.rule, m.limit), Remedy: "make it smaller, or raise gates.size." + m.rule})
		}
	}
	return list.Verdict(len(change.Entries)), err
}
