//! The snapshots: a folder each, which is renamed into place whole, so that it exists complete or not at all.
//!
//! ```text
//! snapshots/<key>/manifest.json   what it is a snapshot of, when it was taken, how it is kept
//! snapshots/<key>/data/           the tree (until a volume reads it without a copy: shared_trees.rs), or
//! snapshots/<key>/data.tar.zst    the archive
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::claims::Claims;
use super::pages::Listed;
use super::staging::Staged;
use super::trash::{Kind, TrashName};
use super::{Export, ExportError, Folder, catalog, small_file};
use crate::beneath;
use crate::tree::{Progress, count};
use crate::volume::path::RESERVED;
use crate::volume::record_key::RecordKey;
use crate::volume::secret::Secret;
use crate::volume::shared_tree::SharedTree;
use crate::volume::snapshot_id::SnapshotFormat;
use crate::volume::subdir::SubDir;

const MANIFEST: &str = "manifest.json";
pub(super) const TREE: &str = "data";
const ARCHIVE: &str = "data.tar.zst";
/// The format that this driver writes; it reads this and all before.
const FORMAT: u32 = 1;

/// What is known of a snapshot besides its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    pub format: u32,
    /// The CSI name.
    pub name: String,
    /// The server's name in the snapshot's id: the server may have several. None in the manifests of version 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
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
    /// Whether `files` was counted in the finished snapshot: then a copy of it has as many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// How many entries of the volume vanished while it was copied, and are not in the snapshot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vanished: u64,
    /// The cluster whose driver took the snapshot (`--cluster-id`); none where it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// By this its tree is found when it has moved to where volumes read it. None in archives, and in the snapshots of
    /// version 0.1.0: they are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The inode number of its tree; there with `secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
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
            server: None,
            source_volume,
            size_bytes,
            created_at,
            kept_as,
            files: 0,
            bytes: 0,
            counted: false,
            vanished: 0,
            owner: None,
            secret: None,
            inode: None,
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
        match self.own_folder(Folder::Snapshots)? {
            Some(snapshots) => Manifest::read_in(self, &snapshots, key),
            None => Ok(None),
        }
    }

    /// A snapshot's folder, open, and its manifest; none if there is no such snapshot.
    ///
    /// # Errors
    /// As [`Export::snapshot`].
    pub fn open_snapshot(&self, key: &RecordKey) -> Result<Option<(OwnedFd, Manifest)>, ExportError> {
        let failed = |errno| self.failed("open snapshot", key.to_string(), errno);
        let folder = match beneath::open_dir(&self.layout()?.snapshots, key.to_string()) {
            Ok(folder) => folder,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let Some(file) = small_file::open(&folder, MANIFEST).map_err(failed)? else { return Ok(None) };
        let manifest = read_manifest(self, &file, key)?;
        Ok(Some((folder, manifest)))
    }

    /// A snapshot's data, open for reading.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_data(&self, key: &RecordKey, manifest: &Manifest) -> Result<Data, ExportError> {
        let failed = |errno| self.failed("open the data of snapshot", key.to_string(), errno);
        let snapshots = &self.layout()?.snapshots;
        let open =
            |name: &str, flags| beneath::open(snapshots, format!("{key}/{name}"), flags, Mode::empty()).map_err(failed);
        match manifest.kept_as {
            SnapshotFormat::Tree => {
                let tree = match (open(TREE, OFlag::O_PATH | OFlag::O_DIRECTORY), &manifest.secret) {
                    (Err(ExportError::Io { errno: Errno::ENOENT, .. }), Some(secret)) => {
                        let shared = SharedTree::new(key.clone(), secret.clone());
                        return self.open_directory(&SubDir::of_shared_tree(&shared)).map(|(tree, _)| Data::Tree(tree));
                    }
                    (tree, _) => tree?,
                };
                let inode = fstat(&tree).map_err(failed)?.st_ino;
                let (own, key) = (RESERVED, key.to_string());
                self.open_in_trees(&[own, Folder::Snapshots.name(), &key, TREE], inode).map(Data::Tree).map_err(failed)
            }
            SnapshotFormat::Archive => {
                open(ARCHIVE, OFlag::O_RDONLY | OFlag::O_NOFOLLOW).map(|file| Data::Archive(file.into()))
            }
        }
    }

    /// The directory that a snapshot's tree is made in, with these permissions (and the owner's).
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_tree(&self, staged: &Staged, mode: u32) -> Result<OwnedFd, ExportError> {
        let failed = |errno| self.failed("make in staging", TREE, errno);
        mkdirat(staged, TREE, Mode::from_bits_truncate(mode) | Mode::S_IRWXU).map_err(failed)?;
        beneath::open_dir(staged, TREE).map_err(failed)
    }

    /// How many entries are in the tree of a snapshot that is being made, and the tree's inode number.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn count_staged_snapshot(&self, staged: &Staged) -> Result<(u64, u64), ExportError> {
        let failed = |errno| self.failed("open in staging", TREE, errno);
        let tree = beneath::open_dir(staged, TREE).map_err(failed)?;
        let files = count::entries(&tree, self.effort()).map_err(|error| self.tree_failed(&"the snapshot", &error))?;
        Ok((files, fstat(&tree).map_err(failed)?.st_ino))
    }

    /// The tree of an earlier attempt at a snapshot; none if it had not come as far.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn earlier_snapshot_tree(&self, earlier: BorrowedFd<'_>) -> Result<Option<OwnedFd>, ExportError> {
        match beneath::open_dir(earlier, TREE) {
            Ok(tree) => Ok(Some(tree)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("open in staging", TREE, errno)),
        }
    }

    /// The file that a snapshot's archive is written to, empty.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn snapshot_archive(&self, staged: &Staged) -> Result<File, ExportError> {
        small_file::create(staged, ARCHIVE).map_err(|errno| self.failed("make in staging", ARCHIVE, errno))
    }

    /// Writes the manifest of a snapshot whose data is complete.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn write_manifest(&self, staged: &Staged, manifest: &Manifest) -> Result<(), ExportError> {
        let failed = |errno| self.failed("write in staging", MANIFEST, errno);
        let text = serde_json::to_vec(manifest).map_err(|_| failed(Errno::EINVAL))?;
        small_file::create(staged, MANIFEST).and_then(|file| small_file::write(&file, &text)).map_err(failed)
    }

    /// Notes the inode number that a snapshot's tree has now: its manifest has come here from another file system.
    pub(super) fn renumber_snapshot(&self, key: &RecordKey) -> Result<(), ExportError> {
        let Some((folder, manifest)) = self.open_snapshot(key)? else { return Ok(()) };
        let (Some(noted), Data::Tree(tree)) = (manifest.inode, self.snapshot_data(key, &manifest)?) else {
            return Ok(());
        };
        let failed = |errno| self.failed("write the manifest of snapshot", key.to_string(), errno);
        let inode = fstat(&tree).map_err(failed)?.st_ino;
        if inode == noted {
            return Ok(());
        }
        let new = format!("{MANIFEST}.new");
        // One that an earlier repair left is not complete.
        catalog::remove(&folder, &new).map_err(failed)?;
        let text =
            serde_json::to_vec(&Manifest { inode: Some(inode), ..manifest }).map_err(|_| failed(Errno::EINVAL))?;
        small_file::create(&folder, &new).and_then(|file| small_file::write(&file, &text)).map_err(failed)?;
        renameat(&folder, new.as_str(), &folder, MANIFEST).map_err(failed)
    }

    /// Notes how many entries there are in a snapshot in the trash, as far as its manifest says it.
    pub(super) fn expect_snapshot(&self, name: &TrashName, progress: &Progress) {
        let manifest = || {
            let file = small_file::open(&self.layout().ok()?.trash, format!("{name}/{MANIFEST}")).ok()??;
            read_manifest(self, &file, &name.key).ok()
        };
        if let Some(manifest) = manifest().filter(|manifest| manifest.kept_as == SnapshotFormat::Tree) {
            // Its folder, its tree's directory and the manifest are removed too.
            progress.expect(Some(manifest.files + 3), None);
        }
    }

    /// Moves a snapshot into the trash; gives the name it has there. None if there is no such snapshot.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_snapshot(&self, key: &RecordKey) -> Result<Option<TrashName>, ExportError> {
        let layout = self.layout()?;
        let name = TrashName::new(Kind::Snapshot, key.clone(), self.now(), Duration::ZERO);
        let (from, to) = (key.to_string(), name.to_string());
        // First in the mount that has made it, or is going to free it.
        let trees = self.tree_layout()?;
        if beneath::rename(&trees.snapshots, &from, &trees.trash, &to).is_ok() {
            return Ok(Some(name));
        }
        match beneath::rename(&layout.snapshots, &from, &layout.trash, &to) {
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

    /// Moves another driver's archive into the trash, and removes its folder if nothing else is in it. What is not
    /// surely an archive in a folder of its own is left alone: an id is only a text.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_archive(&self, path: &SubDir, key: &RecordKey) -> Result<Option<TrashName>, ExportError> {
        let failed = |errno| self.failed("move to the trash", path.to_string(), errno);
        let Some((folder, file)) = path.as_str().rsplit_once('/') else { return Ok(None) };
        let Some(archive) = self.foreign_archive(path)? else { return Ok(None) };
        let open = beneath::open_dir(self.root(), folder).map_err(failed)?;
        let is_alone = beneath::names(&open).map_err(failed)?.iter().all(|name| name == file);
        if !is_alone || self.is_of_volume(folder)? || !is_archive(&archive.file, archive.bytes) {
            tracing::warn!(share = %self.share(), %path, "this is not surely a snapshot's archive: it stays");
            return Ok(None);
        }
        let name = TrashName::new(Kind::Snapshot, key.clone(), self.now(), Duration::ZERO);
        match beneath::rename(&open, file, &self.layout()?.trash, name.to_string().as_str()) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        match unlinkat(self.root().as_fd(), folder, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(Some(name)),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Whether a folder at the share's top is a volume's directory, or leads to one.
    fn is_of_volume(&self, folder: &str) -> Result<bool, ExportError> {
        let key = RecordKey::of(folder);
        let is_own = self.record(&key)?.is_some_and(|record| record.subdir.as_str() == folder);
        Ok(is_own || matches!(SubDir::parse(folder), Ok(subdir) if self.claims(&subdir, &key)? != Claims::None))
    }
}

/// Whether a file begins as a tar archive does, compressed with gzip or not.
fn is_archive(file: &File, bytes: u64) -> bool {
    const MAGIC: std::ops::Range<usize> = 257..262;
    let mut block = [0; 512];
    let read = std::os::unix::fs::FileExt::read_at(file, &mut block, 0).unwrap_or_default();
    bytes > 0 && (block[..read].starts_with(&[0x1f, 0x8b]) || block.get(MAGIC) == Some(&b"ustar"[..]))
}

impl Listed for Manifest {
    const FOLDER: Folder = Folder::Snapshots;

    fn key(name: &OsStr) -> Option<RecordKey> {
        name.to_str()?.parse().ok()
    }

    fn read_in(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<Self>, ExportError> {
        let failed = |errno| export.failed("open the manifest of snapshot", key.to_string(), errno);
        let Some(file) = small_file::open(folder, format!("{key}/{MANIFEST}")).map_err(failed)? else {
            return Ok(None);
        };
        read_manifest(export, &file, key).map(Some)
    }
}

fn read_manifest(export: &Export, file: &OwnedFd, key: &RecordKey) -> Result<Manifest, ExportError> {
    let failed = |errno| export.failed("read the manifest of snapshot", key.to_string(), errno);
    let text = small_file::read(file).map_err(failed)?;
    let (path, share) = (format!("snapshots/{key}/{MANIFEST}"), export.share().to_string());
    super::catalog::parse(&text, FORMAT, path, share)
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
