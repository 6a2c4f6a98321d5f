//! The commands that work on an export instead of serving: `trash` and `check`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::flags::SERVERS;
use super::values::{default_options, duration, retention};
use crate::mount::options::Options;
use crate::volume::share::{Share, ShareError};

/// How an export is reached that is mounted for a command.
#[derive(Args, Debug)]
pub(super) struct ReachFlags {
    /// Mount options for it, as mount(8) has them behind -o
    #[arg(long, env = "NFS_CSI_MOUNT_OPTIONS", default_value = "", global = true)]
    mount_options: String,

    /// The server map, as the driver has it (a JSON file; none: its server is what it is called)
    #[arg(long, env = "NFS_CSI_SERVERS", value_name = "FILE", default_value = SERVERS, global = true)]
    servers: PathBuf,
}

/// How an export is reached that is mounted for a command.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Its mount options.
    pub options: Options,
    /// The file of the server map.
    pub servers: PathBuf,
}

impl ReachFlags {
    pub(super) fn check(self) -> Result<Reach, String> {
        let options = default_options(&self.mount_options).map_err(|error| format!("--mount-options: {error}"))?;
        Ok(Reach { options, servers: self.servers })
    }
}

#[derive(Args, Debug)]
pub(super) struct CheckFlags {
    /// The export: server:/share, or the absolute path where it is mounted on this host
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE")]
    export: ExportPlace,

    #[command(flatten)]
    reach: ReachFlags,

    /// Repair what holds no data; what will be done is said first
    #[arg(long)]
    repair: bool,

    /// How long unfinished work shows no sign of life before a repair takes it away
    #[arg(long, env = "NFS_CSI_STAGING_RETENTION", default_value = "24h", value_parser = duration)]
    staging_retention: Duration,

    /// The form of the report
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The form of what a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// A check of an export.
#[derive(Clone, Debug)]
pub struct CheckCommand {
    /// The export.
    pub place: ExportPlace,
    /// How to mount it.
    pub reach: Reach,
    /// Whether to repair what can be.
    pub repair: bool,
    /// How long unfinished work is left alone.
    pub retention: Duration,
    /// The form of the report.
    pub output: Output,
}

#[derive(Args, Debug)]
pub(super) struct TrashFlags {
    #[command(subcommand)]
    action: TrashAction,

    /// The export: server:/share, or the absolute path where it is mounted on this host
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE", global = true)]
    export: Option<ExportPlace>,

    #[command(flatten)]
    reach: ReachFlags,
}

/// Work on an export's trash.
#[derive(Clone, Debug)]
pub struct TrashCommand {
    /// What to do.
    pub action: TrashAction,
    /// The export.
    pub place: ExportPlace,
    /// How to mount it.
    pub reach: Reach,
}

/// What can be done with what is in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum TrashAction {
    /// Say what is there, and how long it stays.
    List,
    /// Bring a volume back: its directory and its record.
    Restore {
        /// Its id, its name, its directory, or its name in the trash
        volume: String,
    },
    /// Free all that is there, of all clusters, or one volume, at once.
    Purge {
        /// Its id, its name, its directory, or its name in the trash
        volume: Option<String>,

        /// Only what was deleted at least so long ago
        #[arg(long, value_parser = retention)]
        older_than: Option<Duration>,

        /// Say what would be freed, and free nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Where an export is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportPlace {
    /// On its server: it is mounted for this.
    Share(Share),
    /// On this host, where it is mounted.
    Path(PathBuf),
}

impl std::str::FromStr for ExportPlace {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        if text.starts_with('/') { Ok(Self::Path(text.into())) } else { text.parse().map(Self::Share) }
    }
}

pub(super) fn check_trash(flags: TrashFlags) -> Result<TrashCommand, String> {
    let place = flags.export.ok_or("--export is missing: give the export whose trash is meant, server:/share")?;
    Ok(TrashCommand { action: flags.action, place, reach: flags.reach.check()? })
}

pub(super) fn check_check(flags: CheckFlags) -> Result<CheckCommand, String> {
    let CheckFlags { export: place, reach, repair, staging_retention: retention, output } = flags;
    Ok(CheckCommand { place, reach: reach.check()?, repair, retention, output })
}
