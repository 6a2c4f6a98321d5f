// Sets the registers of the guest's processes on processors that have more of them than its kernel knows.
//
// User-mode Linux hands the floating-point state of a process to PTRACE_SETREGSET in a buffer of 2,696 bytes, which is
// what AVX-512 needs. A processor with AMX has 8 KB more, and there this machine's kernel takes nothing but all of it
// (EFAULT otherwise; Linux before 6.13 in the guest). This library, put before the C library's ptrace() by
// test/guest/run, makes the state whole: what is missing is in its first state, as a process that never used it has it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

// Where the state's header is in it, in bytes: it begins with a bit for each part that is not in its first state.
#define HEADER 512
// The parts that user-mode Linux knows: all that is before AMX (bits 17 and 18).
#define KNOWN ((uint64_t)0x3ff)

// Larger than any processor's.
static char state[64 * 1024];
static size_t whole;

typedef long ptrace_function(long request, pid_t pid, void *address, void *data);

// The guest's kernel asks from one thread.
static long set(ptrace_function *next, pid_t pid, void *address, struct iovec *given)
{
	if (whole == 0) {
		struct iovec all = {state, sizeof state};
		if (next(PTRACE_GETREGSET, pid, address, &all) < 0)
			return next(PTRACE_SETREGSET, pid, address, given);
		whole = all.iov_len;
		memset(state, 0, sizeof state);
	}
	if (given->iov_len >= whole || given->iov_len < HEADER + sizeof(uint64_t))
		return next(PTRACE_SETREGSET, pid, address, given);
	memcpy(state, given->iov_base, given->iov_len);
	uint64_t parts;
	memcpy(&parts, state + HEADER, sizeof parts);
	parts &= KNOWN;
	memcpy(state + HEADER, &parts, sizeof parts);
	struct iovec all = {state, whole};
	return next(PTRACE_SETREGSET, pid, address, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_function *next;
	if (next == NULL)
		next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
	va_list list;
	va_start(list, request);
	pid_t pid = va_arg(list, pid_t);
	void *address = va_arg(list, void *);
	void *data = va_arg(list, void *);
	va_end(list);
	if (request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE)
		return set(next, pid, address, data);
	return next(request, pid, address, data);
}
