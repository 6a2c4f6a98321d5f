//! Looking through an export's folders for what no event told of.

use std::time::Instant;

use nix::Result;
use nix::errno::Errno;

use super::site::{Project, Refusal, Site};
use super::wanted::{MOST_REFUSED, withdraw_refusal};
use crate::quota::folders::Folder;
use crate::quota::ids::IdRange;
use crate::quota::quotactl::Kernel;
use crate::volume::quota_files::{Applied, FORMAT, ProjectId, UNCLAIMED_AFTER};

/// How thoroughly links are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At their inodes' numbers: all that reading a folder gives.
    Quick,
    /// At their times of change too, since a number may have been used again.
    Thorough,
}

/// Finds what an agent before this one gave out: what has its mark. What has none is not believed.
///
/// # Errors
/// What the kernel gives.
pub(super) fn adopt(
    kernel: &impl Kernel,
    site: &mut Site,
    range: IdRange,
    is_elsewhere: impl Fn(ProjectId) -> bool,
    now: Instant,
) -> Result<()> {
    let ids = |site: &Site, folder| -> Result<Vec<ProjectId>> {
        let mut ids = Vec::new();
        site.folders.names(folder, |id, _| ids.push(id))?;
        Ok(ids)
    };
    let export = site.folders.path().display().to_string();
    for id in ids(site, Folder::Applied)? {
        let Some(link) = site.folders.link(Folder::Applied, id)? else { continue };
        if kernel.marked(&link.file)? != Some(id) {
            tracing::warn!(export, project = %id, "a limit that this agent did not set is not believed: its file is removed");
            site.folders.remove(Folder::Applied, id)?;
            continue;
        }
        let applied = link.text.ok().and_then(|text| serde_json::from_str::<Applied>(&text).ok());
        match applied.filter(|applied| applied.format == FORMAT) {
            Some(applied) if range.contains(id) && !is_elsewhere(id) => {
                site.projects.insert(id, Project::adopted((&applied).into()));
            }
            _ => tracing::warn!(
                export,
                project = %id,
                "a project of an agent is left alone: it is outside of --ids, another export's, or of a later version"
            ),
        }
    }
    for id in ids(site, Folder::Ready)? {
        let Some(directory) = site.folders.directory(Folder::Ready, id)? else { continue };
        if kernel.marked(&directory)? != Some(id) || kernel.project_of(&directory)? != Some(id) {
            tracing::warn!(export, project = %id, "what is in ready/ was not made by an agent, and is left alone");
            continue;
        }
        if !site.has(id) && range.contains(id) && !is_elsewhere(id) {
            site.projects.insert(id, Project::Ready);
        }
    }
    for id in ids(site, Folder::Refused)?.into_iter().filter(|id| range.contains(*id)).take(MOST_REFUSED) {
        site.refusals.insert(id, Refusal { version: None, since: now });
    }
    Ok(())
}

/// The projects of which something new may be wanted.
///
/// # Errors
/// What the kernel gives.
pub(super) fn due(site: &Site, range: IdRange, look: Look) -> Result<Vec<ProjectId>> {
    let mut due = Vec::new();
    // Of those that the agent did not give out only so many are looked at.
    let mut strangers = MOST_REFUSED.saturating_sub(site.refusals.len());
    site.folders.names(Folder::Wanted, |id, inode| {
        if !range.contains(id) || site.answered(id).is_some_and(|version| version.inode == inode) {
            return;
        }
        if site.has(id) || site.refusals.contains_key(&id) {
            due.push(id);
        } else if strangers > 0 {
            strangers -= 1;
            due.push(id);
        }
    })?;
    if look == Look::Thorough {
        let all = site.limited().map(|(id, _)| id).chain(site.refusals.keys().copied());
        for id in all {
            if site.folders.version(Folder::Wanted, id)? != site.answered(id) {
                due.push(id);
            }
        }
    }
    Ok(due)
}

/// Counts `ready/`.
///
/// # Errors
/// What the kernel gives.
pub(super) fn count_ready(site: &mut Site) -> Result<()> {
    let mut ready = 0;
    let Site { folders, projects, refusals, .. } = &*site;
    // One whose wish is refused cannot be claimed by another driver.
    let is_free = |id| matches!(projects.get(&id), Some(Project::Ready)) && !refusals.contains_key(&id);
    folders.names(Folder::Ready, |id, _| ready += u64::from(is_free(id)))?;
    site.ready = ready;
    Ok(())
}

/// Removes the directories with a limit in `ready/` that no driver took for [`UNCLAIMED_AFTER`].
///
/// # Errors
/// What the kernel gives.
pub(super) fn reclaim(site: &mut Site, now: Instant) -> Result<()> {
    let mut present = Vec::new();
    site.folders.names(Folder::Ready, |id, _| present.push(id))?;
    present.sort_unstable();
    let Site { folders, projects, .. } = site;
    let export = folders.path().display().to_string();
    for (id, project) in projects {
        let Project::Limited(limited) = project else { continue };
        if present.binary_search(id).is_err() {
            limited.unclaimed_since = None;
            continue;
        }
        if now.duration_since(*limited.unclaimed_since.get_or_insert(now)) < UNCLAIMED_AFTER {
            continue;
        }
        match folders.remove_directory(*id) {
            Ok(()) => tracing::info!(export, project = %id, "a directory that no driver took was removed"),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                tracing::warn!(export, project = %id, "a directory that no driver took is not empty, and is left alone");
            }
            Err(errno) => {
                tracing::warn!(export, project = %id, %errno, "cannot remove a directory that no driver took");
            }
        }
        // Not again for as long.
        limited.unclaimed_since = Some(now);
    }
    Ok(())
}

/// Removes wishes that were refused so long ago that their driver has gone elsewhere: their numbers can be claimed or given
/// out again, unless another program has them.
///
/// # Errors
/// What the kernel gives.
pub(super) fn forget_refused(kernel: &impl Kernel, site: &mut Site, now: Instant) -> Result<()> {
    let old = |refusal: &Refusal| now.duration_since(refusal.since) >= UNCLAIMED_AFTER;
    let ids = site.refusals.iter().filter(|(_, refusal)| old(refusal)).map(|(id, _)| *id);
    for id in ids.collect::<Vec<_>>() {
        let is_nobodys = match site.projects.get(&id) {
            Some(Project::Limited(_)) => false,
            Some(Project::Ready) => true,
            None => kernel.quota(id)?.is_unused(),
        };
        if is_nobodys {
            site.folders.remove(Folder::Wanted, id)?;
            withdraw_refusal(site, id)?;
        }
    }
    Ok(())
}
