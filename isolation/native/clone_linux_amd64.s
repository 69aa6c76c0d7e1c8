#include "textflag.h"

// func cloneRun(args *cloneArgs, size uintptr, ops *op, n uintptr, res *result) (r uintptr)
//
// The parent returns the child's pid or -errno. The child interprets ops up to execve without touching the
// stack or g, so it may share the parent's memory. See plan_linux.go for the layout and the flags.
TEXT ·cloneRun(SB), NOSPLIT|NOFRAME, $0-48
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	MOVQ ops+16(FP), R13
	MOVQ n+24(FP), BX
	MOVQ res+32(FP), R15
	MOVQ $435, AX          // clone3
	SYSCALL
	TESTQ AX, AX
	JEQ  child
	MOVQ AX, r+40(FP)
	RET

child:
	XORQ R12, R12

loop:
	CMPQ R12, BX
	JGE  quit
	MOVQ 56(R13), R14      // flags
	MOVQ 0(R13), AX
	MOVQ 8(R13), DI
	MOVQ 16(R13), SI
	MOVQ 24(R13), DX
	MOVQ 32(R13), R10
	MOVQ 40(R13), R8
	MOVQ 48(R13), R9
	TESTQ $2, R14          // opRef0
	JEQ  ref2
	MOVQ (DI), DI

ref2:
	TESTQ $4, R14          // opRef2
	JEQ  call
	MOVQ (DX), DX

call:
	SYSCALL
	MOVQ AX, 64(R13)
	CMPQ AX, $0xfffffffffffff001
	JCC  failed            // unsigned >=: an errno
	TESTQ AX, AX
	JEQ  zero
	TESTQ $16, R14         // opLeave: the process that forked is done
	JNE  quit
	JMP  next

zero:
	TESTQ $8, R14          // opNonzero
	JEQ  next
	MOVQ $-32, AX          // EPIPE: the other end of the lifeline is gone

failed:
	TESTQ $1, R14          // opSoft
	JNE  next
	TESTQ $32, R14         // opAgain
	JEQ  stop
	CMPQ AX, $-11          // EAGAIN
	JEQ  next

stop:
	NEGQ AX
	MOVQ AX, 8(R15)        // errno before the index: the parent reads the index first
	MOVQ R12, 0(R15)
	JMP  quit

next:
	ADDQ $72, R13
	INCQ R12
	JMP  loop

quit:
	XORQ DI, DI
	MOVQ $231, AX          // exit_group
	SYSCALL
	JMP  quit
