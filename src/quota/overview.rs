//! What the files of the protocol say of each project, for `nfs-csi quota status`.
//!
//! They are read as they are, on the server or on any host that has the export mounted; where the kernel answers, its
//! limit and use are taken, rather than the last ones that the agent wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::quotactl::{Disk, Kernel, Limit};
use crate::beneath;
use crate::reason::errno_of;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{
    AGENT, APPLIED, Agent, ProjectId, QUOTA, READY, REFUSED, Refused, SILENT_AFTER, USAGE, WANTED, Wanted,
    parse_usage_line,
};
use crate::volume::record_key::RecordKey;

/// No file that is read whole is longer.
const LONGEST: u64 = 64 << 20;

/// Why there is no overview.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum OverviewError {
    #[error("{export} has no quotas: no agent has worked there (there is no {RESERVED}/{QUOTA})")]
    None { export: String },

    #[error("cannot read {path} of {export}: {errno}")]
    Io { export: String, path: String, errno: Errno },
}

/// The quotas of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// The export's path.
    pub export: String,
    /// What the agent last wrote of itself.
    pub agent: Option<Agent>,
    /// Whether it is alive, by this host's clock.
    pub alive: bool,
    /// Directories that wait for a volume.
    pub ready: usize,
    /// Each volume that has a limit, or for which one is wanted.
    pub volumes: Vec<Volume>,
}

/// What is known of one project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The project.
    pub project: ProjectId,
    /// The key of the volume's record.
    pub key: Option<RecordKey>,
    /// The volume's name, where its record can be read.
    pub name: Option<String>,
    /// Its directory below the export, where its record can be read.
    pub directory: Option<String>,
    /// The claim that it was made for, `namespace/name`, where its record has it.
    pub claim: Option<String>,
    /// The limit that the agent set, in bytes.
    pub limit_bytes: Option<u64>,
    /// The same in files and directories; 0: none.
    pub limit_inodes: Option<u64>,
    /// What the volume uses, in bytes.
    pub used_bytes: Option<u64>,
    /// The same in files and directories.
    pub used_inodes: Option<u64>,
    /// How far things are.
    #[serde(flatten)]
    pub state: State,
}

/// How far a project is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "kebab-case")]
pub enum State {
    /// The limit that is wanted is in force.
    InForce,
    /// Another limit is wanted than the one in force.
    Waiting,
    /// The agent refuses what is wanted.
    Refused(String),
    /// The limit is in force, and no driver has taken the directory yet.
    Unclaimed,
    /// The kernel has another limit than the agent set.
    NotInForce,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InForce => f.write_str("in force"),
            Self::Waiting => f.write_str("waiting for the agent"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Unclaimed => f.write_str("not taken yet"),
            Self::NotInForce => f.write_str("NOT IN FORCE"),
        }
    }
}

/// What of a volume's record is shown.
#[derive(Debug, Deserialize)]
struct Record {
    name: String,
    subdir: String,
    claim: Option<String>,
}

/// Reads the files of an export.
///
/// # Errors
/// See [`OverviewError`].
pub fn read(path: &Path) -> Result<Overview, OverviewError> {
    let export = path.display().to_string();
    let failed = |path: &str, errno| OverviewError::Io { export: export.clone(), path: path.into(), errno };
    let root = File::open(path).map(OwnedFd::from).map_err(|error| failed(".", errno_of(error)))?;
    let driver = beneath::open_dir(&root, RESERVED);
    let folder = driver.and_then(|driver| Ok((beneath::open_dir(&driver, QUOTA)?, driver)));
    let (own, driver) = match folder {
        Err(Errno::ENOENT) => return Err(OverviewError::None { export }),
        folder => folder.map_err(|errno| failed(QUOTA, errno))?,
    };
    let ids = |name: &str| ids(&own, name).map_err(|errno| failed(name, errno));
    let (wanted, applied, refused, ready) = (ids(WANTED)?, ids(APPLIED)?, ids(REFUSED)?, ids(READY)?);
    let usage = text(&own, USAGE).unwrap_or_default();
    let usage: BTreeMap<ProjectId, (u64, u64)> =
        usage.lines().filter_map(parse_usage_line).map(|(id, bytes, inodes)| (id, (bytes, inodes))).collect();
    let (agent, alive) = agent(&own);
    let disk = Disk::of(root);
    let volume =
        |id: ProjectId| {
            let wanted: Option<Wanted> = link(&own, WANTED, id);
            let applied: Option<Wanted> = link(&own, APPLIED, id);
            let refused: Option<Refused> = link(&own, REFUSED, id);
            let quota = disk.quota(id).ok();
            let is_limited = |limit: Limit| {
                applied.as_ref().is_none_or(|applied| limit.bytes >= applied.bytes && limit.inodes == applied.inodes)
            };
            let state =
                match (&wanted, &applied, refused) {
                    (_, _, Some(refused)) => State::Refused(refused.reason),
                    (_, Some(_), _) if quota.is_some_and(|quota| !is_limited(quota.limit)) => State::NotInForce,
                    (Some(wanted), Some(applied), _) if wanted.generation == applied.generation => {
                        if ready.contains(&id) { State::Unclaimed } else { State::InForce }
                    }
                    (None, Some(_), _) => State::InForce,
                    _ => State::Waiting,
                };
            let key = applied.as_ref().or(wanted.as_ref()).map(|of| of.volume.clone());
            let record = key.as_ref().and_then(|key| {
                let text = text(&driver, &format!("volumes/{key}.json"))?;
                serde_json::from_str::<Record>(&text).ok()
            });
            let used = quota.map(|quota| (quota.bytes, quota.inodes)).or_else(|| usage.get(&id).copied());
            let claim = record.as_ref().and_then(|record| record.claim.clone());
            let (name, directory) = record.map(|Record { name, subdir, .. }| (name, subdir)).unzip();
            Volume {
                project: id,
                key,
                name,
                directory,
                claim,
                limit_bytes: applied.as_ref().map(|applied| applied.bytes),
                limit_inodes: applied.as_ref().map(|applied| applied.inodes),
                used_bytes: used.map(|(bytes, _)| bytes),
                used_inodes: used.map(|(_, inodes)| inodes),
                state,
            }
        };
    let all: BTreeSet<ProjectId> = wanted.iter().chain(&applied).chain(&refused).copied().collect();
    let volumes = all.into_iter().map(volume).collect();
    let ready = ready.difference(&applied).count();
    Ok(Overview { export, agent, alive, ready, volumes })
}

fn ids(own: &OwnedFd, folder: &str) -> nix::Result<BTreeSet<ProjectId>> {
    let folder = match beneath::open_dir(own, folder) {
        Err(Errno::ENOENT) => return Ok(BTreeSet::new()),
        folder => folder?,
    };
    let ids = beneath::collect_names(folder, |name| Ok(name.to_str().and_then(ProjectId::parse)))?;
    Ok(ids.into_iter().collect())
}

/// A link's text; none where it cannot be read.
fn link<T: for<'a> Deserialize<'a>>(own: &OwnedFd, folder: &str, id: ProjectId) -> Option<T> {
    let folder = beneath::open_dir(own, folder).ok()?;
    let text = readlinkat(&folder, id.to_string().as_str()).ok()?;
    serde_json::from_slice(text.as_encoded_bytes()).ok()
}

/// A file's text; none where it cannot be read.
fn text(folder: &OwnedFd, path: &str) -> Option<String> {
    let file = File::from(beneath::open(folder, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// What the agent wrote of itself, and whether that is new.
fn agent(own: &OwnedFd) -> (Option<Agent>, bool) {
    let agent = text(own, AGENT).and_then(|text| serde_json::from_str(&text).ok());
    let stat = nix::sys::stat::fstatat(own, AGENT, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let age = stat.ok().and_then(|stat| Some(now.saturating_sub(u64::try_from(stat.st_mtime).ok()?)));
    let alive = agent.is_some() && age.is_some_and(|age| age <= SILENT_AFTER.as_secs());
    (agent, alive)
}
