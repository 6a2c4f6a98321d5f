//! The driver's program.

use std::process::ExitCode;

use nfs_csi::{cli, driver, mount::worker};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == worker::COMMAND) {
        return worker::run();
    }
    match cli::parse(std::env::args_os()) {
        Ok(configuration) => driver::run(configuration),
        Err(answer) => answer.print(),
    }
}
