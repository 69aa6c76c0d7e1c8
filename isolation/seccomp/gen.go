//go:build ignore

// Gen writes syscalls.tsv: the system calls that any architecture of ours has, with their numbers. "-" means
// that the architecture lacks the call; a call that only others have is kept so that its name is known.
package main

import (
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// newer are calls that the table's source does not know yet; they have one number everywhere.
var newer = map[string]int{"file_getattr": 468, "file_setattr": 469, "listns": 470}

func main() {
	native := []*arch.Info{arch.X86_64, arch.AARCH64}
	all := maps.Clone(newer)
	for _, a := range append(native, arch.I386, arch.ARM) {
		maps.Copy(all, a.SyscallNames)
	}
	var b strings.Builder
	b.WriteString("# name\tamd64\tarm64\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.WriteString(name)
		for _, a := range native {
			b.WriteString("\t" + number(a, name))
		}
		b.WriteByte('\n')
	}
	if err := os.WriteFile("syscalls.tsv", []byte(b.String()), 0o644); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(all), "system calls")
}

func number(a *arch.Info, name string) string {
	if n, ok := newer[name]; ok {
		return strconv.Itoa(n)
	}
	if n, ok := a.SyscallNames[name]; ok {
		return strconv.Itoa(n)
	}
	return "-"
}
