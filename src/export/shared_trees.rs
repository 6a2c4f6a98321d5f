//! The trees of snapshots that volumes read without a copy.
//!
//! The first such volume moves the tree out of the snapshot's folder to `.nfs-csi/shared/<key>.<secret>`, where nodes
//! mount it. From then on it belongs to the snapshot, as long as that is in place, and to every volume with a claim on
//! it and a record (claims.rs). It is thrown away when the last of them goes, in whatever order they do:
//!
//! - who makes a volume claims the tree, moves it, writes the record, and then looks whether the tree is still there;
//! - who deletes the last volume finds the snapshot gone, and throws the tree away as any volume's directory
//!   (controller/delete.rs);
//! - who frees a snapshot that was deleted throws its tree away where nobody claims it, or has it put back where
//!   somebody did meanwhile. What a crash leaves is found by its name, which has the snapshot's key.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat};

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

impl Export {
    /// Moves a snapshot's tree to where volumes read it; gives its inode number. None if there is no such tree any
    /// more.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn share_tree(&self, tree: &SharedTree) -> Result<Option<u64>, ExportError> {
        let failed = |errno| self.failed("make readable the tree of snapshot", tree.key().to_string(), errno);
        let (from, name) = (format!("{}/{TREE}", tree.key()), tree.name());
        let shared = self.make_shared_folder().map_err(|(name, errno)| self.failed("make the folder", name, errno))?;
        // First in the mount that made the snapshot. What that remembers may be wrong: then the server is asked.
        if beneath::rename(&self.tree_layout()?.snapshots, &from, &shared, &name).is_err() {
            let shared = descend(self.root(), &[RESERVED, FOLDER], None).map_err(|(_, errno)| failed(errno))?;
            match beneath::rename(&self.layout()?.snapshots, &from, shared, &name) {
                // The tree is there already, or there is none.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => return Err(failed(errno)),
            }
            return self.inode_of(&SubDir::of_shared_tree(tree));
        }
        fstat(beneath::open_dir(&shared, name.as_str()).map_err(failed)?).map(|stat| Some(stat.st_ino)).map_err(failed)
    }

    /// The folder of these trees, in the mount for trees, with permissions to walk there for all.
    fn make_shared_folder(&self) -> Result<OwnedFd, (String, Errno)> {
        let top = descend(self.tree_root(), &[RESERVED], None)?;
        let shared = descend(&top, &[FOLDER], Some(Mode::S_IRWXU | SEARCHED_BY_ALL))?;
        for folder in [&shared, &top] {
            let open = |folder: &OwnedFd| {
                let mode = Mode::from_bits_truncate(fstat(folder)?.st_mode);
                if mode.contains(SEARCHED_BY_ALL) {
                    return Ok(());
                }
                fchmodat(folder, ".", Mode::S_IRWXU | SEARCHED_BY_ALL, FchmodatFlags::FollowSymlink)
            };
            open(folder).map_err(|errno| (FOLDER.to_owned(), errno))?;
        }
        Ok(shared)
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
