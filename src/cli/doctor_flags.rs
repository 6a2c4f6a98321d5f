//! The flags of `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::export_commands::Output;
use super::flags::SERVERS;
use super::values::{default_options, driver_name, host_and_port};
use crate::mount::options::Options;
use crate::volume::share::{Server, SharePath};

#[derive(Args, Debug)]
pub(super) struct DoctorFlags {
    /// The NFS server to look at, by its name or address
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,

    /// The share on it, which is mounted for this: a directory is made in it, worked in and removed
    #[arg(long, value_name = "/SHARE", requires = "server")]
    share: Option<String>,

    /// Mount options, as mount(8) has them behind -o
    #[arg(long, alias = "mount-options", env = "NFS_CSI_MOUNT_OPTIONS", default_value = "", value_parser = default_options)]
    options: Options,

    /// The server map, as the driver has it (a JSON file) [default: that of the driver in this container]
    #[arg(long, env = "NFS_CSI_SERVERS", value_name = "FILE", default_value = SERVERS)]
    servers: PathBuf,

    /// The kubelet's directory on this node [default: that of the node plugin in this container]
    #[arg(long, env = "NFS_CSI_KUBELET_DIR")]
    kubelet_dir: Option<PathBuf>,

    /// The driver's name [default: that of the driver in this container]
    #[arg(long, alias = "drivername", env = "NFS_CSI_DRIVER_NAME", value_parser = driver_name)]
    driver_name: Option<String>,

    /// Where the driver answers /metrics, which show the servers that it refuses [default: that of the driver in this
    /// container]
    #[arg(long, env = "NFS_CSI_METRICS_ADDRESS", value_name = "HOST:PORT", value_parser = host_and_port)]
    metrics_address: Option<String>,

    /// The form of the report
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A look at a node, a server and an export.
#[derive(Clone, Debug)]
pub struct DoctorCommand {
    /// The server's name or address, without brackets.
    pub server: Option<String>,
    /// The absolute path of the share on it.
    pub share: Option<String>,
    /// The mount options.
    pub options: Options,
    /// The file of the server map.
    pub servers: PathBuf,
    /// The kubelet's directory.
    pub kubelet_dir: Option<PathBuf>,
    /// The driver's name.
    pub driver_name: Option<String>,
    /// Where the driver shows its metrics.
    pub metrics_address: Option<String>,
    /// The form of the report.
    pub output: Output,
}

pub(super) fn check_doctor(flags: DoctorFlags) -> Result<DoctorCommand, String> {
    let DoctorFlags { server, share, options, servers, kubelet_dir, driver_name, metrics_address, output } = flags;
    let server =
        server.map(|server| Server::parse(&server)).transpose().map_err(|error| format!("--server: {error}"))?;
    let share = share.map(|share| SharePath::parse(&share)).transpose().map_err(|error| format!("--share: {error}"))?;
    Ok(DoctorCommand {
        server: server.map(|server| server.to_string()),
        share: share.map(|share| share.to_string()),
        options,
        servers,
        kubelet_dir,
        driver_name,
        metrics_address,
        output,
    })
}
