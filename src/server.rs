//! Listening and serving: a unix socket (or TCP, for trying by hand), tonic on it, and an orderly end.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::{Mode, fchmod};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;

use crate::authority::Mended;

/// The longest path that a unix socket address holds.
const LONGEST_SOCKET_PATH: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Where the driver listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket, by its absolute path.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    /// Neither of the two forms.
    #[error("an endpoint is unix:///absolute/path or tcp://host:port")]
    Form,
    /// Longer than a socket address holds.
    #[error("the socket's path has {0} bytes; at most {LONGEST_SOCKET_PATH} fit into a socket address")]
    TooLong(usize),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(address) = text.strip_prefix("tcp://") {
            let (host, port) = address.rsplit_once(':').ok_or(EndpointError::Form)?;
            return match port.parse::<u16>() {
                Ok(_) if !host.contains('/') => Ok(Self::Tcp(address.into())),
                _ => Err(EndpointError::Form),
            };
        }
        // gRPC's own naming has both unix:///path and unix:/path.
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        match path.len() {
            _ if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') => Err(EndpointError::Form),
            length if length > LONGEST_SOCKET_PATH => Err(EndpointError::TooLong(length)),
            _ => Ok(Self::Unix(path.into())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
        }
    }
}

/// Why the driver cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{0} is in use: another driver listens there; stop it, or choose another endpoint")]
    InUse(Endpoint),
    /// Something that is not a socket has the name.
    #[error("{0} exists and is not a socket: remove it, or choose another endpoint")]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen on {endpoint}: {error}; check that its folder exists and is writable")]
    System {
        /// Where it should have listened.
        endpoint: Endpoint,
        /// What the system says.
        error: io::Error,
    },
}

/// An open ear. The socket file goes when this is dropped.
#[derive(Debug)]
pub enum Listener {
    /// On a unix socket.
    Unix(UnixListener, SocketFile),
    /// On TCP.
    Tcp(TcpListener),
}

/// A socket's name in the file system.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: std::fs::symlink_metadata(path)?.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have put its own socket there.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // It may be gone with its folder in this moment; there is nobody left to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Listens on an endpoint. A socket file that nobody listens on any more is replaced; a live one is not.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, ListenError> {
        let refused = |error| match error {
            error if io::Error::kind(&error) == io::ErrorKind::AddrInUse => ListenError::InUse(endpoint.clone()),
            error => ListenError::System { endpoint: endpoint.clone(), error },
        };
        match endpoint {
            Endpoint::Tcp(address) => listen(address).map(Self::Tcp).map_err(refused),
            Endpoint::Unix(path) => {
                remove_stale(path, endpoint).await?;
                let socket = UnixSocket::new_stream().map_err(refused)?;
                // Its file has these permissions from the beginning: whoever may connect may mount on this host.
                let permissions = socket_permissions(path).map_err(refused)?;
                fchmod(&socket, permissions).map_err(|errno| refused(errno.into()))?;
                socket.bind(path).map_err(refused)?;
                let file = SocketFile::of(path).map_err(refused)?;
                Ok(Self::Unix(socket.listen(BACKLOG).map_err(refused)?, file))
            }
        }
    }
}

/// Who may connect to a socket with this path: its owner, and the group of its folder where the folder's set-group-ID
/// bit gives to that group what is made in it. So does an emptyDir's in a pod with an fsGroup: its sidecars need not be
/// root.
fn socket_permissions(path: &Path) -> io::Result<Mode> {
    let folder = std::fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    let of_group = Mode::from_bits_truncate(folder.mode()).contains(Mode::S_ISGID);
    let owner = Mode::S_IRUSR | Mode::S_IWUSR;
    Ok(if of_group { owner | Mode::S_IRGRP | Mode::S_IWGRP } else { owner })
}

/// Listens on `host:port`; `:port` and `[::]:port` are all addresses of both families, or of IPv4 where this host has
/// no IPv6.
///
/// # Errors
/// What the system says.
pub fn listen(address: &str) -> io::Result<TcpListener> {
    let (host, port) = address.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let bind = |socket: TcpSocket, address: SocketAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    if !host.is_empty() && host != "[::]" {
        let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        return bind(if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? }, address);
    }
    let port = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let both = || {
        let socket = TcpSocket::new_v6()?;
        setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
        bind(socket, (Ipv6Addr::UNSPECIFIED, port).into())
    };
    match both() {
        Err(error) if error.raw_os_error().is_some_and(is_no_ipv6) => {
            bind(TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, port).into())
        }
        bound => bound,
    }
}

/// Whether an error says that this host has no IPv6.
fn is_no_ipv6(errno: i32) -> bool {
    matches!(Errno::from_raw(errno), Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL | Errno::EPROTONOSUPPORT)
}

async fn remove_stale(path: &Path, endpoint: &Endpoint) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| ListenError::System { endpoint: endpoint.clone(), error })
        }
        Ok(_) => Err(ListenError::InUse(endpoint.clone())),
        Err(error) => Err(ListenError::System { endpoint: endpoint.clone(), error }),
    }
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All running calls finished.
    Drained,
    /// Some were still running when the grace period was over.
    CutShort,
}

/// Serves until `shutdown` resolves, then lets running calls finish for at most `grace`.
///
/// # Errors
/// Where the transport fails.
pub async fn serve(
    listener: Listener,
    services: Routes,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Result<Ended, tonic::transport::Error> {
    let (begin_drain, drain) = tokio::sync::oneshot::channel::<()>();
    let drained = async {
        // The sender lives until it is used.
        let _ = drain.await;
    };
    let router = Server::builder().add_routes(services);
    // Kept until the end: the file goes after the last call.
    let mut _socket_file = None;
    let serving: std::pin::Pin<Box<dyn Future<Output = _>>> = match listener {
        Listener::Unix(listener, file) => {
            _socket_file = Some(file);
            let clients = UnixListenerStream::new(listener).map(|client| client.map(Mended::new));
            Box::pin(router.serve_with_incoming_shutdown(clients, drained))
        }
        Listener::Tcp(listener) => {
            let clients = TcpListenerStream::new(listener).map(|client| client.map(Mended::new));
            Box::pin(router.serve_with_incoming_shutdown(clients, drained))
        }
    };
    tokio::pin!(serving);
    tokio::select! {
        result = &mut serving => return result.map(|()| Ended::Drained),
        () = shutdown => {}
    }
    // The receiver lives in `serving`.
    let _ = begin_drain.send(());
    match tokio::time::timeout(grace, serving).await {
        Ok(result) => result.map(|()| Ended::Drained),
        Err(_) => Ok(Ended::CutShort),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn endpoints_are_unix_paths_or_tcp_addresses() {
        let unix = |path: &str| Ok(Endpoint::Unix(path.into()));
        assert_eq!("unix:///csi/csi.sock".parse(), unix("/csi/csi.sock"));
        assert_eq!("unix:/csi/csi.sock".parse(), unix("/csi/csi.sock"));
        assert_eq!("/csi/csi.sock".parse(), unix("/csi/csi.sock"));
        assert_eq!("tcp://127.0.0.1:10000".parse(), Ok(Endpoint::Tcp("127.0.0.1:10000".into())));
        assert_eq!("tcp://[::1]:0".parse(), Ok(Endpoint::Tcp("[::1]:0".into())));
        assert_eq!("tcp://:10000".parse(), Ok(Endpoint::Tcp(":10000".into())));
        for wrong in ["", "csi.sock", "unix://", "unix://csi.sock", "unix:///a/", "tcp://host", "http://a:1"] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(EndpointError::Form), "{wrong}");
        }
        let long = format!("unix:///{}", "x".repeat(107));
        assert_eq!(long.parse::<Endpoint>(), Err(EndpointError::TooLong(108)));
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let endpoint = Endpoint::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let live = Listener::bind(&endpoint).await.unwrap();
        assert!(matches!(Listener::bind(&endpoint).await, Err(ListenError::InUse(_))));
        drop(live);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_is_for_its_owner_only_from_the_beginning_or_for_the_group_that_its_folder_gives_it_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        for (of_folder, of_socket) in [(0o777, 0o600), (0o2777, 0o660)] {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(of_folder)).unwrap();
            let _listener = Listener::bind(&Endpoint::Unix(path.clone())).await.unwrap();
            let mode = std::fs::symlink_metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o7777 & !of_socket, 0, "{mode:o}");
        }
    }

    #[tokio::test]
    async fn a_file_or_a_missing_folder_in_the_socket_s_place_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        std::fs::write(&path, "kept").unwrap();
        let bound = Listener::bind(&Endpoint::Unix(path.clone())).await;
        assert!(matches!(bound, Err(ListenError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        let bound = Listener::bind(&Endpoint::Unix(folder.path().join("no/csi.sock"))).await;
        assert!(matches!(bound, Err(ListenError::System { .. })));
    }
}
