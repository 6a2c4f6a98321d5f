//! The agent on one file system: what it does, step by step, for all exports that are there. When it does what is decided
//! in serve.rs.
//!
//! What it believes rests on what no NFS client can forge: the kernel's quotas, the projects of directories, and the marks
//! of what an agent made. An id that the kernel knows and that has no mark is another program's, and is never touched.

mod limits;
mod ready;
mod scan;
mod site;
#[cfg(test)]
mod tests;
mod usage;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::Result;
use nix::errno::Errno;

pub use scan::Look;
use site::Site;
use usage::Survey;

use super::error::QuotaError;
use super::folders::Folders;
use super::ids::{FreeIds, IdRange};
use super::quotactl::Kernel;
use crate::volume::quota_files::{LARGEST, ProjectId};

/// How many numbers are tried for one directory.
const TRIES: usize = 4096;
/// How long one kind of trouble is logged once only.
const QUIET: Duration = Duration::from_mins(1);

/// How an agent gives out projects.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The numbers.
    pub ids: IdRange,
    /// How many directories are kept in `ready/` of each export.
    pub ready: u64,
    /// The file system's block in bytes.
    pub block: u64,
}

/// What an export comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Directories in `ready/`.
    pub ready: u64,
    /// Projects with a limit that was wanted.
    pub volumes: u64,
    /// The sum of these limits in bytes.
    pub promised_bytes: u64,
    /// Wishes that were refused since the start.
    pub refused: u64,
}

/// The agent on one file system.
#[derive(Debug)]
pub struct Agent<K> {
    kernel: K,
    rules: Rules,
    sites: Vec<Site>,
    free: FreeIds,
    foreign: BTreeSet<ProjectId>,
    logged: BTreeMap<i32, Instant>,
    errors: u64,
}

impl<K: Kernel> Agent<K> {
    /// An agent for exports of one file system, which knows nothing yet.
    #[must_use]
    pub fn new(kernel: K, rules: Rules, exports: Vec<Folders>) -> Self {
        let sites = exports.into_iter().map(Site::new).collect();
        let free = FreeIds::new(rules.ids);
        Self { kernel, rules, sites, free, foreign: BTreeSet::new(), logged: BTreeMap::new(), errors: 0 }
    }

    /// The folders of each export, by which it is meant below.
    pub fn folders(&self) -> impl Iterator<Item = &Folders> {
        self.sites.iter().map(|site| &site.folders)
    }

    /// What each export comes to.
    pub fn figures(&self) -> impl Iterator<Item = Figures> {
        self.sites.iter().map(|site| {
            // What is as good as no limit promises nothing.
            let bytes = site.limited().map(|(_, limited)| limited.granted.bytes).filter(|bytes| *bytes < LARGEST);
            let promised = bytes.fold(0, u64::saturating_add);
            Figures {
                ready: site.ready,
                volumes: site.limited().count() as u64,
                promised_bytes: promised,
                refused: site.refused,
            }
        })
    }

    /// How often something failed since the start.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Finds what agents before this one left, and completes it.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn start(&mut self, now: Instant) -> std::result::Result<(), QuotaError> {
        let ids = self.rules.ids;
        for at in 0..self.sites.len() {
            let (before, rest) = self.sites.split_at_mut(at);
            let Some(site) = rest.first_mut() else { continue };
            let is_elsewhere = |id| before.iter().any(|site| site.has(id));
            let adopted = scan::adopt(&self.kernel, site, ids, is_elsewhere, now);
            adopted.map_err(|errno| failed(site, errno))?;
        }
        for site in &self.sites {
            let is_own = |id| ids.contains(id) && !self.sites.iter().any(|site| site.has(id));
            ready::discard_unfinished(&self.kernel, site, is_own).map_err(|errno| failed(site, errno))?;
        }
        // First what is wanted: what was begun is completed, rather than undone.
        self.scan(Look::Quick, now)?;
        self.survey(now)
    }

    /// Answers what is wanted of a project of an export.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn answer(&mut self, export: usize, id: ProjectId, now: Instant) -> std::result::Result<(), QuotaError> {
        let Some(site) = self.sites.get_mut(export).filter(|_| self.rules.ids.contains(id)) else { return Ok(()) };
        let answered = wanted::answer(&self.kernel, self.rules.block, site, id, now);
        self.settle(export, answered, now)
    }

    /// Looks through the folders of all exports.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn scan(&mut self, look: Look, now: Instant) -> std::result::Result<(), QuotaError> {
        for export in 0..self.sites.len() {
            let due = self.sites.get(export).map_or(Ok(Vec::new()), |site| scan::due(site, self.rules.ids, look));
            let due = match due {
                Ok(due) => due,
                Err(errno) => {
                    self.settle(export, Err(errno), now)?;
                    continue;
                }
            };
            for id in due {
                self.answer(export, id, now)?;
            }
            let Some(site) = self.sites.get_mut(export) else { continue };
            site.is_filling = true;
            let scanned = scan::reclaim(site, now).and_then(|()| scan::count_ready(site)).and_then(|()| match look {
                Look::Thorough => scan::forget_refused(&self.kernel, site, now),
                Look::Quick => Ok(()),
            });
            self.settle(export, scanned, now)?;
        }
        Ok(())
    }

    /// Asks the kernel what all projects use; ends those that use nothing, sets limits again that are not in force, and
    /// writes what the others use.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn survey(&mut self, now: Instant) -> std::result::Result<(), QuotaError> {
        let survey = match Survey::of(&self.kernel, self.rules.ids) {
            Ok(survey) => survey,
            Err(errno) => return self.settle(0, Err(errno), now),
        };
        self.foreign = survey.foreign(&self.sites);
        for export in 0..self.sites.len() {
            let unused = self.sites.get(export).map(|site| usage::unused(site, &survey)).unwrap_or_default();
            for id in unused {
                let Some(site) = self.sites.get_mut(export) else { continue };
                let released = usage::release(&self.kernel, site, id);
                if released == Ok(true) {
                    self.free.give(id, now);
                }
                self.settle(export, released.map(drop), now)?;
            }
            let Some(site) = self.sites.get(export) else { continue };
            let written =
                usage::repair(&self.kernel, self.rules.block, site, &survey).and_then(|()| usage::write(site, &survey));
            self.settle(export, written, now)?;
        }
        self.free.start_over();
        Ok(())
    }

    /// Makes directories in `ready/`, at most so many: up to the number that there are to be, if half of them are gone or
    /// since the last scan. So not each claim changes that folder, of which drivers would have to read the state again.
    /// Gives whether some are still missing and can be made.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn refill(&mut self, most: usize, now: Instant) -> std::result::Result<bool, QuotaError> {
        let mut left = most;
        for export in 0..self.sites.len() {
            while self.sites.get_mut(export).is_some_and(|site| site.lacks_ready(self.rules.ready)) {
                if left == 0 {
                    return Ok(true);
                }
                left -= 1;
                let made = self.make_ready(export, now);
                let is_made = made == Ok(true);
                self.settle(export, made.map(drop), now)?;
                if !is_made {
                    break;
                }
            }
        }
        Ok(false)
    }

    fn make_ready(&mut self, export: usize, now: Instant) -> Result<bool> {
        for _ in 0..TRIES {
            let Some(id) = self.free.take(now) else { return Err(Errno::ENOKEY) };
            let is_known = |site: &Site| site.has(id) || site.refusals.contains_key(&id);
            if self.foreign.contains(&id) || self.sites.iter().any(is_known) {
                continue;
            }
            if !self.kernel.quota(id)?.is_unused() {
                self.foreign.insert(id);
                continue;
            }
            let Some(site) = self.sites.get_mut(export) else { return Ok(false) };
            if ready::make(&self.kernel, site, id)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Counts and logs what failed; gives it where nothing can be done any more.
    fn settle(&mut self, export: usize, done: Result<()>, now: Instant) -> std::result::Result<(), QuotaError> {
        let (Err(errno), Some(site)) = (done, self.sites.get(export)) else { return Ok(()) };
        self.errors += 1;
        match errno {
            // The disk is gone or damaged, or quotas were switched off.
            Errno::EIO | Errno::EUCLEAN | Errno::ENODEV | Errno::ESHUTDOWN | Errno::EROFS | Errno::ESRCH => {
                Err(failed(site, errno))
            }
            errno => {
                let logged = self.logged.get(&(errno as i32));
                if logged.is_none_or(|logged| now.duration_since(*logged) >= QUIET) {
                    self.logged.insert(errno as i32, now);
                    log(site.folders.path(), errno);
                }
                Ok(())
            }
        }
    }
}

fn log(export: &Path, errno: Errno) {
    let export = export.display();
    match errno {
        Errno::ENOKEY => {
            tracing::error!(%export, "no id is free for a new directory: give a larger range with --ids");
        }
        Errno::ENOSPC | Errno::EDQUOT => {
            tracing::error!(%export, %errno, "the file system is full: limits are set when there is space again");
        }
        _ => tracing::error!(%export, %errno, "a step failed, and is tried again"),
    }
}

fn failed(site: &Site, errno: Errno) -> QuotaError {
    QuotaError::Io { path: site.folders.path().into(), errno }
}
