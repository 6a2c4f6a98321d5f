//! The quota agent's command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::flags::LogLevel;
use super::values::{duration, host_and_port};
use crate::quota::ids::IdRange;
use crate::quota::serve::Settings;
use crate::telemetry::LogFormat;
use crate::volume::size_limit::QuotaMode;

#[derive(Args, Debug)]
pub(super) struct QuotaFlags {
    #[command(subcommand)]
    action: Option<QuotaAction>,

    /// An export's directory on this host, the NFS server (repeatable, or with ':'). All exports of one file system go to
    /// one agent
    #[arg(long = "export", env = "NFS_CSI_QUOTA_EXPORT", value_name = "DIR", value_delimiter = ':', global = true)]
    exports: Vec<PathBuf>,

    /// The project ids that are the agent's own: nothing else on the file system may use them
    #[arg(long, env = "NFS_CSI_QUOTA_IDS", value_name = "FIRST-LAST", default_value = "1000000-1999999")]
    ids: IdRange,

    /// How many empty directories wait for volumes on each export: as many can be created at once without waiting
    #[arg(long, env = "NFS_CSI_QUOTA_READY", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    ready: u16,

    /// How often what volumes use is asked of the kernel and written for drivers; what nobody uses any more is freed then
    #[arg(long, env = "NFS_CSI_QUOTA_USAGE_INTERVAL", default_value = "30s", value_parser = duration)]
    usage_interval: Duration,

    /// Where to answer /metrics and /healthz over HTTP: host:port, or :port on all addresses (nowhere unless given)
    #[arg(long, env = "NFS_CSI_METRICS_ADDRESS", value_name = "HOST:PORT", value_parser = host_and_port)]
    metrics_address: Option<String>,

    /// What log lines look like
    #[arg(long, env = "NFS_CSI_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// How much is logged
    #[arg(long, env = "NFS_CSI_LOG_LEVEL", default_value = "info")]
    log_level: LogLevel,
}

#[derive(Debug, Subcommand)]
enum QuotaAction {
    /// Print each volume's limit, and what it uses.
    Status {
        /// The form of what is printed
        #[arg(long, value_enum, default_value_t = QuotaOutput::Table)]
        output: QuotaOutput,
    },
    /// Give a volume a limit that was made without one. No pod may use it meanwhile; the agent must run.
    Convert {
        /// Its id, its name, or its directory
        volume: String,

        /// What is recorded of the limit: required or preferred
        #[arg(long, default_value = "required", value_parser = QuotaMode::parse)]
        mode: QuotaMode,
    },
}

/// The form of what `quota status` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum QuotaOutput {
    /// For people.
    #[default]
    Table,
    /// For machines.
    Json,
}

/// Work with the quotas of exports.
#[derive(Clone, Debug)]
pub enum QuotaCommand {
    /// Run the agent.
    Run(Settings),
    /// Print what is set.
    Status(StatusCommand),
    /// Give a volume a limit.
    Convert(ConvertCommand),
}

/// A volume that is to get a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertCommand {
    /// Its id, its name, or its directory.
    pub volume: String,
    /// Its export, by its path on this host.
    pub export: PathBuf,
    /// What is recorded of the limit.
    pub mode: QuotaMode,
}

/// What is to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCommand {
    /// The exports, by their paths on this host.
    pub exports: Vec<PathBuf>,
    /// In which form.
    pub output: QuotaOutput,
}

pub(super) fn check_quota(flags: QuotaFlags) -> Result<QuotaCommand, String> {
    let QuotaFlags { action, exports, ids, ready, usage_interval, metrics_address, log_format, log_level } = flags;
    if exports.is_empty() {
        return Err("--export is missing: give the export's directory on this host, such as /srv/nfs".into());
    }
    if let Some(relative) = exports.iter().find(|path| !path.is_absolute()) {
        return Err(format!("--export {} is no absolute path", relative.display()));
    }
    match action {
        Some(QuotaAction::Status { output }) => return Ok(QuotaCommand::Status(StatusCommand { exports, output })),
        Some(QuotaAction::Convert { volume, mode }) => {
            let [export] = <[PathBuf; 1]>::try_from(exports).map_err(|_| "give one --export: that of the volume")?;
            return Ok(QuotaCommand::Convert(ConvertCommand { volume, export, mode }));
        }
        None => {}
    }
    let log_level = log_level.into();
    Ok(QuotaCommand::Run(Settings {
        exports,
        ids,
        ready: ready.into(),
        usage_interval,
        metrics_address,
        log_format,
        log_level,
    }))
}
