//! The kubelet's directory, the NFS mounts that there are, and what the node plugin says of its servers.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::check::{Check, Planned};
use super::moved::{SERVER_MAP, server_map};
use super::task::{Reporter, Subject};
use crate::metrics::REFUSED;
use crate::mount::host::{self, HostError};
use crate::mount::table::{Mount, Table};
use crate::reason::errno_of;

const KUBELET_DIR: Planned = Planned {
    name: "kubelet-dir",
    if_late: "look whether the kubelet's directory is itself on a file system that hangs",
};
const FOREIGN_MOUNTS: Planned = Planned { name: "foreign-mounts", if_late: KUBELET_DIR.if_late };
const BREAKERS: Planned = Planned::local("breakers");
const STUCK_MOUNTS: Planned = Planned {
    name: "stuck-mounts",
    if_late: "start the servers of the NFS mounts on this host, or unmount them with umount --lazy",
};
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[KUBELET_DIR, FOREIGN_MOUNTS, BREAKERS, STUCK_MOUNTS, SERVER_MAP];

/// How long a mount may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// No more file systems than these are asked.
const MOST: usize = 128;
/// How long the node plugin may take to answer.
const HTTP: Duration = Duration::from_secs(2);
/// So many mounts are named.
const NAMED: usize = 3;

pub(super) fn run(subject: &Subject, report: &mut Reporter<impl Write>) -> io::Result<()> {
    report.check(kubelet_dir(subject.kubelet_dir.as_deref()))?;
    let table = Table::read();
    report.check(match &table {
        Ok(table) => foreign_mounts(subject, table),
        Err(error) => FOREIGN_MOUNTS.fail(error.to_string(), "mount /proc in the container"),
    })?;
    report.check(breakers(subject.metrics_address.as_deref()))?;
    let table = table.unwrap_or_default();
    report.check(stuck_mounts(&table))?;
    report.check(server_map(subject, &table))
}

fn kubelet_dir(path: Option<&Path>) -> Check {
    let Some(path) = path else {
        return KUBELET_DIR.skip("there is no kubelet's directory here (--kubelet-dir names one)");
    };
    match host::is_kubelet_dir(path) {
        Ok(()) => KUBELET_DIR.pass(format!("{} is there, and its mount is shared", path.display())),
        Err(HostError::NotShared { path, mount_point }) => KUBELET_DIR.fail(
            format!("{} is on the mount {}, which is not shared", path.display(), mount_point.display()),
            format!(
                "set mountPropagation: Bidirectional where the container mounts it (outside of containers: mount \
                 --make-rshared {})",
                mount_point.display()
            ),
        ),
        Err(HostError::NoKubeletDir { path, reason }) => KUBELET_DIR.fail(
            format!("{} is not the kubelet's directory: {reason}", path.display()),
            "name the kubelet's directory with --kubelet-dir (the chart's value kubeletDir)",
        ),
        Err(error) => KUBELET_DIR.fail(error.to_string(), "mount /proc in the container"),
    }
}

/// NFS mounts in pods that this driver did not make: it does not watch over them, and they can hang the kubelet.
fn foreign_mounts(subject: &Subject, table: &Table) -> Check {
    let Some(kubelet) = subject.kubelet_dir.as_deref().and_then(|path| path.join("pods").canonicalize().ok()) else {
        return FOREIGN_MOUNTS.skip("there is no kubelet's directory here (kubelet-dir)");
    };
    let nfs: Vec<&Mount> = table.below(&kubelet).filter(|mount| mount.is_nfs()).collect();
    let foreign: Vec<String> =
        nfs.iter().filter(|mount| !is_own(&mount.mount_point, &kubelet, subject)).map(|mount| shown(mount)).collect();
    if foreign.is_empty() {
        return FOREIGN_MOUNTS.pass(format!("{} NFS mounts in pods, all of this driver", nfs.len()));
    }
    FOREIGN_MOUNTS.warn(
        format!("{} NFS mounts in pods are not this driver's: {}", foreign.len(), first(&foreign)),
        "unmount what nothing uses, and change pods with volumes of the type nfs or of another driver to claims of this one \
         (docs/migration.md)",
    )
}

/// Whether a mount point below the folder of pods is a volume of this driver: of
/// `POD/volumes/kubernetes.io~csi/NAME/mount`, or a directory of such a volume that a container mounts
/// (`POD/volume-subpaths/…`).
fn is_own(point: &Path, pods: &Path, subject: &Subject) -> bool {
    let Ok(below) = point.strip_prefix(pods) else { return false };
    let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match parts.as_slice() {
        [_, "volume-subpaths", ..] => true,
        [_, "volumes", "kubernetes.io~csi", _, "mount"] => {
            // Beside the mount point, on this host's own disk: the kubelet's note of what it is.
            let note = point.parent().map(|volume| volume.join("vol_data.json"));
            let note = note.and_then(|note| std::fs::read(note).ok()).unwrap_or_default();
            let note: serde_json::Value = serde_json::from_slice(&note).unwrap_or_default();
            note["driverName"].as_str().is_none_or(|driver| driver == subject.driver_name)
        }
        _ => false,
    }
}

fn shown(mount: &Mount) -> String {
    format!("{} on {}", mount.source.to_string_lossy(), mount.mount_point.display())
}

fn first(all: &[String]) -> String {
    let more = if all.len() > NAMED { ", …" } else { "" };
    all[..all.len().min(NAMED)].join(", ") + more
}

fn breakers(address: Option<&str>) -> Check {
    let Some(address) = address else {
        return BREAKERS.skip("the node plugin has no --metrics-address, which would show the servers that it refuses");
    };
    match scrape(address) {
        Ok(metrics) => {
            let refused = refused(&metrics);
            if refused.is_empty() {
                return BREAKERS.pass(format!("the driver at {address} refuses no server"));
            }
            BREAKERS.warn(
                format!("the driver at {address} refuses calls for {}, since they failed", refused.join(", ")),
                "start these servers: calls are made again when they answer, and the driver's log has the reasons",
            )
        }
        Err(error) => BREAKERS.warn(
            format!("the driver does not answer at {address}: {error}"),
            "look at the log of the driver's container, or correct --metrics-address",
        ),
    }
}

fn scrape(address: &str) -> io::Result<String> {
    let reachable = if address.starts_with(':') { format!("localhost{address}") } else { address.to_owned() };
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in reachable.to_socket_addrs()? {
        let stream = match TcpStream::connect_timeout(&address, HTTP) {
            Ok(stream) => stream,
            Err(error) => {
                failed = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(HTTP))?;
        let mut stream = stream;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {reachable}\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        return Ok(text);
    }
    Err(failed)
}

/// The servers whose calls are refused, of the text of all metrics.
fn refused(metrics: &str) -> Vec<String> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(REFUSED.name)?.strip_prefix("{server=\""));
    let servers = lines.filter_map(|rest| rest.rsplit_once("\"} ")).filter(|(_, value)| value.trim() != "0");
    servers.map(|(server, _)| server.to_owned()).collect()
}

/// Asks the server of each file system, on a thread of its own: those that hang end with this process.
fn stuck_mounts(table: &Table) -> Check {
    let mut seen = HashSet::new();
    let systems: Vec<&Mount> =
        table.iter().filter(|mount| mount.is_nfs() && !mount.on_deleted() && seen.insert(mount.device)).collect();
    let (sender, answers) = mpsc::channel();
    for (index, mount) in systems.iter().take(MOST).enumerate() {
        let (sender, point) = (sender.clone(), mount.mount_point.clone());
        let asked = std::thread::Builder::new().spawn(move || sender.send((index, look_at(&point))));
        if asked.is_err() {
            break;
        }
    }
    drop(sender);
    let (end, mut answered) = (Instant::now() + TIMEOUT, vec![None; systems.len().min(MOST)]);
    while let Ok((index, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        answered[index] = Some(answer);
    }
    let of = |wanted: fn(&Option<nix::Result<()>>) -> bool| -> Vec<String> {
        let found = systems.iter().zip(&answered).filter(|(_, answer)| wanted(answer));
        found.map(|(mount, _)| shown(mount)).collect()
    };
    let (silent, stale) = (of(Option::is_none), of(|answer| *answer == Some(Err(Errno::ESTALE))));
    let servers: HashSet<&str> =
        systems.iter().zip(&answered).filter(|(_, answer)| answer.is_none()).map(|(mount, _)| mount.server()).collect();
    let mut servers: Vec<&str> = servers.into_iter().collect();
    servers.sort_unstable();
    match (silent.as_slice(), stale.as_slice()) {
        ([], []) => STUCK_MOUNTS.pass(format!("{} NFS file systems answer", answered.len())),
        ([], stale) => STUCK_MOUNTS.fail(
            format!("{} NFS file systems are stale: {}", stale.len(), first(stale)),
            "delete the pods that use them, so that they are mounted again: the server's export was removed or recreated",
        ),
        (silent, _) => STUCK_MOUNTS.fail(
            format!("{} NFS file systems do not answer: {}", silent.len(), first(silent)),
            format!(
                "start the server {} again, or delete the pods that use it (a mount that stays goes with umount --lazy)",
                servers.join(", ")
            ),
        ),
    }
}

/// Asks a mount's server for the attributes of its root, past the client's cache.
fn look_at(point: &PathBuf) -> nix::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = match nix::fcntl::open(point, flags, Mode::empty()) {
        // It was unmounted meanwhile, or is hidden by another.
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        root => root?,
    };
    let looked = statx(&root, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    looked.map(drop).map_err(errno_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;

    #[test]
    fn volumes_of_this_driver_are_known_by_their_path_and_the_kubelet_s_note() {
        let folder = tempfile::tempdir().unwrap();
        let pods = folder.path();
        let subject = Subject { driver_name: "nfs.csi.k8s.io".into(), ..Subject::default() };
        let own = |path: &str| is_own(&pods.join(path), pods, &subject);
        assert!(own("pod/volumes/kubernetes.io~csi/pvc-1/mount"));
        assert!(own("pod/volume-subpaths/pvc-1/main/0"));
        assert!(!own("pod/volumes/kubernetes.io~nfs/data"));
        assert!(!own("pod/elsewhere"));
        let volume = pods.join("pod/volumes/kubernetes.io~csi/pvc-2");
        std::fs::create_dir_all(&volume).unwrap();
        for (driver, is_own) in [("efs.csi.aws.com", false), ("nfs.csi.k8s.io", true)] {
            std::fs::write(volume.join("vol_data.json"), format!(r#"{{"driverName":"{driver}"}}"#)).unwrap();
            assert_eq!(own("pod/volumes/kubernetes.io~csi/pvc-2/mount"), is_own, "{driver}");
        }
    }

    #[test]
    fn servers_that_are_refused_are_read_from_the_metrics() {
        let text = "# HELP nfs_csi_server_refused 1 for\nnfs_csi_server_refused{server=\"a\"} 0\n\
                    nfs_csi_server_refused{server=\"fd00::1\"} 1\nnfs_csi_mounts{server=\"b\"} 1\n";
        assert_eq!(refused(text), ["fd00::1"]);
    }

    #[test]
    fn a_driver_that_shows_no_metrics_is_skipped_and_one_that_does_not_answer_is_a_warning() {
        assert_eq!(breakers(None).outcome, Outcome::Skip);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(breakers(Some(&closed.to_string())).outcome, Outcome::Warn);
    }
}
