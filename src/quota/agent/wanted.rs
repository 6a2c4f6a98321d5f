//! What is wanted, granted or refused.
//!
//! A directory's first limit is written down in `applied/<id>` and then set in the kernel, for when the kernel shows it the
//! driver takes the directory away, and after a crash that file alone tells whose project it is. A later limit is set
//! first, and then written down, which tells the driver. Whatever is missing after a crash is done by the next look at the
//! same wish.

use std::time::Instant;

use nix::Result;
use nix::errno::Errno;

use super::limits::in_kernel;
use super::site::{Limited, Project, Refusal, Site};
use crate::quota::folders::{Folder, Folders, Link, Version};
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
    let Some(Link { version, text, .. }) = site.folders.link(Folder::Wanted, id)? else {
        return withdraw_refusal(site, id);
    };
    if site.answered(id) == Some(version) {
        return Ok(());
    }
    let decided = match text.map_err(|reason| (0, reason.to_owned())).and_then(|text| parse(&text)) {
        Ok(wanted) => decide(kernel, block, site, id, &wanted)?.map(|change| (wanted, change)),
        Err(refused) => Err(refused),
    };
    match decided {
        Ok((wanted, true)) => grant(kernel, block, site, id, &wanted, version, now),
        Ok((_, false)) => {
            if let Some(Project::Limited(limited)) = site.projects.get_mut(&id) {
                limited.answered = Some(version);
            }
            withdraw_refusal(site, id)
        }
        Err((generation, reason)) => refuse(site, id, version, generation, &reason, now),
    }
}

/// Whether a wish is to be granted; not where it is in force already.
fn decide(
    kernel: &impl Kernel,
    block: u64,
    site: &Site,
    id: ProjectId,
    wanted: &Wanted,
) -> Result<std::result::Result<bool, (u64, String)>> {
    let refused = |reason: String| Ok(Err((wanted.generation, reason)));
    match site.projects.get(&id) {
        None => refused("the project is not one of this agent: it has no directory in ready/, and no limit".into()),
        Some(Project::Limited(limited)) => match change(&limited.granted, wanted) {
            // It may have been written down only, by an agent that ended then.
            Change::None => Ok(Ok(kernel.quota(id)?.limit != in_kernel(&limited.granted, block))),
            Change::Set => Ok(Ok(true)),
            Change::Refuse(reason) => refused(reason),
        },
        Some(Project::Ready) => match spoilt(kernel, site, id)? {
            None => Ok(Ok(true)),
            Some(reason) => refused(reason.into()),
        },
    }
}

/// Why a directory in `ready/` is not what it was when the agent made it.
fn spoilt(kernel: &impl Kernel, site: &Site, id: ProjectId) -> Result<Option<&'static str>> {
    let Some(directory) = site.folders.directory(Folder::Ready, id)? else {
        return Ok(Some("its directory is not in ready/ any more"));
    };
    if kernel.marked(&directory)? != Some(id) || kernel.project_of(&directory)? != Some(id) {
        return Ok(Some("the directory in ready/ is not the one that the agent made"));
    }
    // The directory itself.
    Ok((kernel.quota(id)?.inodes != 1)
        .then_some("its directory in ready/ is not empty, or another belongs to the project"))
}

fn grant(
    kernel: &impl Kernel,
    block: u64,
    site: &mut Site,
    id: ProjectId,
    wanted: &Wanted,
    version: Version,
    now: Instant,
) -> Result<()> {
    let granted = Granted::from(wanted);
    let text = serde_json::to_string(wanted).map_err(|_| Errno::EINVAL)?;
    let tell = |site: &Site| site.folders.put_link(Folder::Applied, id, &text, |link| kernel.mark(link, id));
    let is_first = matches!(site.projects.get(&id), Some(Project::Ready));
    if is_first {
        // The driver may take the directory as soon as its limit is in force: nothing is left to do then.
        if let (Some(mode), Some(directory)) = (wanted.mode, site.folders.directory(Folder::Ready, id)?)
            && kernel.marked(&directory)? == Some(id)
        {
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
