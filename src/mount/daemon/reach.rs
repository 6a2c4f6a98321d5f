//! From a server's name to a server that answers: its addresses, the question whether it is there, and what follows
//! where it is not.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::mounter::Mounter;
use super::ping::{PingError, Served};
use super::servers::Server;
use crate::mount::options::Version;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Reached, Reply, Request};

/// How long a lookup of a name may take: the first name server may be dead, and the name be tried in several domains.
const LOOKUP: Duration = Duration::from_secs(15);

impl Mounter {
    /// Makes sure that the server of a request answers, and has one of these versions, all of this major version.
    pub(super) async fn reach(
        self: &Arc<Self>,
        server: &Arc<Server>,
        request: &MountRequest,
        candidates: &[Version],
        major: u32,
    ) -> Result<Reached, MountError> {
        let found = if server.transport.can_be_asked() {
            self.find(server, major).await
        } else {
            self.resolve(server).await.and_then(|addresses| match addresses.first() {
                Some(&address) => {
                    server.answered(Instant::now());
                    Ok((address, None, Served::Yes))
                }
                None => Err(unresolved(server, "it has no address")),
            })
        };
        let (address, own, versions) = found.inspect_err(|error| self.blame(server, error, major))?;
        if versions != Served::Yes {
            return Err(request.version_not_served(candidates));
        }
        Ok(Reached { address, client: own, candidates: candidates.to_vec() })
    }

    /// Finds out whether a server answers whose call took too long.
    pub(super) async fn make_sure(self: &Arc<Self>, server: &Arc<Server>, error: &MountError, major: u32) {
        if !server.transport.can_be_asked() {
            if server.stopped(error) {
                self.ask_from_now_on(server, major);
            }
            return;
        }
        if let Err(error) = self.find(server, major).await {
            self.blame(server, &error, major);
        }
    }

    /// Draws the consequence of an error: a server that does not answer is left alone until it does. (That its name
    /// cannot be looked up says nothing of it.)
    pub(super) fn blame(self: &Arc<Self>, server: &Arc<Server>, error: &MountError, major: u32) {
        if matches!(error, MountError::Unreachable { .. }) && server.failed(error) {
            self.ask_from_now_on(server, major);
        }
    }

    fn ask_from_now_on(self: &Arc<Self>, server: &Arc<Server>, major: u32) {
        tokio::spawn(ask_until_it_answers(Arc::downgrade(self), Arc::clone(server), major));
    }

    /// An address of the server that answers, and which versions it serves.
    async fn find(&self, server: &Server, major: u32) -> Result<(SocketAddr, Option<IpAddr>, Served), MountError> {
        let addresses = self.resolve(server).await?;
        let mut failure = None;
        for (index, &address) in addresses.iter().enumerate() {
            // The addresses share the deadline: a name with a dead one among several must not use it up.
            let share = u32::try_from(addresses.len() - index).unwrap_or(1);
            match self.question(server, address, major, self.limits().ping / share.min(2)).await {
                Ok((versions, own)) => {
                    server.found_at(address);
                    return Ok((address, Some(own), versions));
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        server.not_found();
        Err(failure.unwrap_or_else(|| unresolved(server, "it has no address")))
    }

    /// Asks one address of the server, and notes what that comes to.
    pub(super) async fn question(
        &self,
        server: &Server,
        address: SocketAddr,
        major: u32,
        limit: Duration,
    ) -> Result<(Served, IpAddr), MountError> {
        let begun = Instant::now();
        let answer = self.pinger().nfs(address, major, begun + limit).await;
        if matches!(answer, Err(PingError::Silent(_))) {
            // This process may have been stopped for long: then the server was silent for the limit at most.
            let ended = Instant::now();
            let begun = ended.checked_sub(limit).map_or(begun, |earliest| begun.max(earliest));
            server.note_silence(address, begun, ended);
        } else {
            // It was there when it was asked.
            server.note_answer(address, begun);
        }
        answer.map_err(|error| self.no_answer(server, address, &error))
    }

    async fn resolve(&self, server: &Server) -> Result<Vec<SocketAddr>, MountError> {
        if let Ok(address) = server.name.parse() {
            return Ok(vec![SocketAddr::new(address, server.port)]);
        }
        if let Some(known) = server.addresses() {
            return known;
        }
        let _one_at_a_time = server.lookup.lock().await;
        if let Some(known) = server.addresses() {
            return known;
        }
        let what = format!("the lookup of {}", server.name);
        let request = Request::Resolve { server: server.name.clone(), port: server.port };
        let found = match self.pool().ask(None, &what, &request, LOOKUP).await {
            Ok(Reply::Addresses(addresses)) => Ok(addresses),
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Err(super::mounter::unexpected(&what, &reply)),
            Err(MountError::TimedOut { seconds, .. }) => {
                Err(unresolved(server, &format!("no name server answers within {seconds} s")))
            }
            Err(error) => Err(error),
        };
        server.looked_up(found)
    }

    fn no_answer(&self, server: &Server, address: SocketAddr, error: &PingError) -> MountError {
        let (server, address) = (server.name.clone(), address.to_string());
        match error {
            PingError::Silent(error) => {
                let reason = match error.kind() {
                    io::ErrorKind::TimedOut => {
                        format!("no answer to RPC NULL within {} ms", self.limits().ping.as_millis())
                    }
                    _ => error.to_string(),
                };
                MountError::Unreachable { server, address, reason }
            }
            PingError::NotNfs(reason) => MountError::NotNfs { server, address, reason: (*reason).into() },
        }
    }
}

/// Asks a server now and then whether it is back, until it is or nobody wants it any more. One that cannot be asked is
/// taken to be back after its rest: the next call finds out.
async fn ask_until_it_answers(mounter: Weak<Mounter>, server: Arc<Server>, major: u32) {
    while let Some(next) = server.next_try() {
        let wait = next.saturating_duration_since(Instant::now());
        tokio::time::sleep(wait + wait.mul_f64(jitter())).await;
        let Some(mounter) = mounter.upgrade() else { return };
        if !server.transport.can_be_asked() {
            server.answered(Instant::now());
            continue;
        }
        match mounter.find(&server, major).await {
            // That it is no NFS server is an answer too, which the next call gets to see.
            Ok(_) | Err(MountError::NotNfs { .. }) => {}
            Err(error) => {
                server.failed(&error);
            }
        }
        drop(mounter);
    }
}

/// A part of a quarter: so that a thousand nodes that lost a server in one moment do not ask it in one.
fn jitter() -> f64 {
    // Each of them is seeded by the system.
    let random = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random % 1000).unwrap_or_default()) / 4000.0
}

fn unresolved(server: &Server, reason: &str) -> MountError {
    MountError::Unresolved { server: server.name.clone(), reason: reason.into() }
}
