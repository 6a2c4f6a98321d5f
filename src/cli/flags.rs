//! The flags of the commands that serve.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::{
    Permissions, cluster_id, default_options, driver_name, duration, host_and_port, permissions, retention,
};
use crate::mount::options::Options;
use crate::server::Endpoint;
use crate::telemetry::LogFormat;
use crate::volume::access::OnDelete;
use crate::volume::inline_pattern::InlinePattern;
use crate::volume::share::Share;
use crate::volume::topology::Segment;

/// Where the chart puts the server map.
pub(super) const SERVERS: &str = "/etc/nfs-csi/servers.json";

#[derive(Args, Debug)]
pub(super) struct Flags {
    /// Where to listen: unix:///path/to/csi.sock or tcp://host:port
    #[arg(long, env = "NFS_CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub(super) endpoint: Endpoint,

    /// The name of this node in the cluster (needed by node and all)
    #[arg(long, alias = "nodeid", env = "NFS_CSI_NODE_ID", default_value = "")]
    pub(super) node_id: String,

    /// The kubelet's directory on this node, which must be shared for mount propagation. Checked at the start where it
    /// is given; by node in a pod always [default there: /var/lib/kubelet]
    #[arg(long, env = "NFS_CSI_KUBELET_DIR")]
    pub(super) kubelet_dir: Option<PathBuf>,

    /// How many volumes the scheduler may put on this node (0: any number)
    #[arg(long, env = "NFS_CSI_MAX_VOLUMES_PER_NODE", default_value = "0", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) max_volumes_per_node: i64,

    /// A label of all nodes that reach the exports, for tracking storage capacity: Kubernetes does that only for
    /// drivers with a topology [domain/]name=value (to be given to controller and node)
    #[arg(long, env = "NFS_CSI_TOPOLOGY", value_name = "KEY=VALUE")]
    pub(super) topology: Option<Segment>,

    /// Where inline (ephemeral) volumes may be, since a pod's author chooses it: server:/path and all below it, or
    /// *:/path on any server (repeatable, or with commas; none: no inline volumes)
    #[arg(
        long = "allow-inline-volumes",
        env = "NFS_CSI_ALLOW_INLINE_VOLUMES",
        value_name = "SERVER:/PATH",
        value_delimiter = ','
    )]
    pub(super) inline: Vec<InlinePattern>,

    /// The driver's name, as StorageClasses have it in provisioner
    #[arg(long, alias = "drivername", env = "NFS_CSI_DRIVER_NAME", default_value = "nfs.csi.k8s.io", value_parser = driver_name)]
    pub(super) driver_name: String,

    /// An export whose volumes are listed from the start on: server:/share (repeatable)
    #[arg(long = "export", env = "NFS_CSI_EXPORT", value_name = "SERVER:/SHARE", value_delimiter = ' ')]
    pub(super) exports: Vec<Share>,

    /// The server map: where NFS servers are that volumes, ids and StorageClasses name, and what they need (a JSON file;
    /// read again when it changes; none: all servers are what they are called)
    #[arg(long, env = "NFS_CSI_SERVERS", value_name = "FILE", default_value = SERVERS)]
    pub(super) servers: PathBuf,

    /// Mount options of all volumes and exports, as mount(8) has them behind -o, where a StorageClass, a volume or a
    /// secret says nothing else
    #[arg(long, env = "NFS_CSI_MOUNT_OPTIONS", default_value = "", value_parser = default_options)]
    pub(super) mount_options: Options,

    /// Permission bits of new volumes where the StorageClass says nothing, in octal (0: as the server makes them)
    #[arg(long, env = "NFS_CSI_MOUNT_PERMISSIONS", default_value = "0", value_parser = permissions)]
    pub(super) mount_permissions: Permissions,

    /// What deleting a volume does with its directory where the StorageClass says nothing: delete, retain or archive
    #[arg(long, env = "NFS_CSI_DEFAULT_ONDELETE_POLICY", default_value = "delete")]
    pub(super) default_ondelete_policy: OnDelete,

    /// Where the controller mounts exports, in a folder of its own
    #[arg(long, env = "NFS_CSI_WORKING_MOUNT_DIR", default_value = "/tmp")]
    pub(super) working_mount_dir: PathBuf,

    /// How long a deleted volume can be brought back (nfs-csi trash restore) where the StorageClass says nothing
    #[arg(long, env = "NFS_CSI_TRASH_RETENTION", default_value = "0", value_parser = retention)]
    pub(super) trash_retention: Duration,

    /// How long a deleted volume that has no record is kept at least, whatever its class says: one that another driver
    /// made may share its directory with others without anything saying so
    #[arg(long, env = "NFS_CSI_UNRECORDED_RETENTION", default_value = "24h", value_parser = retention)]
    pub(super) unrecorded_retention: Duration,

    /// How long a clone, snapshot or restore goes on when nobody asks for it any more: its claim was deleted. More than
    /// the longest pause between two calls of the external provisioner and snapshotter (--retry-interval-max)
    #[arg(long, env = "NFS_CSI_ABANDONED_AFTER", default_value = "15m", value_parser = duration)]
    pub(super) abandoned_after: Duration,

    /// How long another controller that works on the same clone, snapshot or restore must have shown no sign of life
    /// before its work is taken over
    #[arg(long, env = "NFS_CSI_TAKEOVER_AFTER", default_value = "60s", value_parser = duration)]
    pub(super) takeover_after: Duration,

    /// How long a clone, snapshot or restore that broke off is kept for its retry
    #[arg(long, env = "NFS_CSI_STAGING_RETENTION", default_value = "24h", value_parser = duration)]
    pub(super) staging_retention: Duration,

    /// A name of this cluster, of letters, digits and '-': it is noted in the record of each volume and snapshot, so
    /// that several clusters can share an export and know what is whose
    #[arg(long, env = "NFS_CSI_CLUSTER_ID", value_parser = cluster_id)]
    pub(super) cluster_id: Option<String>,

    /// List only volumes and snapshots of this cluster (with --cluster-id); those that have no cluster are left out too
    #[arg(long, env = "NFS_CSI_LIST_OWN_ONLY", requires = "cluster_id")]
    pub(super) list_own_only: bool,

    /// Threads that copy or remove the trees of one share at a time, for all operations together
    #[arg(long, env = "NFS_CSI_TREE_WORKERS", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) tree_workers: u16,

    /// How long a mount or an unmount may take, in seconds (or with a unit: 500ms, 30s, 2m)
    #[arg(long, env = "NFS_CSI_MOUNT_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub(super) mount_timeout: Duration,

    /// How long a server may take to answer whether it is there
    #[arg(long, env = "NFS_CSI_PING_TIMEOUT", default_value = "2s", value_parser = duration)]
    pub(super) ping_timeout: Duration,

    /// How long the first mount from a server may take: while it hangs, no other server's first mount goes on
    #[arg(long, env = "NFS_CSI_FIRST_MOUNT_TIMEOUT", default_value = "15s", value_parser = duration)]
    pub(super) first_mount_timeout: Duration,

    /// How long a volume's use is told again without asking its server
    #[arg(long, env = "NFS_CSI_VOLUME_STATS_CACHE", default_value = "1m", value_parser = retention)]
    pub(super) volume_stats_cache: Duration,

    /// Calls to one server that may be under way at a time
    #[arg(long, env = "NFS_CSI_WORKERS_PER_SERVER", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) workers_per_server: u16,

    /// The kubelet's plugins_registry directory: the node plugin makes itself known there, without a registrar
    #[arg(long, env = "NFS_CSI_REGISTRATION_DIR", value_name = "DIR")]
    pub(super) registration_dir: Option<PathBuf>,

    /// The socket of --endpoint by its path on the host, which the kubelet is told [default: the path of --endpoint]
    #[arg(long, env = "NFS_CSI_REGISTRATION_ENDPOINT", value_name = "PATH", requires = "registration_dir")]
    pub(super) registration_endpoint: Option<PathBuf>,

    /// Where to answer /metrics, /healthz and /readyz over HTTP: host:port, or :port on all addresses, of IPv6 and of
    /// IPv4 (nowhere unless given)
    #[arg(long, env = "NFS_CSI_METRICS_ADDRESS", value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(super) metrics_address: Option<String>,

    /// How long running calls may take to finish after SIGTERM
    #[arg(long, env = "NFS_CSI_GRACE_PERIOD", default_value = "20s", value_parser = duration)]
    pub(super) grace_period: Duration,

    /// What log lines look like
    #[arg(long, env = "NFS_CSI_LOG_FORMAT", default_value = "text")]
    pub(super) log_format: LogFormat,

    /// How much is logged
    #[arg(long, env = "NFS_CSI_LOG_LEVEL", default_value = "info")]
    pub(super) log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}
