// Package pause is the program that is PID 1 of every sandbox: it makes itself undumpable (the command may have its uid), then
// reads its standard input, the lifeline whose only writer is the supervisor, and exits at its end; the kernel then
// ends the whole pid namespace. Children are reaped by the kernel, because SIGCHLD is ignored when it starts.
//
//	prctl(PR_SET_DUMPABLE, 0)
//	for { n = read(0, sp-16, 1); if n == 0 || n < 0 && n != -EINTR { exit(0) } }
package pause

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// code is the program's text, by architecture.
var code = map[string][]byte{
	"amd64": {
		0xb8, 0x9d, 0, 0, 0, //       mov  eax, 157        prctl
		0xbf, 0x04, 0, 0, 0, //       mov  edi, 4          PR_SET_DUMPABLE
		0x31, 0xf6, //                xor  esi, esi
		0x0f, 0x05, //                syscall
		0x31, 0xc0, //          loop: xor  eax, eax        read
		0x31, 0xff, //                xor  edi, edi
		0x48, 0x8d, 0x74, 0x24, 0xf0, // lea rsi, [rsp-16]
		0xba, 0x01, 0, 0, 0, //       mov  edx, 1
		0x0f, 0x05, //                syscall
		0x83, 0xf8, 0xfc, //          cmp  eax, -4         EINTR
		0x74, 0xeb, //                je   loop            (-21)
		0x85, 0xc0, //                test eax, eax
		0x7f, 0xe7, //                jg   loop            (-25)
		0xb8, 0xe7, 0, 0, 0, //       mov  eax, 231        exit_group
		0x31, 0xff, //                xor  edi, edi
		0x0f, 0x05, //                syscall
	},
	"arm64": words(
		0xd28014e8, //       mov  x8, #167         prctl
		0xd2800080, //       mov  x0, #4           PR_SET_DUMPABLE
		0xd2800001, //       mov  x1, #0
		0xd4000001, //       svc  #0
		0xd28007e8, // loop: mov  x8, #63          read
		0xd2800000, //       mov  x0, #0
		0xd10043e1, //       sub  x1, sp, #16
		0xd2800022, //       mov  x2, #1
		0xd4000001, //       svc  #0
		0xb100101f, //       cmn  x0, #4           EINTR
		0x54ffff40, //       b.eq loop             (-6 instructions)
		0xf100001f, //       cmp  x0, #0
		0x54ffff0c, //       b.gt loop             (-8 instructions)
		0xd2800bc8, //       mov  x8, #94          exit_group
		0xd2800000, //       mov  x0, #0
		0xd4000001, //       svc  #0
	),
}

func words(w ...uint32) []byte {
	var b []byte
	for _, x := range w {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// elf wraps the code into the smallest static executable: an ELF header and one loadable segment.
func elf(arch string) ([]byte, error) {
	text, ok := code[arch]
	if !ok {
		return nil, fmt.Errorf("no pause program for %s", arch)
	}
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[arch] // EM_X86_64, EM_AARCH64
	const base, ehsize, phsize = 0x400000, 64, 56
	size := uint64(ehsize + phsize + len(text))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + ehsize + phsize), // ET_EXEC, machine, version, entry
		uint64(ehsize), uint64(0), uint32(0), // program headers, section headers, flags
		uint16(ehsize), uint16(phsize), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x10000), // PT_LOAD, R+X
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			return nil, fmt.Errorf("pause program: %w", err)
		}
	}
	b.Write(text)
	return b.Bytes(), nil
}

// Memfd returns the program in a sealed memfd, for execveat.
func Memfd() (*os.File, error) {
	program, err := elf(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("caisson-pause", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before kernel 6.3 every memfd can be executed
		fd, err = unix.MemfdCreate("caisson-pause", flags)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("memfd for the pause program: %w (sysctl vm.memfd_noexec is 2; 1 is enough)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd for the pause program: %w", err)
	}
	f := os.NewFile(uintptr(fd), "caisson-pause")
	if _, err = f.Write(program); err == nil {
		// Executed without being readable it is undumpable from its first instruction: in an unprivileged sandbox the
		// task has its uid.
		err = f.Chmod(0o111)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the pause program: %w", err)
	}
	return f, nil
}
