//! Why the agent does not start, or ends.

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use crate::health::BindError;

/// Why the agent does not start, or ends.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum QuotaError {
    #[error("cannot open the export {path}: {errno}")]
    Export { path: PathBuf, errno: Errno },

    #[error(
        "{path} is on {kind}, where the agent cannot set limits: it needs XFS or ext4 on a disk of this host (docs/quotas.md)"
    )]
    FileSystem { path: PathBuf, kind: String },

    #[error(
        "limits of projects are not enforced on {path} (XFS): mount it with the option prjquota (unmount it first; a remount \
         does not enable it), then start the agent again"
    )]
    NotEnforcedOnXfs { path: PathBuf },

    #[error(
        "limits of projects are not enforced on {path} (ext4): unmount it, run tune2fs -O project,quota -Q prjquota on its \
         device, mount it with the option prjquota, then start the agent again"
    )]
    NotEnforcedOnExt4 { path: PathBuf },

    #[error("the kernel has no quotactl_fd(2): the agent needs Linux 5.14 or newer")]
    Kernel,

    #[error("cannot read the quotas of {path}: {errno}; the agent needs CAP_SYS_ADMIN on the host of the file system")]
    Quotas { path: PathBuf, errno: Errno },

    #[error("another agent works on {path}: one process has all exports of a file system (--export is repeatable)")]
    Locked { path: PathBuf },

    #[error("--export {path} is given twice")]
    Twice { path: PathBuf },

    #[error("cannot use {path}: {errno}")]
    Io { path: PathBuf, errno: Errno },

    #[error(
        "{path} is not the folder any more in which this agent works: it was replaced, or its file system was unmounted"
    )]
    Replaced { path: PathBuf },

    #[error(transparent)]
    Metrics(#[from] BindError),

    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),

    #[error("a thread of the agent ended without a reason")]
    Thread,
}
