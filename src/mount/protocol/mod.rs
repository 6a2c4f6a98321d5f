//! What the daemon asks of a worker process, and what it answers. One message each way, as JSON behind its length.

pub mod error;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use self::error::MountError;
use super::options::{Options, Version};
use super::table::Mount;

/// One piece of work that may block.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Look up the addresses of a server.
    Resolve {
        /// Its name, or a link-local address with its zone.
        server: String,
        /// The port that the addresses are to have.
        port: u16,
    },
    /// Mount a share, or a directory of it.
    Mount {
        /// What is asked for.
        request: MountRequest,
        /// The server as it was reached just now.
        server: Reached,
        /// Where it is made.
        workplace: Workplace,
    },
    /// Take the topmost mount off the path.
    Unmount {
        /// The absolute path of the mount point.
        target: String,
        /// Whether the empty directory goes too, if nothing is mounted on it any more.
        remove: bool,
    },
    /// End the calls that wait for the server of the mount on the path, and those on all mounts that share its
    /// superblock.
    Abort {
        /// The absolute path of the mount point.
        target: String,
    },
    /// Remove the empty directory that was a mount point.
    Remove {
        /// The absolute path of the mount point.
        target: String,
    },
    /// Make or remove a scratch directory on a share.
    Scratch(ScratchRequest),
    /// Ask how full the file system mounted on a path is.
    Usage {
        /// The absolute path of the mount point.
        target: String,
    },
}

/// A mount to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountRequest {
    /// Host name or address, without brackets.
    pub server: String,
    /// The share's path on the server, absolute.
    pub share: String,
    /// The directory below the share to mount; the share itself without.
    pub subdir: Option<String>,
    /// The absolute path of the mount point; its parent exists.
    pub target: String,
    /// The mount options.
    pub options: Options,
    /// Whether this mount refuses writes (the superblock stays writable for others).
    pub read_only: bool,
    /// Permission bits to give the directory where it has others.
    pub permissions: Option<u32>,
}

/// A server that was asked whether it is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reached {
    /// Where it answered.
    pub address: SocketAddr,
    /// This host's address on the way there.
    pub client: Option<IpAddr>,
    /// The versions to try, the newest first; all of one major version.
    pub candidates: Vec<Version>,
}

impl MountRequest {
    /// The source as the mount table shows it: `server:/share/subdir`.
    #[must_use]
    pub fn source(&self) -> String {
        let server = if self.server.contains(':') { format!("[{}]", self.server) } else { self.server.clone() };
        format!("{server}:{}", self.path())
    }

    /// The path on the server.
    #[must_use]
    pub fn path(&self) -> String {
        match &self.subdir {
            Some(subdir) => format!("{}/{subdir}", self.share.trim_end_matches('/')),
            None => self.share.clone(),
        }
    }

    /// The server has none of the versions that were tried.
    pub(super) fn version_not_served(&self, tried: &[Version]) -> MountError {
        let tried: Vec<String> = tried.iter().map(ToString::to_string).collect();
        MountError::VersionNotServed { server: self.server.clone(), tried: tried.join(", ") }
    }
}

/// Two folders of the daemon's own, by their absolute paths, on which nothing is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workplace {
    /// The mount is made here, and moved to its target when it is complete.
    pub volume: String,
    /// The share is mounted here for a moment, where there is something to look up in it.
    pub share: String,
}

/// A scratch directory, and what is to be done with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScratchRequest {
    /// Where the directory that holds it is mounted, for this only.
    pub place: String,
    /// The name of the outer directory.
    pub outer: String,
    /// The name of the inner one.
    pub inner: String,
    /// Permission bits of the inner directory, which is to be made; none: all is to be removed.
    pub make: Option<u32>,
}

/// A worker's answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The addresses of a server.
    Addresses(Vec<SocketAddr>),
    /// Mounted, on the path that the mount table names.
    Mounted {
        /// The mount point with every link in its parents resolved.
        target: String,
        /// The NFS version that was agreed on.
        version: Version,
        /// Newer ones that were asked for, and that the server does not have.
        refused: Vec<Version>,
        /// The source as the mount table has it: where the walk ended, if the share is a link on the server.
        source: String,
    },
    /// Nothing was done: something is mounted on the target already.
    Occupied(Occupant),
    /// One mount was taken off the target; there may be more.
    Unmounted {
        /// Whether the mount point is gone too.
        removed: bool,
    },
    /// Nothing is mounted on the target.
    NotMounted,
    /// The mount point is gone.
    Removed,
    /// The mount point stays: something is mounted on it.
    StillMounted,
    /// It is as it was asked for.
    Done,
    /// How full the file system is.
    Usage(Usage),
    /// It did not work.
    Failed(MountError),
}

/// What the mount table says of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupant {
    /// The mount point with every link in its parents resolved.
    pub target: String,
    /// The file system type.
    pub fs_type: String,
    /// The source field: `server:/path` for NFS.
    pub source: String,
    /// Whether this mount refuses writes.
    pub read_only: bool,
}

impl Occupant {
    /// What the table says.
    #[must_use]
    pub fn of(mount: &Mount) -> Self {
        Self {
            target: mount.mount_point.to_string_lossy().into_owned(),
            fs_type: mount.fs_type.clone(),
            source: mount.source.to_string_lossy().into_owned(),
            read_only: mount.read_only(),
        }
    }
}

/// The size and filling of a file system, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Size, in bytes.
    pub total_bytes: u64,
    /// Free for users without privilege, in bytes.
    pub available_bytes: u64,
    /// In use, in bytes.
    pub used_bytes: u64,
    /// How many files there can be.
    pub total_inodes: u64,
    /// How many more files there can be.
    pub available_inodes: u64,
}

/// A message behind its length in four bytes, in one piece.
pub(in crate::mount) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}
