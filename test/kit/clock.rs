//! Programs with a clock of their own, beside the server's: what they ask the C library for is changed on the way. That
//! needs a program that is linked to it dynamically, as `cargo test` builds the driver.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::client::Client;

/// Only the time of day differs: what is measured between two moments stays as it is.
const SOURCE: &str = r"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += AHEAD;
    return status;
}
";

/// A clock that differs from the guest's.
pub struct Clock(PathBuf);

impl Clock {
    /// A clock that is so many seconds ahead; it is kept in `folder`.
    pub fn ahead(seconds: i64, folder: &Path) -> Self {
        let library = folder.join("clock.so");
        let mut compiler = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O1", "-x", "c", "-"])
            .arg(format!("-DAHEAD={seconds}"))
            .arg("-o")
            .arg(&library)
            .stdin(Stdio::piped())
            .spawn()
            .expect("gcc");
        compiler.stdin.take().expect("its input").write_all(SOURCE.as_bytes()).expect("gcc reads");
        assert!(compiler.wait().expect("gcc").success());
        Self(library)
    }

    /// A command that runs a program in a client, by this clock.
    pub fn enter(&self, client: Client, program: &str) -> Command {
        let mut command = client.enter();
        command.env("LD_PRELOAD", &self.0).arg(program);
        command
    }
}
