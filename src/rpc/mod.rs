//! The only room that knows tonic and the CSI messages: a request is checked, handed on, and answered.

mod controller;
mod identity;
mod node;
mod request;
mod status;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tonic::service::Routes;
use tonic::{Code, Response, Status};

use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;

/// The services of a process that has these parts.
#[must_use]
pub fn services(
    driver_name: &str,
    controller: Option<Arc<crate::controller::Controller>>,
    node: Option<Arc<crate::node::Node>>,
) -> Routes {
    let identity = identity::Identity::new(driver_name.into(), controller.is_some());
    let mut routes = Routes::builder();
    routes.add_service(IdentityServer::new(identity));
    if let Some(controller) = controller {
        routes.add_service(ControllerServer::new(controller::Service::new(controller)));
    }
    if let Some(node) = node {
        routes.add_service(NodeServer::new(node::Service::new(node)));
    }
    routes.routes()
}

/// Carries a call out and logs it: one line a call, with its method, volume, code and time. Requests are never logged
/// whole, because of the secrets in them.
async fn answer<T>(
    method: &'static str,
    volume: &str,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    let result = work.await;
    let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
    match &result {
        Ok(_) => tracing::info!(method, volume, code = "OK", milliseconds),
        Err(status) => {
            let code = name(status.code());
            tracing::warn!(method, volume, code, milliseconds, error = status.message());
        }
    }
    result.map(Response::new)
}

/// A code as the specification writes it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
