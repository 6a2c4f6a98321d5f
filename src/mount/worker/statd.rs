//! Whether this host's rpc.statd runs, without which locks of NFS version 3 hang.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::mount::onc::{self, Received, SUCCESS};

/// Program numbers (IANA "rpc-program-numbers").
const PORT_MAPPER: u32 = 100_000;
const STATUS: u32 = 100_024;
/// The port mapper's version 2, its procedure GETPORT, its port, and the number it has for TCP.
const PORT_MAPPER_VERSION: u32 = 2;
const GETPORT: u32 = 3;
const PORT_MAPPER_PORT: u16 = 111;
const TCP: u32 = 6;

/// How long it may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the port mapper knows it, and it takes connections.
pub(crate) fn runs() -> bool {
    find().unwrap_or(false)
}

fn find() -> io::Result<bool> {
    let end = Instant::now() + TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&local(PORT_MAPPER_PORT), left(end)?)?;
    stream.write_all(&onc::call(1, [PORT_MAPPER, PORT_MAPPER_VERSION, GETPORT], &[STATUS, 1, TCP, 0]))?;
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 256];
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut chunk)? {
            0 => return Ok(false),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
        match onc::answer(1, &bytes) {
            Received::Part => {}
            Received::Answer(words) => {
                let [SUCCESS, port @ 1..=0xffff, ..] = *words.as_slice() else { return Ok(false) };
                let port = u16::try_from(port).unwrap_or_default();
                return Ok(TcpStream::connect_timeout(&local(port), left(end)?).is_ok());
            }
            Received::Denied | Received::Other(_) => return Ok(false),
        }
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The time that is left, or the error that none is.
fn left(end: Instant) -> io::Result<Duration> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    }
}
