//! Domain errors become gRPC codes: the specification's table for each call, in one place.
//!
//! What the orchestrator does with a code: it tries again after UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED and
//! RESOURCE_EXHAUSTED, believing that the call may still be under way; after the others it knows that the call ended,
//! tells the user, and tries again more slowly.

use nix::errno::Errno;
use tonic::{Code, Status};

use crate::controller::{CreateError, DeleteError, ExpandError, GetError, ListError, ModifyError, SnapshotError};
use crate::export::ExportError;
use crate::jobs::JobError;
use crate::mount::protocol::error::MountError;
use crate::node::{PublishError, StatsError, UnpublishError};
use crate::tree::archive::ArchiveError;

/// An error that has a code.
pub(super) trait ToStatus: std::error::Error + Sized {
    fn code(&self) -> Code;

    fn to_status(&self) -> Status {
        Status::new(self.code(), self.to_string())
    }
}

/// Turns any domain error into the status that answers the call.
#[allow(clippy::needless_pass_by_value, reason = "it stands behind map_err")]
pub(super) fn status(error: impl ToStatus) -> Status {
    error.to_status()
}

impl ToStatus for CreateError {
    fn code(&self) -> Code {
        match self {
            Self::Template(_) | Self::NoSize => Code::InvalidArgument,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::NoSource { .. } => Code::NotFound,
            Self::TooSmall { .. } => Code::OutOfRange,
            Self::Occupied { .. } | Self::Claimed { .. } | Self::Anothers { .. } | Self::Unlimitable { .. } => {
                Code::FailedPrecondition
            }
            Self::Export(error) => error.code(),
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for SnapshotError {
    fn code(&self) -> Code {
        match self {
            Self::NoVolume { .. } | Self::NotFound { .. } => Code::NotFound,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::Token { .. } => Code::Aborted,
            Self::Export(error) => error.code(),
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for DeleteError {
    fn code(&self) -> Code {
        match self {
            Self::InUse { .. } => Code::FailedPrecondition,
            Self::Export(error) => error.code(),
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for ExpandError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::TooLarge { .. } => Code::OutOfRange,
            Self::Export(error) => error.code(),
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for ModifyError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::IsSnapshot { .. } => Code::InvalidArgument,
            Self::NotConverted { .. } | Self::NoSize { .. } => Code::FailedPrecondition,
            Self::Export(error) => error.code(),
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for GetError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::Export(error) => error.code(),
        }
    }
}

impl ToStatus for ListError {
    fn code(&self) -> Code {
        match self {
            // The specification's code for a token that it does not know.
            Self::Token { .. } => Code::Aborted,
            Self::Export(error) => error.code(),
        }
    }
}

impl ToStatus for PublishError {
    fn code(&self) -> Code {
        match self {
            Self::Occupied { .. } => Code::AlreadyExists,
            Self::InUse { .. } => Code::FailedPrecondition,
            // The specification: a field is "not allowed by the Plugin". PERMISSION_DENIED is about an identity that
            // secrets tell.
            Self::InlineOff | Self::InlineRefused { .. } | Self::InlineServer => Code::InvalidArgument,
            Self::Mount(error) => error.code(),
            Self::State { .. } => Code::Internal,
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for UnpublishError {
    fn code(&self) -> Code {
        match self {
            Self::Mount { error, .. } => error.code(),
            Self::State { .. } => Code::Internal,
            Self::Job(error) => error.code(),
        }
    }
}

impl ToStatus for StatsError {
    fn code(&self) -> Code {
        match self {
            Self::NotPublished { .. } | Self::Nowhere { .. } | Self::AnotherVolume { .. } => Code::NotFound,
            Self::Table { .. } => Code::Internal,
        }
    }
}

impl ToStatus for JobError {
    fn code(&self) -> Code {
        match self {
            Self::Busy { .. } | Self::InUse { .. } => Code::Aborted,
            Self::Unfinished { .. } => Code::DeadlineExceeded,
            Self::Broken { .. } => Code::Internal,
        }
    }
}

impl ToStatus for ExportError {
    fn code(&self) -> Code {
        match self {
            Self::Mount(error) => error.code(),
            // NOT_FOUND is for what was asked for. What is missing on the way there somebody else has moved just now.
            Self::Io { errno: Errno::ENOENT, .. }
            | Self::Held { .. }
            | Self::Contended { .. }
            | Self::Abandoned { .. } => Code::Aborted,
            Self::Lost { .. } | Self::Unlimited { .. } => Code::Unavailable,
            Self::Full { .. } | Self::Overcommitted { .. } => Code::ResourceExhausted,
            Self::OverLimit { .. } => Code::OutOfRange,
            Self::Io { errno, .. } => code_of_errno(*errno),
            Self::Record { .. }
            | Self::NewerRecord { .. }
            | Self::Displaced { .. }
            | Self::Another { .. }
            | Self::Copied { .. }
            | Self::LimitRefused { .. }
            | Self::RootExempt { .. } => Code::FailedPrecondition,
            Self::Archive { error, .. } => error.code(),
            Self::Incomplete { .. } | Self::Lacks { .. } => Code::DataLoss,
            Self::Defect { .. } => Code::Internal,
        }
    }
}

impl ToStatus for ArchiveError {
    fn code(&self) -> Code {
        match self {
            Self::Tree(error) => code_of_errno(error.errno),
            Self::Hostile { .. } | Self::Unsupported { .. } => Code::FailedPrecondition,
            Self::Truncated | Self::Damaged { .. } => Code::DataLoss,
            Self::TooBig { .. } | Self::TooMany => Code::ResourceExhausted,
        }
    }
}

impl ToStatus for MountError {
    fn code(&self) -> Code {
        match self {
            Self::Mapped { error, .. } => error.code(),
            // The server may come back: try again.
            Self::Unresolved { .. }
            | Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::NotNfs { .. }
            | Self::Worker { .. } => Code::Unavailable,
            Self::TimedOut { .. } | Self::Queued { .. } => Code::DeadlineExceeded,
            // The user or the operator has to change something first.
            Self::NoSuchShare { .. } | Self::NotMounted { .. } => Code::NotFound,
            Self::Denied { .. } | Self::NotPermitted { .. } => Code::PermissionDenied,
            Self::BadOptions { .. } | Self::Options { .. } => Code::InvalidArgument,
            Self::VersionNotServed { .. }
            | Self::NoStatd { .. }
            | Self::Symlink { .. }
            | Self::NoKernelSupport { .. }
            | Self::Stale { .. } => Code::FailedPrecondition,
            Self::Target { .. } => Code::Internal,
            Self::System { errno, .. } => code_of_errno(Errno::from_raw(*errno)),
        }
    }
}

fn code_of_errno(errno: Errno) -> Code {
    match errno {
        Errno::EACCES | Errno::EPERM => Code::PermissionDenied,
        Errno::ENOSPC | Errno::EDQUOT => Code::ResourceExhausted,
        Errno::EROFS | Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV | Errno::EEXIST => Code::FailedPrecondition,
        Errno::ENAMETOOLONG | Errno::EINVAL => Code::InvalidArgument,
        Errno::ETIMEDOUT | Errno::EIO | Errno::ESTALE | Errno::ECONNREFUSED | Errno::EHOSTUNREACH => Code::Unavailable,
        Errno::EAGAIN | Errno::EBUSY => Code::Aborted,
        Errno::ENOENT => Code::NotFound,
        _ => Code::Internal,
    }
}
