//! What is gone from the source when its turn comes: counted in a volume that is in use, an error in a snapshot.
//!
//! A server that has lost a file system, or fails over, says ESTALE of what is still there. So the server is asked for
//! a name once more before it is left out, and for the directory that it is in by that directory's path.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use super::directory::{Directory, Tree};
use super::{Copy, Spot, failed};
use crate::tree::walk::look_again;
use crate::tree::{SourceKind, TreeError};

/// How often a name is looked up again that is there and leads nowhere.
const LOOKUPS: u32 = 2;
/// What an error says of an entry that a snapshot must have.
pub(in crate::tree) const LACKS: &str = "copy a snapshot that lacks";

/// Whether an entry of the source is gone.
pub(super) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE)
}

/// Makes sure that the source itself is there.
pub(super) fn make_sure(tree: &Tree) -> std::result::Result<(), TreeError> {
    match look_again(tree.source()) {
        Ok(root) if root.stx_nlink > 0 => Ok(()),
        Ok(_) => Err(failed("look at", PathBuf::new(), Errno::STALE)),
        Err(errno) => Err(failed("look at", PathBuf::new(), errno)),
    }
}

impl Copy<'_> {
    /// Whether to look an entry up again that was gone, and was so often `before`. Otherwise it is left out.
    pub(super) fn looks_again(
        &self,
        spot: &Spot<'_>,
        errno: Errno,
        before: u32,
    ) -> std::result::Result<bool, TreeError> {
        if errno == Errno::STALE && before >= LOOKUPS {
            // The name is there: it may not be left out.
            return Err(spot.failed("look at", errno));
        }
        let again = (errno == Errno::STALE || before == 0) && self.is_there(spot.directory, spot.source())?;
        if !again {
            self.miss(errno, || spot.directory.path_of(spot.name))?;
        }
        Ok(again)
    }

    /// Whether a directory of the source is still in its place.
    fn is_there(&self, directory: &Arc<Directory>, source: BorrowedFd<'_>) -> std::result::Result<bool, TreeError> {
        match look_again(source) {
            Ok(_) => Ok(true),
            Err(errno) if is_gone(errno) && self.tree.has_lost(directory)? => Ok(false),
            Err(errno) => Err(failed("look at", directory.path(), errno)),
        }
    }

    /// Leaves out what is gone; a snapshot must have it.
    pub(super) fn miss(&self, errno: Errno, path: impl FnOnce() -> PathBuf) -> std::result::Result<(), TreeError> {
        match self.kind {
            SourceKind::Live => {
                self.progress.miss();
                Ok(())
            }
            SourceKind::Frozen => Err(failed(LACKS, path(), errno)),
        }
    }
}
