//! What users write: the parameters of a `StorageClass`, the attributes of a `PersistentVolume`, and secrets.
//!
//! The keys and their meaning are csi-driver-nfs's, in any case. An unknown parameter of a class is an error, for a
//! mistyped `subDir` would otherwise give another directory. An unknown attribute of a volume has no effect, as with
//! csi-driver-nfs: a `PersistentVolume` cannot be corrected, and would never be mounted again. An optional key with an
//! empty value is as good as none; all other values are taken as they are, white space included.

mod values;

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;

use self::values::Values;
use super::access::{Mode, ModeError, OnDelete, OnDeleteError};
use super::duration::DurationError;
use super::path::PathError;
use super::quote::quote;
use super::share::{ServerError, Share};
use super::size_limit::{Overcommit, OvercommitError, QuotaMode, QuotaModeError, QuotaPolicy};
use super::snapshot_id::{FormatError, SnapshotFormat};
use super::subdir::{Metadata, SubDir, Template, TemplateError};

const SERVER: &str = "server";
const SHARE: &str = "share";
const SUB_DIR: &str = "subDir";
const ON_DELETE: &str = "onDelete";
const MOUNT_PERMISSIONS: &str = "mountPermissions";
const MODE: &str = "mode";
const UID: &str = "uid";
const GID: &str = "gid";
const MOUNT_OPTIONS: &str = "mountOptions";
const TRASH_RETENTION: &str = "trashRetention";
const INLINE_SCRATCH: &str = "inlineScratch";
const SNAPSHOT_FORMAT: &str = "snapshotFormat";
const BACKING_SNAPSHOT: &str = "backingSnapshot";
const QUOTA: &str = "quota";
const INODES_PER_GIB: &str = "inodesPerGiB";
const ROOT_EXEMPT: &str = "rootExempt";
const OVERCOMMIT: &str = "overcommit";

const CREATE_KEYS: &[&str] = &[
    SERVER,
    SHARE,
    SUB_DIR,
    ON_DELETE,
    TRASH_RETENTION,
    MOUNT_PERMISSIONS,
    MODE,
    UID,
    GID,
    BACKING_SNAPSHOT,
    QUOTA,
    INODES_PER_GIB,
    ROOT_EXEMPT,
    OVERCOMMIT,
];
/// What a `VolumeAttributesClass` may say.
const MUTABLE_KEYS: &[&str] = &[ON_DELETE, TRASH_RETENTION, QUOTA, INODES_PER_GIB];
const SNAPSHOT_KEYS: &[&str] = &[SERVER, SHARE, MOUNT_OPTIONS, SNAPSHOT_FORMAT];

/// What begins with this comes from Kubernetes' sidecars, not from the user.
const KUBERNETES: &str = "csi.storage.k8s.io/";
const PVC_NAME: &str = "csi.storage.k8s.io/pvc/name";
const PVC_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// What is wrong with parameters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ParameterError {
    #[error("parameter {key} is unknown; there are {known}")]
    Unknown { key: String, known: String },

    #[error("parameter {first} is there a second time as {second}: keys are the same in any case, keep one")]
    Twice { first: String, second: String },

    #[error("parameter {key} is missing: set it")]
    Missing { key: &'static str },

    #[error("parameter {key} is empty: give it a value")]
    Empty { key: &'static str },

    #[error("parameter {has} is there without {lacks}: give {lacks} too")]
    Incomplete { has: &'static str, lacks: &'static str },

    #[error("{0}")]
    Server(ServerError),

    #[error("share: {0}")]
    Share(PathError),

    #[error("subDir: {0}")]
    SubDir(TemplateError),

    #[error("onDelete: {0}")]
    OnDelete(OnDeleteError),

    #[error("{key}: {error}")]
    Mode { key: &'static str, error: ModeError },

    #[error("mode is {mode} and mountPermissions is {mount_permissions}: they mean the same, keep one")]
    TwoModes { mode: Mode, mount_permissions: Mode },

    #[error("{key}: {value} is no number of an owner: write it in digits, from 0 to 4294967294")]
    Owner { key: &'static str, value: String },

    #[error("trashRetention: {0}")]
    TrashRetention(DurationError),

    #[error("snapshotFormat: {0}")]
    SnapshotFormat(FormatError),

    #[error("{key}: {value} is neither true nor false")]
    Truth { key: &'static str, value: String },

    #[error("quota: {0}")]
    Quota(QuotaModeError),

    #[error("inodesPerGiB: {value} is no number of files and directories: write it in digits, from 1 on")]
    Inodes { value: String },

    #[error("overcommit: {0}")]
    Overcommit(OvercommitError),

    #[error("parameter {key} has no effect without limits: set quota to required or preferred, or leave {key} out")]
    WithoutQuota { key: &'static str },
}

/// A key and its value.
type Pair<'a> = (&'a String, &'a String);
type Result<T, E = ParameterError> = std::result::Result<T, E>;

/// Who owns a new volume's directory; what is not set stays as the server makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// The parameters of a `StorageClass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateParameters {
    /// Where volumes are made.
    pub share: Share,
    /// What tells a volume's directory; the volume's name without.
    pub template: Option<Template>,
    /// The values for the template.
    pub metadata: Metadata,
    /// What deleting a volume does; the operator's decision without.
    pub on_delete: Option<OnDelete>,
    /// How long a deleted volume can be brought back; the operator's decision without.
    pub trash_retention: Option<Duration>,
    /// The permission bits of a volume's directory; the operator's decision without. Never 0.
    pub permissions: Option<Mode>,
    /// The owner of a volume's directory.
    pub owner: Owner,
    /// Whether a volume that is only read, and made of a snapshot, is the snapshot's tree itself and no copy.
    pub backing_snapshot: bool,
    /// Whether the server holds a volume's size.
    pub quota: QuotaPolicy,
}

impl CreateParameters {
    /// Reads the parameters of a `CreateVolume` request.
    pub fn parse<'a>(parameters: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        let values = Values::of_storage_class(parameters)?;
        Ok(Self {
            share: values.share()?.ok_or(ParameterError::Missing { key: SERVER })?,
            template: values.template()?,
            metadata: values.metadata(),
            on_delete: values.on_delete()?,
            trash_retention: values.trash_retention()?,
            permissions: values.permissions()?,
            owner: Owner { uid: values.owner(UID)?, gid: values.owner(GID)? },
            backing_snapshot: values.truth(BACKING_SNAPSHOT)?.unwrap_or(true),
            quota: values.quota()?,
        })
    }

    /// The same with what a `VolumeAttributesClass` says besides, which goes before the class's.
    #[must_use]
    pub fn changed(mut self, mutable: &MutableParameters) -> Self {
        self.on_delete = mutable.on_delete.or(self.on_delete);
        self.trash_retention = mutable.trash_retention.or(self.trash_retention);
        self.quota.mode = mutable.quota.unwrap_or(self.quota.mode);
        self.quota.inodes_per_gib = mutable.inodes_per_gib.or(self.quota.inodes_per_gib);
        self
    }
}

/// The parameters of a `VolumeAttributesClass`: what is not set stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MutableParameters {
    /// What deleting the volume does.
    pub on_delete: Option<OnDelete>,
    /// How long it can be brought back.
    pub trash_retention: Option<Duration>,
    /// Whether the server holds its size.
    pub quota: Option<QuotaMode>,
    /// How many files and directories it may have for each GiB.
    pub inodes_per_gib: Option<NonZeroU64>,
}

impl MutableParameters {
    /// Reads the mutable parameters of a `CreateVolume` or `ControllerModifyVolume` request.
    pub fn parse<'a>(parameters: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        let values = Values::of_class(parameters, MUTABLE_KEYS, &[])?;
        Ok(Self {
            on_delete: values.on_delete()?,
            trash_retention: values.trash_retention()?,
            quota: values.quota_mode()?,
            inodes_per_gib: values.inodes_per_gib()?,
        })
    }
}

/// The parameters of a `VolumeSnapshotClass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotParameters {
    /// Where snapshots are kept; beside their volume without.
    pub share: Option<Share>,
    /// Mount options as mount(8) has them behind `-o`.
    pub mount_options: Option<String>,
    /// How they are kept.
    pub format: SnapshotFormat,
}

impl SnapshotParameters {
    /// Reads the parameters of a `CreateSnapshot` request. A server or a share alone replaces the volume's.
    pub fn parse<'a>(parameters: impl IntoIterator<Item = Pair<'a>>, volume: &Share) -> Result<Self> {
        let values = Values::of_class(parameters, SNAPSHOT_KEYS, &[])?.completed_by(volume);
        Ok(Self {
            share: values.share()?,
            mount_options: values.get(MOUNT_OPTIONS).map(str::to_owned),
            format: values
                .get(SNAPSHOT_FORMAT)
                .map(SnapshotFormat::parse)
                .transpose()
                .map_err(ParameterError::SnapshotFormat)?
                .unwrap_or_default(),
        })
    }
}

/// The share whose capacity is asked for with a `StorageClass`'s parameters (none if they name none), and how much may
/// be promised of it.
pub fn capacity_of<'a>(parameters: impl IntoIterator<Item = Pair<'a>>) -> Result<(Option<Share>, Option<Overcommit>)> {
    let values = Values::of_storage_class(parameters)?;
    Ok((values.share()?, values.quota()?.overcommit))
}

/// The attributes of a `PersistentVolume`, or of an inline volume: what a node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishParameters {
    /// Where the volume is; none if its id has to tell.
    pub share: Option<Share>,
    /// The volume's directory; the share itself without.
    pub subdir: Option<SubDir>,
    /// Mount options as mount(8) has them behind `-o`.
    pub mount_options: Option<String>,
    /// The permission bits that the volume's directory is to have. Never 0.
    pub permissions: Option<Mode>,
    /// Whether the volume lives and dies with its pod.
    pub ephemeral: bool,
    /// Whether it is to be a directory of the pod's own.
    pub inline_scratch: bool,
    /// Attributes that have no effect, for nothing knows them: their keys, quoted and in order. Kubernetes' own and
    /// those of other programs, which have a `/`, are not among them.
    pub unknown: Vec<String>,
}

impl PublishParameters {
    /// Reads the volume context of a `NodePublishVolume` request.
    pub fn parse<'a>(context: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        // The controller hands the parameters of the StorageClass through.
        const MORE: &[&str] = &[MOUNT_OPTIONS, INLINE_SCRATCH, PVC_NAME, PVC_NAMESPACE, PV_NAME, EPHEMERAL];
        let (values, others) = Values::read(context, CREATE_KEYS, MORE)?;
        let share = values.share()?;
        // A directory of nothing: the id would tell another one.
        if share.is_none() && values.get(SUB_DIR).is_some() {
            return Err(ParameterError::Incomplete { has: SUB_DIR, lacks: SERVER });
        }
        Ok(Self {
            share,
            subdir: values.subdir()?,
            mount_options: values.get(MOUNT_OPTIONS).map(str::to_owned),
            permissions: values.permission_bits(MOUNT_PERMISSIONS)?,
            ephemeral: values.truth(EPHEMERAL)?.unwrap_or(false),
            inline_scratch: values.truth(INLINE_SCRATCH)?.unwrap_or(false),
            unknown: others.into_iter().filter(|key| !key.contains('/')).map(quote).collect(),
        })
    }
}

/// What a secret tells; other keys in it are somebody else's.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Mount options as mount(8) has them behind `-o`.
    pub mount_options: Option<String>,
}

impl Secrets {
    /// Reads the secrets of any request.
    pub fn parse<'a>(secrets: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        let (values, _) = Values::read(secrets, &[MOUNT_OPTIONS], &[])?;
        Ok(Self { mount_options: values.get(MOUNT_OPTIONS).map(str::to_owned) })
    }
}

/// Shows no value.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
