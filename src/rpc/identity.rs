//! The Identity service: who the driver is, and that it is there.

use tonic::{Request, Response, Status};

use crate::proto::plugin_capability::service::Type as Service;
use crate::proto::plugin_capability::volume_expansion::Type as Expansion;
use crate::proto::plugin_capability::{self, Type};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, identity_server,
};

#[derive(Debug)]
pub(super) struct Identity {
    driver_name: String,
    has_controller: bool,
    has_topology: bool,
}

impl Identity {
    pub(super) fn new(driver_name: String, has_controller: bool, has_topology: bool) -> Self {
        Self { driver_name, has_controller, has_topology }
    }
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            manifest: std::collections::HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |service: Service| Type::Service(plugin_capability::Service { r#type: service.into() });
        let expansion =
            |how: Expansion| Type::VolumeExpansion(plugin_capability::VolumeExpansion { r#type: how.into() });
        let mut types = Vec::new();
        if self.has_controller {
            types.push(service(Service::ControllerService));
        }
        if self.has_topology {
            types.push(service(Service::VolumeAccessibilityConstraints));
        }
        // A directory grows while it is in use.
        types.push(expansion(Expansion::Online));
        let capabilities = types.into_iter().map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// True without asking any NFS server: a liveness probe must not restart a healthy driver for a dead server.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
