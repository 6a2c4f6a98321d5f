//! What is wanted, granted or refused.
//!
//! A directory's first limit is written down in `applied/<id>` and then set in the kernel, for when the kernel shows it the
//! driver takes the directory away, and after a crash that file alone tells whose project it is. A later limit is set
//! first, and then written down, which tells the driver. Whatever is missing after a crash is done by the next look at the
//! same wish.

use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::Result;
use nix::errno::Errno;

use super::limits::in_kernel;
use super::site::{Limited, Project, Refusal, Site};
use crate::quota::folders::{Folder, Folders, Version};
use crate::quota::quotactl::Kernel;
use crate::quota::wish::{Change, Granted, change, parse};
use crate::volume::quota_files::{FORMAT, ProjectId, Refused, Wanted};

/// How many refusals are written and remembered; the wishes beyond them get no answer.
pub(super) const MOST_REFUSED: usize = 10_000;
/// How much of a reason is written, in characters: it may quote what an NFS client wrote.
const LONGEST_REASON: usize = 200;

/// Answers what is wanted of a project, if it was not answered yet.
///
/// # Errors
/// What the kernel gives; then the wish is looked at again later.
pub(super) fn answer(kernel: &impl Kernel, block: u64, site: &mut Site, id: ProjectId, now: Instant) -> Result<()> {
    let Some((version, text)) = site.folders.text(Folder::Wanted, id)? else {
        return withdraw_refusal(site, id);
    };
    if site.answered(id) == Some(version) {
        return Ok(());
    }
    let wanted = match text.map_err(|reason| (0, reason.to_owned())).and_then(|text| parse(&text)) {
        Ok(wanted) => wanted,
        Err((generation, reason)) => return refuse(site, id, version, generation, &reason, now),
    };
    match decide(kernel, block, site, id, &wanted)? {
        Decision::Grant(directory) => grant(kernel, block, site, id, &wanted, (version, directory), now),
        Decision::InForce => {
            if let Some(Project::Limited(limited)) = site.projects.get_mut(&id) {
                limited.answered = Some(version);
            }
            withdraw_refusal(site, id)
        }
        Decision::Refuse(reason) => refuse(site, id, version, wanted.generation, &reason, now),
    }
}

/// What becomes of a wish.
enum Decision {
    /// It is granted; a first one has the directory in `ready/`, as the agent made it.
    Grant(Option<OwnedFd>),
    /// It is in force.
    InForce,
    /// It is not granted, for this reason.
    Refuse(String),
}

fn decide(kernel: &impl Kernel, block: u64, site: &Site, id: ProjectId, wanted: &Wanted) -> Result<Decision> {
    Ok(match site.projects.get(&id) {
        None => {
            Decision::Refuse("the project is not one of this agent: it has no directory in ready/, and no limit".into())
        }
        Some(Project::Limited(limited)) => match change(&limited.granted, wanted) {
            // It may have been written down only, by an agent that ended then.
            Change::None if kernel.quota(id)?.limit == in_kernel(&limited.granted, block) => Decision::InForce,
            Change::None | Change::Set => Decision::Grant(None),
            Change::Refuse(reason) => Decision::Refuse(reason),
        },
        Some(Project::Ready) => match directory_of(kernel, site, id)? {
            Ok(directory) => Decision::Grant(Some(directory)),
            Err(reason) => Decision::Refuse(reason.into()),
        },
    })
}

/// The directory in `ready/`, or why it is not what it was when the agent made it.
fn directory_of(
    kernel: &impl Kernel,
    site: &Site,
    id: ProjectId,
) -> Result<std::result::Result<OwnedFd, &'static str>> {
    let Some(directory) = site.folders.directory(Folder::Ready, id)? else {
        return Ok(Err("its directory is not in ready/ any more"));
    };
    if kernel.marked(&directory)? != Some(id) || kernel.project_of(&directory)? != Some(id) {
        return Ok(Err("the directory in ready/ is not the one that the agent made"));
    }
    // The directory itself.
    if kernel.quota(id)?.inodes != 1 {
        return Ok(Err("its directory in ready/ is not empty, or another belongs to the project"));
    }
    Ok(Ok(directory))
}

fn grant(
    kernel: &impl Kernel,
    block: u64,
    site: &mut Site,
    id: ProjectId,
    wanted: &Wanted,
    (version, directory): (Version, Option<OwnedFd>),
    now: Instant,
) -> Result<()> {
    let granted = Granted::from(wanted);
    let text = serde_json::to_string(wanted).map_err(|_| Errno::EINVAL)?;
    let tell = |site: &Site| site.folders.put_link(Folder::Applied, id, &text, |link| kernel.mark(link, id));
    let is_first = directory.is_some();
    if let Some(directory) = directory {
        // The driver may take the directory as soon as its limit is in force: nothing is left to do then.
        if let Some(mode) = wanted.mode {
            Folders::set_mode(&directory, mode)?;
        }
        tell(site)?;
    }
    match kernel.set_limit(id, in_kernel(&granted, block)) {
        Err(Errno::ERANGE | Errno::EINVAL) => {
            if is_first {
                site.folders.remove(Folder::Applied, id)?;
            }
            let reason = "the file system cannot count so far";
            return refuse(site, id, version, wanted.generation, reason, now);
        }
        set => set?,
    }
    if !is_first {
        tell(site)?;
    }
    let Wanted { generation, bytes, inodes, volume, .. } = wanted;
    let export = site.folders.path().display();
    tracing::info!(%export, project = %id, %volume, generation, bytes, inodes, "limit set");
    let limited = Limited { granted, answered: Some(version), unclaimed_since: None };
    site.projects.insert(id, Project::Limited(limited));
    site.ready = site.ready.saturating_sub(u64::from(is_first));
    withdraw_refusal(site, id)
}

fn refuse(site: &mut Site, id: ProjectId, version: Version, generation: u64, reason: &str, now: Instant) -> Result<()> {
    if !site.refusals.contains_key(&id) && site.refusals.len() >= MOST_REFUSED {
        return Ok(());
    }
    let reason: String = reason.chars().filter(|one| !one.is_control()).take(LONGEST_REASON).collect();
    let export = site.folders.path().display();
    tracing::warn!(%export, project = %id, generation, reason, "a limit is refused");
    let text = serde_json::to_string(&Refused { format: FORMAT, generation, reason }).map_err(|_| Errno::EINVAL)?;
    site.folders.put_link(Folder::Refused, id, &text, |_| Ok(()))?;
    site.refused += 1;
    let refusal = site.refusals.entry(id).or_insert(Refusal { version: None, since: now });
    refusal.version = Some(version);
    Ok(())
}

/// Removes the reason why a wish was refused, once there is no such wish any more.
///
/// # Errors
/// What the kernel gives.
pub(super) fn withdraw_refusal(site: &mut Site, id: ProjectId) -> Result<()> {
    if site.refusals.contains_key(&id) {
        site.folders.remove(Folder::Refused, id)?;
        site.refusals.remove(&id);
    }
    Ok(())
}
