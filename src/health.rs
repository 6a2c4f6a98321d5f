//! HTTP for the kubelet and Prometheus: whether the driver lives, whether it takes calls, and its metrics.
//!
//! Nothing here asks an NFS server, so a dead one never makes a healthy driver be restarted. A connection carries one
//! request and lives for seconds; there are a few at a time.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::sync::Semaphore;

use crate::metrics::{self, Metrics};

/// Connections at a time; the next ones wait to be accepted.
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
#[error("cannot listen on --metrics-address {address}: {error}; give host:port with a free port, such as 0.0.0.0:9809")]
pub struct BindError {
    address: String,
    error: io::Error,
}

/// Whether the driver takes calls. Clones tell the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says so.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Listens on `host:port`.
///
/// # Errors
/// Where the system refuses the address.
pub async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|error| BindError { address: address.into(), error })
}

/// Answers for as long as it is polled.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, ready: Readiness) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = connection(stream, Arc::clone(&metrics), ready.clone());
                tokio::spawn(async move {
                    // What a client does wrong is its own matter.
                    let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
                    drop(place);
                });
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
        "/readyz" if ready.get() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "the driver is starting or ending\n".to_owned()),
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

    async fn started(ready: &Readiness) -> String {
        let listener = bind("127.0.0.1:0").await.unwrap();
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
        let address = started(&ready).await;
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
        let address = started(&Readiness::default()).await;
        let answer = ask(&address, &get("/metrics")).await;
        assert!(answer.contains(metrics::CONTENT_TYPE) && answer.ends_with("# EOF\n"), "{answer}");
        let answer = ask(&address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn other_paths_are_not_found_and_other_methods_not_allowed() {
        let address = started(&Readiness::default()).await;
        for path in ["/", "/metrics/", "/debug"] {
            assert!(ask(&address, &get(path)).await.starts_with("HTTP/1.1 404 "), "{path}");
        }
        let answer = ask(&address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("GET, HEAD"), "{answer}");
    }

    #[tokio::test]
    async fn silent_clients_are_sent_away_and_the_next_one_is_answered() {
        let address = started(&Readiness::default()).await;
        let mut silent = Vec::new();
        for _ in 0..=CONNECTIONS {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        assert!(ask(&address, &get("/healthz")).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_told() {
        let listener = bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = bind(&address).await.unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("--metrics-address"), "{error}");
    }
}
