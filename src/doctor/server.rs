//! The server: whether it takes connections, answers, and serves the versions and the security that are asked for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::check::{Check, Planned};
use super::task::{Line, Reporter, Subject};
use crate::mount::onc::{self, PROG_MISMATCH, PROG_UNAVAIL, Received};
use crate::mount::options::Version;
use crate::mount::protocol::Reached;
use crate::mount::worker::statd;

/// The NFS program's number, and that of its procedure that does nothing.
const NFS: u32 = 100_003;
const NULL: u32 = 0;
/// How long a connection may take, and how long an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

const TCP: Planned =
    Planned { name: "tcp", if_late: "open the NFS port between this host and the server in firewalls" };
const RPC: Planned = Planned { name: "rpc", if_late: "look at the load of the NFS server, or restart its NFS service" };
const NFS_VERSION: Planned = Planned { name: "nfs-version", if_late: RPC.if_late };
const STARTTLS: Planned = Planned { name: "starttls", if_late: RPC.if_late };
const STATD: Planned = Planned::local("statd");
/// This group's checks, in their order.
pub(super) const CHECKS: &[Planned] = &[TCP, RPC, NFS_VERSION, STARTTLS, STATD];

pub(super) fn run(subject: &Subject, addresses: &[SocketAddr], report: &mut Reporter<impl Write>) -> io::Result<()> {
    let candidates = subject.options.candidates();
    if !subject.options.transport().can_be_asked() {
        for planned in [TCP, RPC, NFS_VERSION, STARTTLS] {
            report.check(planned.skip("the mount options ask for another transport than TCP"))?;
        }
        report.check(statd(subject, &candidates))?;
        return match addresses.first() {
            Some(&address) => report.line(&Line::Reached(Reached { address, client: None, candidates })),
            None => Ok(()),
        };
    }
    let tries: Vec<_> = addresses.iter().map(|&address| (address, connect(address))).collect();
    report.check(tcp(subject, &tries))?;
    let Some((address, stream)) = tries.into_iter().find_map(|(address, stream)| Some((address, stream.ok()?))) else {
        return skip_from(1, "the server takes no connection (tcp)", report);
    };
    let client = stream.local_addr().ok().map(|own| own.ip());
    let mut connection = Connection { address, stream: Some(stream) };
    let first = candidates.first().map_or(4, |version| version.major());
    let answer = connection.null(first);
    report.check(rpc(address, &answer))?;
    let Ok(answer) = answer else { return skip_from(2, "the server does not answer as one of NFS (rpc)", report) };
    let other = if first == 4 { 3 } else { 4 };
    let has = |major: u32, answer: &io::Result<Null>| match *answer {
        Ok(Null::Served) => true,
        Ok(Null::Between(low, high)) => (low..=high).contains(&major),
        Ok(Null::NotNfs) | Err(_) => false,
    };
    let mut served = Vec::new();
    for (major, answer) in [(first, Ok(answer)), (other, connection.null(other))] {
        if has(major, &answer) {
            served.push(major);
        }
    }
    let usable: Vec<Version> = candidates.iter().copied().filter(|version| served.contains(&version.major())).collect();
    report.check(nfs_version(subject, &served, &candidates))?;
    report.check(starttls(subject, connection.offers_tls(first)))?;
    report.check(statd(subject, &usable))?;
    report.line(&Line::Reached(Reached { address, client, candidates: usable }))
}

fn skip_from(at: usize, reason: &str, report: &mut Reporter<impl Write>) -> io::Result<()> {
    CHECKS[at..].iter().try_for_each(|planned| report.check(planned.skip(reason)))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn tcp(subject: &Subject, tries: &[(SocketAddr, io::Result<TcpStream>)]) -> Check {
    let port = subject.options.port();
    let taken = tries.iter().filter(|(_, tried)| tried.is_ok()).map(|(address, _)| address.to_string());
    let taken = taken.collect::<Vec<_>>().join(", ");
    let failed: Vec<(String, &io::Error)> = tries
        .iter()
        .filter_map(|(address, tried)| tried.as_ref().err().map(|error| (address.to_string(), error)))
        .collect();
    let Some((address, error)) = failed.first() else {
        return TCP.pass(format!("{taken} takes connections"));
    };
    let remedy = match error.kind() {
        ErrorKind::ConnectionRefused => {
            format!("start the NFS server behind {address}, or name its port with the mount option port=")
        }
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            format!("give this host a route to {address}, or name another address of the server")
        }
        _ => format!("start the server, or open TCP port {port} between this host and {address} in firewalls"),
    };
    let all: Vec<String> = failed.iter().map(|(address, error)| format!("{address}: {}", reason(error))).collect();
    let seen = all.join("; ");
    if taken.is_empty() {
        TCP.fail(seen, remedy)
    } else {
        TCP.warn(format!("{seen}; {taken} takes connections"), remedy)
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no answer within {} s", TIMEOUT.as_secs()),
        ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    }
}

/// What a server answers to NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Null {
    /// It serves the version.
    Served,
    /// Not that one, but those between the two.
    Between(u32, u32),
    /// It has no NFS program.
    NotNfs,
}

fn rpc(address: SocketAddr, answer: &io::Result<Null>) -> Check {
    match answer {
        Ok(Null::NotNfs) => RPC.fail(
            format!("{address} answers RPC, and has no NFS program"),
            "name the port of the NFS server with the mount option port=",
        ),
        Ok(_) => RPC.pass(format!("{address} answers RPC NULL")),
        Err(error) if error.kind() == ErrorKind::InvalidData => RPC.fail(
            format!("{address} answers, and not as an NFS server: {error}"),
            "name the server and the port of its NFS service (mount option port=)",
        ),
        Err(error) => RPC.fail(
            format!("{address} takes connections, and does not answer RPC NULL: {}", reason(error)),
            "restart the NFS service on the server, or name the port where it is with the mount option port=",
        ),
    }
}

fn nfs_version(subject: &Subject, served: &[u32], candidates: &[Version]) -> Check {
    let mut names: Vec<String> = served.iter().map(ToString::to_string).collect();
    names.sort();
    let seen = match names.as_slice() {
        [] => "the server serves neither NFS 4 nor NFS 3".to_owned(),
        names => format!("the server serves NFS {}", names.join(" and ")),
    };
    let wanted = |major: u32| candidates.iter().any(|version| version.major() == major);
    let newest = candidates.first().map_or(4, |version| version.major());
    if served.iter().all(|&major| !wanted(major)) {
        let has = served.first().map_or(4, |&major| major);
        return NFS_VERSION.fail(
            format!("{seen}, and the mount options ask for {newest}"),
            format!(
                "enable NFS {newest} on the server (vers{newest}=y below [nfsd] in /etc/nfs.conf), or use the mount \
                 option nfsvers={has}"
            ),
        );
    }
    if !served.contains(&newest) && subject.options.transport().can_be_asked() {
        return NFS_VERSION.warn(
            format!("{seen}: there are no clones, and locks need rpc.statd on each node"),
            "enable NFS 4.2 on the server (vers4.2=y below [nfsd] in /etc/nfs.conf)",
        );
    }
    NFS_VERSION.pass(seen)
}

fn starttls(subject: &Subject, offered: io::Result<bool>) -> Check {
    let offers = offered.unwrap_or_default();
    match (offers, subject.wants_tls()) {
        (true, _) => STARTTLS.pass("the server offers TLS"),
        (false, false) => STARTTLS.skip("the server does not offer TLS, and the mount options do not ask for it"),
        (false, true) => STARTTLS.fail(
            "the server does not offer TLS (RPC NULL with AUTH_TLS), and the mount options ask for it",
            "run tlshd (package ktls-utils) with a certificate on the server and a kernel of Linux 6.4 or newer, or leave \
             out the mount option xprtsec=",
        ),
    }
}

/// Locks of version 3 hang where it does not run.
fn statd(subject: &Subject, usable: &[Version]) -> Check {
    match usable {
        [] => STATD.skip("no version can be used (nfs-version)"),
        [Version::V3, ..] if !subject.options.locks_need_statd() => STATD.skip("locks are local (nolock)"),
        [Version::V3, ..] if statd::runs() => STATD.pass("rpc.statd runs on this host"),
        [Version::V3, ..] => STATD.fail(
            "NFS 3 will be used, whose locks need rpc.statd on this host, and none runs",
            "start rpc.statd on the node (package nfs-common or nfs-utils), add the mount option nolock, or use NFS 4",
        ),
        _ => STATD.skip("NFS 4 does not need rpc.statd"),
    }
}

/// A connection, which is made again where the server has closed it.
struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Connection {
    /// Asks for procedure NULL of a version of NFS.
    fn null(&mut self, version: u32) -> io::Result<Null> {
        let words = self.exchange(&onc::call(version, [NFS, version, NULL], &[]), |bytes| {
            match onc::answer(version, bytes) {
                Received::Part => None,
                Received::Answer(words) => Some(Ok(words)),
                // It refuses this call, and so is there.
                Received::Denied => Some(Ok(Vec::new())),
                Received::Other(what) => Some(Err(io::Error::new(ErrorKind::InvalidData, what))),
            }
        })??;
        Ok(match words.as_slice() {
            [PROG_MISMATCH, low, high, ..] => Null::Between(*low, *high),
            [PROG_UNAVAIL, ..] => Null::NotNfs,
            _ => Null::Served,
        })
    }

    /// Asks whether the server takes TLS. One that knows nothing of it may close the connection.
    fn offers_tls(&mut self, version: u32) -> io::Result<bool> {
        const XID: u32 = 7;
        self.exchange(&onc::tls_probe(XID, [NFS, version]), |bytes| onc::offers_tls(XID, bytes))
    }

    fn exchange<T>(&mut self, call: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
        let end = Instant::now() + TIMEOUT;
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address)?,
        };
        stream.write_all(call)?;
        let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => bytes.extend_from_slice(&chunk[..length]),
            }
            if let Some(answer) = read(&bytes) {
                self.stream = Some(stream);
                return Ok(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Outcome;
    use crate::mount::options::Options;

    fn subject(options: &str) -> Subject {
        Subject { options: Options::parse([options]).unwrap(), ..Subject::default() }
    }

    fn version(options: &str, served: &[u32]) -> Check {
        let subject = subject(options);
        nfs_version(&subject, served, &subject.options.candidates())
    }

    #[test]
    fn a_version_that_is_asked_for_and_not_served_fails_and_an_old_one_is_a_warning() {
        for (options, served, outcome) in [
            ("", &[4, 3][..], Outcome::Pass),
            ("", &[4], Outcome::Pass),
            ("", &[3], Outcome::Warn),
            ("nfsvers=3", &[3], Outcome::Pass),
            ("nfsvers=3", &[4], Outcome::Fail),
            ("nfsvers=4.1", &[3], Outcome::Fail),
            ("", &[], Outcome::Fail),
        ] {
            assert_eq!(version(options, served).outcome, outcome, "{options} {served:?}");
        }
        assert!(version("nfsvers=3", &[4]).remedy.unwrap().contains("nfsvers=4"));
    }

    #[test]
    fn tls_that_is_not_offered_fails_only_where_it_is_asked_for() {
        let outcome = |options, offered| starttls(&subject(options), offered).outcome;
        assert_eq!(outcome("xprtsec=tls", Ok(true)), Outcome::Pass);
        assert_eq!(outcome("xprtsec=mtls", Ok(false)), Outcome::Fail);
        assert_eq!(outcome("xprtsec=none", Ok(false)), Outcome::Skip);
        assert_eq!(outcome("", Err(ErrorKind::UnexpectedEof.into())), Outcome::Skip);
    }

    #[test]
    fn one_dead_address_of_several_is_a_warning_that_names_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let alive = (listener.local_addr().unwrap(), TcpStream::connect(listener.local_addr().unwrap()));
        let dead = |kind: ErrorKind| ("10.0.0.9:2049".parse().unwrap(), Err(io::Error::from(kind)));
        let check = tcp(&subject(""), &[dead(ErrorKind::TimedOut), alive]);
        assert_eq!(check.outcome, Outcome::Warn);
        assert!(check.seen.contains("10.0.0.9:2049: no answer within 2 s"), "{}", check.seen);
        let refused = tcp(&subject(""), &[dead(ErrorKind::ConnectionRefused)]);
        assert_eq!(refused.outcome, Outcome::Fail);
        assert!(refused.remedy.unwrap().contains("start the NFS server"));
    }
}
