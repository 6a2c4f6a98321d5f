//! CreateVolume: the directory, its owner and mode, then the record that makes it a volume. (With data from elsewhere:
//! fill.rs.)

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Controller, IsStale, Settings, job_key, snapshot_key};
use crate::export::catalog::{Created, Record};
use crate::export::claims::Claims;
use crate::export::directories::Whereabouts;
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError, Queue};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::tree::make::Attributes;
use crate::volume::access::{CapacityRange, Mode, OnDelete};
use crate::volume::content::{RecordedSource, Source};
use crate::volume::id::VolumeId;
use crate::volume::name::VolumeName;
use crate::volume::parameters::CreateParameters;
use crate::volume::record_key::RecordKey;
use crate::volume::share::Share;
use crate::volume::size_limit::{QuotaPolicy, RecordedQuota};
use crate::volume::snapshot_id::SnapshotId;
use crate::volume::subdir::{SubDir, Template, TemplateError};

/// A volume to make.
#[derive(Clone, Debug)]
pub struct CreateVolume {
    /// The CSI name.
    pub name: VolumeName,
    /// The StorageClass.
    pub parameters: CreateParameters,
    /// The size that is asked for.
    pub capacity: CapacityRange,
    /// Where its first data comes from.
    pub source: Option<Source>,
    /// Whether nobody is going to write to it.
    pub readers_only: bool,
    /// The mount options of the StorageClass and of the secret.
    pub options: Options,
    /// How long the caller waits.
    pub patience: Option<Duration>,
}

impl CreateVolume {
    /// The snapshot that the volume can be without a copy: nobody writes to it, and both are on one share.
    fn backing_snapshot(&self, is_same: impl Fn(&Share, &Share) -> bool) -> Option<&SnapshotId> {
        match &self.source {
            Some(Source::Snapshot(id)) => {
                let is_wanted = self.readers_only && self.parameters.backing_snapshot;
                (is_wanted && is_same(id.share(), &self.parameters.share)).then_some(id)
            }
            _ => None,
        }
    }
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// Its size in bytes, as recorded; 0: unknown.
    pub capacity_bytes: u64,
    /// Its directory below the share.
    pub subdir: SubDir,
    /// Whether it has no limit although one was asked for.
    pub is_unenforced: bool,
}

/// Why a volume was not made.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum CreateError {
    #[error("subDir: {0}")]
    Template(#[from] TemplateError),

    #[error(
        "volume {name} exists already on {share} with {has}, which does not fit {wanted}: delete it first, or use \
         another name"
    )]
    Exists { name: String, share: String, has: String, wanted: String },

    #[error("there is no {source_name} on {share}: check whether it was deleted")]
    NoSource { source_name: String, share: String },

    #[error("a size of {wanted} is asked for, and {source_name} has {has} bytes: ask for that at least")]
    TooSmall { wanted: String, source_name: String, has: u64 },

    #[error(
        "{subdir} on {share} has files already: a volume with data from elsewhere needs a directory of its own; use \
         another subDir, or remove the files"
    )]
    Occupied { subdir: String, share: String },

    #[error("{subdir} on {share} is claimed by a volume whose class names it: use another name")]
    Claimed { subdir: String, share: String },

    #[error(
        "subDir {subdir} leads into {directory} on {share}, which is another volume's by its own name: a claim's name or \
         namespace must not reach it; use another name"
    )]
    Anothers { subdir: String, directory: String, share: String },

    #[error(
        "{subdir} on {share} cannot get a limit ({reason}): with quota: required a volume needs a directory of its own, \
         which nothing was in before and which is in no other volume; use another subDir, or quota: preferred"
    )]
    Unlimitable { subdir: String, share: String, reason: &'static str },

    #[error("no size is asked for, and the StorageClass says quota: required: ask for a size")]
    NoSize,

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
}

impl CreateError {
    /// A retry may succeed without anybody changing anything.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Export(error) => error.is_passing(),
            Self::Job(_) => true,
            _ => false,
        }
    }
}

impl IsStale for CreateError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

impl Controller {
    /// Makes a volume, or finds that it exists as it is asked for.
    ///
    /// # Errors
    /// See [`CreateError`]; nothing is visible under the volume's name then that a retry does not complete.
    pub async fn create(self: &Arc<Self>, request: CreateVolume) -> Result<Volume, CreateError> {
        let plan = Plan::new(&self.settings, &request, |one, other| self.is_same_share(one, other))?;
        let job = Job {
            reads: plan.source.as_ref().map(source_key),
            patience: request.patience,
            abandoned_after: plan.source.is_some().then_some(self.settings.abandoned_after),
            ..Job::short(job_key(&plan.share, &plan.key), "CreateVolume", format!("{plan:?} {:?}", request.options))
        };
        let progress = Arc::clone(&job.progress);
        let controller = Arc::clone(self);
        let shares = [Some(&plan.share), plan.source.as_ref().map(Source::share)];
        let on: Vec<_> = shares.into_iter().flatten().map(|share| (share.clone(), request.options.clone())).collect();
        let work = async move {
            let share = plan.share.clone();
            if let Some(snapshot) = plan.backed_by.clone() {
                let plan = plan.clone();
                let work = move |export: &Export| plan.read_snapshot(export, &snapshot);
                if let (Some(volume), _) = controller.on(&share, &request.options, work).await? {
                    return Ok(volume);
                }
            }
            if let Some(source) = plan.source.clone() {
                return controller.fill(plan, source, &request.options, &progress).await;
            }
            let queue = if plan.is_limited() { Queue::Limited } else { Queue::Calls };
            let work = move |export: &Export| plan.carry_out(export);
            controller.on_behind(queue, &share, &request.options, work).await.map(|(volume, _)| volume)
        };
        let volume: Volume = self.run(&on, job, work).await?;
        self.unenforced.note(volume.id.share(), &volume.id.to_string(), volume.is_unenforced);
        Ok(volume)
    }
}

/// The key under which what a volume is made of is worked on.
fn source_key(source: &Source) -> String {
    match source {
        Source::Volume(id) => job_key(id.share(), &id.key()),
        Source::Snapshot(id) => snapshot_key(id.share(), &id.key()),
    }
}

/// What is to be there in the end.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) share: Share,
    pub(super) name: VolumeName,
    pub(super) key: RecordKey,
    pub(super) subdir: SubDir,
    pub(super) subdir_given: bool,
    pub(super) capacity: CapacityRange,
    pub(super) attributes: Attributes,
    source: Option<Source>,
    /// The snapshot whose tree it is to be, if that has one: nothing is copied then.
    backed_by: Option<SnapshotId>,
    pub(super) on_delete: OnDelete,
    pub(super) on_delete_given: bool,
    trash_retention: Option<Duration>,
    owner: Option<String>,
    claim: Option<String>,
    /// The permissions that the class says, and not the operator for all.
    pub(super) class_mode: Option<Mode>,
    /// Whether who makes a claim has a say in the directory's name.
    pub(super) is_claims_word: bool,
    /// How long another controller that changes the record may be silent.
    pub(super) silence: Duration,
    /// Whether the server is to hold its size.
    pub(super) quota: QuotaPolicy,
}

/// How often a directory that goes while it is made a volume is made again.
pub(super) const TRIES: u32 = 5;

impl Plan {
    /// `is_same` tells whether two shares are one.
    fn new(
        settings: &Settings,
        request: &CreateVolume,
        is_same: impl Fn(&Share, &Share) -> bool,
    ) -> Result<Self, TemplateError> {
        let parameters = &request.parameters;
        let (subdir, subdir_given) = match &parameters.template {
            Some(template) => (template.render(&parameters.metadata)?, true),
            None => (request.name.directory(), false),
        };
        Ok(Self {
            share: parameters.share.clone(),
            key: RecordKey::of(request.name.as_str()),
            name: request.name.clone(),
            subdir,
            subdir_given,
            capacity: request.capacity,
            source: request.source.clone(),
            backed_by: request.backing_snapshot(is_same).cloned(),
            trash_retention: parameters.trash_retention,
            on_delete: parameters.on_delete.unwrap_or(settings.default_on_delete),
            on_delete_given: parameters.on_delete.is_some(),
            owner: settings.cluster.clone(),
            claim: parameters.metadata.claim(),
            class_mode: parameters.permissions,
            silence: settings.takeover_after,
            quota: parameters.quota,
            is_claims_word: parameters.template.as_ref().is_some_and(Template::takes_words_of_claims),
            attributes: Attributes {
                mode: parameters.permissions.or(settings.default_permissions).map(Mode::bits),
                uid: parameters.owner.uid,
                gid: parameters.owner.gid,
            },
        })
    }

    /// The size of a volume with the data of `source`, which has so many bytes.
    pub(super) fn capacity_for(&self, bytes: u64, source: &dyn std::fmt::Display) -> Result<u64, CreateError> {
        self.capacity.capacity_for(bytes).ok_or_else(|| CreateError::TooSmall {
            wanted: self.capacity.to_string(),
            source_name: source.to_string(),
            has: bytes,
        })
    }

    fn carry_out(&self, export: &Export) -> Result<Volume, CreateError> {
        if let Some(record) = export.record(&self.key)? {
            return self.take(export, record);
        }
        // This volume's claim comes before the directory, so that a delete of the others leaves it.
        self.claim(export)?;
        let made = self.make_any(export, None);
        made.inspect_err(|error| {
            if !error.is_passing() {
                self.take_back_claim(export);
            }
        })
    }

    /// Takes a volume that has its record. Whoever recorded it may not have come to see that its directory went
    /// meanwhile: then it is made again.
    fn take(&self, export: &Export, record: Record) -> Result<Volume, CreateError> {
        match self.find_recorded(export, &record)? {
            Some(volume) => Ok(volume),
            None => self.make_any(export, Some(record)),
        }
    }

    /// Makes the directory, with its limit if it is to have one, and the record; `recorded` is the one that there is.
    fn make_any(&self, export: &Export, recorded: Option<Record>) -> Result<Volume, CreateError> {
        if self.is_limited() {
            match self.make_limited(export, recorded.clone()) {
                Err(error) if self.does_without_limit(&error) => self.log_without_limit(&error),
                made => return made,
            }
        }
        export.alone(&self.subdir, || self.make(export, recorded))
    }

    /// The volume that has this record, if it has its directory too; a claim that it lacks is made again. None where
    /// the directory is gone.
    pub(super) fn find_recorded(&self, export: &Export, record: &Record) -> Result<Option<Volume>, CreateError> {
        let volume = self.accept(record)?;
        if let Some(inode) = record.inode
            && self.is_as_made(export, inode)?
        {
            return Ok(Some(volume));
        }
        match export.whereabouts(record)? {
            Whereabouts::InPlace => Ok(Some(volume)),
            Whereabouts::InTrash => Err(export.contended("make", self.subdir.to_string()).into()),
            Whereabouts::Gone => Ok(None),
        }
    }

    /// Makes the directory, and the record where there is none; `recorded` is the one that there is.
    fn make(&self, export: &Export, mut recorded: Option<Record>) -> Result<Volume, CreateError> {
        for _ in 0..TRIES {
            let made = export.make_directory(&self.subdir, self.attributes)?;
            let others = if made.is_new { Claims::None } else { export.claims(&self.subdir, &self.key)? };
            if !self.subdir_given && others != Claims::None {
                let (subdir, share) = (self.subdir.to_string(), export.share().to_string());
                return Err(CreateError::Claimed { subdir, share });
            }
            let found = made.had_content
                && match others {
                    Claims::Shared(records) => records.iter().any(|record| record.found),
                    // What is in a directory that was this volume's before is its own: it may have been put back by a
                    // controller that had moved it away with a volume whose record is gone by now.
                    _ => recorded.as_ref().is_none_or(|record| record.found),
                };
            let noted = |record: Record| {
                let quota = record.quota.map(|quota| RecordedQuota { project: None, ..quota });
                Record { inode: Some(made.inode), found, quota, ..record }
            };
            let record = if let Some(was) = recorded {
                let record = noted(was.clone());
                if !self.replace(export, &was, &record)? {
                    break;
                }
                record
            } else {
                let record = noted(self.record());
                match export.create_record(&self.key, &record)? {
                    Created::Now => record,
                    Created::Before(record) => *record,
                }
            };
            let volume = self.accept(&record)?;
            if record.inode.is_none_or(|inode| inode == made.inode) && self.is_as_made(export, made.inode)? {
                export.confirm_record(&self.key)?;
                return Ok(volume);
            }
            recorded = Some(record);
        }
        // What is in place by now, the next try sees.
        Err(export.contended("make", self.subdir.to_string()).into())
    }

    /// Puts a record in the place of what it was. False if another controller changes it or has changed it.
    pub(super) fn replace(&self, export: &Export, was: &Record, record: &Record) -> Result<bool, ExportError> {
        let replace = |lock: &RecordLock<'_>| Ok(lock.is_still(was)? && lock.replace(record)?);
        Ok(export.with_record_locked(&self.key, self.silence, replace)?.unwrap_or(false))
    }

    /// Removes the record of a volume that nobody has got, if it is still this one.
    pub(super) fn remove_record(&self, export: &Export, record: &Record) -> Result<(), CreateError> {
        let remove = |lock: &RecordLock<'_>| Ok(lock.is_still(record)? && lock.remove()?);
        match export.with_record_locked(&self.key, self.silence, remove)? {
            Some(true) => Ok(()),
            _ => Err(export.contended("make", self.subdir.to_string()).into()),
        }
    }

    /// After the record: whether directory and claim are still there, for a delete by another controller may have begun
    /// before the record was. A claim that is missing is made again.
    pub(super) fn is_as_made(&self, export: &Export, inode: u64) -> Result<bool, CreateError> {
        let has_claim = !self.subdir_given || export.has_claim(&self.subdir, &self.key, self.owner.as_deref())?;
        if has_claim && export.inode_of(&self.subdir)? == Some(inode) {
            return Ok(true);
        }
        self.claim(export)?;
        Ok(export.inode_of(&self.subdir)? == Some(inode))
    }

    /// Claims the directory, if the class named it.
    pub(super) fn claim(&self, export: &Export) -> Result<(), CreateError> {
        if self.subdir_given {
            self.check_name(export)?;
            export.claim(&self.subdir, &self.key, self.owner.as_deref())?;
        }
        Ok(())
    }

    /// Who names a claim chooses a part of the directory's name, and must not reach a volume that has its directory by
    /// its own name.
    fn check_name(&self, export: &Export) -> Result<(), CreateError> {
        let Some(first) = self.subdir.components().next().filter(|_| self.is_claims_word) else { return Ok(()) };
        let key = RecordKey::of(first);
        if key == self.key {
            return Ok(());
        }
        let is_anothers = match export.record(&key)? {
            Some(record) => !record.subdir_given && record.subdir.as_str() == first,
            // A volume that csi-driver-nfs made has no record: what a provisioner names volumes is no name for a claim.
            None => VolumeName::is_provisioners(first),
        };
        if is_anothers {
            let (subdir, share) = (self.subdir.to_string(), export.share().to_string());
            return Err(CreateError::Anothers { subdir, directory: first.to_owned(), share });
        }
        Ok(())
    }

    /// After a failure: nobody may ever ask again. What cannot be taken back now is swept later.
    pub(super) fn take_back_claim(&self, export: &Export) {
        if self.subdir_given
            && let Err(error) = export.take_back_claim(&self.subdir, &self.key, self.owner.as_deref())
        {
            tracing::warn!(share = %export.share(), %error, "a claim that is not needed any more is swept later");
        }
    }

    /// The record of the volume, without a limit.
    pub(super) fn record(&self) -> Record {
        let record = Record {
            subdir_given: self.subdir_given,
            capacity_bytes: self.capacity.capacity(),
            on_delete: self.on_delete,
            on_delete_given: self.on_delete_given,
            permissions: self.attributes.mode.and_then(Mode::from_bits),
            uid: self.attributes.uid,
            gid: self.attributes.gid,
            source: self.source.as_ref().map(Source::recorded),
            trash_retention: self.trash_retention.map(|retention| retention.as_secs()),
            owner: self.owner.clone(),
            claim: self.claim.clone(),
            server: Some(self.share.server().to_string()),
            ..Record::new(self.name.to_string(), self.subdir.clone())
        };
        if self.is_limited() { record.with_quota(self.recorded_quota(None)) } else { record }
    }

    /// Takes the volume that exists under the name, if it is what is asked for.
    pub(super) fn accept(&self, record: &Record) -> Result<Volume, CreateError> {
        let refuse = |has: String, wanted: String| {
            let (name, share) = (self.name.to_string(), self.share.to_string());
            Err(CreateError::Exists { name, share, has, wanted })
        };
        if record.name != self.name.as_str() {
            return refuse(format!("the name {}", record.name), "a name whose hash is the same".into());
        }
        if record.subdir != self.subdir || record.subdir_given != self.subdir_given {
            return refuse(format!("subDir {}", record.subdir), format!("subDir {}", self.subdir));
        }
        let source = self.source.as_ref().map(Source::recorded);
        if record.source != source {
            let name = |source: &Option<RecordedSource>| match source {
                Some(source) => format!("the data of {source}"),
                None => "no data from elsewhere".into(),
            };
            return refuse(name(&record.source), name(&source));
        }
        if !self.capacity.admits(record.capacity_bytes) {
            return refuse(format!("{} bytes", record.capacity_bytes), format!("a size of {}", self.capacity));
        }
        if self.on_delete_given && record.on_delete != self.on_delete {
            return refuse(format!("onDelete {}", record.on_delete), format!("onDelete {}", self.on_delete));
        }
        if let Err((has, wanted)) = self.accept_attributes(record) {
            return refuse(has, wanted);
        }
        Ok(self.volume(record))
    }

    /// What the request says of the directory itself; what it does not say, any volume fits. Otherwise what the volume
    /// has, and what is wanted.
    fn accept_attributes(&self, record: &Record) -> Result<(), (String, String)> {
        let text = |name: &str, value: Option<String>| match value {
            Some(value) => format!("{name} {value}"),
            None => format!("no {name}"),
        };
        let octal = |mode: Mode| format!("{:04o}", mode.bits());
        let number = |number: u32| number.to_string();
        let has_quota = record.quota.unwrap_or_default();
        for (name, has, wanted) in [
            ("mode", record.permissions.map(octal), self.class_mode.map(octal)),
            ("uid", record.uid.map(number), self.attributes.uid.map(number)),
            ("gid", record.gid.map(number), self.attributes.gid.map(number)),
            (
                "trashRetention in seconds",
                record.trash_retention.map(|seconds| seconds.to_string()),
                self.trash_retention.map(|retention| retention.as_secs().to_string()),
            ),
            ("quota", Some(has_quota.mode.to_string()), Some(self.quota.mode.to_string())),
            (
                "inodesPerGiB",
                has_quota.inodes_per_gib.map(|inodes| inodes.to_string()),
                self.quota.inodes_per_gib.filter(|_| self.is_limited()).map(|inodes| inodes.to_string()),
            ),
            ("cluster", record.owner.clone(), self.owner.clone().filter(|_| record.owner.is_some())),
        ] {
            if wanted.is_some() && wanted != has {
                return Err((text(name, has), text(name, wanted)));
            }
        }
        Ok(())
    }

    fn volume(&self, record: &Record) -> Volume {
        let id =
            VolumeId::for_volume(self.share.clone(), &self.name, &self.subdir, self.subdir_given, record.on_delete);
        Volume {
            id,
            capacity_bytes: record.capacity_bytes,
            subdir: self.subdir.clone(),
            is_unenforced: self.is_limited() && record.project().is_none(),
        }
    }
}
