//! ONC RPC over TCP, no more of it than a question whether somebody is there (RFC 5531): procedure NULL of the NFS
//! program, and the port mapper's GETPORT.
//!
//! A server that does not answer NULL within its deadline must not be mounted: mount(2) would wait for minutes, and a
//! hung first mount holds up those of every other server (measured). Connections are kept, so that asking a known
//! server costs one round trip.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use thiserror::Error;

/// Program numbers (IANA "rpc-program-numbers").
const PORT_MAPPER: u32 = 100_000;
const NFS: u32 = 100_003;
const STATUS: u32 = 100_024;

/// The port mapper's version 2, its procedure GETPORT, its port, and the number it has for TCP.
const PORT_MAPPER_VERSION: u32 = 2;
const GETPORT: u32 = 3;
const PORT_MAPPER_PORT: u16 = 111;
const TCP: u32 = 6;

/// Message types and states of RFC 5531.
const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;

/// A record mark's top bit: this fragment is the last.
const LAST_FRAGMENT: u32 = 0x8000_0000;
/// No answer that is asked for here is longer.
const LONGEST_REPLY: usize = 1024;

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

/// The kept connections.
#[derive(Debug, Default)]
pub(super) struct Pinger {
    connections: HashMap<SocketAddr, Connection>,
    calls: u32,
}

/// A connection, and this host's address on it.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    local: IpAddr,
}

impl Pinger {
    /// Asks the NFS server at `address` whether it is there and serves major version `version`.
    ///
    /// Gives also this host's address on the way there, which NFS 4.0 wants for callbacks.
    pub(super) fn nfs(
        &mut self,
        address: SocketAddr,
        version: u32,
        timeout: Duration,
    ) -> Result<(Served, IpAddr), PingError> {
        let end = Instant::now() + timeout;
        if let Some(kept) = self.connections.remove(&address) {
            // A kept connection may have been closed by an idle server: that says nothing yet. Silence does.
            match self.null(kept, address, version, end) {
                Err(PingError::Silent(error)) if !is_timeout(&error) => {}
                other => return other,
            }
        }
        let fresh = TcpStream::connect_timeout(&address, left(end)?)?;
        fresh.set_nodelay(true)?;
        let local = fresh.local_addr()?.ip();
        self.null(Connection { stream: fresh, local }, address, version, end)
    }

    fn null(
        &mut self,
        mut connection: Connection,
        address: SocketAddr,
        version: u32,
        end: Instant,
    ) -> Result<(Served, IpAddr), PingError> {
        self.calls = self.calls.wrapping_add(1);
        let reply = call(&mut connection.stream, self.calls, [NFS, version, 0], &[], end)?;
        let local = connection.local;
        let served = match reply.as_slice() {
            [SUCCESS, ..] => Served::Yes,
            [PROG_MISMATCH, low, high, ..] => Served::Between(*low, *high),
            [PROG_UNAVAIL, ..] => return Err(PingError::NotNfs("it has no NFS program")),
            _ => return Err(PingError::NotNfs("it refuses the NFS program's NULL call")),
        };
        self.connections.insert(address, connection);
        Ok((served, local))
    }
}

/// Whether this host's rpc.statd is there: the port mapper knows it, and it takes connections.
pub(super) fn statd_runs(timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    let ask = || -> Result<bool, PingError> {
        let local = SocketAddr::from(([127, 0, 0, 1], PORT_MAPPER_PORT));
        let mut stream = TcpStream::connect_timeout(&local, left(end)?)?;
        let reply = call(&mut stream, 1, [PORT_MAPPER, PORT_MAPPER_VERSION, GETPORT], &[STATUS, 1, TCP, 0], end)?;
        let [SUCCESS, port @ 1..=0xffff, ..] = *reply.as_slice() else { return Ok(false) };
        let statd = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap_or(0)));
        Ok(TcpStream::connect_timeout(&statd, left(end)?).is_ok())
    };
    ask().unwrap_or(false)
}

/// One call and its answer: the words from the accept state on. `what` is program, version and procedure.
fn call(
    stream: &mut TcpStream,
    xid: u32,
    what: [u32; 3],
    arguments: &[u32],
    end: Instant,
) -> Result<Vec<u32>, PingError> {
    let [program, version, procedure] = what;
    // Credential and verifier are both AUTH_NONE: a flavour of 0 and a length of 0.
    let mut words = vec![xid, CALL, RPC_VERSION, program, version, procedure, 0, 0, 0, 0];
    words.extend_from_slice(arguments);
    let length = u32::try_from(words.len() * 4).unwrap_or(0);
    words.insert(0, LAST_FRAGMENT | length);
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    // So few bytes always fit into the socket's buffer: this does not wait.
    stream.write_all(&message)?;

    let reply = read_record(stream, end)?;
    match *reply.as_slice() {
        [answered, REPLY, ACCEPTED, _flavour, verifier_length, ..] if answered == xid => {
            let rest = 5 + (verifier_length as usize).div_ceil(4);
            Ok(reply.get(rest..).unwrap_or_default().to_vec())
        }
        _ => Err(PingError::NotNfs("its answer is no RPC reply to the call")),
    }
}

fn read_record(stream: &mut TcpStream, end: Instant) -> Result<Vec<u32>, PingError> {
    let mut bytes = Vec::with_capacity(64);
    loop {
        let mut chunk = [0; 256];
        stream.set_read_timeout(Some(left(end)?))?;
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes.extend_from_slice(&chunk[..count]);
        let Some((mark, body)) = bytes.split_first_chunk::<4>() else { continue };
        let mark = u32::from_be_bytes(*mark);
        let length = (mark & !LAST_FRAGMENT) as usize;
        if mark & LAST_FRAGMENT == 0 || length > LONGEST_REPLY {
            return Err(PingError::NotNfs("its answer is no RPC reply"));
        }
        if body.len() >= length {
            return Ok(body[..length].as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect());
        }
    }
}

/// The time that is left, or the error that none is.
fn left(end: Instant) -> io::Result<Duration> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

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
                let mut reply = (LAST_FRAGMENT | u32::try_from(4 + 4 * words.len()).unwrap()).to_be_bytes().to_vec();
                reply.extend_from_slice(&request[4..8]);
                reply.extend(words.iter().flat_map(|word| word.to_be_bytes()));
                stream.write_all(&reply).unwrap();
            }
        });
        address
    }

    fn ping(address: SocketAddr) -> Result<Served, PingError> {
        Pinger::default().nfs(address, 4, Duration::from_millis(500)).map(|(served, _)| served)
    }

    #[test]
    fn an_accepted_null_call_means_the_version_is_served() {
        assert_eq!(ping(answering(&[REPLY, ACCEPTED, 0, 0, SUCCESS])).unwrap(), Served::Yes);
    }

    #[test]
    fn a_mismatch_tells_which_versions_are_served() {
        assert_eq!(ping(answering(&[REPLY, ACCEPTED, 0, 0, PROG_MISMATCH, 3, 3])).unwrap(), Served::Between(3, 3));
    }

    #[test]
    fn a_server_without_the_program_is_no_nfs_server() {
        assert!(matches!(ping(answering(&[REPLY, ACCEPTED, 0, 0, PROG_UNAVAIL])), Err(PingError::NotNfs(_))));
        assert!(matches!(ping(answering(&[7, 7, 7, 7, 7])), Err(PingError::NotNfs(_))));
    }

    #[test]
    fn a_connection_that_the_server_closed_meanwhile_is_made_anew() {
        let address = answering(&[REPLY, ACCEPTED, 0, 0, SUCCESS]);
        let mut pinger = Pinger::default();
        for _ in 0..3 {
            // The server above answers one call a connection and closes it.
            assert_eq!(pinger.nfs(address, 4, Duration::from_secs(5)).unwrap().0, Served::Yes);
        }
    }

    #[test]
    fn a_silent_server_costs_no_more_than_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        let error = Pinger::default().nfs(listener.local_addr().unwrap(), 4, Duration::from_millis(100));
        assert!(matches!(error, Err(PingError::Silent(error)) if is_timeout(&error)));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_closed_port_is_told_at_once() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(
            matches!(ping(address), Err(PingError::Silent(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
        );
    }
}
