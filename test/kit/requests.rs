//! Requests as the sidecars and the kubelet send them.

use std::collections::HashMap;
use std::path::Path;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use nfs_csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use nfs_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, Volume,
    VolumeCapability, VolumeContentSource,
};

use super::server::{SERVER, SHARE};

pub const MIB: i64 = 1024 * 1024;

/// A capability: this access mode, mounted with these options.
pub fn capability(mode: Mode, options: &[&str]) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume {
            mount_flags: options.iter().map(ToString::to_string).collect(),
            ..MountVolume::default()
        })),
    }
}

/// A StorageClass on the guest's export, with more parameters.
pub fn parameters(more: &[(&str, &str)]) -> HashMap<String, String> {
    let mut parameters = HashMap::from([("server".into(), SERVER.into()), ("share".into(), SHARE.into())]);
    parameters.extend(more.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    parameters
}

pub fn create(name: &str, more: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: 10 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, &[])],
        parameters: parameters(more),
        ..CreateVolumeRequest::default()
    }
}

pub fn delete(id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest { volume_id: id.into(), ..DeleteVolumeRequest::default() }
}

pub fn expand(id: &str, required_bytes: i64, limit_bytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
        ..ControllerExpandVolumeRequest::default()
    }
}

pub fn publish(volume: &Volume, target: &Path, mode: Mode, options: &[&str]) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        target_path: target.to_str().expect("a path of a test").into(),
        volume_capability: Some(capability(mode, options)),
        volume_context: volume.volume_context.clone(),
        ..NodePublishVolumeRequest::default()
    }
}

pub fn unpublish(volume: &Volume, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        target_path: target.to_str().expect("a path of a test").into(),
    }
}

pub fn stats(volume: &Volume, path: &Path) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        volume_id: volume.volume_id.clone(),
        volume_path: path.to_str().expect("a path of a test").into(),
        ..NodeGetVolumeStatsRequest::default()
    }
}

/// A volume that an administrator wrote down by hand: a static PersistentVolume.
pub fn by_hand(id: &str, more: &[(&str, &str)]) -> Volume {
    Volume { volume_id: id.into(), volume_context: parameters(more), ..Volume::default() }
}

/// A volume with the data of another, or of a snapshot.
pub fn create_from(name: &str, source: Type, more: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..create(name, more)
    }
}

/// The same for those who only read.
pub fn read_from(name: &str, source: Type, more: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_capabilities: vec![capability(Mode::MultiNodeReaderOnly, &[])],
        ..create_from(name, source, more)
    }
}

/// The volume of this id, to be cloned.
pub fn of_volume(id: &str) -> Type {
    Type::Volume(VolumeSource { volume_id: id.into() })
}

/// The snapshot of this id, to be restored.
pub fn of_snapshot(id: &str) -> Type {
    Type::Snapshot(SnapshotSource { snapshot_id: id.into() })
}

pub fn snapshot(name: &str, volume: &str, more: &[(&str, &str)]) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.into(),
        source_volume_id: volume.into(),
        parameters: more.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        ..CreateSnapshotRequest::default()
    }
}

pub fn delete_snapshot(id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest { snapshot_id: id.into(), ..DeleteSnapshotRequest::default() }
}
