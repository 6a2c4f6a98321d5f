//! The Node service.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::{Request, Response, Status};

use super::Calls;
use super::request;
use super::status::status;
use crate::mount::protocol::Usage;
use crate::node::{Node, NodeSettings, Problem, ProblemKind, Stats};
use crate::proto::node_service_capability::rpc::Type as Rpc;
use crate::proto::node_service_capability::{self, Type};
use crate::proto::volume_health::VolumeHealthEntry;
use crate::proto::volume_usage::Unit;
use crate::proto::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, Topology, VolumeCondition, VolumeHealth, VolumeHealthErrorType, VolumeUsage,
    node_server,
};
use crate::volume::topology::Segment;

/// What this node plugin offers: no staging, and no work with expansion.
const CAPABILITIES: [Rpc; 4] =
    [Rpc::GetVolumeStats, Rpc::VolumeCondition, Rpc::GetVolumeHealth, Rpc::SingleNodeMultiWriter];

/// The most attributes that a log line names: whoever writes a pod may write any number of them.
const REPORTED_ATTRIBUTES: usize = 10;

#[derive(Debug)]
pub(super) struct Service {
    node: Arc<Node>,
    topology: Option<Segment>,
    calls: Calls,
    /// Volumes whose unknown attributes were reported, until they are unpublished: their calls are repeated.
    reported: Mutex<HashSet<String>>,
}

impl Service {
    pub(super) fn new(node: Arc<Node>, topology: Option<Segment>, calls: Calls) -> Self {
        Self { node, topology, calls, reported: Mutex::default() }
    }

    /// Logs which attributes of a volume have no effect, once.
    fn report(&self, volume: &str, unknown: &[String]) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if !unknown.is_empty() && reported.insert(volume.to_owned()) {
            let attributes =
                unknown.iter().take(REPORTED_ATTRIBUTES).map(String::as_str).collect::<Vec<_>>().join(", ");
            tracing::warn!(volume, attributes, "unknown attributes of the volume have no effect");
        }
    }
}

#[tonic::async_trait]
impl node_server::Node for Service {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("NodePublishVolume", &request.volume_id, async {
                let (publish, unknown) = request::publish(&request).map_err(status)?;
                self.report(&publish.volume, &unknown);
                self.node.publish(publish).await.map_err(status)?;
                Ok(NodePublishVolumeResponse {})
            })
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("NodeUnpublishVolume", &request.volume_id, async {
                let (volume, target) = request::unpublish(&request).map_err(status)?;
                self.node.unpublish(volume.into(), target.into()).await.map_err(status)?;
                self.reported.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
                Ok(NodeUnpublishVolumeResponse {})
            })
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer(super::STATS, &request.volume_id, async {
                let (volume, path) = request::stats(&request).map_err(status)?;
                Ok(stats(self.node.stats(volume, path).await.map_err(status)?))
            })
            .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        self.calls
            .answer("NodeGetVolumeHealth", &request.volume_id, async {
                let (volume, path) = request::health(&request).map_err(status)?;
                Ok(health(volume, self.node.health(volume, path).await.map_err(status)?))
            })
            .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| NodeServiceCapability {
            r#type: Some(Type::Rpc(node_service_capability::Rpc { r#type: rpc.into() })),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: CAPABILITIES.into_iter().map(capability).collect(),
        }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let NodeSettings { id, max_volumes, .. } = self.node.settings();
        let topology = self.topology.as_ref();
        let info = NodeGetInfoResponse {
            node_id: id.clone(),
            max_volumes_per_node: *max_volumes,
            accessible_topology: topology
                .map(|segment| Topology { segments: [(segment.key.clone(), segment.value.clone())].into() }),
        };
        // That tells when the kubelet has registered the driver.
        self.calls.answer("NodeGetInfo", "", async { Ok(info) }).await
    }
}

fn stats(stats: Stats) -> NodeGetVolumeStatsResponse {
    NodeGetVolumeStatsResponse {
        usage: stats.usage.map(|usage| vec![bytes(usage), inodes(usage)]).unwrap_or_default(),
        volume_condition: Some(VolumeCondition {
            abnormal: stats.problem.is_some(),
            message: match stats.problem {
                Some(problem) => problem.message,
                None => "the volume is mounted and its server answers".into(),
            },
        }),
    }
}

fn health(volume: &str, stats: Stats) -> NodeGetVolumeHealthResponse {
    let entry = |problem: Problem| VolumeHealthEntry {
        status: VolumeHealthErrorType::Inaccessible.into(),
        reason: match problem.kind {
            ProblemKind::ServerSilent => "ServerUnreachable",
            ProblemKind::Stale => "StaleMount",
            ProblemKind::Other => "MountUnusable",
        }
        .into(),
        message: problem.message,
    };
    let health_statuses = stats.problem.map(entry).into_iter().collect();
    NodeGetVolumeHealthResponse { volume_health: Some(VolumeHealth { volume_id: volume.to_owned(), health_statuses }) }
}

fn bytes(usage: Usage) -> VolumeUsage {
    VolumeUsage {
        unit: Unit::Bytes.into(),
        total: signed(usage.total_bytes),
        used: signed(usage.used_bytes),
        available: signed(usage.available_bytes),
    }
}

fn inodes(usage: Usage) -> VolumeUsage {
    VolumeUsage {
        unit: Unit::Inodes.into(),
        total: signed(usage.total_inodes),
        used: signed(usage.total_inodes.saturating_sub(usage.available_inodes)),
        available: signed(usage.available_inodes),
    }
}

/// Counts have a sign on the wire.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
