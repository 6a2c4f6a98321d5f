//! Raw messages become checked values; what is wrong with one is told by its own error, with INVALID_ARGUMENT unless
//! the specification has another code for it.

use std::collections::HashMap;
use std::path::{Component, Path};
use std::time::Duration;

use thiserror::Error;
use tonic::Code;

use super::status::ToStatus;
use crate::controller::{
    CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, ExpandVolume, Found, ModifyVolume, SnapshotFilter,
};
use crate::mount::options::{OptionError, Options};
use crate::node::{Inline, Publish};
use crate::proto;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode as ProtoMode;
use crate::proto::volume_content_source::Type as SourceType;
use crate::volume::access::{AccessMode, CapacityError, CapacityRange};
use crate::volume::content::Source;
use crate::volume::id::{IdError, VolumeId};
use crate::volume::inline_pattern::is_inline_id;
use crate::volume::name::{NameError, VolumeName};
use crate::volume::parameters::{
    CreateParameters, MutableParameters, ParameterError, PublishParameters, Secrets, SnapshotParameters, capacity_of,
};
use crate::volume::share::Share;
use crate::volume::size_limit::Overcommit;
use crate::volume::snapshot_id::SnapshotId;

/// The kernel's bound for a path.
const LONGEST_PATH: usize = 4095;

/// What is wrong with a request.
#[derive(Debug, Error)]
pub(super) enum RequestError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("{what} {error}")]
    Id { what: &'static str, error: IdError },
    #[error("there is no {what} with the id {id:?}: it is not one that this driver gives")]
    UnknownId { what: &'static str, id: String },
    #[error("{0}")]
    Parameter(#[from] ParameterError),
    #[error("mount options: {0}")]
    Option(#[from] OptionError),
    #[error("{0}")]
    Capacity(#[from] CapacityError),
    #[error("block volumes are not offered: an NFS export holds directories; ask for volumeMode: Filesystem")]
    Block,
    #[error("the volume capability names neither mount nor block")]
    NoAccessType,
    #[error("the volume capability has access mode {0}, which this driver does not know")]
    AccessMode(i32),
    #[error("{field} {path:?} is no absolute path without '.' and '..', of at most {LONGEST_PATH} bytes")]
    Path { field: &'static str, path: String },
    #[error("the volume's context names no server and share, and its id {id:?} does not tell them either: set both")]
    NoShare { id: String },
    #[error("{0}")]
    NotOffered(&'static str),
    #[error("{field} is {value}: it must not be negative")]
    Negative { field: &'static str, value: i32 },
}

impl ToStatus for RequestError {
    fn code(&self) -> Code {
        match self {
            Self::UnknownId { .. } => Code::NotFound,
            Self::Capacity(CapacityError::LimitBelowRequired { .. }) => Code::OutOfRange,
            _ => Code::InvalidArgument,
        }
    }
}

type Result<T, E = RequestError> = std::result::Result<T, E>;

pub(super) fn create_volume(request: &proto::CreateVolumeRequest, patience: Option<Duration>) -> Result<CreateVolume> {
    let name = VolumeName::parse(&request.name)?;
    let access = capabilities(&request.volume_capabilities)?;
    let mutable = MutableParameters::parse(&request.mutable_parameters)?;
    let readers_only = access.iter().all(|access| access.mode.read_only());
    let mut options = Options::default();
    for access in access {
        options = options.merged(access.options);
    }
    Ok(CreateVolume {
        name,
        parameters: CreateParameters::parse(&request.parameters)?.changed(&mutable),
        capacity: capacity(request.capacity_range.as_ref())?,
        source: request.volume_content_source.as_ref().map(source).transpose()?,
        readers_only,
        options: options.merged(secret_options(&request.secrets)?),
        patience,
    })
}

fn source(source: &proto::VolumeContentSource) -> Result<Source> {
    match &source.r#type {
        Some(SourceType::Volume(source)) => volume_id(&source.volume_id).map(Source::Volume),
        Some(SourceType::Snapshot(source)) => snapshot_id(&source.snapshot_id).map(Source::Snapshot),
        None => Err(RequestError::Missing("the type of volume_content_source")),
    }
}

pub(super) fn create_snapshot(
    request: &proto::CreateSnapshotRequest,
    patience: Option<Duration>,
) -> Result<CreateSnapshot> {
    let name = VolumeName::parse(&request.name)?;
    let volume = VolumeId::parse(known(&request.source_volume_id, "source_volume_id")?)
        .map_err(|error| id_error("volume", &request.source_volume_id, error))?;
    let parameters = SnapshotParameters::parse(&request.parameters, volume.share())?;
    let secret = secret_options(&request.secrets)?;
    let own = Options::parse(&parameters.mount_options)?.merged(secret.clone());
    let share = parameters.share.unwrap_or_else(|| volume.share().clone());
    Ok(CreateSnapshot { name, volume, share, format: parameters.format, options: [own, secret], patience })
}

/// The snapshot to delete; none if the id is none of this driver's: such a snapshot is gone already.
pub(super) fn delete_snapshot(request: &proto::DeleteSnapshotRequest) -> Result<Option<DeleteSnapshot>> {
    let Some(id) = known_id(snapshot_id(&request.snapshot_id))? else { return Ok(None) };
    Ok(Some(DeleteSnapshot { id, options: secret_options(&request.secrets)? }))
}

/// Which snapshots to list, and the secret's mount options; none if the filter names what cannot be.
pub(super) fn list_snapshots(request: &proto::ListSnapshotsRequest) -> Result<Option<(SnapshotFilter, Options)>> {
    let mut filter = SnapshotFilter::default();
    if !request.snapshot_id.is_empty() {
        let Some(id) = known_id(snapshot_id(&request.snapshot_id))? else { return Ok(None) };
        filter.id = Some(id);
    }
    filter.volume = Some(request.source_volume_id.clone()).filter(|id| !id.is_empty());
    Ok(Some((filter, secret_options(&request.secrets)?)))
}

pub(super) fn get_snapshot(request: &proto::GetSnapshotRequest) -> Result<(SnapshotId, Options)> {
    Ok((snapshot_id(&request.snapshot_id)?, secret_options(&request.secrets)?))
}

/// The volume to delete; none if the id is none of this driver's: such a volume is gone already.
pub(super) fn delete_volume(request: &proto::DeleteVolumeRequest) -> Result<Option<DeleteVolume>> {
    let Some(id) = known_id(volume_id(&request.volume_id))? else { return Ok(None) };
    Ok(Some(DeleteVolume { id, options: secret_options(&request.secrets)? }))
}

pub(super) fn expand_volume(request: &proto::ControllerExpandVolumeRequest) -> Result<ExpandVolume> {
    let id = volume_id(&request.volume_id)?;
    let Some(range) = &request.capacity_range else { return Err(RequestError::Missing("capacity_range")) };
    if let Some(access) = &request.volume_capability {
        capability(access)?;
    }
    Ok(ExpandVolume { id, capacity: capacity(Some(range))?, options: secret_options(&request.secrets)? })
}

pub(super) fn modify_volume(request: &proto::ControllerModifyVolumeRequest) -> Result<ModifyVolume> {
    let id = volume_id(&request.volume_id)?;
    let change = MutableParameters::parse(&request.mutable_parameters)?;
    Ok(ModifyVolume { id, change, options: secret_options(&request.secrets)? })
}

/// What to validate: the volume, its secret's mount options, and whether the capabilities and parameters are offered
/// (the reason if not).
pub(super) fn validate(
    request: &proto::ValidateVolumeCapabilitiesRequest,
) -> Result<(VolumeId, Options, Option<RequestError>)> {
    let id = volume_id(&request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(RequestError::Missing("volume_capabilities"));
    }
    let refused = capabilities(&request.volume_capabilities)
        .map(drop)
        .and_then(|()| {
            if request.parameters.is_empty() {
                Ok(())
            } else {
                CreateParameters::parse(&request.parameters).map(drop).map_err(RequestError::from)
            }
        })
        .err();
    Ok((id, secret_options(&request.secrets)?, refused))
}

/// Why a volume cannot be used so, though others can: it is a snapshot's tree, and nobody writes to that.
pub(super) fn refuse_writers(
    found: &Found,
    request: &proto::ValidateVolumeCapabilitiesRequest,
) -> Option<RequestError> {
    let is_reader = |access: Access| access.mode.read_only();
    let only_readers = request.volume_capabilities.iter().all(|access| capability(access).is_ok_and(is_reader));
    (found.is_snapshot && !only_readers).then_some(RequestError::NotOffered(
        "the volume is a snapshot, which nobody can write to: ask for ReadOnlyMany, or restore the snapshot",
    ))
}

/// A page of at most so many volumes (0: all), from a token on.
pub(super) fn list(max_entries: i32, starting_token: &str) -> Result<(usize, Option<&str>)> {
    let most = usize::try_from(max_entries)
        .map_err(|_| RequestError::Negative { field: "max_entries", value: max_entries })?;
    Ok((most, Some(starting_token).filter(|token| !token.is_empty())))
}

pub(super) fn get_capacity(request: &proto::GetCapacityRequest) -> Result<(Option<Share>, Option<Overcommit>)> {
    for access in &request.volume_capabilities {
        capability(access)?;
    }
    Ok(capacity_of(&request.parameters)?)
}

/// The volume to mount, and the keys of its attributes that have no effect.
pub(super) fn publish(request: &proto::NodePublishVolumeRequest) -> Result<(Publish, Vec<String>)> {
    let volume = known(&request.volume_id, "volume_id")?;
    let target = path(&request.target_path, "target_path")?;
    let Some(access) = &request.volume_capability else { return Err(RequestError::Missing("volume_capability")) };
    let access = capability(access)?;
    let parameters = PublishParameters::parse(&request.volume_context)?;
    let inline = match (parameters.ephemeral || is_inline_id(volume), parameters.inline_scratch) {
        (true, true) => Some(Inline::Scratch),
        (true, false) => Some(Inline::Directory),
        (false, true) => return Err(RequestError::NotOffered("inlineScratch is for inline volumes: leave it out")),
        (false, false) => None,
    };
    let (share, subdir) = match parameters.share {
        Some(share) => (share, parameters.subdir),
        // The pod names an inline volume's share; its id is the kubelet's.
        None if inline.is_some() => return Err(no_share(volume)),
        None => match VolumeId::parse(&request.volume_id) {
            Ok(id) => (id.share().clone(), Some(id.subdir().cloned().ok_or_else(|| no_share(volume))?)),
            Err(_) => return Err(no_share(volume)),
        },
    };
    let mut options =
        Options::parse(&parameters.mount_options)?.merged(access.options).merged(secret_options(&request.secrets)?);
    let is_snapshot = subdir.as_ref().is_some_and(|subdir| subdir.shared_tree().is_some());
    if is_snapshot && inline.is_some() {
        return Err(RequestError::NotOffered(
            "a pod cannot name a snapshot's tree itself: use a PersistentVolumeClaim",
        ));
    }
    if access.mode.read_only() || is_snapshot {
        // A container's runtime may make a mount writable where only the mount is read-only, and not its superblock:
        // runc does for every pod that does not say readOnly itself.
        options = options.for_readers();
    }
    let publish = Publish {
        volume: volume.into(),
        share,
        subdir,
        target: target.into(),
        read_only: request.readonly || options.read_only(),
        single_target: access.mode.single_target(),
        options,
        permissions: parameters.permissions,
        inline,
    };
    Ok((publish, parameters.unknown))
}

/// Volume and target path.
pub(super) fn unpublish(request: &proto::NodeUnpublishVolumeRequest) -> Result<(&str, &str)> {
    Ok((known(&request.volume_id, "volume_id")?, path(&request.target_path, "target_path")?))
}

/// Volume and path.
pub(super) fn stats(request: &proto::NodeGetVolumeStatsRequest) -> Result<(&str, &str)> {
    let volume = known(&request.volume_id, "volume_id")?;
    let at = known(&request.volume_path, "volume_path")?;
    // Nothing can be published on what is no path of this host's.
    Ok((volume, at))
}

/// Volume and, if it is known, path.
pub(super) fn health(request: &proto::NodeGetVolumeHealthRequest) -> Result<(&str, Option<&str>)> {
    let volume = known(&request.volume_id, "volume_id")?;
    let at = request.volume_publish_path.as_str();
    Ok((volume, if at.is_empty() { None } else { Some(known(at, "volume_publish_path")?) }))
}

pub(super) fn volume_id(text: &str) -> Result<VolumeId> {
    VolumeId::parse(known(text, "volume_id")?).map_err(|error| id_error("volume", text, error))
}

fn snapshot_id(text: &str) -> Result<SnapshotId> {
    SnapshotId::parse(known(text, "snapshot_id")?).map_err(|error| id_error("snapshot", text, error))
}

fn id_error(what: &'static str, text: &str, error: IdError) -> RequestError {
    match error {
        IdError::Foreign { .. } => RequestError::UnknownId { what, id: text.chars().take(128).collect() },
        error => RequestError::Id { what, error },
    }
}

/// None for an id that no driver gave: nothing has it.
fn known_id<T>(id: Result<T>) -> Result<Option<T>> {
    match id {
        Err(RequestError::UnknownId { .. }) => Ok(None),
        id => id.map(Some),
    }
}

/// How a volume is to be reached.
struct Access {
    mode: AccessMode,
    options: Options,
}

fn capabilities(all: &[proto::VolumeCapability]) -> Result<Vec<Access>> {
    if all.is_empty() {
        return Err(RequestError::Missing("volume_capabilities"));
    }
    all.iter().map(capability).collect()
}

fn capability(capability: &proto::VolumeCapability) -> Result<Access> {
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => return Err(RequestError::Block),
        None => return Err(RequestError::NoAccessType),
    };
    let Some(mode) = &capability.access_mode else { return Err(RequestError::Missing("access_mode")) };
    Ok(Access { mode: access_mode(mode.mode)?, options: Options::parse(&mount.mount_flags)? })
}

fn access_mode(number: i32) -> Result<AccessMode> {
    match ProtoMode::try_from(number) {
        Ok(ProtoMode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(ProtoMode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(ProtoMode::MultiNodeReaderOnly) => Ok(AccessMode::MultiNodeReaderOnly),
        Ok(ProtoMode::MultiNodeSingleWriter) => Ok(AccessMode::MultiNodeSingleWriter),
        Ok(ProtoMode::MultiNodeMultiWriter) => Ok(AccessMode::MultiNodeMultiWriter),
        Ok(ProtoMode::SingleNodeSingleWriter) => Ok(AccessMode::SingleNodeSingleWriter),
        Ok(ProtoMode::SingleNodeMultiWriter) => Ok(AccessMode::SingleNodeMultiWriter),
        Ok(ProtoMode::Unknown) | Err(_) => Err(RequestError::AccessMode(number)),
    }
}

fn capacity(range: Option<&proto::CapacityRange>) -> Result<CapacityRange> {
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    Ok(CapacityRange::parse(required, limit)?)
}

fn secret_options(secrets: &HashMap<String, String>) -> Result<Options> {
    match Secrets::parse(secrets)?.mount_options {
        Some(options) => Ok(Options::parse_secret(&options)?),
        None => Ok(Options::default()),
    }
}

fn no_share(volume: &str) -> RequestError {
    RequestError::NoShare { id: volume.chars().take(128).collect() }
}

fn known<'a>(text: &'a str, field: &'static str) -> Result<&'a str> {
    if text.is_empty() { Err(RequestError::Missing(field)) } else { Ok(text) }
}

fn path<'a>(text: &'a str, field: &'static str) -> Result<&'a str> {
    known(text, field)?;
    let mut components = Path::new(text).components();
    let is_plain = components.next() == Some(Component::RootDir)
        && components.all(|component| matches!(component, Component::Normal(_)))
        && !text.split('/').any(|component| component == ".")
        && text.len() <= LONGEST_PATH
        && text != "/"
        && !text.contains('\0');
    if is_plain {
        // The mount table has no slash at the end either.
        Ok(text.trim_end_matches('/'))
    } else {
        Err(RequestError::Path { field, path: text.chars().take(256).collect() })
    }
}
