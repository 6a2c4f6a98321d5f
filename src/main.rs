//! The driver's program.

use std::process::ExitCode;

use nfs_csi::cli::{self, Invocation, QuotaCommand};
use nfs_csi::commands::{check, jobs, kubectl, list, on_trash, quota_convert, quota_status};
use nfs_csi::{driver, mount::worker, quota};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == worker::COMMAND) {
        return worker::run(std::env::args_os().nth(2).as_deref());
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
        Ok(Invocation::Quota(QuotaCommand::Run(settings))) => quota::serve::run(&settings),
        Ok(Invocation::Quota(QuotaCommand::Status(command))) => quota_status::run(command),
        Ok(Invocation::Quota(QuotaCommand::Convert(command))) => quota_convert::run(command),
        Err(answer) => answer.print(),
    }
}
