//! The folder on this host in which exports are mounted: nobody else's, and tidied up after a crash.
//!
//! Each process has one of its own and holds a lock on it. A folder whose lock is free belonged to a process that was
//! killed: the next one unmounts what is left in it and removes it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mounter::Mounter;
use crate::mount::table::{Table, split_source};

const PREFIX: &str = "nfs-csi-exports-";
const LOCK: &str = "lock";

/// The folder. When this is dropped it goes, if it is empty: it is never removed with what is in it, which may be a
/// mounted export.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    _lock: File,
}

impl PrivateDir {
    /// Makes a folder below `place`, which is made too if it is missing.
    ///
    /// # Errors
    /// Where this host's file system refuses it.
    pub fn create(place: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(place)?;
        // Kept at once: tempfile would remove it with all that is mounted in it.
        let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?.keep();
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty folder to mount on.
    ///
    /// # Errors
    /// Where this host's file system refuses it.
    pub fn mount_point(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(path),
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // What cannot be removed now, the next process finds.
        let _ = std::fs::remove_file(self.path.join(LOCK));
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Unmounts and removes what processes left behind that were killed. What cannot be removed is logged and left.
pub async fn tidy_up(place: &Path, mounter: &Arc<Mounter>) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Err(error) = remove_abandoned(&entry.path(), mounter).await {
            tracing::warn!(path = %entry.path().display(), %error, "cannot remove what a killed process left");
        }
    }
}

/// Unmounts all exports in a folder, and removes their mount points. What cannot be unmounted is logged.
pub async fn unmount_below(folder: &Path, mounter: &Arc<Mounter>) {
    let table = match Table::read() {
        Ok(table) => table,
        Err(error) => return tracing::warn!(%error, "cannot see what is mounted"),
    };
    // What is mounted last goes first.
    for mount in table.below(folder).rev() {
        let target = mount.mount_point.to_string_lossy();
        let server = split_source(&mount.source).map_or("", |(server, _)| server);
        match mounter.unmount(server, &target, true).await {
            Ok(()) => tracing::info!(source = %mount.source.to_string_lossy(), "export unmounted"),
            Err(error) => tracing::warn!(%target, %error, "cannot unmount an export"),
        }
    }
}

async fn remove_abandoned(folder: &Path, mounter: &Arc<Mounter>) -> io::Result<()> {
    let lock = match File::open(folder.join(LOCK)) {
        Ok(lock) => lock,
        // It is being made or removed just now, or was half removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return std::fs::remove_dir(folder),
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    unmount_below(folder, mounter).await;
    for entry in std::fs::read_dir(folder)?.flatten().filter(|entry| entry.file_name() != LOCK) {
        std::fs::remove_dir(entry.path())?;
    }
    std::fs::remove_file(folder.join(LOCK))?;
    std::fs::remove_dir(folder)
}
