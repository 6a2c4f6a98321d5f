//! The process of a group of checks: it is asked on standard input, answers a line for each check that has ended on
//! standard output, and may be killed at any moment.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::ExitCode;

use nix::sys::signal::Signal;
use nix::unistd::getppid;

use super::task::{Assignment, Reporter, Task};
use super::{export, kernel, names, node, options, security, server};

/// The word on the command line that makes a process one of these.
pub const COMMAND: &str = "doctor-worker";

/// Makes the checks that it is asked for by the process `doctor`.
#[must_use]
pub fn run(doctor: Option<&OsStr>) -> ExitCode {
    // The doctor sees which checks have not ended.
    if work(doctor).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn work(doctor: Option<&OsStr>) -> io::Result<()> {
    // One that is blocked in the kernel does not see its pipes closed.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if doctor != Some(OsStr::new(&getppid().to_string())) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // One that works on a share has that in the place of standard input.
    let text = if let Some(assignment) = std::env::args_os().nth(3) {
        assignment.into_encoded_bytes()
    } else {
        let mut text = Vec::new();
        io::stdin().read_to_end(&mut text)?;
        text
    };
    let Assignment { subject, task } = serde_json::from_slice(&text)?;
    let report = &mut Reporter(io::stdout());
    match &task {
        Task::Kernel => kernel::run(&subject, report),
        Task::Options => options::run(&subject, report),
        Task::Security => security::run(&subject, report),
        Task::Node => node::run(&subject, report),
        Task::Names => names::run(&subject, report),
        Task::Server(addresses) => server::run(&subject, addresses, report),
        Task::Export(reached, work) => export::run(&subject, reached, work, COMMAND, report),
        Task::Mounted(version, work) => export::on_share(&subject, *version, work, report),
    }
}
