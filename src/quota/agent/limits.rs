//! Which limit a project has when.

use crate::quota::quotactl::Limit;
use crate::quota::wish::Granted;
use crate::volume::quota_files::CLOSED_BYTES;

/// The limit of a directory in `ready/`.
pub(super) const CLOSED: Limit = Limit { bytes: CLOSED_BYTES, inodes: 1 };
/// No limit.
pub(super) const NONE: Limit = Limit { bytes: 0, inodes: 0 };

/// The limit in the kernel that stands for one that was wanted: whole blocks of the file system, and never less.
#[must_use]
pub(super) fn in_kernel(granted: &Granted, block: u64) -> Limit {
    Limit { bytes: granted.bytes.next_multiple_of(block.max(1)), inodes: granted.inodes }
}
