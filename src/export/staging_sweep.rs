//! What is in staging, and what of it nobody works on any more.

use std::time::Duration;

use super::attempt_name::{AttemptName, LOCKS, RECORD, is_of_first_version, is_temporary};
use super::clock::changed_at;
use super::directories::Whereabouts;
use super::record_lock::RecordLock;
use super::{Export, ExportError};
use crate::volume::record_key::RecordKey;

/// How long a record or a lock is left alone. They are there for a few calls to the server; whoever sleeps for longer
/// finds his own gone, which is an error, and its retry begins again.
const TEMPORARY: Duration = Duration::from_mins(10);

/// How long an attempt is kept for its retry for which there was no space; at most this part of what others are kept. A
/// provisioner tries again within a minute or a few.
const FULL: Duration = Duration::from_mins(5);
const FULL_PART: u32 = 4;

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

/// What a sweep of staging left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many clones, snapshots and restores are in staging still, under way or cut short.
    pub left: u64,
    /// When to sweep again, for those for which there was no space.
    pub next: Option<Duration>,
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
                InStaging::Temporary(name) | InStaging::OfFirstVersion(name) => match self.look_in_staging(name)? {
                    Some(stat) => changed_at(&stat),
                    None => continue,
                },
            };
            staged.push((one, Some(now.saturating_sub(last))));
        }
        Ok(staged)
    }

    /// Removes from staging what has shown no sign of life for `retention`, or for minutes where there was no space
    /// for it.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn sweep_staging(&self, retention: Duration) -> Result<Swept, ExportError> {
        let mut swept = Swept::default();
        for (staged, silent) in self.staged()? {
            let is_work = !matches!(staged, InStaging::Temporary(_));
            let Some(silent) = silent else {
                swept.left += u64::from(is_work);
                continue;
            };
            let (kept, is_full) = match &staged {
                InStaging::Temporary(_) => (retention.min(TEMPORARY), false),
                InStaging::Attempt(attempt) if silent < retention && self.was_full(attempt)? => {
                    (FULL.min(retention / FULL_PART), true)
                }
                _ => (retention, false),
            };
            if silent >= kept {
                self.sweep_one(&staged)?;
                continue;
            }
            swept.left += u64::from(is_work);
            if is_full {
                let wait = kept.saturating_sub(silent);
                swept.next = Some(swept.next.map_or(wait, |next| next.min(wait)));
            }
        }
        Ok(swept)
    }

    fn sweep_one(&self, staged: &InStaging) -> Result<(), ExportError> {
        match staged {
            InStaging::Temporary(name) if name.starts_with(LOCKS) => self.break_lock(name).map(drop),
            InStaging::Temporary(name) => {
                let is_settled = self.settle_record(name)?;
                if is_settled { self.discard(name) } else { Ok(()) }
            }
            InStaging::Attempt(attempt) => {
                let is_settled = self.settle_record(&attempt.companion(RECORD))?;
                if is_settled { self.finish_attempt(attempt, false) } else { Ok(()) }
            }
            InStaging::OfFirstVersion(name) => self.discard(name),
            InStaging::Unknown(_) => Ok(()),
        }
    }

    /// Whoever put this record in place has not made sure of its directory, and is dead, or asleep: where there is no
    /// such directory the record goes. Nobody was told of the volume. False if that is not known yet.
    fn settle_record(&self, name: &str) -> Result<bool, ExportError> {
        let layout = self.layout()?;
        let record = match self.read_record_in(&layout.staging, name) {
            // Whoever wrote it died while he did.
            Err(ExportError::Record { .. }) => None,
            record => record?,
        };
        let Some(record) = record else { return Ok(true) };
        let key = RecordKey::of(&record.name);
        if self.record(&key)?.is_none_or(|now| now != record) {
            return Ok(true);
        }
        let settle = |lock: &RecordLock<'_>| {
            let whereabouts = self.whereabouts(&record)?;
            if whereabouts == Whereabouts::Gone && lock.is_still(&record)? {
                tracing::warn!(
                    share = %self.share(),
                    volume = record.name,
                    directory = %record.subdir,
                    "a volume whose making was cut short has no directory: its record is removed"
                );
                lock.remove()?;
            }
            Ok(whereabouts != Whereabouts::InTrash || !lock.is_still(&record)?)
        };
        let is_settled = self.with_record_locked(&key, TEMPORARY, settle)?.unwrap_or(false);
        if is_settled && record.subdir_given {
            self.take_back_claim(&record.subdir, &key, record.owner.as_deref())?;
        }
        Ok(is_settled)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::holder::Holder;
    use super::super::staging::StagingName;
    use super::*;

    #[test]
    fn an_attempt_for_which_there_was_no_space_is_due_within_minutes_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let export = Export::local(folder.path());
        let holder = Holder::open(folder.path(), None);
        let begin = |volume: &str| {
            let name = AttemptName::new(&StagingName::volume(&RecordKey::of(volume), "from x"), &holder);
            export.staged_names().unwrap();
            fs::create_dir(folder.path().join(format!(".nfs-csi/staging/{name}"))).unwrap();
            name
        };
        let (day, left) = (Duration::from_hours(24), || export.staged_names().unwrap().len());
        begin("pvc-1");
        assert_eq!(export.sweep_staging(day).unwrap(), Swept { left: 1, next: None });
        let full = begin("pvc-2");
        export.note_full(&full).unwrap();
        let swept = export.sweep_staging(day).unwrap();
        assert!(swept.next.is_some_and(|next| next <= FULL && !next.is_zero()));
        // The note that there was no space is a name of its own, and no work.
        assert_eq!((swept.left, left()), (2, 3));
        assert!(export.sweep_staging(FULL).unwrap().next.is_some_and(|next| next <= FULL / FULL_PART));
        assert_eq!(export.sweep_staging(Duration::ZERO).unwrap(), Swept::default());
        assert_eq!(left(), 0);
    }
}
