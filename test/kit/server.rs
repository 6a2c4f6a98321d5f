//! The NFS server of the guest, seen from both sides.

use std::path::PathBuf;

/// The server's address.
pub const SERVER: &str = "127.0.0.1";
/// The share, by the same path for all NFS versions.
pub const SHARE: &str = "/run/export";

/// Whether the server is nfs-ganesha (`$E2E_SERVER`), and not the kernel's: it shows neither extended attributes nor
/// access control lists, and does not set the times of symbolic links.
pub fn is_ganesha() -> bool {
    std::env::var("E2E_SERVER").is_ok_and(|server| server == "ganesha")
}

/// A path on the server's own disk.
pub fn on_server(path: &str) -> PathBuf {
    PathBuf::from(SHARE).join(path)
}

/// The names in a folder of the server's disk, sorted; none if the folder is missing.
pub fn names(path: &str) -> Vec<String> {
    super::names_in(&on_server(path))
}
