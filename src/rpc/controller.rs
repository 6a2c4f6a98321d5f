//! The Controller service.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::request;
use super::status::status;
use super::{Calls, patience};
use crate::controller::{Controller, Found, Snapshot, SnapshotError, SnapshotPage, Volume};
use crate::proto::controller_get_volume_response::VolumeStatus as GetVolumeStatus;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::controller_service_capability::{self, Type};
use crate::proto::list_snapshots_response::Entry as SnapshotEntry;
use crate::proto::list_volumes_response::{Entry, VolumeStatus};
use crate::proto::validate_volume_capabilities_response::Confirmed;
use crate::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerServiceCapability, CreateSnapshotRequest,
    CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest,
    GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    Snapshot as ProtoSnapshot, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    Volume as ProtoVolume, VolumeCondition, controller_server,
};

/// What this controller offers. Never PUBLISH_UNPUBLISH_VOLUME: nodes mount by themselves, so an attacher has nothing
/// to do.
const CAPABILITIES: [Rpc; 12] = [
    Rpc::CreateDeleteVolume,
    Rpc::CloneVolume,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::GetSnapshot,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::ExpandVolume,
    Rpc::ModifyVolume,
    Rpc::GetVolume,
    Rpc::VolumeCondition,
    Rpc::SingleNodeMultiWriter,
];

#[derive(Debug)]
pub(super) struct Service {
    controller: Arc<Controller>,
    calls: Calls,
}

impl Service {
    pub(super) fn new(controller: Arc<Controller>, calls: Calls) -> Self {
        Self { controller, calls }
    }
}

#[tonic::async_trait]
impl controller_server::Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let patience = patience(&request);
        let request = request.into_inner();
        self.calls
            .answer("CreateVolume", &request.name, async {
                let checked = request::create_volume(&request, patience).map_err(status)?;
                let volume = Box::pin(self.controller.create(checked)).await.map_err(status)?;
                Ok(CreateVolumeResponse { volume: Some(created(&volume, &request)) })
            })
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("DeleteVolume", &request.volume_id, async {
                if let Some(checked) = request::delete_volume(&request).map_err(status)? {
                    self.controller.delete(checked).await.map_err(status)?;
                }
                Ok(DeleteVolumeResponse {})
            })
            .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let patience = patience(&request);
        let request = request.into_inner();
        self.calls
            .answer("CreateSnapshot", &request.name, async {
                let checked = request::create_snapshot(&request, patience).map_err(status)?;
                let snapshot = self.controller.create_snapshot(checked).await.map_err(status)?;
                Ok(CreateSnapshotResponse { snapshot: Some(taken(&snapshot)) })
            })
            .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("DeleteSnapshot", &request.snapshot_id, async {
                if let Some(checked) = request::delete_snapshot(&request).map_err(status)? {
                    self.controller.delete_snapshot(checked).await.map_err(status)?;
                }
                Ok(DeleteSnapshotResponse {})
            })
            .await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ListSnapshots", &request.snapshot_id, async {
                let (most, token) = request::list(request.max_entries, &request.starting_token).map_err(status)?;
                let page = match request::list_snapshots(&request).map_err(status)? {
                    Some((filter, options)) => {
                        self.controller.list_snapshots(filter, &options, token, most).await.map_err(status)?
                    }
                    None => SnapshotPage::default(),
                };
                let entry = |snapshot| SnapshotEntry { snapshot: Some(taken(snapshot)) };
                Ok(ListSnapshotsResponse {
                    entries: page.snapshots.iter().map(entry).collect(),
                    next_token: page.next.unwrap_or_default(),
                })
            })
            .await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("GetSnapshot", &request.snapshot_id, async {
                let (id, options) = request::get_snapshot(&request).map_err(status)?;
                let snapshot = self.controller.get_snapshot(&id, &options).await.map_err(status)?;
                let missing = || SnapshotError::NotFound { id: id.to_string(), share: id.share().to_string() };
                let snapshot = snapshot.ok_or_else(missing).map_err(status)?;
                Ok(GetSnapshotResponse { snapshot: Some(taken(&snapshot)) })
            })
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ValidateVolumeCapabilities", &request.volume_id, async {
                let (id, options, refused) = request::validate(&request).map_err(status)?;
                let found = self.controller.get(&id, &options).await.map_err(status)?;
                Ok(match refused.or_else(|| request::refuse_writers(&found, &request)) {
                    Some(reason) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: reason.to_string() },
                    None => ValidateVolumeCapabilitiesResponse {
                        confirmed: Some(Confirmed {
                            volume_context: request.volume_context.clone(),
                            volume_capabilities: request.volume_capabilities.clone(),
                            parameters: request.parameters.clone(),
                            mutable_parameters: request.mutable_parameters.clone(),
                        }),
                        message: String::new(),
                    },
                })
            })
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ListVolumes", "", async {
                let (most, token) = request::list(request.max_entries, &request.starting_token).map_err(status)?;
                let page = self.controller.list(token, most).await.map_err(status)?;
                Ok(ListVolumesResponse {
                    entries: page.volumes.iter().map(entry).collect(),
                    next_token: page.next.unwrap_or_default(),
                })
            })
            .await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("GetCapacity", "", async {
                let (share, overcommit) = request::get_capacity(&request).map_err(status)?;
                let bytes = self.controller.available_bytes(share.as_ref(), overcommit).await.map_err(status)?;
                Ok(GetCapacityResponse { available_capacity: signed(bytes), ..GetCapacityResponse::default() })
            })
            .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(controller_service_capability::Rpc { r#type: rpc.into() })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: CAPABILITIES.into_iter().map(capability).collect(),
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ControllerExpandVolume", &request.volume_id, async {
                let checked = request::expand_volume(&request).map_err(status)?;
                let bytes = self.controller.expand(checked).await.map_err(status)?;
                Ok(ControllerExpandVolumeResponse { capacity_bytes: signed(bytes), node_expansion_required: false })
            })
            .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ControllerModifyVolume", &request.volume_id, async {
                let checked = request::modify_volume(&request).map_err(status)?;
                self.controller.modify(checked).await.map_err(status)?;
                Ok(ControllerModifyVolumeResponse {})
            })
            .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("ControllerGetVolume", &request.volume_id, async {
                let id = request::volume_id(&request.volume_id).map_err(status)?;
                let found =
                    self.controller.get(&id, &crate::mount::options::Options::default()).await.map_err(status)?;
                let condition = condition(&found);
                Ok(ControllerGetVolumeResponse {
                    volume: Some(listed(&found)),
                    status: Some(GetVolumeStatus { volume_condition: Some(condition), ..GetVolumeStatus::default() }),
                })
            })
            .await
    }
}

/// The answer to CreateVolume: what a node needs to mount the volume is in its context.
fn created(volume: &Volume, request: &CreateVolumeRequest) -> ProtoVolume {
    let mut context = request.parameters.clone();
    context.retain(|key, _| !key.eq_ignore_ascii_case("subDir"));
    context.insert("subDir".into(), volume.subdir.to_string());
    ProtoVolume {
        volume_id: volume.id.to_string(),
        capacity_bytes: signed(volume.capacity_bytes),
        volume_context: context,
        content_source: request.volume_content_source.clone(),
        ..ProtoVolume::default()
    }
}

fn taken(snapshot: &Snapshot) -> ProtoSnapshot {
    let nanoseconds = i128::from(snapshot.created_at);
    let created = prost_types::Timestamp {
        seconds: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanoseconds % 1_000_000_000).unwrap_or_default(),
    };
    ProtoSnapshot {
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.source_volume.clone(),
        size_bytes: signed(snapshot.size_bytes),
        creation_time: Some(created),
        ready_to_use: true,
        ..ProtoSnapshot::default()
    }
}

fn listed(found: &Found) -> ProtoVolume {
    ProtoVolume { volume_id: found.id.clone(), capacity_bytes: signed(found.capacity_bytes), ..ProtoVolume::default() }
}

fn entry(found: &Found) -> Entry {
    let status = VolumeStatus { volume_condition: Some(condition(found)), ..VolumeStatus::default() };
    Entry { volume: Some(listed(found)), status: Some(status) }
}

fn condition(found: &Found) -> VolumeCondition {
    let message = match (&found.problem, found.used) {
        (Some(problem), _) => problem.clone(),
        (None, Some(used)) => {
            format!("the volume's limit is in force: {used} of {} bytes are used", found.capacity_bytes)
        }
        (None, None) => "the volume's directory is there".into(),
    };
    VolumeCondition { abnormal: found.problem.is_some(), message }
}

/// Sizes have a sign on the wire.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
