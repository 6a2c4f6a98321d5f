//! The command line: what the operator writes becomes a checked configuration, once, or one clear line.
//!
//! A command line without a command is read as one of csi-driver-nfs. Every flag can also be given as an environment
//! variable.

mod configuration;
mod doctor_flags;
mod export_commands;
mod flags;
mod go_driver;
mod jobs_flags;
mod list_flags;
mod quota_flags;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use configuration::check;
pub use configuration::{Checks, Configuration, Roles};
pub use doctor_flags::DoctorCommand;
use doctor_flags::{DoctorFlags, check_doctor};
pub use export_commands::{CheckCommand, ExportPlace, Output, Reach, TrashAction, TrashCommand};
use export_commands::{CheckFlags, TrashFlags, check_check, check_trash};
use flags::Flags;
pub use jobs_flags::JobsCommand;
use jobs_flags::{JobsFlags, check_jobs};
pub use list_flags::ListCommand;
use list_flags::{ListFlags, check_list};
pub use quota_flags::{ConvertCommand, QuotaCommand, QuotaOutput, StatusCommand};
use quota_flags::{QuotaFlags, check_quota};

const NO_NODE_ID: &str = "--node-id is missing: give this node's name in the cluster, e.g. --node-id \"$NODE_NAME\"";

/// CSI driver for NFS: volumes are directories on an existing export.
#[derive(Debug, Parser)]
#[command(name = "nfs-csi", version, max_term_width = 120, args_override_self = true)]
#[command(after_help = "Without a command, the command line of csi-driver-nfs is accepted (docs/migration.md).")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the controller: make and delete volumes (one for a cluster, or replicas with leader election).
    Controller(Flags),
    /// Serve the node plugin: mount volumes for the pods of this host (one a node).
    Node(Flags),
    /// Serve both, for trying the driver by hand.
    All(Flags),
    /// See what was deleted and is still in the trash, bring it back, or free it now.
    Trash(TrashFlags),
    /// See whether all that the driver keeps on an export fits together, and repair what can be repaired without a
    /// risk.
    Check(CheckFlags),
    /// List what is on an export: volumes, snapshots, what was deleted, and what has lost its counterpart.
    List(ListFlags),
    /// Show the copies, snapshots and removals that a controller is at work on, and how far they are.
    Jobs(JobsFlags),
    /// See whether a node or the controller, a server and an export are as the driver needs them, each with a remedy.
    Doctor(DoctorFlags),
    /// Run the quota agent on an NFS server: it sets the limits that drivers want for volumes.
    Quota(QuotaFlags),
}

/// What a process is to do.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Serve, until it is told to end.
    Serve(Box<Configuration>),
    /// Work on an export's trash.
    Trash(TrashCommand),
    /// Check an export.
    Check(CheckCommand),
    /// List what is on an export.
    List(ListCommand),
    /// Show what a controller is at work on.
    Jobs(JobsCommand),
    /// Look at a node, a server and an export.
    Doctor(DoctorCommand),
    /// Run the quota agent, or print what it has set.
    Quota(QuotaCommand),
}

/// An answer to the command line instead of a start: help, the version, or what is wrong.
#[derive(Debug)]
pub struct Answer(clap::Error);

impl Answer {
    /// What is wrong, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let text = self.0.render().to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default().to_owned();
        match self.0.kind() {
            // The names stand on the lines below.
            ErrorKind::MissingRequiredArgument => format!("{first} {} (see --help)", lines.next().unwrap_or_default()),
            _ => format!("{first} (see --help)"),
        }
    }

    /// Prints it, and gives the status to exit with.
    #[must_use]
    #[allow(clippy::print_stderr, reason = "this is the command line's own output")]
    pub fn print(&self) -> ExitCode {
        match self.0.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // Nothing else can be done if standard output is closed.
                let _ = self.0.print();
                ExitCode::SUCCESS
            }
            _ => {
                eprintln!("nfs-csi: {}", self.line());
                ExitCode::from(2)
            }
        }
    }
}

/// Checks the command line.
///
/// # Errors
/// An [`Answer`] to print: what is wrong, or the help that was asked for.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, Answer> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_go_driver = go_driver::is_command_line(&arguments);
    let (arguments, mut remarks) = if is_go_driver {
        read_go_driver(&arguments)?
    } else {
        (Arguments::try_parse_from(arguments).map_err(Answer)?, Vec::new())
    };
    let (roles, flags) = match arguments.command {
        Command::Controller(flags) => (Roles { controller: true, node: false }, flags),
        Command::Node(flags) => (Roles { controller: false, node: true }, flags),
        Command::All(flags) => (Roles { controller: true, node: true }, flags),
        Command::Trash(flags) => return check_trash(flags).map(Invocation::Trash).map_err(wrong),
        Command::Check(flags) => return check_check(flags).map(Invocation::Check).map_err(wrong),
        Command::List(flags) => return check_list(flags).map(Invocation::List).map_err(wrong),
        Command::Jobs(flags) => return Ok(Invocation::Jobs(check_jobs(flags))),
        Command::Doctor(flags) => return check_doctor(flags).map(Invocation::Doctor).map_err(wrong),
        Command::Quota(flags) => return check_quota(flags).map(Invocation::Quota).map_err(wrong),
    };
    if roles.node && flags.node_id.is_empty() {
        if !is_go_driver {
            return Err(wrong(NO_NODE_ID.into()));
        }
        remarks.push("the node id is empty, and the kubelet refuses that: give --nodeid on a node".into());
    }
    let mut configuration = check(roles, flags).map_err(wrong)?;
    configuration.remarks.extend(remarks);
    Ok(Invocation::Serve(Box::new(configuration)))
}

/// Reads csi-driver-nfs's command line, and gives what the operator needs to know of it, too.
fn read_go_driver(arguments: &[OsString]) -> Result<(Arguments, Vec<String>), Answer> {
    let program = Arguments::command();
    let translation = go_driver::translate(arguments.get(1..).unwrap_or_default(), &program).map_err(wrong)?;
    // As defaults, which this driver's environment variables replace.
    let program = program.mut_subcommand("all", |all| {
        let all = all.mut_arg("endpoint", |flag| flag.default_value(go_driver::ENDPOINT));
        match translation.log_level {
            Some(level) => all.mut_arg("log_level", |flag| flag.default_value(level)),
            None => all,
        }
    });
    let words = ["nfs-csi", "all"].map(str::to_owned).into_iter().chain(translation.flags);
    let matches = program.try_get_matches_from(words).map_err(Answer)?;
    Ok((Arguments::from_arg_matches(&matches).map_err(Answer)?, translation.remarks))
}

fn wrong(message: String) -> Answer {
    Answer(clap::Error::raw(ErrorKind::ValueValidation, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration;
    use crate::volume::access::{Mode, OnDelete};

    fn parsed(arguments: &[&str]) -> Result<Configuration, String> {
        let all = ["nfs-csi"].iter().chain(arguments).map(OsString::from);
        match parse(all).map_err(|answer| answer.line())? {
            Invocation::Serve(configuration) => Ok(*configuration),
            command => panic!("{command:?}"),
        }
    }

    #[test]
    fn the_trash_of_an_export_is_named_by_its_server_or_by_its_path() {
        for (text, place) in [
            ("nas:/export", ExportPlace::Share("nas:/export".parse().unwrap())),
            ("/mnt/export", ExportPlace::Path("/mnt/export".into())),
        ] {
            let arguments = ["nfs-csi", "trash", "restore", "pvc-1", "--export", text].map(OsString::from);
            let Ok(Invocation::Trash(command)) = parse(arguments) else { panic!("{text}") };
            assert_eq!(command.place, place);
            assert_eq!(command.action, TrashAction::Restore { volume: "pvc-1".into() });
        }
        let missing = parse(["nfs-csi", "trash", "list"].map(OsString::from)).unwrap_err().line();
        assert!(missing.contains("--export"), "{missing}");
    }

    #[test]
    fn the_quota_agent_has_several_exports_and_a_range_of_ids() {
        let parse = |arguments: &[&str]| parse(["nfs-csi", "quota"].iter().chain(arguments).map(OsString::from));
        let flags = ["--export=/srv/a", "--export", "/srv/b:/srv/c", "--ids=5-7"];
        let Ok(Invocation::Quota(QuotaCommand::Run(settings))) = parse(&flags) else { panic!() };
        assert_eq!(settings.exports, ["/srv/a", "/srv/b", "/srv/c"].map(std::path::PathBuf::from));
        assert_eq!((settings.ids, settings.ready), ("5-7".parse().unwrap(), 128));
        for flags in [["status", "--export=/srv/a"], ["--export=/srv/a", "status"]] {
            let Ok(Invocation::Quota(QuotaCommand::Status(command))) = parse(&flags) else { panic!("{flags:?}") };
            assert_eq!((command.exports, command.output), (vec!["/srv/a".into()], QuotaOutput::Table));
        }
        for (flags, named) in
            [(&[][..], "--export"), (&["--export=a"], "absolute"), (&["--export=/a", "--ready=0"], "0")]
        {
            assert!(parse(flags).unwrap_err().line().contains(named));
        }
    }

    #[test]
    fn the_doctor_is_told_a_server_a_share_and_options_or_none_of_them() {
        let parse = |flags: &[&str]| -> Result<DoctorCommand, String> {
            let arguments = ["nfs-csi", "doctor"].iter().chain(flags).map(OsString::from);
            match parse(arguments).map_err(|answer| answer.line())? {
                Invocation::Doctor(command) => Ok(command),
                other => panic!("{other:?}"),
            }
        };
        let bare = parse(&[]).unwrap();
        assert_eq!((bare.server, bare.share, bare.kubelet_dir, bare.output), (None, None, None, Output::Text));
        let flags = ["--server=[fd00::1]", "--share=export/", "--options=nfsvers=4.2,nconnect=4", "--output=json"];
        let command = parse(&flags).unwrap();
        assert_eq!((command.server.as_deref(), command.share.as_deref()), (Some("fd00::1"), Some("/export")));
        assert_eq!((command.options.to_string().as_str(), command.output), ("vers=4.2,nconnect=4", Output::Json));
        for (flags, named) in [
            (&["--share=/export"][..], "--server"),
            (&["--server=a b"], "a b"),
            (&["--server=a", "--share=/../x"], ".."),
            (&["--options=timeo=0"], "timeo"),
        ] {
            let line = parse(flags).unwrap_err();
            assert!(line.contains(named), "{line}");
        }
    }

    #[test]
    fn the_flags_of_csi_driver_nfs_are_taken() {
        let configuration = parsed(&[
            "node",
            "--nodeid=worker-1",
            "--endpoint=unix:///csi/csi.sock",
            "--drivername=nfs.csi.k8s.io",
            "--mount-permissions=0777",
            "--working-mount-dir=/tmp",
            "--default-ondelete-policy=retain",
        ])
        .unwrap();
        assert_eq!(configuration.node.id, "worker-1");
        assert_eq!(configuration.settings.default_permissions.map(Mode::bits), Some(0o777));
        assert_eq!(configuration.settings.default_on_delete, OnDelete::Retain);
    }

    #[test]
    fn a_node_plugin_registers_itself_by_its_socket_s_path_on_the_host() {
        let registration = |arguments: &[&str]| parsed(arguments).map(|configuration| configuration.registration);
        let node = ["node", "--node-id=n", "--endpoint=unix:///csi/csi.sock"];
        assert_eq!(registration(&node), Ok(None));
        let settings = |endpoint: &str| {
            Ok(Some(registration::Settings { directory: "/registration".into(), endpoint: endpoint.into() }))
        };
        let with =
            |more: &[&'static str]| registration(&[&node[..], &["--registration-dir=/registration"], more].concat());
        assert_eq!(with(&[]), settings("/csi/csi.sock"));
        assert_eq!(with(&["--registration-endpoint=/host/csi.sock"]), settings("/host/csi.sock"));
        assert!(with(&["--registration-endpoint=csi.sock"]).unwrap_err().contains("absolute"));
        assert!(registration(&["controller", "--registration-dir=/r"]).unwrap_err().contains("node plugin"));
        let tcp = ["node", "--node-id=n", "--endpoint=tcp://[::1]:1", "--registration-dir=/r"];
        assert!(registration(&tcp).unwrap_err().contains("unix socket"));
        assert!(registration(&["node", "--node-id=n", "--registration-endpoint=/x"]).is_err());
    }

    #[test]
    fn places_for_inline_volumes_are_given_one_by_one_or_with_commas() {
        let flags = ["node", "--node-id=n", "--allow-inline-volumes=a:/x,*:/y", "--allow-inline-volumes=[::1]:/z"];
        let places: Vec<String> = parsed(&flags).unwrap().node.inline.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["a:/x", "*:/y", "[::1]:/z"]);
        assert!(parsed(&["node", "--node-id=n"]).unwrap().node.inline.is_empty());
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_holds() {
        let flags = ["controller", "--driver-name=a.example.com", "--grace-period=1s", "--driver-name=b.example.com"];
        assert_eq!(parsed(&flags).unwrap().driver_name, "b.example.com");
    }

    #[test]
    fn exports_are_given_one_by_one() {
        let configuration = parsed(&["controller", "--export", "a:/x", "--export", "[::1]:/y"]).unwrap();
        let shares: Vec<String> = configuration.settings.shares.iter().map(ToString::to_string).collect();
        assert_eq!(shares, ["a:/x", "[::1]:/y"]);
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line_that_names_it() {
        let cases: [(&[&str], &str); 14] = [
            (&["controller", "--topology=zone"], "name=value"),
            (&["node", "--node-id=n", "--allow-inline-volumes=nas:/a/../b"], ".."),
            (&["controller", "--metrics-address=9809"], "host:port"),
            (&["controller", "--metrics-address=http://x/"], "host:port"),
            (&["node", "--node-id=n", "--max-volumes-per-node=-1"], "-1"),
            (&["node"], "--node-id"),
            (&["controller", "--bogus"], "--bogus"),
            (&["controller", "--endpoint", "http://x"], "http://x"),
            (&["controller", "--endpoint", "unix://"], "unix://"),
            (&["controller", "--mount-permissions", "9"], "9"),
            (&["controller", "--default-ondelete-policy", "burn"], "burn"),
            (&["controller", "--driver-name=-x-"], "-x-"),
            (&["controller", "--mount-timeout", "0s"], "0s"),
            (&["controller", "--export", "nowhere"], "nowhere"),
        ];
        for (arguments, named) in cases {
            let line = parsed(arguments).unwrap_err();
            assert!(line.contains(named), "{line}");
            assert!(!line.contains('\n') && line.len() < 400, "{line}");
        }
    }
}
