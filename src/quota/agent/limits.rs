//! Which limit a project has when.

use crate::quota::quotactl::Limit;
use crate::quota::wish::Granted;

/// The limit of a directory in `ready/`: its own inode fills it, so nothing can be made in it. Its one block may be as
/// large as file systems have them.
pub(super) const CLOSED: Limit = Limit { bytes: 64 << 10, inodes: 1 };
/// No limit.
pub(super) const NONE: Limit = Limit { bytes: 0, inodes: 0 };

/// The limit in the kernel that stands for one that was wanted: whole blocks of the file system, and never less.
#[must_use]
pub(super) fn in_kernel(granted: &Granted, block: u64) -> Limit {
    Limit { bytes: granted.bytes.next_multiple_of(block.max(1)), inodes: granted.inodes }
}
