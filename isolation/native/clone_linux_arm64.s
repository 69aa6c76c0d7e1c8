#include "textflag.h"

// func cloneRun(args *cloneArgs, size uintptr, ops *op, n uintptr, res *result) (r uintptr)
//
// The same interpreter as clone_linux_amd64.s. R18 is the platform's, R27 the assembler's, R28 is g.
TEXT ·cloneRun(SB), NOSPLIT|NOFRAME, $0-48
	MOVD args+0(FP), R0
	MOVD size+8(FP), R1
	MOVD ops+16(FP), R19
	MOVD n+24(FP), R20
	MOVD res+32(FP), R21
	MOVD $435, R8          // clone3
	SVC  $0
	CBZ  R0, child
	MOVD R0, r+40(FP)
	RET

child:
	MOVD $0, R22

loop:
	CMP  R20, R22
	BGE  quit
	MOVD 56(R19), R23      // flags
	MOVD 0(R19), R8
	MOVD 8(R19), R0
	MOVD 16(R19), R1
	MOVD 24(R19), R2
	MOVD 32(R19), R3
	MOVD 40(R19), R4
	MOVD 48(R19), R5
	TBZ  $1, R23, ref2     // opRef0
	MOVD (R0), R0

ref2:
	TBZ  $2, R23, call     // opRef2
	MOVD (R2), R2

call:
	SVC  $0
	MOVD R0, 64(R19)
	CMN  $4095, R0         // carry: R0 >= -4095, an errno
	BCS  failed
	CBZ  R0, zero
	TBNZ $4, R23, quit     // opLeave
	B    next

zero:
	TBZ  $3, R23, next     // opNonzero
	MOVD $-32, R0          // EPIPE

failed:
	TBNZ $0, R23, next     // opSoft
	TBZ  $5, R23, stop     // opAgain
	CMN  $11, R0           // EAGAIN
	BEQ  next

stop:
	NEG  R0, R0
	MOVD R0, 8(R21)
	MOVD R22, 0(R21)
	B    quit

next:
	ADD  $72, R19
	ADD  $1, R22
	B    loop

quit:
	MOVD $0, R0
	MOVD $94, R8           // exit_group
	SVC  $0
	B    quit
