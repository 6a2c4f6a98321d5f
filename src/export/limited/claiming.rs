//! Claiming a directory that is ready, and waiting until its limit is in force.

use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::sys::statvfs::{Statvfs, fstatvfs};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::size::ShownSize;
use super::{ClaimedLimit, LimitedDirectory, QuotaFolders, open_ready, shown};
use crate::beneath;
use crate::export::holder::nonce;
use crate::export::{Export, ExportError};
use crate::volume::quota_files::{APPLIED, Agent, Applied, CLOSED_BYTES, FORMAT, ProjectId, QUOTA, READY, Wanted};
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::{Overcommit, QuotaMode, QuotaPolicy, SizeLimit};

/// It is not expected to take longer than this.
const LONGEST_EXPECTED: Duration = Duration::from_millis(5);
/// How long the list of ready directories is believed.
const LISTING_KEPT: Duration = Duration::from_secs(1);
/// How often the list of ready directories is read again for one claim: other controllers claim them too.
const LISTINGS: u32 = 4;

impl Export {
    /// Claims a directory with this limit for a volume, which gets the permissions `mode` (at most 0o7777). A claim of this controller's for the same volume that the agent
    /// has not answered yet is taken up again.
    ///
    /// # Errors
    /// [`ExportError::Unlimited`] where no agent answers or it has no directory ready; [`ExportError::RootExempt`],
    /// [`ExportError::Overcommitted`]; where the server fails.
    pub fn claim_limit(
        &self,
        key: &RecordKey,
        limit: SizeLimit,
        mode: Option<u32>,
        policy: &QuotaPolicy,
    ) -> Result<ClaimedLimit, ExportError> {
        let folders = self.quota_folders()?;
        let agent = self.living_agent(folders)?;
        if policy.mode == QuotaMode::Required && !agent.limits_root && !policy.root_exempt {
            let file_system = shown(&agent.file_system);
            return Err(ExportError::RootExempt { share: self.share().to_string(), file_system });
        }
        if let Some(claimed) = self.claimed_before(folders, key, limit, mode)? {
            return Ok(claimed);
        }
        self.check_promises(limit.bytes, policy, &agent)?;
        let wanted = Wanted {
            format: FORMAT,
            generation: 1,
            bytes: limit.bytes,
            inodes: limit.inodes,
            mode,
            volume: key.clone(),
            claim: nonce(),
        };
        let text = text_of(&wanted);
        for _ in 0..LISTINGS {
            while let Some((project, inode)) = self.take_ready() {
                match symlinkat(text.as_str(), &folders.wanted, project.to_string().as_str()) {
                    Ok(()) => {
                        let claimed = ClaimedLimit { project, inode, wanted, at: Instant::now() };
                        let mut known = self.limits();
                        known.uncounted.push((Instant::now(), limit.bytes));
                        known.claims.insert(key.clone(), claimed.clone());
                        return Ok(claimed);
                    }
                    // Another controller was faster.
                    Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(self.failed("claim a limit as", project.to_string(), errno)),
                }
            }
            self.list_ready(folders)?;
        }
        Err(self.unlimited(format!("its quota agent on {} has no directory ready: see its log", shown(&agent.host))))
    }

    /// The claim for a volume that an earlier call made and that the agent has not answered, if it is this limit's and
    /// still there.
    pub(super) fn claimed_before(
        &self,
        folders: &QuotaFolders,
        key: &RecordKey,
        limit: SizeLimit,
        mode: Option<u32>,
    ) -> Result<Option<ClaimedLimit>, ExportError> {
        let Some(claimed) = self.limits().claims.get(key).cloned() else { return Ok(None) };
        let wanted = &claimed.wanted;
        let is_same = (wanted.bytes, wanted.inodes, wanted.mode) == (limit.bytes, limit.inodes, mode);
        if is_same && self.read_link::<Wanted>(&folders.wanted, claimed.project)?.as_ref() == Some(&claimed.wanted) {
            return Ok(Some(claimed));
        }
        self.limits().claims.remove(key);
        Ok(None)
    }

    /// Refuses what would be more than may be promised of the export.
    pub(super) fn check_promises(&self, bytes: u64, policy: &QuotaPolicy, agent: &Agent) -> Result<(), ExportError> {
        let Some(overcommit) = policy.overcommit else { return Ok(()) };
        let most = overcommit.of(self.shown_total()?);
        let promised = self.promised_bytes(agent);
        if promised.saturating_add(bytes) <= most {
            return Ok(());
        }
        Err(ExportError::Overcommitted { share: self.share().to_string(), wanted: bytes, promised, most })
    }

    /// Bytes that may still be promised of the export; none where it has no agent that says what is promised.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn unpromised_bytes(&self, overcommit: Overcommit) -> Result<Option<u64>, ExportError> {
        let agent = match self.quota_folders().and_then(|folders| self.read_agent(folders)) {
            Ok((agent, _)) => agent,
            Err(ExportError::Unlimited { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let most = overcommit.of(self.shown_total()?);
        Ok(Some(most.saturating_sub(self.promised_bytes(&agent))))
    }

    /// The sum of all limits, also those that the agent has not counted yet.
    pub(super) fn promised_bytes(&self, agent: &Agent) -> u64 {
        let sum = |sum: u64, bytes: &(Instant, u64)| sum.saturating_add(bytes.1);
        self.limits().uncounted.iter().fold(agent.promised_bytes, sum)
    }

    /// Waits until the limit of a claim is in force, and gives its directory.
    ///
    /// # Errors
    /// [`ExportError::Unlimited`] where the agent does not answer, [`ExportError::LimitRefused`] where it refuses;
    /// where the server fails. The claim stays for a retry.
    pub fn limited(&self, claimed: &ClaimedLimit) -> Result<LimitedDirectory, ExportError> {
        let folders = self.quota_folders()?;
        let failed = |errno| self.failed("open the limited directory", claimed.project.to_string(), errno);
        // Not sooner than the agent is likely to be done: each question is a call to the server.
        std::thread::sleep(self.limits().expected.saturating_sub(claimed.at.elapsed()));
        let mut questions = 0;
        let opened = self.answered(folders, claimed.project, claimed.wanted.generation, || {
            questions += 1;
            let opened = open_ready(folders, claimed.project).map_err(failed)?;
            let Some((directory, inode)) = opened.filter(|(_, inode)| *inode == claimed.inode) else { return Ok(None) };
            let has = match fstatvfs(&directory) {
                Err(Errno::ESTALE) => return Ok(None),
                has => has.map_err(failed)?,
            };
            let is_limited = self.is_in_force(&claimed.wanted, &has)?;
            Ok(is_limited.then_some(LimitedDirectory { project: claimed.project, inode, directory }))
        });
        if let Err(ExportError::LimitRefused { .. }) = opened {
            self.withdraw(folders, claimed);
        }
        let opened = opened?;
        let mut known = self.limits();
        known.claims.remove(&claimed.wanted.volume);
        known.expected = match questions {
            1 => known.expected * 3 / 4,
            _ => ((known.expected + claimed.at.elapsed()) / 2).min(LONGEST_EXPECTED),
        };
        Ok(opened)
    }

    /// Whether what the server shows of a directory is the first limit that was wanted for it, and not the one that it had
    /// before.
    pub(super) fn is_in_force(&self, wanted: &Wanted, has: &Statvfs) -> Result<bool, ExportError> {
        let shown = ShownSize::of(has);
        let has_files = if wanted.inodes == 0 { has.files() > 1 } else { has.files() <= wanted.inodes };
        let is_open = shown.size > CLOSED_BYTES + shown.unit || wanted.bytes <= CLOSED_BYTES;
        Ok(has_files && is_open && self.shows_limit(wanted.bytes, &shown)?)
    }

    /// Takes a claim back that the agent refuses. What was ready when it was listed may have been claimed, used and freed
    /// since: so what else is on that list is not claimed either.
    pub(super) fn withdraw(&self, folders: &QuotaFolders, claimed: &ClaimedLimit) {
        let mut known = self.limits();
        known.claims.remove(&claimed.wanted.volume);
        known.ready.clear();
        drop(known);
        // Where that fails, the agent removes it.
        let _ = unlinkat(&folders.wanted, claimed.project.to_string().as_str(), UnlinkatFlags::NoRemoveDir);
    }

    /// The project that a volume has claimed already, as far as the agent has set its limit.
    ///
    /// # Errors
    /// As [`Export::claim_limit`].
    pub fn claimed_for(&self, key: &RecordKey) -> Result<Option<ProjectId>, ExportError> {
        let folders = self.quota_folders()?;
        let names = beneath::names(&folders.applied).map_err(|errno| self.failed("list", APPLIED, errno))?;
        for project in names.iter().filter_map(|name| ProjectId::parse(name.to_str()?)) {
            if self.read_link::<Applied>(&folders.applied, project)?.is_some_and(|applied| applied.volume == *key) {
                return Ok(Some(project));
            }
        }
        Ok(None)
    }

    pub(super) fn take_ready(&self) -> Option<(ProjectId, u64)> {
        let mut known = self.limits();
        // What the kernel remembers of that folder is of the same time, and goes when the agent has changed it: to ask
        // for the directory's name again would cost as much as to read them all.
        known.listed.filter(|listed| listed.elapsed() < LISTING_KEPT)?;
        known.ready.pop()
    }

    /// Reads which directories are ready, in an order that other controllers do not have.
    pub(super) fn list_ready(&self, folders: &QuotaFolders) -> Result<(), ExportError> {
        let failed = |errno| self.failed("list", format!("{QUOTA}/{READY}"), errno);
        let open = beneath::open(&folders.ready_in_trees, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty());
        let mut entries = open.and_then(Dir::from_fd).map_err(failed)?;
        let mut ready = Vec::new();
        for entry in entries.iter() {
            let entry = entry.map_err(failed)?;
            if let Some(project) = entry.file_name().to_str().ok().and_then(ProjectId::parse) {
                ready.push((project, entry.ino()));
            }
        }
        let turn = std::collections::hash_map::RandomState::new();
        ready.sort_by_cached_key(|(project, _)| std::hash::BuildHasher::hash_one(&turn, project));
        let mut known = self.limits();
        (known.ready, known.listed) = (ready, Some(Instant::now()));
        Ok(())
    }
}

pub(super) fn text_of(wanted: &Wanted) -> String {
    // Numbers and letters only, which always can be written.
    serde_json::to_string(wanted).unwrap_or_default()
}
