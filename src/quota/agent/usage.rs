//! What each project uses: written for the driver, and the end of projects that use nothing any more.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nix::Result;

use super::limits::{CLOSED, NONE, in_kernel};
use super::site::{Project, Site};
use crate::quota::folders::Folder;
use crate::quota::ids::IdRange;
use crate::quota::quotactl::{Kernel, Quota};
use crate::volume::quota_files::{ProjectId, USAGE, usage_line};

/// What the kernel knows of all projects of a range, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Survey(Vec<(ProjectId, Quota)>);

impl Survey {
    /// Asks the kernel for all of them.
    ///
    /// # Errors
    /// What the kernel gives.
    pub(super) fn of(kernel: &impl Kernel, range: IdRange) -> Result<Self> {
        let mut all = Vec::new();
        let mut from = Some(range.first);
        while let Some(next) = from {
            let Some((id, quota)) = kernel.next_quota(next)?.filter(|(id, _)| range.contains(*id)) else { break };
            if !quota.is_unused() {
                all.push((id, quota));
            }
            from = ProjectId::new(id.get() + 1);
        }
        Ok(Self(all))
    }

    /// What is known of a project.
    #[must_use]
    pub(super) fn get(&self, id: ProjectId) -> Quota {
        let found = self.0.binary_search_by_key(&id, |(id, _)| *id);
        found.ok().and_then(|at| self.0.get(at)).map(|(_, quota)| *quota).unwrap_or_default()
    }

    /// The projects that are none of these exports'.
    #[must_use]
    pub(super) fn foreign(&self, sites: &[Site]) -> BTreeSet<ProjectId> {
        let ids = self.0.iter().map(|(id, _)| *id);
        ids.filter(|id| !sites.iter().any(|site| site.has(*id))).collect()
    }
}

/// The projects of an export to which nothing is charged.
#[must_use]
pub(super) fn unused(site: &Site, survey: &Survey) -> Vec<ProjectId> {
    site.projects.keys().copied().filter(|id| survey.get(*id).is_empty()).collect()
}

/// Ends a project to which nothing is charged. Gives whether it did.
///
/// # Errors
/// What the kernel gives; then the rest is done after the next survey.
pub(super) fn release(kernel: &impl Kernel, site: &mut Site, id: ProjectId) -> Result<bool> {
    if !kernel.quota(id)?.is_empty() {
        return Ok(false);
    }
    kernel.set_limit(id, NONE)?;
    // The mark of what is applied says whose project this is until the rest is done.
    for folder in [Folder::Wanted, Folder::Refused, Folder::Applied] {
        site.folders.remove(folder, id)?;
    }
    site.refusals.remove(&id);
    if let Some(Project::Limited(limited)) = site.projects.remove(&id) {
        let export = site.folders.path().display();
        tracing::info!(%export, project = %id, volume = %limited.granted.volume, "limit removed: nothing is charged to it");
    }
    Ok(true)
}

/// Sets the limits again that are not what they should be.
///
/// # Errors
/// What the kernel gives.
pub(super) fn repair(kernel: &impl Kernel, block: u64, site: &Site, survey: &Survey) -> Result<()> {
    let export = site.folders.path().display();
    for (id, project) in &site.projects {
        let quota = survey.get(*id);
        let limit = match project {
            Project::Ready => CLOSED,
            Project::Limited(limited) => in_kernel(&limited.granted, block),
        };
        if (quota.limit, quota.has_others) != (limit, false) {
            let (bytes, inodes) = (quota.limit.bytes, quota.limit.inodes);
            tracing::warn!(%export, project = %id, bytes, inodes, "the kernel had another limit: it is set again");
            kernel.set_limit(*id, limit)?;
        }
    }
    Ok(())
}

/// Writes what each project uses.
///
/// # Errors
/// What the kernel gives.
pub(super) fn write(site: &Site, survey: &Survey) -> Result<()> {
    let mut text = String::new();
    for (id, _) in site.limited() {
        let Quota { bytes, inodes, .. } = survey.get(id);
        // Writing to a string does not fail.
        let _ = text.write_str(&usage_line(id, bytes, inodes));
    }
    site.folders.write(USAGE, text.as_bytes())
}
