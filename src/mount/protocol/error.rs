//! Why a mount, an unmount or a look at a mount failed, in words that name the server, the share and the way out.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::mount::table::TableError;

/// What went wrong between this host and an NFS server.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum MountError {
    #[error("the name of NFS server {server} does not resolve ({reason}): check its spelling and this host's DNS")]
    Unresolved { server: String, reason: String },

    #[error(
        "NFS server {server} does not answer on {address} ({reason}): check that it runs, and that this host may \
         reach that TCP port"
    )]
    Unreachable { server: String, address: String, reason: String },

    #[error(
        "NFS server {server} is left alone for the moment, since it failed ({reason}); {answered}; it is asked again in \
         {milliseconds} ms: check the server, the calls work again when it answers"
    )]
    Refused { server: String, reason: String, answered: String, milliseconds: u64 },

    #[error("{server} answers on {address}, but not as an NFS server ({reason}): check server and port")]
    NotNfs { server: String, address: String, reason: String },

    #[error(
        "NFS server {server} serves none of the NFS versions {tried}: enable one of them there, or ask for another \
         with the mount option nfsvers="
    )]
    VersionNotServed { server: String, tried: String },

    #[error("NFS server has no directory {share}: check server, share and subDir, and what the server exports")]
    NoSuchShare { share: String },

    #[error(
        "NFS server refuses {share}: it is not exported to this host, or (with NFS version 3) is not there; check the \
         server's export list"
    )]
    Denied { share: String },

    #[error(
        "NFS server refuses {share}: it may want another security flavour than this mount's sec= (sec=krb5, say), or a \
         privileged client port, which the mount option noresvport takes away and \"insecure\" in the export allows"
    )]
    NotPermitted { share: String },

    #[error(
        "the kernel refuses the mount options \"{options}\" for {share}: one of them is unknown or has a value that it \
         does not take (sec=krb5* needs rpc.gssd on this host); words known here: {known}"
    )]
    BadOptions { share: String, options: String, known: String },

    #[error("mount options for {share}: {reason}")]
    Options { share: String, reason: String },

    #[error(
        "{share} would be mounted with NFS version 3, whose locks need rpc.statd on this host, and none is running \
         (programs that lock would hang): start rpc.statd, or add the mount option nolock, or use NFS version 4"
    )]
    NoStatd { share: String },

    #[error(
        "{share} leads through a symbolic link (to {found}): a volume's path may not hold links, since a tenant can \
         point them anywhere; name the real directory"
    )]
    Symlink { share: String, found: String },

    #[error(
        "this host's kernel has no {fs_type} file system: load it (modprobe nfs nfsv4) or install the kernel's NFS client"
    )]
    NoKernelSupport { fs_type: String },

    #[error("target path {target}: {reason}")]
    Target { target: String, reason: String },

    #[error("nothing is mounted on {target}")]
    NotMounted { target: String },

    #[error(
        "the mount on {target} is stale (the server's export was removed or made anew): unpublish and publish it again"
    )]
    Stale { target: String },

    #[error("{server} is {addresses} in the server map: {error}")]
    Mapped { server: String, addresses: String, error: Box<MountError> },

    #[error("{what} did not finish within {seconds} s: {hint}")]
    TimedOut { what: String, seconds: u64, hint: String },

    #[error("{what} was not begun within {seconds} s: {hint}")]
    Queued { what: String, seconds: u64, hint: String },

    #[error("{what}: {reason}")]
    System { what: String, errno: i32, reason: String },

    #[error("the worker process for {what} failed ({reason}): try again")]
    Worker { what: String, reason: String },
}

impl From<TableError> for MountError {
    fn from(error: TableError) -> Self {
        Self::System { what: "cannot read this process's mount table".into(), errno: 0, reason: error.to_string() }
    }
}

impl MountError {
    /// What it is, without what the server map says of the server.
    #[must_use]
    pub fn plain(&self) -> &Self {
        match self {
            Self::Mapped { error, .. } => error.plain(),
            error => error,
        }
    }

    /// Whether nothing was heard of the server: another address of it may answer.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(
            self.plain(),
            Self::Unresolved { .. } | Self::Unreachable { .. } | Self::Refused { .. } | Self::NotNfs { .. }
        )
    }

    /// The kind of reason in a word, for a metric.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Mapped { error, .. } => error.cause(),
            Self::Unresolved { .. } => "unresolved",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } => "refused",
            Self::NotNfs { .. } => "not-nfs",
            Self::VersionNotServed { .. } => "version",
            Self::NoSuchShare { .. } => "no-such-share",
            Self::Denied { .. } | Self::NotPermitted { .. } => "denied",
            Self::BadOptions { .. } | Self::Options { .. } => "options",
            Self::NoStatd { .. } => "no-statd",
            Self::Symlink { .. } => "link",
            Self::NoKernelSupport { .. } => "no-kernel-support",
            Self::Target { .. } | Self::NotMounted { .. } => "target",
            Self::Stale { .. } => "stale",
            Self::TimedOut { .. } => "timed-out",
            Self::Queued { .. } => "queued",
            Self::System { .. } | Self::Worker { .. } => "other",
        }
    }

    /// An errno for which there is no better word.
    pub(in crate::mount) fn system(what: String, errno: Errno) -> Self {
        Self::System { what, errno: errno as i32, reason: errno.desc().into() }
    }
}
