//! Programs for which the kernel lacks a system call: a filter (seccomp(2)) answers it with an error.

use std::ffi::OsString;
use std::process::Command;

use nix::errno::Errno;

/// The calls that a filter may answer, and their numbers, the same for all processors.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum SystemCall {
    OpenTree = 428,
    MoveMount = 429,
    Fsopen = 430,
    Openat2 = 437,
}

/// Sets a filter for itself and runs a program: the call's number is compared, and else all is allowed.
const FILTERED: &str = r#"
import ctypes, os, struct, sys
number, errno = int(sys.argv[1]), int(sys.argv[2])
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
    if libc.prctl(*call) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[3], sys.argv[3:])
"#;

/// A command for a program to which the kernel answers a system call with this error.
pub fn failing(call: SystemCall, error: Errno, program: OsString) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", FILTERED, &(call as u32).to_string(), &(error as i32).to_string()]).arg(program);
    command
}
