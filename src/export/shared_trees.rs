//! The trees of snapshots that volumes read without a copy.
//!
//! The first such volume moves the tree out of the snapshot's folder to `.nfs-csi/shared/<key>.<secret>`, where nodes
//! mount it. From then on it belongs to the snapshot, as long as that is in place, and to every volume with a claim on
//! it and a record (tree_claims.rs). It is thrown away when the last of them goes, in whatever order they do:
//!
//! - who makes a volume moves the tree, claims it, puts the record in place, and then looks whether the tree is still
//!   there;
//! - who deletes the last volume finds the snapshot gone, and throws the tree away as any volume's directory
//!   (controller/delete.rs);
//! - who frees a snapshot that was deleted throws its tree away where nobody claims it, or has it put back where
//!   somebody did meanwhile. What a crash leaves is found by its name, which has the snapshot's key.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, fstatat};

use super::claims::Claims;
use super::directories::reach;
use super::layout::SEARCHED_BY_ALL;
use super::snapshots::TREE;
use super::trash::{Kind, Moved, TrashName};
use super::{Export, ExportError};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::path::RESERVED;
use crate::volume::record_key::RecordKey;
use crate::volume::shared_tree::{FOLDER, SharedTree};
use crate::volume::subdir::SubDir;

/// The name in the trash of a snapshot's tree that no volume can be made of any more.
const GONE: &str = "data.gone";
/// The folder of the claims on trees.
const READERS: &str = "readers";

/// The folders for these trees, open.
#[derive(Debug)]
pub(super) struct TreeFolders {
    /// Claims on them.
    pub(super) readers: OwnedFd,
    /// The trees.
    shared: OwnedFd,
}

impl TreeFolders {
    /// Opens the folders; makes those that are missing.
    pub(super) fn open(export: &Export) -> Result<Self, ExportError> {
        let failed = |(name, errno): (String, Errno)| export.failed("make the folder", name, errno);
        let top = &export.layout()?.top;
        let readers = descend(top, &[READERS], Some(Mode::S_IRWXU)).map_err(failed)?;
        let shared = descend(top, &[FOLDER], Some(Mode::S_IRWXU | SEARCHED_BY_ALL)).map_err(failed)?;
        for folder in [&shared, top] {
            let_search(folder).map_err(|errno| failed((FOLDER.into(), errno)))?;
        }
        Ok(Self { readers, shared })
    }
}

/// Lets others than root walk through a folder.
fn let_search(folder: &OwnedFd) -> nix::Result<()> {
    if Mode::from_bits_truncate(fstat(folder)?.st_mode).contains(SEARCHED_BY_ALL) {
        return Ok(());
    }
    fchmodat(folder, ".", Mode::S_IRWXU | SEARCHED_BY_ALL, FchmodatFlags::FollowSymlink)
}

impl Export {
    /// Whether a volume ever read a snapshot's tree here.
    pub(super) fn has_tree_folders(&self) -> Result<bool, ExportError> {
        if self.tree_folders.get().is_some() {
            return Ok(true);
        }
        let found = reach(&self.layout()?.top, &[READERS]).map_err(|errno| self.failed("look for", READERS, errno))?;
        Ok(found.is_some())
    }

    /// Moves the tree from its snapshot's `folder` to where volumes read it, if it is not there already. Whether it is
    /// there now, [`Export::is_shared`] tells.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn share_tree(&self, folder: &OwnedFd, tree: &SharedTree) -> Result<(), ExportError> {
        match beneath::rename(folder, TREE, &self.tree_folders()?.shared, &tree.name()) {
            Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            Err(errno) => Err(self.failed("make readable the tree of snapshot", tree.key().to_string(), errno)),
        }
    }

    /// Whether a tree is where volumes read it, as the server tells.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn is_shared(&self, tree: &SharedTree, inode: u64) -> Result<bool, ExportError> {
        match fstatat(&self.tree_folders()?.shared, tree.name().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(stat.st_ino == inode),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("look for the tree of snapshot", tree.key().to_string(), errno)),
        }
    }

    /// Whether the snapshot whose tree this is has not been deleted.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn has_snapshot_of(&self, tree: &SharedTree) -> Result<bool, ExportError> {
        Ok(self.snapshot(tree.key())?.is_some_and(|manifest| tree.is_of(manifest.secret.as_ref())))
    }

    /// Whether a tree belongs neither to a snapshot nor to a volume.
    pub(super) fn is_unused(&self, tree: &SharedTree) -> Result<bool, ExportError> {
        Ok(!self.has_snapshot_of(tree)? && self.claims_but(&SubDir::of_shared_tree(tree), None)? == Claims::None)
    }

    /// Throws a tree away that belongs neither to a snapshot nor to a volume, and gives its name in the trash. Others
    /// stay.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_unused_tree(&self, tree: &SharedTree) -> Result<Option<TrashName>, ExportError> {
        let subdir = SubDir::of_shared_tree(tree);
        self.alone(&subdir, || {
            if !self.is_unused(tree)? {
                return Ok(None);
            }
            let name = TrashName::new(Kind::Volume, tree.key().clone(), self.now(), Duration::ZERO);
            if self.throw_away(&subdir, &name)? == Moved::Missing {
                return Ok(None);
            }
            // A volume may have been made of it in the moment in which it was moved away.
            let is_back = self.claims_but(&subdir, None)? != Claims::None && self.put_back(&name, &subdir)?;
            Ok((!is_back).then_some(name))
        })
    }

    /// Throws away all trees that belong to nobody, those of one snapshot or of all; gives their names in the trash.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn throw_away_unused_trees(&self, of: Option<&RecordKey>) -> Result<Vec<TrashName>, ExportError> {
        let trees = self.shared_trees()?.into_iter().filter(|tree| of.is_none_or(|key| key == tree.key()));
        trees.filter_map(|tree| self.throw_away_unused_tree(&tree).transpose()).collect()
    }

    /// All trees that volumes read, or could.
    ///
    /// # Errors
    /// Where the server fails.
    pub(super) fn shared_trees(&self) -> Result<Vec<SharedTree>, ExportError> {
        let failed = |errno| self.failed("list", FOLDER, errno);
        let Some(folder) = reach(self.root(), &[RESERVED, FOLDER]).map_err(failed)? else { return Ok(Vec::new()) };
        let names = beneath::names(folder).map_err(failed)?;
        Ok(names.iter().filter_map(|name| SharedTree::named(name.to_str()?)).collect())
    }

    /// Takes the tree out of the way of those who are about to make a volume of it: after this they get none, and
    /// before it they get all of it.
    pub(super) fn hide_from_readers(&self, snapshot: &TrashName) -> Result<(), ExportError> {
        let (trash, from, to) = (&self.layout()?.trash, format!("{snapshot}/{TREE}"), format!("{snapshot}/{GONE}"));
        match beneath::rename(trash, &from, trash, &to) {
            // Also another driver's archive, which is a file.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(errno) => Err(self.failed("rename in the trash", from, errno)),
        }
    }
}
