//! The driver makes itself known to the kubelet (plugin registration v1), so that no node-driver-registrar is needed.
//!
//! The kubelet watches its `plugins_registry` directory. A socket that appears there is asked who it is; its file's end
//! is the plugin's end. So the socket is put there when the driver listens, and goes first when the driver is told to
//! end: the kubelet must not send calls to a driver that drains. What a killed driver left there is replaced by the
//! next.
//!
//! A kubelet up to 1.35 that could not register a driver (the API server was away) says so and never asks again: only a
//! socket that appears anew is another try. So a refused socket is taken away and made again, less and less often.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{Notify, watch};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::proto::pluginregistration::registration_server::{self, RegistrationServer};
use crate::proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::server::{self, Endpoint, ListenError, Listener};

/// The kubelet's word for CSI drivers.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The kubelet takes every driver that names a version of CSI 1; this is what all of them name.
const CSI_VERSION: &str = "1.0.0";
/// The kubelet's questions are answered at once: nothing is waited for at the end.
const GRACE: Duration = Duration::from_secs(1);
/// How soon a socket is made again after a refusal, and how long that waits at most after further ones.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Where a driver makes itself known, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The kubelet's `plugins_registry`, as this process sees it.
    pub directory: PathBuf,
    /// The driver's CSI socket, as the kubelet sees it.
    pub endpoint: PathBuf,
}

/// What the kubelet says of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Registered {
    /// Nothing yet.
    #[default]
    NotYet,
    /// It calls it.
    Yes,
    /// It does not call it, and why.
    Refused(String),
}

/// Why the kubelet cannot find the driver any more.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the errors say it")]
pub enum RegistrationError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Serve(#[from] tonic::transport::Error),
}

/// An open ear for the kubelet. Its socket file goes with it.
#[derive(Debug)]
pub struct Registration {
    socket: Endpoint,
    listener: Listener,
    service: Service,
}

impl Registration {
    /// Listens in the kubelet's directory.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn open(settings: &Settings, driver_name: &str) -> Result<Self, ListenError> {
        let socket = Endpoint::Unix(socket(&settings.directory, driver_name));
        let listener = Listener::bind(&socket).await?;
        let service = Service {
            driver_name: driver_name.into(),
            endpoint: settings.endpoint.clone(),
            registered: Arc::default(),
            refused: Arc::default(),
        };
        Ok(Self { socket, listener, service })
    }

    /// What the kubelet says of the driver, as it changes.
    #[must_use]
    pub fn registered(&self) -> watch::Receiver<Registered> {
        self.service.registered.subscribe()
    }

    /// Answers the kubelet until `shutdown` resolves. After a refusal the socket is made anew.
    ///
    /// # Errors
    /// Where the transport fails, or the socket cannot be made again.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), RegistrationError> {
        let Self { socket, mut listener, service } = self;
        tokio::pin!(shutdown);
        let mut pause = FIRST_PAUSE;
        loop {
            let services = Routes::new(RegistrationServer::new(service.clone()));
            let mut is_over = false;
            let ended = async {
                tokio::select! {
                    () = &mut shutdown => is_over = true,
                    () = service.refused.notified() => {}
                }
            };
            server::serve(listener, services, ended, GRACE).await?;
            if !is_over {
                tokio::select! {
                    () = &mut shutdown => is_over = true,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            if is_over {
                return Ok(());
            }
            pause = if *service.registered.borrow() == Registered::Yes { FIRST_PAUSE } else { pause * 2 };
            pause = pause.min(LONGEST_PAUSE);
            listener = Listener::bind(&socket).await?;
        }
    }
}

/// The path of a driver's socket in the kubelet's directory.
///
/// The kubelet takes any name, and sends the path, percent-encoded, as its calls' `:authority`. A host's name with a
/// percent sign is refused by the HTTP library below tonic (the kubelet would see PROTOCOL_ERROR), so that the encoded
/// part must stand before an `@`, which makes it the user's.
#[must_use]
pub fn socket(directory: &Path, driver_name: &str) -> PathBuf {
    directory.join(format!("{driver_name}@reg.sock"))
}

#[derive(Clone, Debug)]
struct Service {
    driver_name: String,
    endpoint: PathBuf,
    registered: Arc<watch::Sender<Registered>>,
    /// Told of each refusal.
    refused: Arc<Notify>,
}

#[tonic::async_trait]
impl registration_server::Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.into(),
            name: self.driver_name.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![CSI_VERSION.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let endpoint = self.endpoint.display();
        if status.plugin_registered {
            tracing::info!(driver = self.driver_name, "registered with the kubelet");
            self.registered.send_replace(Registered::Yes);
        } else {
            tracing::error!(
                driver = self.driver_name,
                %endpoint,
                error = status.error,
                "the kubelet refuses the driver, which asks again; is the endpoint the socket's path on the host?"
            );
            self.registered.send_replace(Registered::Refused(status.error));
            self.refused.notify_one();
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tonic::transport::{Channel, Endpoint as Address};
    use tower::service_fn;

    use super::*;
    use crate::proto::pluginregistration::registration_client::RegistrationClient;

    /// Calls as the kubelet does: its `:authority` is the socket's path with all but these characters encoded.
    async fn kubelet(socket: PathBuf) -> RegistrationClient<Channel> {
        let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
        let encode = |byte: u8| if kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        let authority: String = socket.to_str().unwrap().bytes().map(encode).collect();
        assert!(authority.contains('%'));
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let address = Address::from_shared(format!("http://{authority}")).unwrap();
        let channel = address.connect_with_connector(connector).await;
        RegistrationClient::new(channel.unwrap())
    }

    #[tokio::test]
    async fn the_kubelet_is_told_the_driver_and_its_path_on_the_host_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { directory: folder.path().into(), endpoint: "/on/the/host/csi.sock".into() };
        let socket = socket(folder.path(), "nfs.example.com");
        // A killed predecessor's.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let registration = Registration::open(&settings, "nfs.example.com").await.unwrap();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let serving = registration.serve(async { ended.await.unwrap() });
        let asking = async {
            let mut kubelet = kubelet(socket.clone()).await;
            let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
            assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "nfs.example.com"));
            assert_eq!(info.endpoint, "/on/the/host/csi.sock");
            assert_eq!(info.supported_versions, ["1.0.0"]);
            let status = RegistrationStatus { plugin_registered: true, error: String::new() };
            kubelet.notify_registration_status(status).await.unwrap();
            end.send(()).unwrap();
        };
        let (served, ()) = tokio::join!(serving, asking);
        served.unwrap();
        assert!(!socket.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_driver_makes_its_socket_anew_less_and_less_often_until_it_is_registered() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { directory: folder.path().into(), endpoint: "/csi.sock".into() };
        let socket = socket(folder.path(), "nfs.example.com");
        let registration = Registration::open(&settings, "nfs.example.com").await.unwrap();
        let registered = registration.registered();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let serving = registration.serve(async { ended.await.unwrap() });
        let asking = async {
            assert_eq!(*registered.borrow(), Registered::NotYet);
            let mut pauses = Vec::new();
            for _ in 0..9 {
                let refused = RegistrationStatus { plugin_registered: false, error: "the API server is away".into() };
                kubelet(socket.clone()).await.notify_registration_status(refused).await.unwrap();
                assert_eq!(*registered.borrow(), Registered::Refused("the API server is away".into()));
                while socket.exists() {
                    tokio::task::yield_now().await;
                }
                let begun = tokio::time::Instant::now();
                while !socket.exists() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                pauses.push(begun.elapsed().as_secs());
            }
            assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
            let status = RegistrationStatus { plugin_registered: true, error: String::new() };
            kubelet(socket.clone()).await.notify_registration_status(status).await.unwrap();
            assert_eq!(*registered.borrow(), Registered::Yes);
            end.send(()).unwrap();
        };
        let (served, ()) = tokio::join!(serving, asking);
        served.unwrap();
        assert!(!socket.exists());
    }

    #[tokio::test]
    async fn a_second_driver_of_the_same_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { directory: folder.path().into(), endpoint: "/csi.sock".into() };
        let _first = Registration::open(&settings, "nfs.example.com").await.unwrap();
        assert!(matches!(Registration::open(&settings, "nfs.example.com").await, Err(ListenError::InUse(_))));
        assert!(Registration::open(&settings, "other.example.com").await.is_ok());
    }
}
