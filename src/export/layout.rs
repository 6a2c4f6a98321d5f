//! The driver's own folder on an export.
//!
//! ```text
//! .nfs-csi/            0700, or 0711 once a volume reads a snapshot's tree
//!   volumes/<key>.json   one record a volume
//!   subdirs/…            which volumes name which directory (claims.rs)
//!   snapshots/<key>/     one folder a snapshot: its data and its manifest (snapshots.rs)
//!   staging/<id>         what is being made (staging.rs)
//!   readers/…            which volumes read which snapshot's tree (tree_claims.rs)
//!   shared/<key>.<secret> the tree of a snapshot that volumes read, 0711 as the folders above (shared_trees.rs)
//!   trash/<id>           deleted volumes and snapshots until they are freed (trash.rs)
//!   retained/<key>.json  the record of a deleted volume whose directory stays
//!   quota/               limits: what the driver and the server's quota agent write to each other (limited/)
//!   doctor-<id>          what `nfs-csi doctor` works in while it runs
//!   export.json          the export's id (identity.rs)
//!   clock                a file that is touched to learn the server's time (clock.rs)
//! ```
//!
//! A name that is none of these, or that has another form than the ones told in those files, is a later version's: it
//! is left alone.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat};
use rustix::fs::Statx;

use super::{Export, ExportError};
use crate::reason::errno_of;
use crate::tree::look_again;
use crate::tree::make::descend;
use crate::volume::path::RESERVED;

/// The name of the folder of what was deleted.
pub(super) const TRASH: &str = "trash";
/// The name of the folder of what is being made.
const STAGING: &str = "staging";

/// What a folder needs more for others than root to walk through it.
pub(super) const SEARCHED_BY_ALL: Mode = Mode::S_IXGRP.union(Mode::S_IXOTH);

/// How many folders there are below the driver's own.
const FOLDERS: u32 = 5;

/// A folder that is also read where it cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// The volumes' records.
    Volumes,
    /// The snapshots.
    Snapshots,
}

impl Folder {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Snapshots => "snapshots",
        }
    }
}

/// The folders, open.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) top: OwnedFd,
    /// The number by which the driver's folder is known again.
    pub(super) inode: u64,
    /// Whether the server counts a directory's directories among its links, as most do.
    pub(super) counts_directories: bool,
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
        let [volumes, snapshots] = [Folder::Volumes, Folder::Snapshots].map(|folder| open(folder.name()));
        let [subdirs, staging, trash] = ["subdirs", STAGING, TRASH].map(open);
        let (volumes, snapshots, subdirs, staging, trash) = (volumes?, snapshots?, subdirs?, staging?, trash?);
        export.make_id(&top, &volumes)?;
        // When all of them are there.
        let stat = look(&top).map_err(|errno| export.failed("look at the folder", RESERVED, errno))?;
        let counts_directories = stat.stx_nlink >= 2 + FOLDERS;
        Ok(Self { top, inode: stat.stx_ino, counts_directories, volumes, subdirs, snapshots, staging, trash })
    }

    /// Whether a folder is sure to hold no directory, in one call to the server.
    pub(super) fn has_no_directory(&self, folder: &OwnedFd) -> nix::Result<bool> {
        Ok(self.counts_directories && look(folder)?.stx_nlink == 2)
    }

    fn folder(&self, folder: Folder) -> &OwnedFd {
        match folder {
            Folder::Volumes => &self.volumes,
            Folder::Snapshots => &self.snapshots,
        }
    }
}

impl Export {
    /// One of the folders, to read in; none if it is not there. Nothing is made, so this works where nothing can be: on
    /// an export that is read-only, or whose top directory is not the driver's to write to.
    pub(super) fn own_folder(&self, folder: Folder) -> Result<Option<OwnedFd>, ExportError> {
        let failed = |name: &str, errno| self.failed("open the folder", name, errno);
        if let Some(layout) = self.layout.get() {
            let open = layout.folder(folder).try_clone();
            return open.map(Some).map_err(|_| failed(folder.name(), Errno::last()));
        }
        match descend(self.root(), &[RESERVED, folder.name()], None) {
            Ok(open) => Ok(Some(open)),
            Err((_, Errno::ENOENT)) => Ok(None),
            Err((name, errno)) => Err(failed(&name, errno)),
        }
    }

    /// The same in the mount for trees.
    pub(super) fn known_folder(&self, folder: Folder) -> Option<OwnedFd> {
        match (self.tree_layout.get(), folder) {
            (Some(layout), Folder::Volumes) => layout.volumes.try_clone().ok(),
            (Some(layout), Folder::Snapshots) => layout.snapshots.try_clone().ok(),
            (None, folder) => descend(self.tree_root(), &[RESERVED, folder.name()], None).ok(),
        }
    }
}

/// Those of them in which trees are worked on, open in the mount for that. What this driver itself puts there is put
/// there, and taken away, in this mount: the server finds what has a name, and the client, which knows it, need not ask
/// first.
#[derive(Debug)]
pub(super) struct TreeLayout {
    pub(super) volumes: OwnedFd,
    pub(super) snapshots: OwnedFd,
    pub(super) staging: OwnedFd,
    pub(super) trash: OwnedFd,
}

impl TreeLayout {
    /// Opens the folders, which are there.
    pub(super) fn open(export: &Export) -> Result<Self, ExportError> {
        let open = |name: &str| {
            descend(export.tree_root(), &[RESERVED, name], None)
                .map_err(|(name, errno)| export.failed("open the folder", name, errno))
        };
        Ok(Self {
            volumes: open(Folder::Volumes.name())?,
            snapshots: open(Folder::Snapshots.name())?,
            staging: open(STAGING)?,
            trash: open(TRASH)?,
        })
    }
}

/// Looks at a folder, and makes the client forget what it remembers of the names in it where that has changed.
pub(super) fn look(folder: &OwnedFd) -> nix::Result<Statx> {
    look_again(folder).map_err(errno_of)
}

/// Nobody but the driver may look in: the names of all tenants' volumes are there, and what they deleted. Walking
/// through is another matter: the folders in it are private but for that of trees which volumes read.
fn keep_private(folder: &OwnedFd) -> nix::Result<()> {
    let others = (Mode::S_IRWXG | Mode::S_IRWXO) - SEARCHED_BY_ALL;
    if !Mode::from_bits_truncate(fstat(folder)?.st_mode).intersects(others) {
        return Ok(());
    }
    fchmodat(folder, ".", Mode::S_IRWXU, FchmodatFlags::FollowSymlink)
}
