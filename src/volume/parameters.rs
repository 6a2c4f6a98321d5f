//! What users write: the parameters of a `StorageClass`, the attributes of a `PersistentVolume`, and secrets.
//!
//! The keys and their meaning are csi-driver-nfs's, in any case. An unknown parameter of a class is an error, for a
//! mistyped `subDir` would otherwise give another directory. An unknown attribute of a volume has no effect, as with
//! csi-driver-nfs: a `PersistentVolume` cannot be corrected, and would never be mounted again. An optional key with an
//! empty value is as good as none; all other values are taken as they are, white space included.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;

use super::access::{Mode, ModeError, OnDelete, OnDeleteError};
use super::duration::{self, DurationError};
use super::path::PathError;
use super::quote::quote;
use super::share::{Server, ServerError, Share, SharePath};
use super::shared_tree::SharedTree;
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
/// A `PersistentVolume` has its `StorageClass`'s parameters too: the controller hands them through.
const PUBLISH_KEYS: &[&str] = &[
    SERVER,
    SHARE,
    SUB_DIR,
    MOUNT_OPTIONS,
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
    INLINE_SCRATCH,
];
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
        let mut values = Values::of_class(parameters, SNAPSHOT_KEYS, &[])?;
        if values.0.contains_key(SERVER) || values.0.contains_key(SHARE) {
            values.0.entry(SERVER).or_insert(volume.server().as_str());
            values.0.entry(SHARE).or_insert(volume.path().as_str());
        }
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
        const METADATA: &[&str] = &[PVC_NAME, PVC_NAMESPACE, PV_NAME, EPHEMERAL];
        let (values, others) = Values::read(context, PUBLISH_KEYS, METADATA)?;
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

/// The values under known keys, by the key's one spelling.
struct Values<'a>(BTreeMap<&'static str, &'a str>);

impl<'a> Values<'a> {
    /// Sorts out keys: `known` ones of the user's and those that `others` send have their values read; the rest is
    /// given too, in order.
    fn read(
        pairs: impl IntoIterator<Item = Pair<'a>>,
        known: &[&'static str],
        others: &[&'static str],
    ) -> Result<(Self, Vec<&'a str>)> {
        // In order, so that the same mistake always gives the same message.
        let in_order: BTreeMap<&String, &String> = pairs.into_iter().collect();
        let mut spellings: BTreeMap<&'static str, &str> = BTreeMap::new();
        let mut values = BTreeMap::new();
        let mut rest = Vec::new();
        for (spelling, value) in in_order {
            let Some(key) = known.iter().chain(others).find(|key| key.eq_ignore_ascii_case(spelling)) else {
                rest.push(spelling.as_str());
                continue;
            };
            if let Some(first) = spellings.insert(key, spelling) {
                return Err(ParameterError::Twice { first: quote(first), second: quote(spelling) });
            }
            values.insert(*key, value.as_str());
        }
        Ok((Self(values), rest))
    }

    /// Of the parameters of a class the rest must be Kubernetes'.
    fn of_class(
        parameters: impl IntoIterator<Item = Pair<'a>>,
        known: &[&'static str],
        others: &[&'static str],
    ) -> Result<Self> {
        let (values, rest) = Self::read(parameters, known, others)?;
        match rest.into_iter().find(|key| !key.to_ascii_lowercase().starts_with(KUBERNETES)) {
            Some(key) => Err(ParameterError::Unknown { key: quote(key), known: known.join(", ") }),
            None => Ok(values),
        }
    }

    fn of_storage_class(parameters: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        Self::of_class(parameters, CREATE_KEYS, &[PVC_NAME, PVC_NAMESPACE, PV_NAME])
    }

    /// The value of an optional key.
    fn get(&self, key: &'static str) -> Option<&'a str> {
        self.0.get(key).copied().filter(|value| !value.is_empty())
    }

    fn on_delete(&self) -> Result<Option<OnDelete>> {
        self.get(ON_DELETE).map(OnDelete::parse).transpose().map_err(ParameterError::OnDelete)
    }

    fn trash_retention(&self) -> Result<Option<Duration>> {
        self.get(TRASH_RETENTION).map(duration::parse).transpose().map_err(ParameterError::TrashRetention)
    }

    fn quota(&self) -> Result<QuotaPolicy> {
        let policy = QuotaPolicy {
            mode: self.quota_mode()?.unwrap_or_default(),
            inodes_per_gib: self.inodes_per_gib()?,
            root_exempt: self.truth(ROOT_EXEMPT)?.unwrap_or(false),
            overcommit: self.get(OVERCOMMIT).map(Overcommit::parse).transpose().map_err(ParameterError::Overcommit)?,
        };
        if policy.mode == QuotaMode::None && policy.overcommit.is_some() {
            return Err(ParameterError::WithoutQuota { key: OVERCOMMIT });
        }
        Ok(policy)
    }

    fn quota_mode(&self) -> Result<Option<QuotaMode>> {
        self.get(QUOTA).map(QuotaMode::parse).transpose().map_err(ParameterError::Quota)
    }

    fn inodes_per_gib(&self) -> Result<Option<NonZeroU64>> {
        let Some(text) = self.get(INODES_PER_GIB) else { return Ok(None) };
        let number = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|text| text.parse().ok()) {
            Some(inodes) => Ok(Some(inodes)),
            None => Err(ParameterError::Inodes { value: quote(text) }),
        }
    }

    /// Server and share; none if neither is there.
    fn share(&self) -> Result<Option<Share>> {
        let value = |key| match self.0.get(key) {
            Some(&"") => Err(ParameterError::Empty { key }),
            value => Ok(value.copied()),
        };
        match (value(SERVER)?, value(SHARE)?) {
            (Some(server), Some(path)) => {
                let server = Server::parse(server).map_err(ParameterError::Server)?;
                Ok(Some(Share::new(server, SharePath::parse(path).map_err(ParameterError::Share)?)))
            }
            (Some(_), None) => Err(ParameterError::Incomplete { has: SERVER, lacks: SHARE }),
            (None, Some(_)) => Err(ParameterError::Incomplete { has: SHARE, lacks: SERVER }),
            (None, None) => Ok(None),
        }
    }

    fn template(&self) -> Result<Option<Template>> {
        self.get(SUB_DIR).map(Template::parse).transpose().map_err(ParameterError::SubDir)
    }

    /// The directory to mount. Slashes alone mean the share itself, as no value does.
    fn subdir(&self) -> Result<Option<SubDir>> {
        let Some(path) = self.get(SUB_DIR).filter(|path| !path.trim_matches('/').is_empty()) else { return Ok(None) };
        // The controller gives it to volumes that read a snapshot.
        if let Some(tree) = SharedTree::at_path(path) {
            return Ok(Some(SubDir::of_shared_tree(&tree)));
        }
        let render = |template: Template| template.render(&self.metadata()).map_err(ParameterError::SubDir);
        self.template()?.map(render).transpose()
    }

    fn metadata(&self) -> Metadata {
        let value = |key| self.get(key).map(str::to_owned);
        Metadata { pvc_name: value(PVC_NAME), pvc_namespace: value(PVC_NAMESPACE), pv_name: value(PV_NAME) }
    }

    fn permissions(&self) -> Result<Option<Mode>> {
        match (self.permission_bits(MODE)?, self.permission_bits(MOUNT_PERMISSIONS)?) {
            (Some(mode), Some(mount_permissions)) if mode != mount_permissions => {
                Err(ParameterError::TwoModes { mode, mount_permissions })
            }
            (mode, mount_permissions) => Ok(mode.or(mount_permissions)),
        }
    }

    /// Permission bits; 0 means that they stay as they are.
    fn permission_bits(&self, key: &'static str) -> Result<Option<Mode>> {
        let mode = self.get(key).map(Mode::parse).transpose().map_err(|error| ParameterError::Mode { key, error })?;
        Ok(mode.filter(|mode| mode.bits() != 0))
    }

    /// The number of a user or group. chown(2) takes the highest one for "as it is".
    fn owner(&self, key: &'static str) -> Result<Option<u32>> {
        let number = |value: &str| {
            let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|&number| is_digits && number != u32::MAX);
            number.ok_or_else(|| ParameterError::Owner { key, value: quote(value) })
        };
        self.get(key).map(number).transpose()
    }

    fn truth(&self, key: &'static str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(value) if value.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(value) => Err(ParameterError::Truth { key, value: quote(value) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// A map with a server and a share, and more.
    fn with(more: &[(&str, &str)]) -> HashMap<String, String> {
        let mut all = map(&[("server", "nas"), ("share", "/export")]);
        all.extend(map(more));
        all
    }

    fn created(more: &[(&str, &str)]) -> CreateParameters {
        CreateParameters::parse(&with(more)).unwrap()
    }

    fn refused(more: &[(&str, &str)]) -> ParameterError {
        CreateParameters::parse(&with(more)).unwrap_err()
    }

    fn published(more: &[(&str, &str)]) -> PublishParameters {
        PublishParameters::parse(&with(more)).unwrap()
    }

    fn publish_refused(pairs: &[(&str, &str)]) -> ParameterError {
        PublishParameters::parse(&map(pairs)).unwrap_err()
    }

    #[test]
    fn a_storage_class_needs_server_and_share_only() {
        let parameters = created(&[]);
        assert_eq!(parameters.share.to_string(), "nas:/export");
        assert_eq!((parameters.template, parameters.on_delete, parameters.permissions), (None, None, None));
        assert_eq!((parameters.owner, parameters.metadata), (Owner::default(), Metadata::default()));
    }

    #[test]
    fn a_storage_class_is_read_whole_with_keys_in_any_case() {
        let parameters = created(&[
            ("SUBDIR", "${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}"),
            ("ondelete", "Retain"),
            ("MountPermissions", "0770"),
            ("uid", "1000"),
            ("GID", "0"),
            ("mode", "770"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/PVC/namespace", "team"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
            ("csi.storage.k8s.io/provisioner-secret-name", "ignored"),
            ("CSI.storage.k8s.io/fstype", "nfs"),
        ]);
        let subdir = parameters.template.unwrap().render(&parameters.metadata).unwrap();
        assert_eq!(subdir.as_str(), "team/data-pvc-1");
        assert_eq!(parameters.on_delete, Some(OnDelete::Retain));
        assert_eq!(parameters.permissions.map(Mode::bits), Some(0o770));
        assert_eq!(parameters.owner, Owner { uid: Some(1000), gid: Some(0) });
    }

    #[test]
    fn optional_parameters_without_a_value_are_as_good_as_none() {
        let keys = ["subDir", "onDelete", "mountPermissions", "mode", "uid", "gid", "csi.storage.k8s.io/pvc/name"];
        assert_eq!(created(&keys.map(|key| (key, ""))), created(&[]));
        assert_eq!(created(&[("mountPermissions", "0"), ("mode", "0")]).permissions, None);
        assert_eq!(created(&[("mountPermissions", "0"), ("mode", "0750")]).permissions, Mode::from_bits(0o750));
        assert_eq!(created(&[("mountPermissions", "0750"), ("mode", "")]).permissions, Mode::from_bits(0o750));
    }

    #[test]
    fn a_parameter_that_is_missing_or_empty_is_named() {
        let parse = |pairs: &[(&str, &str)]| CreateParameters::parse(&map(pairs)).unwrap_err();
        assert_eq!(parse(&[]), ParameterError::Missing { key: "server" });
        assert_eq!(parse(&[("server", "nas")]), ParameterError::Incomplete { has: "server", lacks: "share" });
        assert_eq!(parse(&[("share", "/x")]), ParameterError::Incomplete { has: "share", lacks: "server" });
        assert_eq!(refused(&[("server", "")]), ParameterError::Empty { key: "server" });
        assert_eq!(refused(&[("share", "")]), ParameterError::Empty { key: "share" });
    }

    #[test]
    fn an_unknown_parameter_is_named_with_the_known_ones() {
        for key in ["sub-dir", "", "subDir ", "example.com/x", "csi.storage.k8s.io", "mountOptions"] {
            let error = refused(&[(key, "x")]);
            assert!(matches!(&error, ParameterError::Unknown { key: named, .. } if *named == quote(key)), "{error}");
            assert!(CREATE_KEYS.iter().all(|known| error.to_string().contains(known)), "{error}");
        }
        // The same mistakes give the same message every time.
        let first = refused(&[("x", ""), ("y", ""), ("z", "")]);
        assert!((0..20).all(|_| refused(&[("x", ""), ("y", ""), ("z", "")]) == first));
    }

    #[test]
    fn one_parameter_in_two_spellings_is_refused() {
        let twice = |first: &str, second: &str| ParameterError::Twice { first: quote(first), second: quote(second) };
        assert_eq!(refused(&[("Server", "nas")]), twice("Server", "server"));
        assert_eq!(refused(&[("subDir", "a"), ("subdir", "a")]), twice("subDir", "subdir"));
        assert_eq!(refused(&[("UID", ""), ("uid", "")]), twice("UID", "uid"));
    }

    #[test]
    fn a_value_that_is_wrong_is_named_with_its_key() {
        let cases = [
            (("server", "a b"), "\"a b\""),
            (("share", "/a/../b"), "share: \"/a/../b\""),
            (("subDir", "${node.name}"), "subDir: the variable \"${node.name}\""),
            (("onDelete", "burn"), "onDelete: \"burn\""),
            (("mountPermissions", "0999"), "mountPermissions: \"0999\""),
            (("mode", "77777"), "mode: \"77777\""),
            (("uid", "root"), "uid: \"root\""),
            (("uid", "+1"), "uid: \"+1\""),
            (("gid", "-1"), "gid: \"-1\""),
            (("gid", "4294967295"), "gid: \"4294967295\""),
            (("gid", " 1"), "gid: \" 1\""),
        ];
        for ((key, value), named) in cases {
            let mut parameters = with(&[]);
            parameters.insert(key.into(), value.into());
            let message = CreateParameters::parse(&parameters).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
        let modes = refused(&[("mode", "0750"), ("mountPermissions", "0755")]);
        assert_eq!(modes.to_string(), "mode is 0750 and mountPermissions is 0755: they mean the same, keep one");
        assert_eq!(created(&[("uid", "4294967294")]).owner.uid, Some(u32::MAX - 1));
    }

    #[test]
    fn capacity_is_asked_of_one_share_or_of_all() {
        assert_eq!(capacity_of(&map(&[])), Ok((None, None)));
        let capacity = capacity_of(&with(&[("onDelete", "retain"), ("csi.storage.k8s.io/fstype", "x")]));
        assert_eq!(capacity, Ok(("nas:/export".parse().ok(), None)));
        let bound = capacity_of(&with(&[("quota", "required"), ("overcommit", "1.5")])).unwrap().1;
        assert_eq!(bound, Overcommit::parse("1.5").ok());
        assert!(matches!(capacity_of(&with(&[("sub-dir", "")])), Err(ParameterError::Unknown { .. })));
        assert!(matches!(capacity_of(&map(&[("server", "nas")])), Err(ParameterError::Incomplete { .. })));
    }

    #[test]
    fn a_volume_of_ours_is_published_with_what_its_storage_class_says() {
        let parameters = published(&[
            ("subdir", "/team/data/"),
            ("mountOptions", "nfsvers=4.1,hard"),
            ("mountPermissions", "0750"),
            ("onDelete", "whatever"),
            ("uid", "whatever"),
            ("gid", "whatever"),
            ("mode", "whatever"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "1700000000000-8081-nfs.csi.k8s.io"),
            ("csi.storage.k8s.io/ephemeral", "false"),
            ("csi.storage.k8s.io/pod.name", "web-0"),
        ]);
        assert_eq!(parameters.share.unwrap().to_string(), "nas:/export");
        assert_eq!(parameters.subdir.unwrap().as_str(), "team/data");
        assert_eq!(parameters.mount_options.as_deref(), Some("nfsvers=4.1,hard"));
        assert_eq!(parameters.permissions, Mode::from_bits(0o750));
        assert!(!parameters.ephemeral);
    }

    #[test]
    fn a_static_volume_s_subdir_may_be_a_template_and_none_means_the_share() {
        let metadata = [("csi.storage.k8s.io/pvc/name", "data"), ("subDir", "x/${pvc.metadata.name}")];
        assert_eq!(published(&metadata).subdir.unwrap().as_str(), "x/data");
        for more in [&[][..], &[("subDir", "")], &[("subDir", "/")]] {
            assert_eq!(published(more).subdir, None);
        }
        for path in ["../x", "a//b", ".nfs-csi", "a/${pv.metadata.name}", "${"] {
            let error = publish_refused(&[("server", "nas"), ("share", "/x"), ("subDir", path)]);
            assert!(matches!(error, ParameterError::SubDir(_)), "{error}");
        }
    }

    #[test]
    fn attributes_without_server_and_share_leave_the_place_to_the_id() {
        assert_eq!(PublishParameters::parse(&map(&[("mountPermissions", "0")])).unwrap().share, None);
        let incomplete = |has, lacks| ParameterError::Incomplete { has, lacks };
        assert_eq!(publish_refused(&[("server", "nas")]), incomplete("server", "share"));
        assert_eq!(publish_refused(&[("share", "/x")]), incomplete("share", "server"));
        assert_eq!(publish_refused(&[("subDir", "x")]), incomplete("subDir", "server"));
        assert_eq!(publish_refused(&[("server", ""), ("share", "")]), ParameterError::Empty { key: "server" });
    }

    #[test]
    fn unknown_attributes_of_a_volume_are_reported_without_their_values_and_those_of_others_are_not() {
        let parameters = published(&[
            ("sub-dir", "hunter2"),
            ("subDirectory", "hunter2"),
            ("two\nlines", ""),
            ("csi.storage.k8s.io/serviceAccount.tokens", "hunter2"),
            ("CSI.storage.k8s.io/pod.uid", ""),
            ("storage.kubernetes.io/csiProvisionerIdentity", ""),
            ("example.com/note", ""),
        ]);
        assert_eq!(parameters.unknown, ["\"sub-dir\"", "\"subDirectory\"", "\"two\\nlines\""]);
        assert_eq!(PublishParameters { unknown: Vec::new(), ..parameters }, published(&[]));
    }

    #[test]
    fn one_attribute_in_two_spellings_is_refused() {
        let error = publish_refused(&[("subDir", "x"), ("SUBDIR", "y")]);
        assert!(matches!(error, ParameterError::Twice { .. }), "{error}");
    }

    #[test]
    fn whether_a_volume_is_inline_is_true_or_false() {
        assert!(published(&[("csi.storage.k8s.io/ephemeral", "True")]).ephemeral);
        assert!(published(&[("inlinescratch", "true")]).inline_scratch && !published(&[]).inline_scratch);
        let error = publish_refused(&[("csi.storage.k8s.io/ephemeral", "maybe")]);
        assert_eq!(error.to_string(), "csi.storage.k8s.io/ephemeral: \"maybe\" is neither true nor false");
    }

    #[test]
    fn a_secret_tells_its_mount_options_and_shows_none() {
        let secrets = Secrets::parse(&map(&[("MOUNTOPTIONS", "sec=krb5"), ("password", "hunter2")])).unwrap();
        assert_eq!(secrets.mount_options.as_deref(), Some("sec=krb5"));
        assert_eq!(format!("{secrets:?}"), "Secrets { .. }");
        assert_eq!(Secrets::parse(&map(&[("mountOptions", "")])), Ok(Secrets::default()));
        let twice = Secrets::parse(&map(&[("mountOptions", "sec=krb5"), ("mountoptions", "hunter2")])).unwrap_err();
        assert!(!format!("{twice} {twice:?}").contains("krb5") && !twice.to_string().contains("hunter2"));
    }

    #[test]
    fn the_driver_s_own_folder_is_no_share_and_in_no_share() {
        for path in ["/.nfs-csi", "/export/.nfs-csi/trash"] {
            let error = CreateParameters::parse(&map(&[("server", "nas"), ("share", path)])).unwrap_err();
            assert!(matches!(error, ParameterError::Share(PathError::Reserved { .. })), "{error}");
        }
    }

    #[test]
    fn limits_are_said_by_the_class_and_a_volume_attributes_class_goes_before_it() {
        let parse = |more: &[(&str, &str)]| CreateParameters::parse(&with(more)).map(|parameters| parameters.quota);
        assert_eq!(parse(&[]), Ok(QuotaPolicy::default()));
        let all = [("quota", "Preferred"), ("inodesPerGiB", "1000"), ("rootExempt", "true"), ("overcommit", "2")];
        let policy = QuotaPolicy {
            mode: QuotaMode::Preferred,
            inodes_per_gib: NonZeroU64::new(1000),
            root_exempt: true,
            overcommit: Overcommit::parse("2").ok(),
        };
        assert_eq!(parse(&all), Ok(policy));
        for (key, value) in [("quota", "yes"), ("inodesPerGiB", "0"), ("inodesPerGiB", "+1"), ("overcommit", "x")] {
            let message = parse(&[("quota", "required"), (key, value)]).map(drop);
            let message = match (key, message) {
                // Given twice here.
                ("quota", _) => parse(&[(key, value)]).unwrap_err(),
                (_, message) => message.unwrap_err(),
            };
            assert!(message.to_string().starts_with(&format!("{key}: ")), "{message}");
        }
        assert!(matches!(parse(&[("overcommit", "2")]), Err(ParameterError::WithoutQuota { .. })));

        let mutable = MutableParameters::parse(&map(&[("quota", "required"), ("ondelete", "retain")])).unwrap();
        let changed = CreateParameters::parse(&with(&all)).unwrap().changed(&mutable);
        assert_eq!(changed.quota, QuotaPolicy { mode: QuotaMode::Required, ..policy });
        assert_eq!((changed.on_delete, changed.trash_retention), (Some(OnDelete::Retain), None));
        let error = MutableParameters::parse(&map(&[("server", "nas")])).unwrap_err().to_string();
        assert!(error.contains("onDelete, trashRetention, quota, inodesPerGiB"), "{error}");
    }

    proptest! {
        #[test]
        fn no_map_makes_the_parsers_panic(
            map in proptest::collection::hash_map(
                "(?i)server|share|subdir|ondelete|mode|uid|mountpermissions|csi\\.storage\\.k8s\\.io/pv/name|\\PC{0,9}",
                "\\PC{0,9}|[0-9./${}a]{0,9}|retain",
                0..6,
            ),
        ) {
            let _ = (CreateParameters::parse(&map), PublishParameters::parse(&map), capacity_of(&map));
            let _ = Secrets::parse(&map);
        }
    }
}
