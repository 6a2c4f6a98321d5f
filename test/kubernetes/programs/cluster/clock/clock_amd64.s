// The time for programs that run in the guest, where each look at the clock is a system call and a system call takes
// 0.1 ms: an API server spent nine tenths of its processor time on that. This clock asks the kernel every few
// milliseconds and counts the processor's ticks in between, a quarter of a nanosecond each: as no processor ticks faster
// than that, the time lags a little behind and is never ahead of the kernel's.

#include "textflag.h"

#define SYS_clock_gettime 228
// How many ticks are counted before the kernel is asked again.
#define MOST_TICKS 8000000

// For CLOCK_REALTIME and CLOCK_MONOTONIC each: a count that is odd while the rest is being changed; ticks, seconds and
// nanoseconds when the kernel was asked.
GLOBL state<>(SB), NOPTR, $64

// Not a function of Go's, whose wrapper the scheduler could interrupt on the wrong stack.
TEXT ·clockAddress(SB), NOSPLIT, $0-8
	LEAQ	clockGettime<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// As C calls it: DI is the clock, SI the timespec; BX, BP and R12 to R15 are the caller's.
TEXT clockGettime<>(SB), NOSPLIT|NOFRAME, $0-0
	CMPL	DI, $1
	JHI	kernel
	MOVL	DI, R9
	SHLQ	$5, R9
	LEAQ	state<>(SB), R8
	ADDQ	R8, R9
	MOVQ	0(R9), R8
	TESTQ	$1, R8
	JNZ	kernel	// another thread changes it, or whom this signal handler interrupted
	RDTSC
	SHLQ	$32, DX
	ORQ	DX, AX
	SUBQ	8(R9), AX
	MOVQ	16(R9), DX
	MOVQ	24(R9), CX
	CMPQ	R8, 0(R9)
	JNE	kernel
	CMPQ	AX, $MOST_TICKS
	JHI	ask
	SHRQ	$2, AX
	ADDQ	AX, CX
	CMPQ	CX, $1000000000
	JCS	tell
	SUBQ	$1000000000, CX
	INCQ	DX
tell:
	MOVQ	DX, 0(SI)
	MOVQ	CX, 8(SI)
	XORL	AX, AX
	RET
ask:
	MOVQ	R8, AX
	LEAQ	1(R8), R10
	LOCK
	CMPXCHGQ	R10, 0(R9)
	JNE	kernel
	MOVL	$SYS_clock_gettime, AX
	SYSCALL
	RDTSC
	SHLQ	$32, DX
	ORQ	DX, AX
	MOVQ	AX, 8(R9)
	MOVQ	0(SI), AX
	MOVQ	AX, 16(R9)
	MOVQ	8(SI), AX
	MOVQ	AX, 24(R9)
	ADDQ	$2, R8
	MOVQ	R8, 0(R9)
	XORL	AX, AX
	RET
kernel:
	MOVL	$SYS_clock_gettime, AX
	SYSCALL
	RET
