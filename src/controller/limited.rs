//! CreateVolume with a limit of the volume's size that the server holds (`quota: required` and `preferred`).
//!
//! The directory is one that the export's quota agent made and whose limit is in force (export/limited/). The record
//! comes first here and names just this directory, and then it is renamed to its place: whoever finds the record,
//! after a crash or beside another controller, can only put the same directory there. So no rename ever replaces a
//! directory that is a volume's already.

use std::num::NonZeroU64;

use nix::errno::Errno;

use super::create::{CreateError, Plan, TRIES, Volume};
use crate::export::catalog::{Created, Record};
use crate::export::claims::Claims;
use crate::export::limited::{LimitedDirectory, Placed};
use crate::export::{Export, ExportError};
use crate::tree::make;
use crate::volume::name::VolumeName;
use crate::volume::quota_files::ProjectId;
use crate::volume::size_limit::{QuotaMode, RecordedQuota, SizeLimit};

impl Plan {
    /// Whether the volume is to have a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.quota.mode != QuotaMode::None
    }

    /// What its record notes of the limit.
    pub(super) fn recorded_quota(&self, project: Option<ProjectId>) -> RecordedQuota {
        RecordedQuota { mode: self.quota.mode, project, inodes_per_gib: self.quota.inodes_per_gib }
    }

    /// Whether the volume is made without a limit where there can be none.
    pub(super) fn does_without_limit(&self, error: &CreateError) -> bool {
        use ExportError::{LimitRefused, RootExempt, Unlimited};
        let is_no_limit = match error {
            CreateError::NoSize | CreateError::Unlimitable { .. } => true,
            CreateError::Export(error) => matches!(error, Unlimited { .. } | LimitRefused { .. } | RootExempt { .. }),
            _ => false,
        };
        is_no_limit && self.quota.mode == QuotaMode::Preferred
    }

    /// Logs that the volume is made without a limit.
    pub(super) fn log_without_limit(&self, error: &CreateError) {
        tracing::warn!(volume = %self.name, share = %self.share, %error, "the volume is made without a limit of its size");
    }

    /// The limit of a volume of so many bytes.
    fn limit(&self, bytes: u64) -> Result<SizeLimit, CreateError> {
        let bytes = NonZeroU64::new(bytes).ok_or(CreateError::NoSize)?;
        Ok(SizeLimit::new(bytes, self.quota.inodes_per_gib))
    }

    /// A directory with the limit of a volume of so many bytes, to be filled; none where the volume has no limit.
    pub(super) fn limited_to_fill(&self, export: &Export, bytes: u64) -> Result<Option<LimitedDirectory>, CreateError> {
        if !self.is_limited() {
            return Ok(None);
        }
        let claim = || {
            let claimed = export.claim_limit(&self.key, self.limit(bytes)?, None, &self.quota)?;
            Ok(export.limited(&claimed)?)
        };
        let limited = self.check_place(export).and_then(|()| match claim() {
            // Of a directory that was not ready any more.
            Err(CreateError::Export(ExportError::LimitRefused { .. })) => claim(),
            claimed => claimed,
        });
        match limited {
            Err(error) if self.does_without_limit(&error) => {
                self.log_without_limit(&error);
                Ok(None)
            }
            limited => limited.map(Some),
        }
    }

    /// Makes the volume with its limit; `recorded` is the record that it has.
    pub(super) fn make_limited(&self, export: &Export, mut recorded: Option<Record>) -> Result<Volume, CreateError> {
        let mut was_refused = false;
        for _ in 0..TRIES {
            let mut placed = match &recorded {
                Some(record) => self.put_in_place(export, record)?,
                None => Placed::Not,
            };
            if placed == Placed::Not {
                let record = match self.record_limited(export, recorded.clone()) {
                    // Of a directory that was not ready any more.
                    Err(CreateError::Export(ExportError::LimitRefused { .. })) if !was_refused => {
                        was_refused = true;
                        continue;
                    }
                    record => record?,
                };
                let Some(record) = record else { break };
                placed = self.put_in_place(export, &record)?;
                recorded = Some(record);
            }
            let Some(record) = &recorded else { break };
            let volume = self.accept(record)?;
            let is_made = match (placed, record.inode) {
                // After its record: who deletes it meanwhile looks for it here too, before the record goes.
                (Placed::Now, Some(_)) if !self.subdir_given => true,
                (Placed::Now | Placed::Before, Some(inode)) => self.is_as_made(export, inode)?,
                _ => false,
            };
            if is_made {
                export.confirm_record(&self.key)?;
                return Ok(volume);
            }
        }
        // What is in place by now, the next try sees.
        Err(export.contended("make", self.subdir.to_string()).into())
    }

    /// Puts the directory in place that a record names, if it is not there yet.
    fn put_in_place(&self, export: &Export, record: &Record) -> Result<Placed, CreateError> {
        let (Some(project), Some(inode)) = (record.project(), record.inode) else {
            let is_there = record.inode.is_some() && export.inode_of(&self.subdir)? == record.inode;
            return Ok(if is_there { Placed::Before } else { Placed::Not });
        };
        match export.place_limited(project, inode, &self.subdir) {
            Ok(placed) => Ok(placed),
            Err(ExportError::Io { errno: errno @ (Errno::EEXIST | Errno::EXDEV), .. }) => {
                self.remove_record(export, record)?;
                export.confirm_record(&self.key)?;
                export.release_limited(project);
                Err(self.unlimitable(match errno {
                    Errno::EXDEV => "it is inside of a directory that has a limit itself",
                    _ => "something is in it already",
                }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gets a directory with the volume's limit, and records it, in the place of the record `was` if there is one. Gives
    /// the record that is there then; none if another controller is at it.
    fn record_limited(&self, export: &Export, was: Option<Record>) -> Result<Option<Record>, CreateError> {
        self.check_place(export)?;
        let plain = was.clone().unwrap_or_else(|| self.record());
        let mode = self.attributes.mode.filter(|_| !self.has_owner());
        let claimed = export.claim_limit(&self.key, self.limit(plain.capacity_bytes)?, mode, &self.quota)?;
        let project = claimed.project();
        let noted = Record { inode: Some(claimed.inode()), found: false, ..plain };
        let record = noted.with_quota(self.recorded_quota(Some(project)));
        let Some(was) = was else {
            // Written while the agent sets the limit.
            let prepared = export.prepare_record(&self.key, &record)?;
            if let Err(error) = self.finish_limited(export, export.limited(&claimed)) {
                drop(prepared);
                export.confirm_record(&self.key)?;
                return Err(error);
            }
            return Ok(Some(match export.create_prepared(prepared, &self.key)? {
                Created::Now => record,
                Created::Before(record) => {
                    export.release_limited(project);
                    *record
                }
            }));
        };
        self.finish_limited(export, export.limited(&claimed))?;
        if self.replace(export, &was, &record)? {
            return Ok(Some(record));
        }
        export.release_limited(project);
        Ok(None)
    }

    /// Whether the directory gets an owner: then permissions come after it, and not from the agent.
    fn has_owner(&self) -> bool {
        self.attributes.uid.is_some() || self.attributes.gid.is_some()
    }

    /// Gives a limited directory its owner, and the permissions that come with it.
    fn finish_limited(
        &self,
        export: &Export,
        limited: Result<LimitedDirectory, ExportError>,
    ) -> Result<(), CreateError> {
        let limited = limited?;
        if self.has_owner() {
            let failed = |errno| export.failed("set owner and permissions of", self.subdir.to_string(), errno);
            make::set(&limited, self.attributes).map_err(failed)?;
        }
        Ok(())
    }

    /// Refuses a place that may be another volume's: an empty directory there is replaced.
    fn check_place(&self, export: &Export) -> Result<(), CreateError> {
        // Such a name no class and no claim may give to another volume.
        if !self.subdir_given && VolumeName::is_provisioners(self.subdir.as_str()) {
            return Ok(());
        }
        if export.inode_of(&self.subdir)?.is_some() && export.claims(&self.subdir, &self.key)? != Claims::None {
            return Err(self.unlimitable("it is another volume's too"));
        }
        Ok(())
    }

    fn unlimitable(&self, reason: &'static str) -> CreateError {
        CreateError::Unlimitable { subdir: self.subdir.to_string(), share: self.share.to_string(), reason }
    }
}
