//! The command line: what the operator writes becomes a checked configuration, once, or one clear line.
//!
//! The names of csi-driver-nfs's flags are taken too where they keep a meaning. Every flag can also be given as an
//! environment variable.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::controller::Settings;
use crate::mount::daemon::mounter::Limits;
use crate::mount::options::Options;
use crate::node::NodeSettings;
use crate::registration;
use crate::server::Endpoint;
use crate::telemetry::LogFormat;
use crate::volume::access::{Mode, OnDelete};
use crate::volume::inline_pattern::InlinePattern;
use crate::volume::share::{Share, ShareError};
use crate::volume::topology::{Segment, is_word};

/// The kubelet's directory where it is not told.
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Kubernetes sets it in every container.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// CSI driver for NFS: volumes are directories on an existing export.
#[derive(Debug, Parser)]
#[command(name = "nfs-csi", version, max_term_width = 120, args_override_self = true)]
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
}

#[derive(Args, Debug)]
struct CheckFlags {
    /// The export: server:/share, or the absolute path where it is mounted on this host
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE")]
    export: ExportPlace,

    /// Mount options for it, as mount(8) has them behind -o
    #[arg(long, env = "NFS_CSI_MOUNT_OPTIONS", default_value = "")]
    mount_options: String,

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
    pub options: Options,
    /// Whether to repair what can be.
    pub repair: bool,
    /// How long unfinished work is left alone.
    pub retention: Duration,
    /// The form of the report.
    pub output: Output,
}

#[derive(Args, Debug)]
struct TrashFlags {
    #[command(subcommand)]
    action: TrashAction,

    /// The export: server:/share, or the absolute path where it is mounted on this host
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE", global = true)]
    export: Option<ExportPlace>,

    /// Mount options for it, as mount(8) has them behind -o
    #[arg(long, env = "NFS_CSI_MOUNT_OPTIONS", default_value = "", global = true)]
    mount_options: String,
}

/// Work on an export's trash.
#[derive(Clone, Debug)]
pub struct TrashCommand {
    /// What to do.
    pub action: TrashAction,
    /// The export.
    pub place: ExportPlace,
    /// How to mount it.
    pub options: Options,
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

/// What a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The controller service.
    pub controller: bool,
    /// The node service.
    pub node: bool,
}

#[derive(Args, Debug)]
struct Flags {
    /// Where to listen: unix:///path/to/csi.sock or tcp://host:port
    #[arg(long, env = "NFS_CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    endpoint: Endpoint,

    /// The name of this node in the cluster (needed by node and all)
    #[arg(long, alias = "nodeid", env = "NFS_CSI_NODE_ID", default_value = "")]
    node_id: String,

    /// The kubelet's directory on this node, which must be shared for mount propagation. Checked at the start where it
    /// is given; by node in a pod always [default there: /var/lib/kubelet]
    #[arg(long, env = "NFS_CSI_KUBELET_DIR")]
    kubelet_dir: Option<PathBuf>,

    /// How many volumes the scheduler may put on this node (0: any number)
    #[arg(long, env = "NFS_CSI_MAX_VOLUMES_PER_NODE", default_value = "0", value_parser = clap::value_parser!(i64).range(0..))]
    max_volumes_per_node: i64,

    /// A label of all nodes that reach the exports, for tracking storage capacity: Kubernetes does that only for
    /// drivers with a topology [domain/]name=value (to be given to controller and node)
    #[arg(long, env = "NFS_CSI_TOPOLOGY", value_name = "KEY=VALUE")]
    topology: Option<Segment>,

    /// Where inline (ephemeral) volumes may be, since a pod's author chooses it: server:/path and all below it, or
    /// *:/path on any server (repeatable, or with commas; none: no inline volumes)
    #[arg(
        long = "allow-inline-volumes",
        env = "NFS_CSI_ALLOW_INLINE_VOLUMES",
        value_name = "SERVER:/PATH",
        value_delimiter = ','
    )]
    inline: Vec<InlinePattern>,

    /// The driver's name, as StorageClasses have it in provisioner
    #[arg(long, alias = "drivername", env = "NFS_CSI_DRIVER_NAME", default_value = "nfs.csi.k8s.io", value_parser = driver_name)]
    driver_name: String,

    /// An export whose volumes are listed from the start on: server:/share (repeatable)
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE", value_delimiter = ' ')]
    exports: Vec<Share>,

    /// Mount options of all volumes and exports, as mount(8) has them behind -o, where a StorageClass, a volume or a
    /// secret says nothing else
    #[arg(long, env = "NFS_CSI_MOUNT_OPTIONS", default_value = "", value_parser = default_options)]
    mount_options: Options,

    /// Permission bits of new volumes where the StorageClass says nothing, in octal (0: as the server makes them)
    #[arg(long, env = "NFS_CSI_MOUNT_PERMISSIONS", default_value = "0", value_parser = permissions)]
    mount_permissions: Permissions,

    /// What deleting a volume does with its directory where the StorageClass says nothing: delete, retain or archive
    #[arg(long, env = "NFS_CSI_DEFAULT_ONDELETE_POLICY", default_value = "delete")]
    default_ondelete_policy: OnDelete,

    /// Where the controller mounts exports, in a folder of its own
    #[arg(long, env = "NFS_CSI_WORKING_MOUNT_DIR", default_value = "/tmp")]
    working_mount_dir: PathBuf,

    /// How long a deleted volume can be brought back (nfs-csi trash restore) where the StorageClass says nothing
    #[arg(long, env = "NFS_CSI_TRASH_RETENTION", default_value = "0", value_parser = retention)]
    trash_retention: Duration,

    /// How long a deleted volume that has no record is kept at least, whatever its class says: one that another driver
    /// made may share its directory with others without anything saying so
    #[arg(long, env = "NFS_CSI_UNRECORDED_RETENTION", default_value = "24h", value_parser = retention)]
    unrecorded_retention: Duration,

    /// How long a clone, snapshot or restore goes on when nobody asks for it any more: its claim was deleted. More than
    /// the longest pause between two calls of the external provisioner and snapshotter (--retry-interval-max)
    #[arg(long, env = "NFS_CSI_ABANDONED_AFTER", default_value = "15m", value_parser = duration)]
    abandoned_after: Duration,

    /// How long another controller that works on the same clone, snapshot or restore must have shown no sign of life
    /// before its work is taken over
    #[arg(long, env = "NFS_CSI_TAKEOVER_AFTER", default_value = "60s", value_parser = duration)]
    takeover_after: Duration,

    /// How long a clone, snapshot or restore that broke off is kept for its retry
    #[arg(long, env = "NFS_CSI_STAGING_RETENTION", default_value = "24h", value_parser = duration)]
    staging_retention: Duration,

    /// A name of this cluster, of letters, digits and '-': it is noted in the record of each volume and snapshot, so
    /// that several clusters can share an export and know what is whose
    #[arg(long, env = "NFS_CSI_CLUSTER_ID", value_parser = cluster_id)]
    cluster_id: Option<String>,

    /// List only volumes and snapshots of this cluster (with --cluster-id); those that have no cluster are left out too
    #[arg(long, env = "NFS_CSI_LIST_OWN_ONLY", requires = "cluster_id")]
    list_own_only: bool,

    /// Threads that copy or remove the trees of one share at a time, for all operations together
    #[arg(long, env = "NFS_CSI_TREE_WORKERS", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=256))]
    tree_workers: u16,

    /// How long a mount or an unmount may take, in seconds (or with a unit: 500ms, 30s, 2m)
    #[arg(long, env = "NFS_CSI_MOUNT_TIMEOUT", default_value = "30s", value_parser = duration)]
    mount_timeout: Duration,

    /// How long a server may take to answer whether it is there
    #[arg(long, env = "NFS_CSI_PING_TIMEOUT", default_value = "2s", value_parser = duration)]
    ping_timeout: Duration,

    /// How long the first mount from a server may take: while it hangs, no other server's first mount goes on
    #[arg(long, env = "NFS_CSI_FIRST_MOUNT_TIMEOUT", default_value = "15s", value_parser = duration)]
    first_mount_timeout: Duration,

    /// How long a volume's use is told again without asking its server
    #[arg(long, env = "NFS_CSI_VOLUME_STATS_CACHE", default_value = "1m", value_parser = retention)]
    volume_stats_cache: Duration,

    /// Calls to one server that may be under way at a time
    #[arg(long, env = "NFS_CSI_WORKERS_PER_SERVER", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers_per_server: u16,

    /// The kubelet's plugins_registry directory: the node plugin makes itself known there, without a registrar
    #[arg(long, env = "NFS_CSI_REGISTRATION_DIR", value_name = "DIR")]
    registration_dir: Option<PathBuf>,

    /// The socket of --endpoint by its path on the host, which the kubelet is told [default: the path of --endpoint]
    #[arg(long, env = "NFS_CSI_REGISTRATION_ENDPOINT", value_name = "PATH", requires = "registration_dir")]
    registration_endpoint: Option<PathBuf>,

    /// Where to answer /metrics, /healthz and /readyz over HTTP: host:port, or :port on all addresses, of IPv6 and of
    /// IPv4 (nowhere unless given)
    #[arg(long, env = "NFS_CSI_METRICS_ADDRESS", value_name = "HOST:PORT", value_parser = host_and_port)]
    metrics_address: Option<String>,

    /// How long running calls may take to finish after SIGTERM
    #[arg(long, env = "NFS_CSI_GRACE_PERIOD", default_value = "20s", value_parser = duration)]
    grace_period: Duration,

    /// What log lines look like
    #[arg(long, env = "NFS_CSI_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// How much is logged
    #[arg(long, env = "NFS_CSI_LOG_LEVEL", default_value = "info")]
    log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// `None` stands for "as the server makes them".
type Permissions = Option<Mode>;

/// What is made sure of before the driver serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// That this process can mount NFS.
    pub mounting: bool,
    /// That this is the kubelet's directory, and shared.
    pub kubelet_dir: Option<PathBuf>,
}

impl Checks {
    /// A node plugin must be able to mount. The kubelet's directory matters where there is a kubelet: in a pod, which
    /// this variable tells, or where somebody says so.
    fn of(roles: Roles, kubelet_dir: Option<PathBuf>, in_pod: bool) -> Self {
        match (roles.node, roles.controller) {
            (true, false) => {
                let kubelet_dir = kubelet_dir.or_else(|| in_pod.then(|| KUBELET_DIR.into()));
                Self { mounting: true, kubelet_dir }
            }
            (true, true) => Self { mounting: kubelet_dir.is_some(), kubelet_dir },
            (false, _) => Self::default(),
        }
    }
}

/// What the driver is to do: every value is checked.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What this process serves.
    pub roles: Roles,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// What the node plugin is told.
    pub node: NodeSettings,
    /// What is made sure of before the node plugin serves.
    pub checks: Checks,
    /// The driver's name.
    pub driver_name: String,
    /// What all nodes have in common that reach the exports, if that is told.
    pub topology: Option<Segment>,
    /// What the controller does where a StorageClass says nothing.
    pub settings: Settings,
    /// Where the controller mounts exports.
    pub working_mount_dir: PathBuf,
    /// The bounds of calls to servers.
    pub limits: Limits,
    /// How the driver makes itself known to the kubelet, if it does.
    pub registration: Option<registration::Settings>,
    /// Where metrics and health are answered, as `host:port`.
    pub metrics_address: Option<String>,
    /// How long running calls may take to finish at the end.
    pub grace_period: Duration,
    /// What log lines look like.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: tracing::Level,
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
    let arguments = Arguments::try_parse_from(arguments).map_err(Answer)?;
    let (roles, flags) = match arguments.command {
        Command::Controller(flags) => (Roles { controller: true, node: false }, flags),
        Command::Node(flags) => (Roles { controller: false, node: true }, flags),
        Command::All(flags) => (Roles { controller: true, node: true }, flags),
        Command::Trash(flags) => return check_trash(flags).map(Invocation::Trash).map_err(wrong),
        Command::Check(flags) => return check_check(flags).map(Invocation::Check).map_err(wrong),
    };
    check(roles, flags).map(|configuration| Invocation::Serve(Box::new(configuration))).map_err(wrong)
}

fn wrong(message: String) -> Answer {
    Answer(clap::Error::raw(ErrorKind::ValueValidation, message))
}

fn check_trash(flags: TrashFlags) -> Result<TrashCommand, String> {
    let place = flags.export.ok_or("--export is missing: give the export whose trash is meant, server:/share")?;
    Ok(TrashCommand { action: flags.action, place, options: mount_options(&flags.mount_options)? })
}

fn check_check(flags: CheckFlags) -> Result<CheckCommand, String> {
    let CheckFlags { export: place, mount_options: options, repair, staging_retention: retention, output } = flags;
    Ok(CheckCommand { place, options: mount_options(&options)?, repair, retention, output })
}

fn mount_options(text: &str) -> Result<Options, String> {
    default_options(text).map_err(|error| format!("--mount-options: {error}"))
}

fn default_options(text: &str) -> Result<Options, String> {
    Options::parse([text]).map_err(|error| error.to_string())
}

fn check(roles: Roles, flags: Flags) -> Result<Configuration, String> {
    if roles.node && flags.node_id.is_empty() {
        return Err("--node-id is missing: give this node's name in the cluster, e.g. --node-id \"$NODE_NAME\"".into());
    }
    // The specification's bound for node ids.
    if flags.node_id.len() > 256 {
        return Err(format!("--node-id has {} bytes; at most 256 are allowed", flags.node_id.len()));
    }
    let registration = flags
        .registration_dir
        .map(|directory| check_registration(roles, &flags.endpoint, directory, flags.registration_endpoint))
        .transpose()?;
    Ok(Configuration {
        roles,
        registration,
        endpoint: flags.endpoint,
        node: NodeSettings {
            id: flags.node_id,
            max_volumes: flags.max_volumes_per_node,
            stats_cache: flags.volume_stats_cache,
            inline: flags.inline,
            mount_options: flags.mount_options.clone(),
        },
        checks: Checks::of(roles, flags.kubelet_dir, std::env::var_os(IN_POD).is_some()),
        driver_name: flags.driver_name,
        topology: flags.topology,
        settings: Settings {
            trash_retention: flags.trash_retention,
            unrecorded_retention: flags.unrecorded_retention,
            takeover_after: flags.takeover_after,
            abandoned_after: flags.abandoned_after,
            staging_retention: flags.staging_retention,
            tree_workers: flags.tree_workers.into(),
            default_on_delete: flags.default_ondelete_policy,
            default_permissions: flags.mount_permissions,
            mount_options: flags.mount_options,
            shares: flags.exports,
            cluster: flags.cluster_id.filter(|name| !name.is_empty()),
            lists_own: flags.list_own_only,
        },
        working_mount_dir: flags.working_mount_dir,
        limits: Limits {
            per_server: flags.workers_per_server.into(),
            mount: flags.mount_timeout,
            first_mount: flags.first_mount_timeout,
            ping: flags.ping_timeout,
            ..Limits::default()
        },
        metrics_address: flags.metrics_address,
        grace_period: flags.grace_period,
        log_format: flags.log_format,
        log_level: match flags.log_level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Trace => tracing::Level::TRACE,
        },
    })
}

/// Only a node plugin is registered, and the kubelet reaches it by a socket's path only.
fn check_registration(
    roles: Roles,
    endpoint: &Endpoint,
    directory: PathBuf,
    told: Option<PathBuf>,
) -> Result<registration::Settings, String> {
    if !roles.node {
        return Err("--registration-dir is for the node plugin: only that one is known to the kubelet".into());
    }
    match (endpoint, told) {
        (Endpoint::Tcp(_), _) => Err("--registration-dir needs a unix socket as --endpoint".into()),
        (Endpoint::Unix(_), Some(told)) if !told.is_absolute() => {
            Err("--registration-endpoint is an absolute path on the host, e.g. \
                 /var/lib/kubelet/plugins/csi-nfsplugin/csi.sock"
                .into())
        }
        (Endpoint::Unix(path), told) => {
            Ok(registration::Settings { directory, endpoint: told.unwrap_or_else(|| path.clone()) })
        }
    }
}

/// The specification's rule for plugin names: at most 63 characters, letters and digits at the ends, `-` and `.` too
/// between them.
fn driver_name(text: &str) -> Result<String, String> {
    // Which is that for labels, but for one character.
    if is_word(text) && !text.contains('_') {
        return Ok(text.into());
    }
    Err("a driver name has at most 63 letters, digits, '-' and '.', and begins and ends with a letter or digit".into())
}

/// A name that can stand in the name of a folder: at most 63 characters of a label, without a dot.
fn cluster_id(text: &str) -> Result<String, String> {
    if text.is_empty() || (is_word(text) && !text.contains(['_', '.'])) {
        return Ok(text.into());
    }
    Err("a cluster's name has at most 63 letters, digits and '-', and begins and ends with a letter or digit".into())
}

fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains('/') && port.parse::<u16>().is_ok() => Ok(text.into()),
        _ => Err("write host:port, or :port for all addresses, such as :9809 or 127.0.0.1:9809".into()),
    }
}

fn permissions(text: &str) -> Result<Permissions, String> {
    let mode: Mode = text.parse().map_err(|error| format!("{error}"))?;
    Ok(Some(mode).filter(|mode| mode.bits() != 0))
}

/// A timeout: never zero, and a year at most.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = retention(text)?;
    if duration.is_zero() || duration > Duration::from_hours(8760) {
        return Err("it must be more than nothing, and a year at most".into());
    }
    Ok(duration)
}

/// How long something is kept; 0: not at all.
fn retention(text: &str) -> Result<Duration, String> {
    crate::volume::duration::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_node_plugin_is_checked_and_its_kubelet_directory_where_there_is_one() {
        let (node, both) = (Roles { controller: false, node: true }, Roles { controller: true, node: true });
        let checks =
            |mounting, kubelet_dir: Option<&str>| Checks { mounting, kubelet_dir: kubelet_dir.map(Into::into) };
        assert_eq!(Checks::of(node, None, false), checks(true, None));
        assert_eq!(Checks::of(node, None, true), checks(true, Some("/var/lib/kubelet")));
        assert_eq!(Checks::of(node, Some("/k".into()), true), checks(true, Some("/k")));
        assert_eq!(Checks::of(both, None, true), checks(false, None));
        assert_eq!(Checks::of(both, Some("/k".into()), false), checks(true, Some("/k")));
        let controller = Roles { controller: true, node: false };
        assert_eq!(Checks::of(controller, Some("/k".into()), true), checks(false, None));
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

    #[test]
    fn timeouts_are_more_than_nothing_and_a_year_at_most() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0", "0s", "8761h", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(retention("0"), Ok(Duration::ZERO));
    }
}
