//! CreateVolume: the directory, its owner and mode, then the record that makes it a volume.

use std::sync::Arc;

use thiserror::Error;

use super::{Controller, IsStale, Settings, job_key};
use crate::export::catalog::{Created, Record};
use crate::export::{Export, ExportError};
use crate::jobs::JobError;
use crate::mount::options::Options;
use crate::tree::make::{self, Attributes};
use crate::volume::access::{CapacityRange, Mode, OnDelete};
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
    /// The mount options of the StorageClass and of the secret.
    pub options: Options,
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
        let key = job_key(&plan.share, &plan.key);
        let fingerprint = format!("{plan:?} {:?}", request.options);
        let controller = Arc::clone(self);
        let work = async move {
            let share = plan.share.clone();
            let work = move |export: &Export| plan.carry_out(export);
            controller.on(&share, &request.options, work).await.map(|(volume, _)| volume)
        };
        self.jobs.run(key, "CreateVolume", fingerprint, work).await?
    }
}

/// What is to be there in the end.
#[derive(Clone, Debug)]
struct Plan {
    share: Share,
    name: VolumeName,
    key: RecordKey,
    subdir: SubDir,
    subdir_given: bool,
    capacity: CapacityRange,
    on_delete: OnDelete,
    on_delete_given: bool,
    attributes: Attributes,
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
            on_delete: parameters.on_delete.unwrap_or(settings.default_on_delete),
            on_delete_given: parameters.on_delete.is_some(),
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
    fn take_back_claim(&self, export: &Export) {
        // Another replica may have been luckier: then the claim is its volume's.
        if self.subdir_given && matches!(export.record(&self.key), Ok(None)) {
            let _ = export.release(&self.subdir, &self.key);
        }
    }

    fn record(&self) -> Record {
        Record {
            subdir_given: self.subdir_given,
            capacity_bytes: self.capacity.capacity(),
            on_delete: self.on_delete,
            permissions: self.attributes.mode.and_then(Mode::from_bits),
            uid: self.attributes.uid,
            gid: self.attributes.gid,
            ..Record::new(self.name.to_string(), self.subdir.clone())
        }
    }

    /// Takes the volume that exists under the name, if it is what is asked for.
    fn accept(&self, record: &Record) -> Result<Volume, CreateError> {
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
