//! Records of the node plugin: one small file each, which only root reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes a record in place. A torn one is left out at the next start.
pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    Ok(file)
}

/// The same for one that is to outlive a crash of this host: it names something on a server that does. The disk may be
/// slow, and nobody else waits for it.
pub(super) async fn write_durably(path: PathBuf, text: Vec<u8>) -> io::Result<()> {
    let write = move || {
        write(&path, &text)?.sync_all()?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
}
