package pause

import "testing"

func TestHeader(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		program, err := elf(arch)
		if err != nil || len(program) > 256 {
			t.Errorf("%s: %d bytes, %v", arch, len(program), err)
		}
	}
	if _, err := elf("mips"); err == nil {
		t.Error("a pause program for an architecture without one")
	}
}
