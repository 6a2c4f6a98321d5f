//! What is wanted, granted or refused.
//!
//! A limit is set in the kernel first, then `applied/<id>` says so, then the directory leaves `ready/`: whatever is missing
//! after a crash is done by the next look at the same wish.

use std::time::Instant;

use nix::Result;
use nix::errno::Errno;

use super::limits::in_kernel;
use super::site::{Limited, Project, Refusal, Site};
use crate::quota::folders::{Folder, Link, Version};
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
        Ok(wanted) => decide(kernel, site, id, &wanted)?.map(|change| (wanted, change)),
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
    site: &Site,
    id: ProjectId,
    wanted: &Wanted,
) -> Result<std::result::Result<bool, (u64, String)>> {
    let refused = |reason: String| Ok(Err((wanted.generation, reason)));
    match site.projects.get(&id) {
        None => refused("the project is not one of this agent: it has no directory in ready/, and no limit".into()),
        Some(Project::Limited(limited)) => match change(&limited.granted, wanted) {
            Change::None => Ok(Ok(false)),
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
    match kernel.set_limit(id, in_kernel(&granted, block)) {
        Err(Errno::ERANGE | Errno::EINVAL) => {
            let reason = "the file system cannot count so far";
            return refuse(site, id, version, wanted.generation, reason, now);
        }
        set => set?,
    }
    let text = serde_json::to_string(wanted).map_err(|_| Errno::EINVAL)?;
    site.folders.put_link(Folder::Applied, id, &text, |link| kernel.mark(link, id))?;
    let moved = match site.projects.get(&id) {
        Some(Project::Limited(limited)) => limited.moved,
        _ => false,
    };
    let Wanted { generation, bytes, inodes, volume, .. } = wanted;
    let export = site.folders.path().display();
    tracing::info!(%export, project = %id, %volume, generation, bytes, inodes, "limit set");
    let limited = Limited { granted, answered: Some(version), moved, unclaimed_since: None };
    site.projects.insert(id, Project::Limited(limited));
    if !moved {
        complete_move(site, id)?;
    }
    withdraw_refusal(site, id)
}

/// Moves the directory of a project whose limit is in force to `limited/`.
///
/// # Errors
/// What the kernel gives.
pub(super) fn complete_move(site: &mut Site, id: ProjectId) -> Result<()> {
    match site.folders.move_to_limited(id) {
        // It was removed, or moved by another hand.
        Ok(()) => site.ready = site.ready.saturating_sub(1),
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    if let Some(Project::Limited(limited)) = site.projects.get_mut(&id) {
        limited.moved = true;
    }
    Ok(())
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
