package seccomp

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed syscalls.tsv
var syscallsTSV string

// table is the system calls of one architecture.
type table struct {
	numbers map[string]uint32 // the native ones
	foreign map[string]bool   // names that only other architectures have
	max     uint32            // the highest native number
}

// lookup returns the table of a GOARCH.
func lookup(arch string) (*table, error) {
	lines := strings.Split(strings.TrimSuffix(syscallsTSV, "\n"), "\n")
	column := slices.Index(strings.Split(lines[0], "\t"), arch)
	if column < 1 {
		return nil, fmt.Errorf("seccomp: no system call table for %s", arch)
	}
	t := &table{numbers: make(map[string]uint32, len(lines)), foreign: make(map[string]bool, len(lines)/2)}
	for _, line := range lines[1:] {
		name, rest, _ := strings.Cut(line, "\t")
		for range column - 1 {
			_, rest, _ = strings.Cut(rest, "\t")
		}
		number, _, _ := strings.Cut(rest, "\t")
		if number == "-" {
			t.foreign[name] = true
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("seccomp: syscalls.tsv: %q: %w", line, err)
		}
		t.numbers[name] = uint32(n)
		t.max = max(t.max, uint32(n))
	}
	return t, nil
}
