//! `nfs-csi doctor`: what of a node, a server and an export is as the driver needs it, from the command line.
#![allow(clippy::print_stdout, reason = "this is the command's own output")]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;

use thiserror::Error;

use crate::cli::{self, Configuration, DoctorCommand, Invocation, Output};
use crate::doctor::check::{Check, Outcome, Report};
use crate::doctor::{Subject, run};
use crate::server_map::ServerMap;
use crate::volume::share::SharePath;

/// The command line of the first process of this container, or of this host.
const FIRST_PROCESS: &str = "/proc/1/cmdline";
/// This program's name.
const PROGRAM: &str = "nfs-csi";
/// Where the kubelet's directory mostly is.
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// The driver's name where it has no other.
const DRIVER_NAME: &str = "nfs.csi.k8s.io";

/// Why there is no report.
#[derive(Debug, Error)]
enum DoctorError {
    #[error("cannot write the report: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs the command. Gives the status to exit with: 0 if nothing is wrong, 1 for a warning, 2 for a failure.
#[must_use]
pub fn run(command: DoctorCommand) -> ExitCode {
    super::run(async move {
        let output = command.output;
        let report = run::examine(&subject(command, serving().as_ref())).await;
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
            Output::Text => print(&report),
        }
        Ok::<_, DoctorError>(ExitCode::from(report.status()))
    })
}

/// What is looked at: what the command line names, else what the driver in this container was started with.
fn subject(command: DoctorCommand, driver: Option<&Configuration>) -> Subject {
    let DoctorCommand { server, share, options, servers, kubelet_dir, driver_name, metrics_address, .. } = command;
    // One that is wrong is a check's matter.
    let map = ServerMap::open(&servers).unwrap_or_else(|_| ServerMap::none());
    let mapped = server.as_deref().and_then(|server| map.find(server));
    let path = share.as_deref().and_then(|share| SharePath::parse(share).ok());
    let export_id = mapped.as_ref().and_then(|mapped| mapped.export_id(path.as_ref()?).cloned());
    let options = match &server {
        Some(server) => map.options_over(options, server),
        None => options,
    };
    let server = mapped.and_then(|mapped| mapped.addresses().first().cloned()).or(server);
    let of_driver = driver.and_then(|driver| driver.checks.kubelet_dir.clone());
    // A controller has no kubelet.
    let usual = || (driver.is_none() && Path::new(KUBELET_DIR).is_dir()).then(|| KUBELET_DIR.into());
    Subject {
        server,
        share,
        options,
        export_id,
        servers: Some(servers),
        kubelet_dir: kubelet_dir.or(of_driver).or_else(usual),
        driver_name: driver_name
            .or_else(|| driver.map(|driver| driver.driver_name.clone()))
            .unwrap_or_else(|| DRIVER_NAME.into()),
        metrics_address: metrics_address.or_else(|| driver.and_then(|driver| driver.metrics_address.clone())),
    }
}

/// What the driver in this container was started with; none where it is not the container's first process.
fn serving() -> Option<Configuration> {
    let text = std::fs::read(FIRST_PROCESS).ok()?;
    let arguments: Vec<OsString> =
        text.split(|&byte| byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect();
    let (_, arguments) = arguments.split_last()?;
    if Path::new(arguments.first()?).file_name() != Some(OsStr::new(PROGRAM)) {
        return None;
    }
    match cli::parse(arguments.iter().cloned()) {
        Ok(Invocation::Serve(configuration)) => Some(*configuration),
        _ => None,
    }
}

fn print(report: &Report) {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for Check { name, outcome, seen, remedy } in &report.checks {
        println!("{:4}  {name:width$}  {}", word(*outcome), printable(seen));
        if let Some(remedy) = remedy {
            println!("{:4}  {:width$}  -> {}", "", "", printable(remedy));
        }
    }
    let count = |outcome| report.count(outcome);
    println!(
        "{} passed, {} warned, {} failed, {} skipped",
        count(Outcome::Pass),
        count(Outcome::Warn),
        count(Outcome::Fail),
        count(Outcome::Skip)
    );
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Skip => "skip",
        Outcome::Pass => "pass",
        Outcome::Warn => "WARN",
        Outcome::Fail => "FAIL",
    }
}

/// Without what would move the terminal's cursor: a server, or any of its clients, may have written it.
fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> DoctorCommand {
        match cli::parse(["nfs-csi", "doctor"].map(OsString::from)) {
            Ok(Invocation::Doctor(command)) => command,
            other => panic!("{other:?}"),
        }
    }

    fn driver(flags: &[&str]) -> Configuration {
        match cli::parse(["nfs-csi"].iter().chain(flags).map(OsString::from)) {
            Ok(Invocation::Serve(configuration)) => *configuration,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_command_line_does_not_name_is_that_of_the_driver_in_the_container() {
        let node = driver(&[
            "node",
            "--node-id=n",
            "--kubelet-dir=/srv/kubelet",
            "--driver-name=a.example.com",
            "--metrics-address=:9809",
        ]);
        let of_node = subject(command(), Some(&node));
        assert_eq!(of_node.kubelet_dir.as_deref(), Some(Path::new("/srv/kubelet")));
        assert_eq!(
            (of_node.driver_name.as_str(), of_node.metrics_address.as_deref()),
            ("a.example.com", Some(":9809"))
        );
        let named = DoctorCommand { kubelet_dir: Some("/other".into()), ..command() };
        assert_eq!(subject(named, Some(&node)).kubelet_dir.as_deref(), Some(Path::new("/other")));
        let of_controller = subject(command(), Some(&driver(&["controller"])));
        assert_eq!((of_controller.kubelet_dir, of_controller.driver_name.as_str()), (None, DRIVER_NAME));
    }
}
