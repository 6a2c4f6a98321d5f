//! The directories in `ready/`: made, and completed or removed where an agent ended while it made one.

use nix::Result;
use nix::errno::Errno;

use super::limits::{CLOSED, NONE};
use super::site::{Project, Site};
use crate::beneath;
use crate::quota::folders::Folder;
use crate::quota::quotactl::Kernel;
use crate::volume::quota_files::ProjectId;

/// Makes the directory of a project. Gives whether it did: not where the number turns out to be in use.
///
/// The mark comes first, so that an agent that starts after a crash knows whose limit that is; the name in `ready/` comes
/// last.
///
/// # Errors
/// What the kernel gives.
pub(super) fn make(kernel: &impl Kernel, site: &mut Site, id: ProjectId) -> Result<bool> {
    for folder in [Folder::Wanted, Folder::Applied, Folder::Ready] {
        if site.folders.has(folder, id)? {
            return Ok(false);
        }
    }
    site.folders.remove(Folder::Refused, id)?;
    let directory = site.folders.make_directory()?;
    kernel.mark(&directory, id)?;
    kernel.set_limit(id, CLOSED)?;
    kernel.assign(&directory, id)?;
    // Another program may have taken the number in this moment, and another client may have put something in there.
    let is_own = kernel.quota(id)?.inodes == 1 && beneath::is_empty(directory)?;
    if !is_own {
        kernel.set_limit(id, NONE)?;
        site.folders.remove_unfinished()?;
        return Ok(false);
    }
    match site.folders.publish_directory(id) {
        Err(Errno::EEXIST) => {
            kernel.set_limit(id, NONE)?;
            site.folders.remove_unfinished()?;
            Ok(false)
        }
        published => {
            published?;
            site.projects.insert(id, Project::Ready);
            site.ready += 1;
            Ok(true)
        }
    }
}

/// Removes what an agent was making when it ended: the limit of a project that has no name yet, and the directory.
///
/// # Errors
/// What the kernel gives.
pub(super) fn discard_unfinished(kernel: &impl Kernel, site: &Site, is_own: impl Fn(ProjectId) -> bool) -> Result<()> {
    if let Some(directory) = site.folders.unfinished_directory()?
        && let Some(id) = kernel.marked(&directory)?
        && is_own(id)
        && !site.has(id)
    {
        let quota = kernel.quota(id)?;
        if quota.limit == CLOSED && !quota.has_others && quota.inodes <= 1 {
            kernel.set_limit(id, NONE)?;
        }
    }
    site.folders.remove_unfinished()
}
