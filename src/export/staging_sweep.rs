//! What is in staging, and what of it nobody works on any more.

use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::attempt_name::{AttemptName, is_of_first_version, is_temporary};
use super::clock::changed_at;
use super::{Export, ExportError};

/// How long a record or a lock is left alone. They are there for a few calls to the server; whoever sleeps for longer
/// finds his own gone, which is an error, and its retry begins again.
const TEMPORARY: Duration = Duration::from_mins(10);

/// Something in staging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InStaging {
    /// An attempt, with all that stands beside its tree.
    Attempt(AttemptName),
    /// A record that is about to be put in place, or a lock.
    Temporary(String),
    /// What version 0.1.0 was making.
    OfFirstVersion(String),
    /// A later version's.
    Unknown(String),
}

impl InStaging {
    fn of(name: String) -> Self {
        match AttemptName::parse(&name) {
            Some((attempt, _)) => Self::Attempt(attempt),
            None if is_temporary(&name) => Self::Temporary(name),
            None if is_of_first_version(&name) => Self::OfFirstVersion(name),
            None => Self::Unknown(name),
        }
    }

    /// Its name, or what its names have in common.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Attempt(attempt) => attempt.to_string(),
            Self::Temporary(name) | Self::OfFirstVersion(name) | Self::Unknown(name) => name.clone(),
        }
    }
}

impl Export {
    /// What is in staging, each attempt once; and how long ago there was a sign of life of it: none for what is a later
    /// version's.
    pub(super) fn staged(&self) -> Result<Vec<(InStaging, Option<Duration>)>, ExportError> {
        let mut found: Vec<InStaging> = self.staged_names()?.into_iter().map(InStaging::of).collect();
        found.sort_by_cached_key(InStaging::name);
        found.dedup();
        let now = self.now();
        let mut staged = Vec::with_capacity(found.len());
        for one in found {
            let last = match &one {
                InStaging::Unknown(_) => {
                    staged.push((one, None));
                    continue;
                }
                InStaging::Attempt(attempt) => match self.last_sign(attempt)? {
                    Some(last) => last,
                    None => continue,
                },
                InStaging::Temporary(name) | InStaging::OfFirstVersion(name) => {
                    match fstatat(&self.layout()?.staging, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                        Ok(stat) => changed_at(&stat),
                        Err(Errno::ENOENT) => continue,
                        Err(errno) => return Err(self.failed("look at", name, errno)),
                    }
                }
            };
            staged.push((one, Some(now.saturating_sub(last))));
        }
        Ok(staged)
    }

    /// Takes out of staging what nobody has worked on for so long.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_staging(&self, retention: Duration) -> Result<(), ExportError> {
        for (staged, silent) in self.staged()? {
            let Some(silent) = silent else { continue };
            match staged {
                InStaging::Attempt(attempt) if silent >= retention => self.finish_attempt(&attempt, false)?,
                InStaging::Temporary(name) if silent >= retention.min(TEMPORARY) => self.discard(&name)?,
                InStaging::OfFirstVersion(name) if silent >= retention => self.discard(&name)?,
                _ => {}
            }
        }
        Ok(())
    }
}
