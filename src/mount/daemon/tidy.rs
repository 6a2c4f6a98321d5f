//! What processes left mounted that were killed.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::mounter::Mounter;
use super::private_dir::{LOCK, PREFIX};
use crate::mount::table::Table;

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
        match mounter.unmount(mount.server(), &target, true).await {
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
