//! What can go wrong on an export, in words that name the share, the path and the way out.

use nix::errno::Errno;
use thiserror::Error;

use crate::mount::protocol::error::MountError;
use crate::tree::archive::ArchiveError;

/// A call on an export that failed.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ExportError {
    #[error(transparent)]
    Mount(#[from] MountError),

    #[error(
        "work on {share} was ended, since its server had not answered for {seconds} s: check the server, and try again"
    )]
    Lost { share: String, seconds: u64 },

    #[error("cannot {what} {path} on {share}: {}{}", .errno.desc(), way_out(*.errno))]
    Io { what: &'static str, path: String, share: String, errno: Errno },

    #[error("the record {path} on {share} cannot be read ({reason}): restore it from a backup, or remove it by hand")]
    Record { path: String, share: String, reason: String },

    #[error("the record {path} on {share} has format {format}, which this driver does not know: use a newer driver")]
    NewerRecord { path: String, share: String, format: u32 },

    #[error("the archive of {what} on {share}: {error}")]
    Archive { what: String, share: String, error: ArchiveError },

    #[error(
        "{holder} is at work on this on {share}, and showed a sign of life {silent} s ago: it goes on there, or is taken \
         over after {wait} s of silence; try again"
    )]
    Held { share: String, holder: String, silent: u64, wait: u64 },

    #[error("cannot {what} {path} on {share}: another controller changed it meanwhile; try again")]
    Contended { what: &'static str, path: String, share: String },

    #[error(
        "there is no space on {share} for the copy of {what} ({}): {free} bytes are free, of which up to 64 MiB are left to \
         others; the export is full, or its quota is used up: free space or enlarge it, and try again",
        .errno.desc()
    )]
    Full { what: String, share: String, errno: Errno, free: u64 },

    #[error("a volume's size cannot be limited on {share} now: {reason}; or make volumes without limits (quota: none)")]
    Unlimited { share: String, reason: String },

    #[error("the quota agent of {share} refuses the limit for project {project}: {reason}")]
    LimitRefused { share: String, project: u32, reason: String },

    #[error(
        "limits on {share}, which is on {file_system}, do not hold for root of hosts that it is exported to with \
         no_root_squash: put the export on XFS, or set rootExempt: \"true\" in the StorageClass if that is enough"
    )]
    RootExempt { share: String, file_system: String },

    #[error(
        "{wanted} bytes are more than may still be promised of {share}: {promised} of {most} bytes are promised already; \
         delete volumes, enlarge the export, or raise overcommit in the StorageClass"
    )]
    Overcommitted { share: String, wanted: u64, promised: u64, most: u64 },

    #[error("{what} does not fit in a volume of {bytes} bytes on {share}: ask for a larger size")]
    OverLimit { what: String, share: String, bytes: u64 },

    #[error("the work on {share} was ended since nobody has asked for it for a while: ask again to begin it again")]
    Abandoned { share: String },

    #[error("{what}, which does not change, lacks {path} (found while it was copied to {share}): it is damaged")]
    Lacks { what: String, share: String, path: String },

    #[error(
        "the copy of {what} on {share} is not complete: {has} of {wanted} entries could be read; the source is damaged, or \
         was deleted meanwhile"
    )]
    Incomplete { what: String, share: String, has: u64, wanted: u64 },

    #[error(
        "{entry} in the trash of {share} is the directory of the volume in {subdir}, where something else is now: look at \
         both, and move one away by hand (.nfs-csi/trash on the share)"
    )]
    Displaced { entry: String, subdir: String, share: String },

    #[error(
        "{share} is another export than the server map says: its id is {found}, and {wanted} is wanted; nothing was done: \
         export the right directory there (with its .nfs-csi), or correct exports in the map"
    )]
    Another { share: String, wanted: String, found: String },

    #[error(
        "{share} is a copy of an export, made file by file, so the directories in it are not those that its records know; \
         nothing was done: run `nfs-csi check --repair --export {share}` in the controller's pod, and the calls succeed when \
         they are repeated"
    )]
    Copied { share: String },

    #[error("an operation on {share} broke off: try again, and report it with the driver's log")]
    Defect { share: String },
}

impl ExportError {
    /// The mount lost the export's root or a folder of it: mounting it anew may help.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Io { errno: Errno::ESTALE, .. })
    }

    /// A retry may succeed without anybody changing anything: what was done until now is of use to it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Mount(_)
            | Self::Lost { .. }
            | Self::Held { .. }
            | Self::Contended { .. }
            | Self::Defect { .. }
            | Self::Full { .. }
            | Self::Another { .. }
            | Self::Copied { .. }
            | Self::Unlimited { .. }
            | Self::Archive { error: ArchiveError::TooBig { .. }, .. } => true,
            Self::Io { errno, .. } => is_passing(*errno),
            Self::Archive { error: ArchiveError::Tree(error), .. } => is_passing(error.errno),
            Self::Record { .. }
            | Self::NewerRecord { .. }
            | Self::Archive { .. }
            | Self::Abandoned { .. }
            | Self::Displaced { .. }
            | Self::LimitRefused { .. }
            | Self::RootExempt { .. }
            | Self::Overcommitted { .. }
            | Self::OverLimit { .. }
            | Self::Lacks { .. }
            | Self::Incomplete { .. } => false,
        }
    }

    /// There is no space for what is made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Archive { error, .. } => match error {
                ArchiveError::TooBig { .. } | ArchiveError::TooMany => true,
                ArchiveError::Tree(error) => error.is_full(),
                _ => false,
            },
            Self::Io { errno, .. } => matches!(errno, Errno::ENOSPC | Errno::EDQUOT),
            _ => false,
        }
    }

    /// The server refuses, and will until somebody changes it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Io { errno: Errno::EACCES | Errno::EPERM | Errno::EROFS, .. })
    }
}

fn is_passing(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::EACCES
            | Errno::EPERM
            | Errno::EROFS
            | Errno::ELOOP
            | Errno::ENOTDIR
            | Errno::EXDEV
            | Errno::EEXIST
            | Errno::ENAMETOOLONG
            | Errno::EINVAL
            | Errno::ENOENT
    )
}

fn way_out(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            "; the server does not let this host's root do that: export the share with no_root_squash, or make it \
             writable for the user that root is mapped to"
        }
        Errno::EROFS => "; the server exports the share read-only: export it rw",
        Errno::ENOSPC => "; the export is full: free space or enlarge it",
        Errno::EDQUOT => "; the quota on the server is used up: raise it or free space",
        Errno::ETIMEDOUT | Errno::EIO => "; the server does not answer in time: check it and the network",
        Errno::ELOOP => "; a symbolic link is in the way, and links are never followed: remove it",
        Errno::ENOTDIR => "; something that is not a directory is in the way: remove it",
        Errno::ENAMETOOLONG => "; the name is too long for the server's file system: use shorter names in subDir",
        Errno::EXDEV => "; another file system is in the way: volumes may not cross into it",
        _ => "",
    }
}
