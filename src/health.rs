//! HTTP for the kubelet and Prometheus: whether the driver lives, whether it takes calls, and its metrics.
//!
//! Nothing here asks an NFS server, so a dead one never makes a healthy driver be restarted. A connection carries one
//! request and lives for seconds; there are a few at a time, and the oldest makes room for the next. Those of this
//! host, as the kubelet's probes of a pod on the host's network are, have places of their own: nobody outside can keep
//! them from being answered.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::metrics::{self, Metrics};
use crate::registration::Registered;
use crate::server;

/// Connections at a time, of this host and of others each.
const CONNECTIONS: usize = 16;
/// How long a client may take to say what it wants.
const HEADER_TIME: Duration = Duration::from_secs(2);
/// How long a connection may live.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// How long no connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// The least that hyper takes: no request here needs more.
const BUFFER: usize = 8192;

/// Why the address cannot be used.
#[derive(Debug, Error)]
#[error(
    "cannot listen on --metrics-address {address}: {error}; give host:port with a free port, or :9809 for all addresses"
)]
pub struct BindError {
    address: String,
    error: io::Error,
}

/// Whether the driver takes calls, and the kubelet makes them. Clones tell the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    takes_calls: Arc<AtomicBool>,
    registered: Arc<OnceLock<watch::Receiver<Registered>>>,
}

impl Readiness {
    /// Says whether it takes calls.
    pub fn set(&self, takes_calls: bool) {
        self.takes_calls.store(takes_calls, Ordering::Relaxed);
    }

    /// From now on it is ready only when the kubelet has registered it.
    pub fn follow(&self, registered: watch::Receiver<Registered>) {
        // There is one kubelet.
        let _ = self.registered.set(registered);
    }

    /// Why it is not ready.
    fn lack(&self) -> Option<String> {
        if !self.takes_calls.load(Ordering::Relaxed) {
            return Some("the driver is starting or ending".into());
        }
        match &*self.registered.get()?.borrow() {
            Registered::Yes => None,
            Registered::NotYet => Some("the kubelet has not registered the driver yet".into()),
            Registered::Refused(reason) => Some(format!("the kubelet refuses the driver: {reason}")),
        }
    }
}

/// Listens on `host:port`, or on all addresses for `:port`.
///
/// # Errors
/// Where the system refuses the address.
pub fn bind(address: &str) -> Result<TcpListener, BindError> {
    server::listen(address).map_err(|error| BindError { address: address.into(), error })
}

/// The connections of one kind that are being answered, the oldest first.
#[derive(Debug, Default)]
struct Places(VecDeque<AbortHandle>);

impl Places {
    fn take(&mut self, connection: AbortHandle) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

/// Whether the other end is on this host too.
fn is_of_this_host(stream: &TcpStream) -> bool {
    match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(own)) => peer.ip() == own.ip() || peer.ip().to_canonical().is_loopback(),
        _ => false,
    }
}

/// Answers for as long as it is polled.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, ready: Readiness) -> Infallible {
    let (mut own, mut others) = (Places::default(), Places::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let places = if is_of_this_host(&stream) { &mut own } else { &mut others };
                let connection = connection(stream, Arc::clone(&metrics), ready.clone());
                // What a client does wrong is its own matter.
                let answered = tokio::spawn(tokio::time::timeout(CONNECTION_TIME, connection));
                places.take(answered.abort_handle());
            }
            // Descriptors may be short; clients ask again.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn connection(
    stream: TcpStream,
    metrics: Arc<Metrics>,
    ready: Readiness,
) -> impl Future<Output = Result<(), hyper::Error>> {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &metrics, &ready);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
}

fn answer(method: &Method, path: &str, metrics: &Metrics, ready: &Readiness) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/metrics" | "/healthz" | "/readyz" if method != Method::GET && method != Method::HEAD => {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned())
        }
        "/metrics" => (StatusCode::OK, metrics.text()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match ready.lack() {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(lack) => (StatusCode::SERVICE_UNAVAILABLE, format!("{lack}\n")),
        },
        _ => (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let form = if path == "/metrics" && status == StatusCode::OK { metrics::CONTENT_TYPE } else { "text/plain" };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn started(ready: &Readiness) -> String {
        let listener = bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, Metrics::new("d"), ready.clone()));
        address
    }

    async fn ask(address: &str, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
    }

    #[tokio::test]
    async fn it_lives_from_the_start_and_is_ready_when_it_is_told_so() {
        let ready = Readiness::default();
        let address = started(&ready);
        assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "));
        assert!(ask(&address, &get("/readyz")).await.starts_with("HTTP/1.1 503 "));
        ready.set(true);
        assert!(ask(&address, &get("/readyz")).await.starts_with("HTTP/1.1 200 "));
        ready.set(false);
        assert!(ask(&address, &get("/readyz")).await.starts_with("HTTP/1.1 503 "));
        assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn metrics_are_text_and_a_head_has_none() {
        let address = started(&Readiness::default());
        let answer = ask(&address, &get("/metrics")).await;
        assert!(answer.contains(metrics::CONTENT_TYPE) && answer.ends_with("# EOF\n"), "{answer}");
        let answer = ask(&address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn other_paths_are_not_found_and_other_methods_not_allowed() {
        let address = started(&Readiness::default());
        for path in ["/", "/metrics/", "/debug"] {
            assert!(ask(&address, &get(path)).await.starts_with("HTTP/1.1 404 "), "{path}");
        }
        let answer = ask(&address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("GET, HEAD"), "{answer}");
    }

    #[tokio::test]
    async fn it_is_ready_when_the_kubelet_has_registered_it_and_says_why_it_is_not() {
        let ready = Readiness::default();
        let address = started(&ready);
        ready.set(true);
        let (tell, registered) = watch::channel(Registered::NotYet);
        ready.follow(registered);
        assert!(ask(&address, &get("/readyz")).await.contains("not registered the driver yet"));
        tell.send_replace(Registered::Refused("the API server is away".into()));
        let answer = ask(&address, &get("/readyz")).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("the API server is away"), "{answer}");
        tell.send_replace(Registered::Yes);
        assert!(ask(&address, &get("/readyz")).await.starts_with("HTTP/1.1 200 "));
        assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_silent_clients_makes_room_for_the_next() {
        let address = started(&Readiness::default());
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 3 {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "));
        // The last of them can still ask.
        let mut last = silent.pop().unwrap();
        last.write_all(get("/healthz").as_bytes()).await.unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    #[tokio::test]
    async fn both_families_are_answered_without_a_host() {
        let listener = bind(":0").unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(serve(listener, Metrics::new("d"), Readiness::default()));
        for host in ["127.0.0.1", "[::1]"] {
            let address = format!("{host}:{port}");
            assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "), "{host}");
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_told() {
        let listener = bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = bind(&address).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("--metrics-address"), "{error}");
    }
}
