//! The only room that knows tonic and the CSI messages: a request is checked, handed on, and answered.

mod controller;
mod identity;
mod node;
mod request;
mod status;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use crate::metrics::Metrics;
use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;
use crate::volume::topology::Segment;

/// How long before its deadline a call is answered that is not done.
const LONGEST_MARGIN: Duration = Duration::from_millis(500);

/// The services of a process that has these parts.
#[must_use]
pub fn services(
    driver_name: &str,
    topology: Option<Segment>,
    controller: Option<Arc<crate::controller::Controller>>,
    node: Option<Arc<crate::node::Node>>,
    metrics: Arc<Metrics>,
) -> Routes {
    let calls = Calls { metrics };
    let identity = identity::Identity::new(driver_name.into(), controller.is_some(), topology.is_some());
    let mut routes = Routes::builder();
    routes.add_service(IdentityServer::new(identity));
    if let Some(controller) = controller {
        routes.add_service(ControllerServer::new(controller::Service::new(controller, calls.clone())));
    }
    if let Some(node) = node {
        routes.add_service(NodeServer::new(node::Service::new(node, topology, calls)));
    }
    routes.routes()
}

/// Where every call that does something passes: it is logged and counted.
#[derive(Clone, Debug)]
struct Calls {
    metrics: Arc<Metrics>,
}

impl Calls {
    /// Carries a call out, counts it, and logs it: one line a call, with its method, volume, code and time. Requests
    /// are never logged whole, because of the secrets in them.
    async fn answer<T>(
        &self,
        method: &'static str,
        volume: &str,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let call = self.metrics.begin(method);
        let result = work.await;
        let code = name(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        let milliseconds = call.end(code);
        match &result {
            // Each volume's, once a minute: that it went well is no news.
            Ok(_) if method == STATS => tracing::debug!(method, volume, code, milliseconds),
            Ok(_) => tracing::info!(method, volume, code, milliseconds),
            Err(status) => tracing::warn!(method, volume, code, milliseconds, error = status.message()),
        }
        result.map(Response::new)
    }
}

/// The call that the kubelet makes for each volume again and again.
const STATS: &str = "NodeGetVolumeStats";

/// How long the caller still waits, less what it takes to tell it how far the work is; none: for ever.
fn patience<T>(request: &Request<T>) -> Option<Duration> {
    let text = request.metadata().get("grpc-timeout")?.to_str().ok()?;
    let deadline = timeout(text)?;
    Some(deadline.saturating_sub((deadline / 10).min(LONGEST_MARGIN)))
}

/// A timeout as gRPC writes it: at most 8 digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_read_in_every_unit() {
        for (text, milliseconds) in [("1H", 3_600_000), ("2M", 120_000), ("10S", 10_000), ("250m", 250)] {
            assert_eq!(timeout(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(timeout("99999999u"), Some(Duration::from_micros(99_999_999)));
        for text in ["", "S", "10", "10s", "123456789S", "-1S", "1.5S", "S1", "1é"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }

    #[test]
    fn a_call_is_answered_before_its_deadline() {
        let mut request = Request::new(());
        assert_eq!(patience(&request), None);
        request.metadata_mut().insert("grpc-timeout", "10S".parse().unwrap());
        assert_eq!(patience(&request), Some(Duration::from_millis(9500)));
        request.metadata_mut().insert("grpc-timeout", "100m".parse().unwrap());
        assert_eq!(patience(&request), Some(Duration::from_millis(90)));
    }
}
