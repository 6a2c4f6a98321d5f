//! Directories whose size the server holds: the driver's side of `.nfs-csi/quota/` (volume/quota_files.rs).
//!
//! A limited directory is not made but claimed: the quota agent has it ready, with a project of its own. It is moved to
//! where it is filled when the server shows the limit that was asked for as its size, and never before, so that no attempt
//! can leave a directory without its limit behind. What a claim leaves when its controller dies, the agent removes.
//!
//! On the healthy path that is two calls to the server more than without a limit: the claim, and the question for the size.
//! The folder of directories that are ready is read in the mount that remembers names, so none is looked up again.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use serde::de::DeserializeOwned;

use super::catalog::Record;
use super::holder::nonce;
use super::layout::look;
use super::{Export, ExportError, small_file};
use crate::beneath;
use crate::tree::make::descend;
use crate::volume::path::RESERVED;
use crate::volume::quota_files::{
    AGENT, APPLIED, Agent, Applied, BEAT, CLOSED_BYTES, FORMAT, ProjectId, QUOTA, READY, REFUSED, Refused,
    SILENT_AFTER, WANTED, Wanted,
};
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::{Overcommit, QuotaMode, QuotaPolicy, SizeLimit};
use crate::volume::subdir::SubDir;

/// How long an answer of the agent is waited for, and how long while it has left another one without an answer.
const ANSWER: Duration = Duration::from_secs(4);
const SHORT_ANSWER: Duration = Duration::from_millis(300);
/// For how long such an agent is expected to stay silent.
const UNANSWERED: Duration = Duration::from_secs(10);
/// How long it is waited until the agent's answer is looked for again, the first time and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// It is not expected to take longer than this.
const LONGEST_EXPECTED: Duration = Duration::from_millis(5);
/// When a wait is long enough to look for a refusal.
const LONG: Duration = Duration::from_millis(100);
/// How long what the agent said of itself is believed.
const AGENT_KEPT: Duration = Duration::from_secs(15);
/// How long the list of ready directories is believed.
const LISTING_KEPT: Duration = Duration::from_secs(1);
/// How often the list of ready directories is read again for one claim: other controllers claim them too.
const LISTINGS: u32 = 4;
/// The longest part of a text of the agent's that is shown, in characters.
const LONGEST_SHOWN: usize = 200;

/// The agent's folders, open where names are looked up.
#[derive(Debug)]
pub(super) struct QuotaFolders {
    top: OwnedFd,
    wanted: OwnedFd,
    applied: OwnedFd,
    refused: OwnedFd,
    ready: OwnedFd,
    /// The same in the mount for trees, which remembers names.
    ready_in_trees: OwnedFd,
}

/// What is known of an export's limits.
#[derive(Debug, Default)]
pub(super) struct Limits(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Directories that were ready, and their inode numbers.
    ready: Vec<(ProjectId, u64)>,
    /// When these were read.
    listed: Option<Instant>,
    /// Claims that the agent has not answered.
    claims: HashMap<RecordKey, ClaimedLimit>,
    agent: Option<(Agent, Instant)>,
    /// The bytes of each claim that the agent may not have counted yet.
    uncounted: Vec<(Instant, u64)>,
    /// How long the agent takes to set a limit, as it was seen last.
    expected: Duration,
    /// When a claim was given up that the agent did not answer.
    unanswered: Option<Instant>,
}

/// A directory that was claimed for a volume, and the limit that it is to have.
#[derive(Clone, Debug)]
pub struct ClaimedLimit {
    project: ProjectId,
    inode: u64,
    wanted: Wanted,
    at: Instant,
}

impl ClaimedLimit {
    /// The directory's project.
    #[must_use]
    pub fn project(&self) -> ProjectId {
        self.project
    }

    /// The directory's inode number.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A directory that is empty and whose limit is in force.
#[derive(Debug)]
pub struct LimitedDirectory {
    /// Its project.
    pub project: ProjectId,
    /// Its inode number.
    pub inode: u64,
    directory: OwnedFd,
}

impl AsFd for LimitedDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Whether a limited directory is in its volume's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It was moved there by this call.
    Now,
    /// It was there.
    Before,
    /// It is not: it has gone.
    Not,
}

/// What the server shows of a directory's size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShownSize {
    /// Its size.
    size: u64,
    /// What is used of it.
    used: u64,
    /// The unit that both are rounded up to.
    unit: u64,
}

impl ShownSize {
    fn of(has: &Statvfs) -> Self {
        let unit = has.fragment_size();
        let used = has.blocks().saturating_sub(has.blocks_free());
        Self { size: has.blocks() * unit, used: used * unit, unit }
    }
}

/// How it is with a volume's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// None is recorded.
    Unlimited,
    /// One was asked for, and there was none to be had.
    NotHad,
    /// It is in force, and so many bytes are used.
    InForce {
        /// Bytes.
        used: u64,
    },
    /// The server shows another size than is recorded.
    Differs {
        /// The recorded limit, in bytes.
        recorded: u64,
        /// What the server shows, in bytes.
        shown: u64,
    },
    /// The volume has no directory.
    NoDirectory,
}

impl QuotaFolders {
    fn open(export: &Export) -> Result<Self, (String, Errno)> {
        let top = descend(export.root(), &[RESERVED, QUOTA], None)?;
        let folder = |name: &str| descend(&top, &[name], None);
        Ok(Self {
            wanted: folder(WANTED)?,
            applied: folder(APPLIED)?,
            refused: folder(REFUSED)?,
            ready: folder(READY)?,
            ready_in_trees: descend(export.tree_root(), &[RESERVED, QUOTA, READY], None)?,
            top,
        })
    }
}

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
    fn claimed_before(
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
    fn check_promises(&self, bytes: u64, policy: &QuotaPolicy, agent: &Agent) -> Result<(), ExportError> {
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
    fn promised_bytes(&self, agent: &Agent) -> u64 {
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
    fn is_in_force(&self, wanted: &Wanted, has: &Statvfs) -> Result<bool, ExportError> {
        let shown = ShownSize::of(has);
        let has_files = if wanted.inodes == 0 { has.files() > 1 } else { has.files() <= wanted.inodes };
        let is_open = shown.size > CLOSED_BYTES + shown.unit || wanted.bytes <= CLOSED_BYTES;
        Ok(has_files && is_open && self.shows_limit(wanted.bytes, &shown)?)
    }

    /// Takes a claim back that the agent refuses. What was ready when it was listed may have been claimed, used and freed
    /// since: so what else is on that list is not claimed either.
    fn withdraw(&self, folders: &QuotaFolders, claimed: &ClaimedLimit) {
        let mut known = self.limits();
        known.claims.remove(&claimed.wanted.volume);
        known.ready.clear();
        drop(known);
        // Where that fails, the agent removes it.
        let _ = unlinkat(&folders.wanted, claimed.project.to_string().as_str(), UnlinkatFlags::NoRemoveDir);
    }

    /// Waits for what the agent does, which `look` looks for.
    fn answered<T>(
        &self,
        folders: &QuotaFolders,
        project: ProjectId,
        generation: u64,
        mut look: impl FnMut() -> Result<Option<T>, ExportError>,
    ) -> Result<T, ExportError> {
        let is_silent = self.limits().unanswered.is_some_and(|since| since.elapsed() < UNANSWERED);
        let (begun, patience) = (Instant::now(), if is_silent { SHORT_ANSWER } else { ANSWER });
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(found) = look()? {
                self.limits().unanswered = None;
                return Ok(found);
            }
            if begun.elapsed() > LONG
                && let Some(refused) = self.read_link::<Refused>(&folders.refused, project)?
                && (refused.generation == generation || refused.generation == 0)
            {
                let (share, reason) = (self.share().to_string(), shown(&refused.reason));
                return Err(ExportError::LimitRefused { share, project: project.get(), reason });
            }
            if begun.elapsed() > patience {
                let mut known = self.limits();
                known.unanswered.get_or_insert_with(Instant::now);
                known.agent = None;
                drop(known);
                let agent = self.living_agent(folders)?;
                let applied = self.read_link::<Applied>(&folders.applied, project)?;
                let reason = if applied.is_some_and(|applied| applied.generation >= generation) {
                    "the limit is set, but the server does not show it as the directory's size: that takes the \
                     kernel's own NFS server, and a file system mounted with prjquota"
                        .into()
                } else {
                    let (host, waited) = (shown(&agent.host), patience.as_secs_f32());
                    format!(
                        "its quota agent on {host} did not answer within {waited} s, and was alive then: see its log"
                    )
                };
                return Err(self.unlimited(reason));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

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

    fn is_placed(&self, inode: u64, subdir: &SubDir) -> Result<Placed, ExportError> {
        Ok(if self.inode_of(subdir)? == Some(inode) { Placed::Before } else { Placed::Not })
    }

    /// Moves a limited directory into staging, under a name that no other attempt has.
    pub(super) fn stage_limited(&self, limited: &LimitedDirectory, name: &str) -> Result<(), ExportError> {
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

    /// Gives a volume's project another limit, and waits until it is in force. For one controller at a time: under the
    /// lock of the volume's record.
    ///
    /// # Errors
    /// As [`Export::limited`].
    pub fn change_limit(&self, project: ProjectId, key: &RecordKey, limit: SizeLimit) -> Result<(), ExportError> {
        let folders = self.quota_folders()?;
        let name = project.to_string();
        let failed = |errno| self.failed("ask for the limit of", &name, errno);
        let is_it = |limits: &Wanted| (&limits.volume, limits.bytes, limits.inodes) == (key, limit.bytes, limit.inodes);
        let applied = self.read_link::<Applied>(&folders.applied, project)?;
        if applied.as_ref().is_some_and(is_it) {
            return Ok(());
        }
        let wanted = self.read_link::<Wanted>(&folders.wanted, project)?;
        let known = [applied, wanted.clone()].into_iter().flatten().map(|limits| limits.generation).max();
        let generation = match wanted.filter(is_it) {
            // A call that was cut short has asked for it.
            Some(wanted) if Some(wanted.generation) == known => wanted.generation,
            _ => {
                let generation = known.unwrap_or_default() + 1;
                let SizeLimit { bytes, inodes } = limit;
                let (volume, claim) = (key.clone(), nonce());
                let wanted = Wanted { format: FORMAT, generation, bytes, inodes, mode: None, volume, claim };
                match unlinkat(&folders.wanted, name.as_str(), UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                }
                symlinkat(text_of(&wanted).as_str(), &folders.wanted, name.as_str()).map_err(failed)?;
                generation
            }
        };
        self.answered(folders, project, generation, || {
            let applied = self.read_link::<Applied>(&folders.applied, project)?;
            Ok(applied.filter(|applied| applied.generation >= generation && is_it(applied)).map(drop))
        })
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

    /// How it is with a volume's limit, as the server shows it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn limit_state(&self, record: &Record) -> Result<LimitState, ExportError> {
        let Some(quota) = record.quota.filter(|quota| quota.mode != QuotaMode::None) else {
            return Ok(LimitState::Unlimited);
        };
        let Some((_, limit)) = quota.limit(record.capacity_bytes) else { return Ok(LimitState::NotHad) };
        let Some(shown) = self.shown_size_of(&record.subdir)? else { return Ok(LimitState::NoDirectory) };
        if self.shows_limit(limit.bytes, &shown)? {
            return Ok(LimitState::InForce { used: shown.used });
        }
        Ok(LimitState::Differs { recorded: limit.bytes, shown: shown.size })
    }

    /// Whether this is what the server shows of a directory with a limit of so many bytes. It rounds up to its blocks, and
    /// this host to the unit. A limit that is larger than the export shows the export's size.
    fn shows_limit(&self, bytes: u64, shown: &ShownSize) -> Result<bool, ExportError> {
        let most = bytes.saturating_add(2 * shown.unit);
        Ok(shown.size <= most && (shown.size >= bytes || bytes >= self.shown_total()?))
    }

    /// What the server shows of a volume's size; none if it has no directory.
    fn shown_size_of(&self, subdir: &SubDir) -> Result<Option<ShownSize>, ExportError> {
        let components: Vec<&str> = subdir.components().collect();
        match beneath::settled(|| descend(self.root(), &components, None).map_err(|(_, errno)| errno)) {
            Ok(directory) => self.shown_size(directory).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look for", subdir.to_string(), errno)),
        }
    }

    /// What the server shows of the export's own size, in bytes.
    fn shown_total(&self) -> Result<u64, ExportError> {
        self.shown_size(self.root()).map(|shown| shown.size)
    }

    fn shown_size(&self, directory: impl AsFd) -> Result<ShownSize, ExportError> {
        let has = fstatvfs(directory).map_err(|errno| self.failed("ask for the size of", ".", errno))?;
        Ok(ShownSize::of(&has))
    }

    /// What the agent says of itself, if it was alive a moment ago.
    fn living_agent(&self, folders: &QuotaFolders) -> Result<Agent, ExportError> {
        let is_known = |known: &Known| {
            known.agent.as_ref().filter(|(_, at)| at.elapsed() < AGENT_KEPT).map(|(agent, _)| agent.clone())
        };
        if let Some(agent) = is_known(&self.limits()) {
            return Ok(agent);
        }
        let (agent, age) = self.read_agent(folders)?;
        if age > SILENT_AFTER {
            return Err(self.unlimited(format!(
                "its quota agent on {} was last alive {} s ago: start `nfs-csi quota` there, and see its log",
                shown(&agent.host),
                age.as_secs()
            )));
        }
        Ok(agent)
    }

    /// What the agent said of itself last, and how long ago by the server's clock.
    fn read_agent(&self, folders: &QuotaFolders) -> Result<(Agent, Duration), ExportError> {
        let unreadable =
            |reason: String| self.unlimited(format!("{QUOTA}/{AGENT} cannot be read ({reason}): see its log"));
        let stat = fstatat(&folders.top, AGENT, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|errno| match errno {
            Errno::ENOENT => self.no_agent(),
            errno => self.failed("look at", AGENT, errno),
        })?;
        let age = self.age(&stat);
        let file = small_file::open(&folders.top, AGENT).map_err(|errno| self.failed("open", AGENT, errno))?;
        let text = small_file::read(file.ok_or_else(|| self.no_agent())?);
        let text = text.map_err(|errno| self.failed("read", AGENT, errno))?;
        let agent: Agent = serde_json::from_slice(&text).map_err(|error| unreadable(shown(&error.to_string())))?;
        if agent.format > FORMAT {
            return Err(unreadable(format!("it has format {}: use a newer driver", agent.format)));
        }
        let now = Instant::now();
        let mut known = self.limits();
        known.agent = Some((agent.clone(), now));
        // A claim takes its time to be granted.
        known.uncounted.retain(|(at, _)| now.duration_since(*at) < age + BEAT);
        drop(known);
        Ok((agent, age))
    }

    fn quota_folders(&self) -> Result<&QuotaFolders, ExportError> {
        if let Some(folders) = self.quota_folders.get() {
            return Ok(folders);
        }
        let folders = QuotaFolders::open(self).map_err(|(name, errno)| match errno {
            Errno::ENOENT => self.no_agent(),
            errno => self.failed("open the folder", name, errno),
        })?;
        Ok(self.quota_folders.get_or_init(|| folders))
    }

    fn take_ready(&self) -> Option<(ProjectId, u64)> {
        let mut known = self.limits();
        // What the kernel remembers of that folder is of the same time, and goes when the agent has changed it: to ask
        // for the directory's name again would cost as much as to read them all.
        known.listed.filter(|listed| listed.elapsed() < LISTING_KEPT)?;
        known.ready.pop()
    }

    /// Reads which directories are ready, in an order that other controllers do not have.
    fn list_ready(&self, folders: &QuotaFolders) -> Result<(), ExportError> {
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

    /// Reads a link's text; none where there is no link, or none of this form: the agent refuses that.
    fn read_link<T: DeserializeOwned>(&self, folder: &OwnedFd, project: ProjectId) -> Result<Option<T>, ExportError> {
        match readlinkat(folder, project.to_string().as_str()) {
            Ok(text) => Ok(text.to_str().and_then(|text| serde_json::from_str(text).ok())),
            Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(self.failed("read the limit of", project.to_string(), errno)),
        }
    }

    fn no_agent(&self) -> ExportError {
        self.unlimited(format!("no quota agent was ever on it: start `nfs-csi quota` on {}", self.share().server()))
    }

    fn unlimited(&self, reason: String) -> ExportError {
        ExportError::Unlimited { share: self.share().to_string(), reason }
    }

    fn limits(&self) -> MutexGuard<'_, Known> {
        self.shared.limits.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A project's directory in `ready/`, and its inode number; none if it has none there.
fn open_ready(folders: &QuotaFolders, project: ProjectId) -> nix::Result<Option<(OwnedFd, u64)>> {
    let opened = beneath::open_dir(&folders.ready_in_trees, project.to_string()).and_then(|directory| {
        let inode = fstat(&directory)?.st_ino;
        Ok((directory, inode))
    });
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn text_of(wanted: &Wanted) -> String {
    // Numbers and letters only, which always can be written.
    serde_json::to_string(wanted).unwrap_or_default()
}

/// A text that others wrote, as it may be shown: what is no ASCII or not to be seen is left out.
fn shown(text: &str) -> String {
    text.chars().filter(|character| character.is_ascii_graphic() || *character == ' ').take(LONGEST_SHOWN).collect()
}
