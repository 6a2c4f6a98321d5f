//! The folder on this host in which this process mounts what is its own: nobody else's, and tidied up after a crash
//! (tidy.rs).
//!
//! Each process has one and holds a lock on it. A folder whose lock is free belonged to a process that was killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(super) const PREFIX: &str = "nfs-csi-exports-";
pub(super) const LOCK: &str = "lock";

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

    /// Removes the folder, if nothing is mounted in it any more. What cannot be removed, the next process finds by the
    /// lock, which therefore goes last.
    pub fn remove(&self) {
        let mut is_empty = true;
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name() != LOCK {
                // Only where it is empty and nothing is mounted on it.
                is_empty &= std::fs::remove_dir(entry.path()).is_ok();
            }
        }
        if is_empty {
            let _ = std::fs::remove_file(self.path.join(LOCK));
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_go_keeps_the_lock_by_which_the_next_process_finds_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = PrivateDir::create(place.path()).unwrap();
        let busy = folder.mount_point("busy").unwrap();
        // What is in it stands for a mount.
        std::fs::write(busy.join("file"), "").unwrap();
        let path = folder.path().to_owned();
        folder.remove();
        assert!(path.join(LOCK).exists());
        std::fs::remove_file(busy.join("file")).unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
