//! The driver's program.

use std::process::ExitCode;

use nfs_csi::cli::{self, Invocation, QuotaCommand};
use nfs_csi::commands::{check, doctor, jobs, kubectl, list, on_trash, quota_convert, quota_status};
use nfs_csi::doctor::worker as doctor_worker;
use nfs_csi::{driver, mount::worker, quota};

fn main() -> ExitCode {
    let [command, parent] = [1, 2].map(|place| std::env::args_os().nth(place));
    match command {
        Some(command) if command == worker::COMMAND => return worker::run(parent.as_deref()),
        Some(command) if command == doctor_worker::COMMAND => return doctor_worker::run(parent.as_deref()),
        _ => {}
    }
    if let Some(plugin) = kubectl::invocation(std::env::args_os()) {
        return kubectl::run(&plugin);
    }
    match cli::parse(std::env::args_os()) {
        Ok(Invocation::Serve(configuration)) => driver::run(*configuration),
        Ok(Invocation::Trash(command)) => on_trash::run(command),
        Ok(Invocation::Check(command)) => check::run(command),
        Ok(Invocation::List(command)) => list::run(command),
        Ok(Invocation::Jobs(command)) => jobs::run(command),
        Ok(Invocation::Doctor(command)) => doctor::run(command),
        Ok(Invocation::Quota(QuotaCommand::Run(settings))) => quota::serve::run(&settings),
        Ok(Invocation::Quota(QuotaCommand::Status(command))) => quota_status::run(command),
        Ok(Invocation::Quota(QuotaCommand::Convert(command))) => quota_convert::run(command),
        Err(answer) => answer.print(),
    }
}
