//! The command line of `nfs-csi list`.

use std::path::PathBuf;

use clap::Args;

use super::export_commands::{ExportPlace, Output, Reach, ReachFlags};
use super::values::{cluster_id, driver_name};
use crate::volume::share::Server;

#[derive(Args, Debug)]
pub(super) struct ListFlags {
    /// The export: server:/share, or the absolute path where it is mounted on this host
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE")]
    export: ExportPlace,

    #[command(flatten)]
    reach: ReachFlags,

    /// The cluster's PersistentVolumes, as `kubectl get pv -o json` prints them; -: standard input
    #[arg(long, value_name = "FILE")]
    pvs: Option<PathBuf>,

    /// Only what has lost its counterpart: directories without a record, records without a directory, and with --pvs
    /// records without a PersistentVolume and PersistentVolumes without a directory
    #[arg(long)]
    orphans: bool,

    /// Find out what is used by walking the trees of which no quota agent says it
    #[arg(long)]
    du: bool,

    /// How many entries a second --du asks for at most; 0: as many as it can
    #[arg(long, value_name = "ENTRIES", default_value_t = 2000, requires = "du")]
    du_rate: u32,

    /// The driver whose PersistentVolumes must have a directory
    #[arg(long, env = "NFS_CSI_DRIVER_NAME", default_value = "nfs.csi.k8s.io", value_parser = driver_name)]
    driver_name: String,

    /// Another name or address of the export's server, as PersistentVolumes have it (repeatable)
    #[arg(long = "also-server", value_name = "SERVER", value_parser = Server::parse, requires = "pvs")]
    aliases: Vec<Server>,

    /// The cluster that the PersistentVolumes are of, where several share the export and have names (--cluster-id)
    #[arg(long, value_parser = cluster_id, requires = "pvs")]
    cluster_id: Option<String>,

    /// The form of the list
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A list of what is on an export.
#[derive(Clone, Debug)]
pub struct ListCommand {
    /// The export.
    pub place: ExportPlace,
    /// How to mount it.
    pub reach: Reach,
    /// The file with the PersistentVolumes; `-`: standard input.
    pub pvs: Option<PathBuf>,
    /// Whether only what has lost its counterpart is listed.
    pub orphans: bool,
    /// How many entries a second are asked for to find out what is used; 0: no bound; none: they are not.
    pub du_rate: Option<u32>,
    /// The driver's name.
    pub driver: String,
    /// Other names of the server.
    pub aliases: Vec<Server>,
    /// The cluster that the PersistentVolumes are of.
    pub cluster: Option<String>,
    /// The form of the list.
    pub output: Output,
}

pub(super) fn check_list(flags: ListFlags) -> Result<ListCommand, String> {
    Ok(ListCommand {
        reach: flags.reach.check()?,
        place: flags.export,
        pvs: flags.pvs,
        orphans: flags.orphans,
        du_rate: flags.du.then_some(flags.du_rate),
        driver: flags.driver_name,
        aliases: flags.aliases,
        cluster: flags.cluster_id.filter(|name| !name.is_empty()),
        output: flags.output,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Invocation, parse};

    #[test]
    fn a_list_is_of_one_export_and_walks_only_if_it_is_told_to() {
        let parse = |arguments: &[&str]| match parse(["nfs-csi", "list"].iter().chain(arguments).map(OsString::from)) {
            Ok(Invocation::List(command)) => Ok(command),
            other => Err(other.unwrap_err().line()),
        };
        let command = parse(&["--export=nas:/export", "--pvs=-", "--also-server=10.0.0.5", "--orphans"]).unwrap();
        assert_eq!(command.place, ExportPlace::Share("nas:/export".parse().unwrap()));
        assert_eq!((command.pvs, command.du_rate, command.orphans), (Some("-".into()), None, true));
        assert_eq!((command.driver.as_str(), command.aliases.len()), ("nfs.csi.k8s.io", 1));
        assert_eq!(parse(&["--export=/mnt", "--du"]).unwrap().du_rate, Some(2000));
        assert_eq!(parse(&["--export=/mnt", "--du", "--du-rate=0"]).unwrap().du_rate, Some(0));
        for (arguments, named) in [
            (&["--orphans"][..], "--export"),
            (&["--export=/mnt", "--du-rate=5"], "--du"),
            (&["--export=/mnt", "--also-server=nas"], "--pvs"),
            (&["--export=/mnt", "--pvs=-", "--also-server=a b"], "a b"),
        ] {
            let wrong = parse(arguments).unwrap_err();
            assert!(wrong.contains(named), "{wrong}");
        }
    }
}
