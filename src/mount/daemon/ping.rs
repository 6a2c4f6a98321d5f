//! The question whether an NFS server is there: procedure NULL of the NFS program.
//!
//! A server that does not answer NULL within its deadline must not be mounted: mount(2) would wait for minutes, and a
//! hung first mount holds up those of every other server (measured). The daemon asks by itself: no call here blocks a
//! thread, so dead servers, however many, take nothing from living ones. Connections are kept, so that to ask a known
//! server costs one round trip.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use crate::mount::onc::{self, PROG_MISMATCH, PROG_UNAVAIL, Received};

/// The program's number (IANA "rpc-program-numbers"), and that of the procedure that does nothing.
const NFS: u32 = 100_003;
const NULL: u32 = 0;
/// More connections than these are not kept.
const KEPT: usize = 64;

/// Which major versions of NFS a server has, as far as one question tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// The version asked for.
    Yes,
    /// Not the version asked for, but those between the two.
    Between(u32, u32),
}

#[derive(Debug, Error)]
pub(super) enum PingError {
    /// Nobody answers.
    #[error(transparent)]
    Silent(#[from] io::Error),
    /// Somebody answers who is no NFS server.
    #[error("{0}")]
    NotNfs(&'static str),
}

/// The kept connections, by the servers' addresses.
#[derive(Debug, Default)]
pub(super) struct Pinger {
    connections: Mutex<HashMap<SocketAddr, Connection>>,
    calls: AtomicU32,
}

/// A connection, and this host's address in it.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    own: IpAddr,
}

impl Pinger {
    /// Asks the NFS server at `address` whether it is there and serves major version `version`.
    ///
    /// Gives also this host's address on the way there, which NFS 4.0 wants for callbacks.
    pub(super) async fn nfs(
        &self,
        address: SocketAddr,
        version: u32,
        until: Instant,
    ) -> Result<(Served, IpAddr), PingError> {
        let late = || PingError::Silent(io::Error::from(io::ErrorKind::TimedOut));
        timeout_at(until.into(), self.ask(address, version)).await.map_err(|_| late())?
    }

    async fn ask(&self, address: SocketAddr, version: u32) -> Result<(Served, IpAddr), PingError> {
        let kept = self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        if let Some(kept) = kept {
            // A kept connection may have been closed by an idle server: that says nothing yet. Silence does.
            match self.null(kept, address, version).await {
                Err(PingError::Silent(_)) => {}
                other => return other,
            }
        }
        let fresh = TcpStream::connect(address).await?;
        fresh.set_nodelay(true)?;
        let own = fresh.local_addr()?.ip();
        self.null(Connection { stream: fresh, own }, address, version).await
    }

    async fn null(
        &self,
        mut connection: Connection,
        address: SocketAddr,
        version: u32,
    ) -> Result<(Served, IpAddr), PingError> {
        let xid = self.calls.fetch_add(1, Ordering::Relaxed);
        connection.stream.write_all(&onc::call(xid, [NFS, version, NULL], &[])).await?;
        let mut bytes = Vec::with_capacity(64);
        let words = loop {
            if connection.stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            match onc::answer(xid, &bytes) {
                Received::Part => {}
                Received::Answer(words) => break words,
                Received::Denied => break Vec::new(),
                Received::Other(what) => return Err(PingError::NotNfs(what)),
            }
        };
        let served = match words.as_slice() {
            [PROG_MISMATCH, low, high, ..] => Served::Between(*low, *high),
            [PROG_UNAVAIL, ..] => return Err(PingError::NotNfs("it has no NFS program")),
            // SUCCESS; or it refuses this call alone, for its port or its flavour: but it is there.
            _ => Served::Yes,
        };
        let own = connection.own;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.len() < KEPT {
            connections.insert(address, connection);
        }
        Ok((served, own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::onc::SUCCESS;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    const REPLY: u32 = 1;
    const ACCEPTED: u32 = 0;

    /// A server that answers every connection's first call with these words behind the xid.
    fn answering(words: &'static [u32]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 44];
                if stream.read_exact(&mut request).is_err() {
                    continue;
                }
                let mut reply = (0x8000_0000 | u32::try_from(4 + 4 * words.len()).unwrap()).to_be_bytes().to_vec();
                reply.extend_from_slice(&request[4..8]);
                reply.extend(words.iter().flat_map(|word| word.to_be_bytes()));
                stream.write_all(&reply).unwrap();
            }
        });
        address
    }

    async fn ping(address: SocketAddr) -> Result<Served, PingError> {
        Pinger::default().nfs(address, 4, Instant::now() + Duration::from_secs(5)).await.map(|(served, _)| served)
    }

    #[tokio::test]
    async fn an_accepted_null_call_means_the_version_is_served() {
        assert_eq!(ping(answering(&[REPLY, ACCEPTED, 0, 0, SUCCESS])).await.unwrap(), Served::Yes);
    }

    #[tokio::test]
    async fn a_mismatch_tells_which_versions_are_served() {
        let answer = ping(answering(&[REPLY, ACCEPTED, 0, 0, PROG_MISMATCH, 3, 3])).await;
        assert_eq!(answer.unwrap(), Served::Between(3, 3));
    }

    #[tokio::test]
    async fn a_server_without_the_program_is_no_nfs_server() {
        for answer in [&[REPLY, ACCEPTED, 0, 0, PROG_UNAVAIL][..], &[7, 7, 7, 7, 7]] {
            assert!(matches!(ping(answering(answer)).await, Err(PingError::NotNfs(_))));
        }
    }

    #[tokio::test]
    async fn a_server_that_refuses_the_question_is_there() {
        const SYSTEM_ERROR: u32 = 5;
        for answer in [&[REPLY, 1, 1, 5][..], &[REPLY, ACCEPTED, 0, 0, SYSTEM_ERROR]] {
            assert_eq!(ping(answering(answer)).await.unwrap(), Served::Yes);
        }
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closed_meanwhile_is_made_anew() {
        let address = answering(&[REPLY, ACCEPTED, 0, 0, SUCCESS]);
        let pinger = Pinger::default();
        for _ in 0..3 {
            // The server above answers one call a connection and closes it.
            assert_eq!(pinger.nfs(address, 4, Instant::now() + Duration::from_secs(5)).await.unwrap().0, Served::Yes);
        }
    }

    #[tokio::test]
    async fn a_silent_server_costs_no_more_than_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        let until = begun + Duration::from_millis(100);
        let error = Pinger::default().nfs(listener.local_addr().unwrap(), 4, until).await;
        assert!(matches!(error, Err(PingError::Silent(error)) if error.kind() == io::ErrorKind::TimedOut));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_closed_port_is_told_at_once() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = ping(address).await;
        assert!(matches!(error, Err(PingError::Silent(error)) if error.kind() == io::ErrorKind::ConnectionRefused));
    }
}
