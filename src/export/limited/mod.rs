//! Directories whose size the server holds: the driver's side of `.nfs-csi/quota/` (volume/quota_files.rs).
//!
//! A limited directory is not made but claimed: the quota agent has it ready, with a project of its own. It is moved to
//! where it is filled when the server shows the limit that was asked for as its size, and never before, so that no attempt
//! can leave a directory without its limit behind. What a claim leaves when its controller dies, the agent removes.
//!
//! On the healthy path that is two calls to the server more than without a limit: the claim, and the question for the size.
//! The folder of directories that are ready is read in the mount that remembers names, so none is looked up again.

mod agent;
mod claiming;
mod placing;
mod size;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::fstat;
use serde::de::DeserializeOwned;

pub use self::size::LimitState;
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{APPLIED, Agent, ProjectId, QUOTA, READY, REFUSED, WANTED, Wanted};
use crate::volume::record_key::RecordKey;

/// The longest part of a text of the agent's that is shown, in characters.
const LONGEST_SHOWN: usize = 200;

/// The agent's folders, open where names are looked up.
#[derive(Debug)]
pub(super) struct QuotaFolders {
    top: OwnedFd,
    wanted: OwnedFd,
    applied: OwnedFd,
    refused: OwnedFd,
    ready: OwnedFd,
    /// The same in the mount for trees, which remembers names.
    ready_in_trees: OwnedFd,
}

/// What is known of an export's limits.
#[derive(Debug, Default)]
pub(super) struct Limits(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Directories that were ready, and their inode numbers.
    ready: Vec<(ProjectId, u64)>,
    /// When these were read.
    listed: Option<Instant>,
    /// Claims that the agent has not answered.
    claims: HashMap<RecordKey, ClaimedLimit>,
    agent: Option<(Agent, Instant)>,
    /// The bytes of each claim that the agent may not have counted yet.
    uncounted: Vec<(Instant, u64)>,
    /// How long the agent takes to set a limit, as it was seen last.
    expected: Duration,
    /// When a claim was given up that the agent did not answer.
    unanswered: Option<Instant>,
}

/// A directory that was claimed for a volume, and the limit that it is to have.
#[derive(Clone, Debug)]
pub struct ClaimedLimit {
    project: ProjectId,
    inode: u64,
    wanted: Wanted,
    at: Instant,
}

impl ClaimedLimit {
    /// The directory's project.
    #[must_use]
    pub fn project(&self) -> ProjectId {
        self.project
    }

    /// The directory's inode number.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A directory that is empty and whose limit is in force.
#[derive(Debug)]
pub struct LimitedDirectory {
    /// Its project.
    pub project: ProjectId,
    /// Its inode number.
    pub inode: u64,
    directory: OwnedFd,
}

impl AsFd for LimitedDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Whether a limited directory is in its volume's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It was moved there by this call.
    Now,
    /// It was there.
    Before,
    /// It is not: it has gone.
    Not,
}

impl QuotaFolders {
    fn open(export: &Export) -> Result<Self, (String, Errno)> {
        let top = descend(export.root(), &[RESERVED, QUOTA], None)?;
        let folder = |name: &str| descend(&top, &[name], None);
        Ok(Self {
            wanted: folder(WANTED)?,
            applied: folder(APPLIED)?,
            refused: folder(REFUSED)?,
            ready: folder(READY)?,
            ready_in_trees: descend(export.tree_root(), &[RESERVED, QUOTA, READY], None)?,
            top,
        })
    }
}

impl Export {
    fn quota_folders(&self) -> Result<&QuotaFolders, ExportError> {
        if let Some(folders) = self.quota_folders.get() {
            return Ok(folders);
        }
        let folders = QuotaFolders::open(self).map_err(|(name, errno)| match errno {
            Errno::ENOENT => self.no_agent(),
            errno => self.failed("open the folder", name, errno),
        })?;
        Ok(self.quota_folders.get_or_init(|| folders))
    }

    /// Reads a link's text; none where there is no link, or none of this form: the agent refuses that.
    fn read_link<T: DeserializeOwned>(&self, folder: &OwnedFd, project: ProjectId) -> Result<Option<T>, ExportError> {
        match readlinkat(folder, project.to_string().as_str()) {
            Ok(text) => Ok(text.to_str().and_then(|text| serde_json::from_str(text).ok())),
            Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(self.failed("read the limit of", project.to_string(), errno)),
        }
    }

    fn no_agent(&self) -> ExportError {
        self.unlimited(format!("no quota agent was ever on it: start `nfs-csi quota` on {}", self.share().server()))
    }

    fn unlimited(&self, reason: String) -> ExportError {
        ExportError::Unlimited { share: self.share().to_string(), reason }
    }

    fn limits(&self) -> MutexGuard<'_, Known> {
        self.shared.limits.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A project's directory in `ready/`, and its inode number; none if it has none there.
fn open_ready(folders: &QuotaFolders, project: ProjectId) -> nix::Result<Option<(OwnedFd, u64)>> {
    let opened = beneath::open_dir(&folders.ready_in_trees, project.to_string()).and_then(|directory| {
        let inode = fstat(&directory)?.st_ino;
        Ok((directory, inode))
    });
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A text that others wrote, as it may be shown: what is no ASCII or not to be seen is left out.
fn shown(text: &str) -> String {
    text.chars().filter(|character| character.is_ascii_graphic() || *character == ' ').take(LONGEST_SHOWN).collect()
}
