//! What is known of each NFS server: whether it answers, where it is, which version it took, and how much is asked of it
//! at a time. All of it belongs to one server, so that a dead one is alone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;

use super::breaker::Breaker;
use super::error::MountError;
use super::options::Version;

/// Servers beyond these are forgotten when they are not in use: a pod's author may name any.
const MOST: usize = 1024;
/// How long addresses are taken as they were looked up.
const ADDRESSES_KEPT: Duration = Duration::from_mins(1);
/// How long a version that a server took is tried first.
const VERSION_KEPT: Duration = Duration::from_mins(10);
/// How long a server that does not answer is asked after the last call that wanted it.
const WANTED: Duration = Duration::from_mins(10);

/// All servers that calls named.
#[derive(Debug)]
pub(super) struct Servers {
    per_server: usize,
    known: Mutex<HashMap<(String, u16), Arc<Server>>>,
}

impl Servers {
    /// Each may have so many calls under way.
    pub(super) fn new(per_server: usize) -> Self {
        Self { per_server, known: Mutex::default() }
    }

    /// The server of this name (or address) whose NFS is on this port.
    pub(super) fn get(&self, name: &str, port: u16) -> Arc<Server> {
        let mut known = locked(&self.known);
        if known.len() >= MOST {
            known.retain(|_, server| Arc::strong_count(server) > 1 || locked(&server.breaker).is_open());
        }
        let server = || Arc::new(Server::new(name.to_owned(), port, self.per_server));
        Arc::clone(known.entry((name.to_owned(), port)).or_insert_with(server))
    }

    /// For each server whether calls to it are refused at the moment.
    pub(super) fn refused(&self) -> Vec<(String, bool)> {
        let mut servers: HashMap<String, bool> = HashMap::new();
        for server in locked(&self.known).values() {
            *servers.entry(server.name.clone()).or_default() |= locked(&server.breaker).is_open();
        }
        servers.into_iter().collect()
    }
}

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) port: u16,
    /// Calls that ask it something.
    pub(super) calls: Semaphore,
    /// Unmounts, which are let through whatever the other calls do.
    pub(super) unmounts: Semaphore,
    breaker: Mutex<Breaker>,
    wanted: Mutex<Instant>,
    addresses: Mutex<Option<(Vec<IpAddr>, Instant)>>,
    version: Mutex<Option<(Version, Instant)>>,
}

impl Server {
    fn new(name: String, port: u16, calls: usize) -> Self {
        Self {
            name,
            port,
            calls: Semaphore::new(calls),
            unmounts: Semaphore::new(calls),
            breaker: Mutex::default(),
            wanted: Mutex::new(Instant::now()),
            addresses: Mutex::default(),
            version: Mutex::default(),
        }
    }

    /// An error while the server is known not to answer.
    pub(super) fn check(&self) -> Result<(), MountError> {
        let now = Instant::now();
        *locked(&self.wanted) = now;
        match locked(&self.breaker).refusal(now) {
            None => Ok(()),
            Some(refusal) => Err(MountError::Refused {
                server: self.name.clone(),
                reason: refusal.reason,
                answered: refusal.answered.map_or_else(
                    || "it has not answered since this process started".into(),
                    |time| format!("it answered last at {}", prost_types::Timestamp::from(time)),
                ),
                milliseconds: u64::try_from(refusal.next.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }

    /// Notes that it answers.
    pub(super) fn answered(&self) {
        self.change(|breaker| breaker.answer(Instant::now(), SystemTime::now()));
    }

    /// Notes that a mount of it worked, and with which version.
    pub(super) fn worked(&self, version: Version) {
        self.change(|breaker| breaker.work(SystemTime::now()));
        *locked(&self.version) = Some((version, Instant::now()));
    }

    /// Notes that it does not answer. True if it has to be asked from now on.
    pub(super) fn failed(&self, reason: &MountError) -> bool {
        self.change(|breaker| breaker.fail(Instant::now(), reason.to_string()))
    }

    /// Notes that it answers and lets a mount hang. True if it has to be asked from now on.
    pub(super) fn hung(&self, reason: &MountError) -> bool {
        self.change(|breaker| breaker.hang(Instant::now(), reason.to_string()))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = locked(&self.breaker);
        let was_open = breaker.is_open();
        let changed = change(&mut breaker);
        match (was_open, breaker.refusal(Instant::now())) {
            (false, Some(refusal)) => {
                tracing::warn!(
                    server = self.name,
                    reason = refusal.reason,
                    "server does not answer: its calls are refused"
                );
            }
            (true, None) => tracing::info!(server = self.name, "server answers again"),
            _ => {}
        }
        changed
    }

    /// When it is to be asked whether it is back; none if it is well, or if nobody wanted it for long: then the next call
    /// finds out.
    pub(super) fn next_try(&self) -> Option<Instant> {
        if locked(&self.wanted).elapsed() > WANTED {
            *locked(&self.breaker) = Breaker::default();
        }
        locked(&self.breaker).next()
    }

    /// Its addresses, if they were looked up lately.
    pub(super) fn addresses(&self) -> Option<Vec<IpAddr>> {
        let addresses = locked(&self.addresses);
        addresses.as_ref().filter(|(_, since)| since.elapsed() < ADDRESSES_KEPT).map(|(addresses, _)| addresses.clone())
    }

    /// Notes where it is; none if it was not found there.
    pub(super) fn set_addresses(&self, found: Option<Vec<IpAddr>>) {
        *locked(&self.addresses) = found.map(|addresses| (addresses, Instant::now()));
    }

    /// Puts the version that it took last time first: what it refused then, it is not asked again for a while.
    pub(super) fn prefer_known(&self, candidates: &mut Vec<Version>) {
        if let Some((version, since)) = *locked(&self.version)
            && since.elapsed() < VERSION_KEPT
            && candidates.contains(&version)
        {
            candidates.retain(|candidate| *candidate <= version);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
