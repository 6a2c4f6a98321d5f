//! The driver's own folder on an export.
//!
//! ```text
//! .nfs-csi/            0700
//!   volumes/<key>.json   one record a volume
//!   subdirs/…            which volumes name which directory (claims.rs)
//!   snapshots/<key>/     one folder a snapshot: its data and its manifest (snapshots.rs)
//!   staging/<id>         what is being made (staging.rs)
//!   trash/<id>           deleted volumes and snapshots until they are freed (trash.rs)
//! ```

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat};

use super::{Export, ExportError};
use crate::tree::make::descend;
use crate::volume::subdir::RESERVED;

/// The name of the folder of what was deleted.
pub(super) const TRASH: &str = "trash";

/// The folders, open.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) volumes: OwnedFd,
    pub(super) subdirs: OwnedFd,
    pub(super) snapshots: OwnedFd,
    pub(super) staging: OwnedFd,
    pub(super) trash: OwnedFd,
}

impl Layout {
    /// Opens the folders; makes those that are missing.
    pub(super) fn open(export: &Export) -> Result<Self, ExportError> {
        let own = || Some(Mode::S_IRWXU);
        let failed = |(name, errno): (String, Errno)| export.failed("make the folder", name, errno);
        let top = descend(export.root(), &[RESERVED], own()).map_err(failed)?;
        keep_private(&top).map_err(|errno| export.failed("make private the folder", RESERVED, errno))?;
        let open = |name: &str| descend(&top, &[name], own()).map_err(failed);
        Ok(Self {
            volumes: open("volumes")?,
            subdirs: open("subdirs")?,
            snapshots: open("snapshots")?,
            staging: open("staging")?,
            trash: open(TRASH)?,
        })
    }
}

/// Those of them in which trees are worked on, open in the mount for that.
#[derive(Debug)]
pub(super) struct TreeLayout {
    pub(super) trash: OwnedFd,
}

impl TreeLayout {
    /// Opens the folders, which are there.
    pub(super) fn open(export: &Export) -> Result<Self, ExportError> {
        let open = |name: &str| {
            descend(export.tree_root(), &[RESERVED, name], None)
                .map_err(|(name, errno)| export.failed("open the folder", name, errno))
        };
        Ok(Self { trash: open(TRASH)? })
    }
}

/// Nobody but the driver may look in: the names of all tenants' volumes are there, and what they deleted.
fn keep_private(folder: &OwnedFd) -> nix::Result<()> {
    let others = Mode::S_IRWXG | Mode::S_IRWXO;
    if !Mode::from_bits_truncate(fstat(folder)?.st_mode).intersects(others) {
        return Ok(());
    }
    fchmodat(folder, ".", Mode::S_IRWXU, FchmodatFlags::FollowSymlink)
}
