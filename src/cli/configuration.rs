//! What the driver is to do: the flags, checked against each other.

use std::path::PathBuf;
use std::time::Duration;

use super::flags::Flags;
use crate::controller::Settings;
use crate::mount::daemon::mounter::Limits;
use crate::node::NodeSettings;
use crate::registration;
use crate::server::Endpoint;
use crate::telemetry::LogFormat;
use crate::volume::topology::Segment;

/// The kubelet's directory where it is not told.
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Kubernetes sets it in every container.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// What a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The controller service.
    pub controller: bool,
    /// The node service.
    pub node: bool,
}

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
    /// The file of the server map.
    pub servers: PathBuf,
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
    /// What the operator needs to know of the command line, a line each.
    pub remarks: Vec<String>,
}

pub(super) fn check(roles: Roles, flags: Flags) -> Result<Configuration, String> {
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
            default_permissions: flags.mount_permissions.mode,
            mount_options: flags.mount_options,
            shares: flags.exports,
            cluster: flags.cluster_id.filter(|name| !name.is_empty()),
            lists_own: flags.list_own_only,
        },
        servers: flags.servers,
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
        log_level: flags.log_level.into(),
        remarks: flags.mount_permissions.remark.into_iter().collect(),
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

#[cfg(test)]
mod tests {
    use super::*;
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
}
