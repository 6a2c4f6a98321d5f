//! The command line of `nfs-csi jobs`.

use clap::Args;

use super::export_commands::Output;
use super::values::host_and_port;

#[derive(Args, Debug)]
pub(super) struct JobsFlags {
    /// Where the controller answers /metrics (its --metrics-address): host:port, or :port on this host
    #[arg(
        long,
        env = "NFS_CSI_METRICS_ADDRESS",
        value_name = "HOST:PORT",
        default_value = ":29652",
        value_parser = host_and_port
    )]
    metrics_address: String,

    /// The form of what is shown
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A look at what a controller is at work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsCommand {
    /// Where it answers, as `host:port`.
    pub address: String,
    /// The form of what is shown.
    pub output: Output,
}

pub(super) fn check_jobs(flags: JobsFlags) -> JobsCommand {
    let JobsFlags { metrics_address, output } = flags;
    let address =
        if metrics_address.starts_with(':') { format!("localhost{metrics_address}") } else { metrics_address };
    JobsCommand { address, output }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Invocation, parse};

    #[test]
    fn a_controller_is_asked_on_this_host_unless_another_is_named() {
        for (flags, address) in [
            (&[][..], "localhost:29652"),
            (&["--metrics-address=:1234"], "localhost:1234"),
            (&["--metrics-address=[fd00::1]:1"], "[fd00::1]:1"),
        ] {
            let parsed = parse(["nfs-csi", "jobs"].iter().chain(flags).map(OsString::from));
            let Ok(Invocation::Jobs(command)) = parsed else { panic!("{flags:?}") };
            assert_eq!((command.address.as_str(), command.output), (address, Output::Text));
        }
    }
}
