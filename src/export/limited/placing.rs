//! Where a limited directory goes: to its volume's place, to staging, or away.

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{LimitedDirectory, Placed, open_ready};
use crate::beneath;
use crate::export::layout::look;
use crate::export::{Export, ExportError};
use crate::volume::quota_files::{ProjectId, READY};
use crate::volume::subdir::SubDir;

impl Export {
    /// Moves the limited directory of a project to a volume's place, if it is the one with this inode number. Nothing
    /// but an empty directory may be there.
    ///
    /// # Errors
    /// EEXIST where something is there, EXDEV where the place is below another directory with a project; where the
    /// server fails.
    pub fn place_limited(&self, project: ProjectId, inode: u64, subdir: &SubDir) -> Result<Placed, ExportError> {
        let folders = self.quota_folders()?;
        let (name, path) = (project.to_string(), subdir.to_string());
        let is_it = || match open_ready(folders, project) {
            Ok(opened) => Ok(opened.is_some_and(|(_, found)| found == inode)),
            Err(errno) => Err(self.failed("open the limited directory", name.as_str(), errno)),
        };
        if !is_it()? {
            // The mount may remember what was there before.
            look(&folders.ready_in_trees).map_err(|errno| self.failed("look at", READY, errno))?;
            if !is_it()? {
                return self.is_placed(inode, subdir);
            }
        }
        let place = self.place_of_new(subdir)?;
        match beneath::rename(&folders.ready_in_trees, &name, &place, subdir.file_name()) {
            Ok(()) => Ok(Placed::Now),
            // Another controller has moved it, or the agent took it for abandoned.
            Err(Errno::ENOENT | Errno::ESTALE) => self.is_placed(inode, subdir),
            Err(Errno::ENOTEMPTY | Errno::ENOTDIR) => Err(self.failed("put in place", path, Errno::EEXIST)),
            Err(errno) => Err(self.failed("put in place", path, errno)),
        }
    }

    pub(super) fn is_placed(&self, inode: u64, subdir: &SubDir) -> Result<Placed, ExportError> {
        Ok(if self.inode_of(subdir)? == Some(inode) { Placed::Before } else { Placed::Not })
    }

    /// Moves a limited directory into staging, under a name that no other attempt has.
    pub(in crate::export) fn stage_limited(&self, limited: &LimitedDirectory, name: &str) -> Result<(), ExportError> {
        let folders = self.quota_folders()?;
        let project = limited.project.to_string();
        match beneath::rename(&folders.ready_in_trees, &project, self.staging()?, name) {
            Ok(()) => Ok(()),
            Err(Errno::ENOENT | Errno::ESTALE) => Err(self.contended("take the limited directory", project)),
            Err(errno) => Err(self.failed("move to staging", project, errno)),
        }
    }

    /// Removes a limited directory that is not needed after all. What cannot be removed now, the agent removes.
    pub fn release_limited(&self, project: ProjectId) {
        if let Ok(folders) = self.quota_folders() {
            let _ = unlinkat(&folders.ready_in_trees, project.to_string().as_str(), UnlinkatFlags::RemoveDir);
        }
    }

    /// Removes the limited directory of a volume that was not put in place, if it is the one with this inode number.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn remove_unplaced(&self, project: ProjectId, inode: u64) -> Result<(), ExportError> {
        let folders = match self.quota_folders() {
            Err(ExportError::Unlimited { .. }) => return Ok(()),
            folders => folders?,
        };
        let failed = |errno| self.failed("remove the limited directory", project.to_string(), errno);
        let name = project.to_string();
        let removed = match fstatat(&folders.ready, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if stat.st_ino == inode => unlinkat(&folders.ready, name.as_str(), UnlinkatFlags::RemoveDir),
            looked => looked.map(drop),
        };
        match removed {
            Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}
