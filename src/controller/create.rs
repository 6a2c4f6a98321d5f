//! CreateVolume: the directory, its owner and mode, then the record that makes it a volume. (With data from elsewhere:
//! fill.rs.)

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Controller, IsStale, Settings, job_key, snapshot_key};
use crate::export::catalog::{Created, Record};
use crate::export::{Export, ExportError};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::tree::make::{self, Attributes};
use crate::volume::access::{CapacityRange, Mode, OnDelete};
use crate::volume::content::{RecordedSource, Source};
use crate::volume::id::VolumeId;
use crate::volume::name::{RecordKey, VolumeName};
use crate::volume::parameters::CreateParameters;
use crate::volume::share::Share;
use crate::volume::subdir::{SubDir, TemplateError};

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
    /// The mount options of the StorageClass and of the secret.
    pub options: Options,
    /// How long the caller waits.
    pub patience: Option<Duration>,
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

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
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
        let plan = Plan::new(&self.settings, &request)?;
        let job = Job {
            reads: plan.source.as_ref().map(source_key),
            patience: request.patience,
            ..Job::short(job_key(&plan.share, &plan.key), "CreateVolume", format!("{plan:?} {:?}", request.options))
        };
        let progress = Arc::clone(&job.progress);
        let controller = Arc::clone(self);
        let work = async move {
            if let Some(source) = plan.source.clone() {
                return controller.fill(plan, source, &request.options, &progress).await;
            }
            let share = plan.share.clone();
            let work = move |export: &Export| plan.carry_out(export);
            controller.on(&share, &request.options, work).await.map(|(volume, _)| volume)
        };
        self.jobs.run(job, work).await?
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
    on_delete: OnDelete,
    on_delete_given: bool,
    trash_retention: Option<Duration>,
    owner: Option<String>,
}

impl Plan {
    fn new(settings: &Settings, request: &CreateVolume) -> Result<Self, TemplateError> {
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
            trash_retention: parameters.trash_retention,
            on_delete: parameters.on_delete.unwrap_or(settings.default_on_delete),
            on_delete_given: parameters.on_delete.is_some(),
            owner: settings.cluster.clone(),
            attributes: Attributes {
                mode: parameters.permissions.or(settings.default_permissions).map(Mode::bits),
                uid: parameters.owner.uid,
                gid: parameters.owner.gid,
            },
        })
    }

    fn carry_out(&self, export: &Export) -> Result<Volume, CreateError> {
        if let Some(record) = export.record(&self.key)? {
            return self.accept(&record);
        }
        if self.subdir_given {
            // Others may name the same directory: this volume's claim comes before the directory, so that a delete of
            // theirs leaves it.
            export.claim(&self.subdir, &self.key)?;
            export.alone(&self.subdir, || self.make(export))
        } else {
            self.make(export)
        }
    }

    fn make(&self, export: &Export) -> Result<Volume, CreateError> {
        self.make_directory(export).inspect_err(|_| self.take_back_claim(export))?;
        match export.create_record(&self.key, &self.record())? {
            Created::Before(record) => self.accept(&record),
            Created::Now => {
                // Another process's delete of the directory that both name may have begun before the claim.
                if self.subdir_given && !export.has_directory(&self.subdir)? {
                    self.make_directory(export)?;
                }
                Ok(self.volume(self.capacity.capacity(), self.on_delete))
            }
        }
    }

    fn make_directory(&self, export: &Export) -> Result<(), ExportError> {
        let components: Vec<&str> = self.subdir.components().collect();
        make::directory(export.root(), &components, self.attributes).map_err(|(component, errno)| {
            let path = self.subdir.to_string();
            let path = if component == path { path } else { format!("{path} (at {component})") };
            export.failed("make the directory", path, errno)
        })
    }

    /// After a failure: nobody may ever ask again. What cannot be taken back now, a retry's success makes right.
    pub(super) fn take_back_claim(&self, export: &Export) {
        // Another replica may have been luckier: then the claim is its volume's.
        if self.subdir_given && matches!(export.record(&self.key), Ok(None)) {
            let _ = export.release(&self.subdir, &self.key);
        }
    }

    pub(super) fn record(&self) -> Record {
        Record {
            subdir_given: self.subdir_given,
            capacity_bytes: self.capacity.capacity(),
            on_delete: self.on_delete,
            permissions: self.attributes.mode.and_then(Mode::from_bits),
            uid: self.attributes.uid,
            gid: self.attributes.gid,
            source: self.source.as_ref().map(Source::recorded),
            trash_retention: self.trash_retention.map(|retention| retention.as_secs()),
            owner: self.owner.clone(),
            ..Record::new(self.name.to_string(), self.subdir.clone())
        }
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
        Ok(self.volume(record.capacity_bytes, record.on_delete))
    }

    fn volume(&self, capacity_bytes: u64, on_delete: OnDelete) -> Volume {
        Volume {
            id: VolumeId::for_volume(self.share.clone(), &self.name, &self.subdir, self.subdir_given, on_delete),
            capacity_bytes,
            subdir: self.subdir.clone(),
        }
    }
}
