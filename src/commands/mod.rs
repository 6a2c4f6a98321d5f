//! What the program does besides serving: work on an export from the command line.

pub mod check;
pub mod doctor;
pub mod jobs;
pub mod kubectl;
pub mod list;
pub mod on_trash;
mod place;
pub mod quota_convert;
pub mod quota_status;
mod text;

use std::process::ExitCode;

/// The status of a command that could not do its work.
const FAILED: u8 = 2;

/// Runs a command in a runtime of its own; where it fails, says why in one line.
#[allow(clippy::print_stderr, reason = "this is the command's own output")]
fn run<E: std::fmt::Display>(command: impl Future<Output = Result<ExitCode, E>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("nfs-csi: cannot start: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let ended = runtime.block_on(command);
    // A thread that still waits for a dead server must not hold up the end.
    runtime.shutdown_background();
    ended.unwrap_or_else(|error| {
        eprintln!("nfs-csi: {error}");
        ExitCode::from(FAILED)
    })
}
