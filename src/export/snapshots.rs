//! The snapshots: a folder each, which is renamed into place whole, so that it exists complete or not at all.
//!
//! ```text
//! snapshots/<key>/manifest.json   what it is a snapshot of, when it was taken, how it is kept
//! snapshots/<key>/data/           the tree, or
//! snapshots/<key>/data.tar.zst    the archive
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::staging::Staged;
use super::trash::{Kind, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::volume::name::RecordKey;
use crate::volume::snapshot::SnapshotFormat;
use crate::volume::subdir::SubDir;

const MANIFEST: &str = "manifest.json";
const TREE: &str = "data";
const ARCHIVE: &str = "data.tar.zst";
/// The format that this driver writes; it reads this and all before.
const FORMAT: u32 = 1;
/// No manifest is longer.
const LONGEST: u64 = 64 * 1024;

/// What is known of a snapshot besides its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    pub format: u32,
    /// The CSI name.
    pub name: String,
    /// The id of the volume that it was taken of.
    pub source_volume: String,
    /// The size of that volume, in bytes; 0: unknown. A volume made of the snapshot is at least as large.
    pub size_bytes: u64,
    /// When it was taken, in nanoseconds since 1970.
    pub created_at: u64,
    /// How its data is kept.
    pub kept_as: SnapshotFormat,
    /// How many entries it has.
    pub files: u64,
    /// How many bytes are in them.
    pub bytes: u64,
    /// How many entries of the volume vanished while it was copied, and are not in the snapshot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vanished: u64,
    /// The cluster whose driver took the snapshot (`--cluster-id`); none where it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Manifest {
    /// The manifest of a snapshot that is taken now.
    #[must_use]
    pub fn new(name: String, source_volume: String, size_bytes: u64, kept_as: SnapshotFormat) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        Self {
            format: FORMAT,
            name,
            source_volume,
            size_bytes,
            created_at,
            kept_as,
            files: 0,
            bytes: 0,
            vanished: 0,
            owner: None,
        }
    }
}

/// A snapshot's data, open.
#[derive(Debug)]
pub enum Data {
    /// A directory.
    Tree(OwnedFd),
    /// An archive of any format.
    Archive(File),
}

impl Export {
    /// Reads a snapshot's manifest; none if there is no such snapshot.
    ///
    /// # Errors
    /// Where the server fails, and where the file is no manifest.
    pub fn snapshot(&self, key: &RecordKey) -> Result<Option<Manifest>, ExportError> {
        let failed = |errno| self.failed("open the manifest of snapshot", key.to_string(), errno);
        let path = format!("{key}/{MANIFEST}");
        let file = match beneath::open(&self.layout()?.snapshots, path.as_str(), OFlag::O_RDONLY, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let mut text = Vec::new();
        File::from(file)
            .take(LONGEST)
            .read_to_end(&mut text)
            .map_err(|error| failed(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))?;
        let (path, share) = (format!("snapshots/{path}"), self.share().to_string());
        super::catalog::parse(&text, FORMAT, path, share).map(Some)
    }

    /// The keys of all snapshots, in their order.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_keys(&self) -> Result<Vec<RecordKey>, ExportError> {
        let names =
            beneath::names(&self.layout()?.snapshots).map_err(|errno| self.failed("list", "the snapshots", errno))?;
        let mut keys: Vec<RecordKey> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// A snapshot's data, open for reading.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_data(&self, key: &RecordKey, kept_as: SnapshotFormat) -> Result<Data, ExportError> {
        let failed = |errno| self.failed("open the data of snapshot", key.to_string(), errno);
        let snapshots = &self.layout()?.snapshots;
        let open = |name: &str, flags| {
            beneath::open(snapshots, format!("{key}/{name}"), OFlag::O_RDONLY | flags, Mode::empty()).map_err(failed)
        };
        match kept_as {
            SnapshotFormat::Tree => open(TREE, OFlag::O_DIRECTORY).map(Data::Tree),
            SnapshotFormat::Archive => open(ARCHIVE, OFlag::O_NOFOLLOW).map(|file| Data::Archive(file.into())),
        }
    }

    /// The directory that a snapshot's tree is made in, with these permissions (and the owner's).
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_tree(&self, staged: &Staged, mode: u32) -> Result<OwnedFd, ExportError> {
        let failed = |errno| self.failed("make in staging", TREE, errno);
        let mode = Mode::from_bits_truncate(mode) | Mode::S_IRWXU;
        match mkdirat(staged, TREE, mode) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        beneath::open_dir(staged, TREE).map_err(failed)
    }

    /// The file that a snapshot's archive is written to, empty.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_archive(&self, staged: &Staged) -> Result<File, ExportError> {
        new_file(staged, ARCHIVE).map_err(|errno| self.failed("make in staging", ARCHIVE, errno))
    }

    /// Writes the manifest of a snapshot whose data is complete.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn write_manifest(&self, staged: &Staged, manifest: &Manifest) -> Result<(), ExportError> {
        let failed = |errno| self.failed("write in staging", MANIFEST, errno);
        let text = serde_json::to_vec(manifest).map_err(|_| failed(Errno::EINVAL))?;
        let mut file = new_file(staged, MANIFEST).map_err(failed)?;
        file.write_all(&text)
            .and_then(|()| file.sync_data())
            .map_err(|error| failed(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))
    }

    /// Moves a snapshot into the trash; gives the name it has there. None if there is no such snapshot.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_snapshot(&self, key: &RecordKey) -> Result<Option<TrashName>, ExportError> {
        let layout = self.layout()?;
        let name = TrashName::now(Kind::Snapshot, key.clone(), Duration::ZERO);
        match renameat(&layout.snapshots, key.to_string().as_str(), &layout.trash, name.to_string().as_str()) {
            Ok(()) => Ok(Some(name)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("move to the trash", key.to_string(), errno)),
        }
    }

    /// An archive that another driver keeps on the share: its file, its size in bytes, and when it was written, in
    /// nanoseconds since 1970. None if there is no such file.
    ///
    /// # Errors
    /// Where the server fails, and where something else is in its place.
    pub fn foreign_archive(&self, path: &SubDir) -> Result<Option<ForeignArchive>, ExportError> {
        let failed = |errno| self.failed("open the archive", path.to_string(), errno);
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = match beneath::open(self.root(), path.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let stat = fstat(&file).map_err(failed)?;
        if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
            return Ok(None);
        }
        let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
        Ok(Some(ForeignArchive {
            file: file.into(),
            bytes: u64::try_from(stat.st_size).unwrap_or_default(),
            created_at: seconds.saturating_mul(1_000_000_000),
        }))
    }

    /// Moves another driver's archive into the trash, and removes its folder if nothing else is in it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_archive(&self, path: &SubDir, key: &RecordKey) -> Result<Option<TrashName>, ExportError> {
        let failed = |errno| self.failed("move to the trash", path.to_string(), errno);
        let Some((folder, file)) = path.as_str().rsplit_once('/') else { return Ok(None) };
        let name = TrashName::now(Kind::Snapshot, key.clone(), Duration::ZERO);
        let open = match beneath::open_dir(self.root(), folder) {
            Ok(open) => open,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let moved = match renameat(&open, file, &self.layout()?.trash, name.to_string().as_str()) {
            Ok(()) => Some(name),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(failed(errno)),
        };
        match unlinkat(self.root().as_fd(), folder, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(moved),
            Err(errno) => Err(failed(errno)),
        }
    }
}

fn new_file(staged: &Staged, name: &str) -> nix::Result<File> {
    // What an earlier try left is not complete.
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
    beneath::open(staged, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

/// A snapshot that another driver keeps.
#[derive(Debug)]
pub struct ForeignArchive {
    /// The archive, open.
    pub file: File,
    /// Its size.
    pub bytes: u64,
    /// When it was written.
    pub created_at: u64,
}
