//! The agent: whether it lives, and what it answers.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::claiming::text_of;
use super::{Known, QuotaFolders, shown};
use crate::export::holder::nonce;
use crate::export::{Export, ExportError, small_file};
use crate::volume::quota_files::{
    AGENT, Agent, Applied, BEAT, FORMAT, ProjectId, QUOTA, Refused, SILENT_AFTER, Wanted,
};
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::SizeLimit;

/// How long an answer of the agent is waited for, and how long while it has left another one without an answer.
const ANSWER: Duration = Duration::from_secs(4);
const SHORT_ANSWER: Duration = Duration::from_millis(300);
/// For how long such an agent is expected to stay silent.
const UNANSWERED: Duration = Duration::from_secs(10);
/// How long it is waited until the agent's answer is looked for again, the first time and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);
/// When a wait is long enough to look for a refusal.
const LONG: Duration = Duration::from_millis(100);
/// How long what the agent said of itself is believed.
const AGENT_KEPT: Duration = Duration::from_secs(15);

impl Export {
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

    /// Waits for what the agent does, which `look` looks for.
    pub(super) fn answered<T>(
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

    /// What the agent says of itself, if it was alive a moment ago.
    pub(super) fn living_agent(&self, folders: &QuotaFolders) -> Result<Agent, ExportError> {
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
    pub(super) fn read_agent(&self, folders: &QuotaFolders) -> Result<(Agent, Duration), ExportError> {
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
}
