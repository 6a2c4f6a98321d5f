//! What is known of each NFS server: whether it answers, where it is, which version it took, how much is asked of it at
//! a time, and what works on its exports. All of it belongs to one server, so that a dead one is alone.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Mutex as Turn, Semaphore, watch};

use super::breaker::Breaker;
use crate::mount::options::Version;
use crate::mount::protocol::error::MountError;

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
    /// Changes whenever a server is found not to answer, or to answer again.
    changes: Arc<watch::Sender<()>>,
}

impl Servers {
    /// Each may have so many calls under way.
    pub(super) fn new(per_server: usize) -> Self {
        Self { per_server, known: Mutex::default(), changes: Arc::default() }
    }

    /// The server of this name (or address) whose NFS is on this port.
    pub(super) fn get(&self, name: &str, port: u16) -> Arc<Server> {
        let mut known = locked(&self.known);
        if known.len() >= MOST {
            known.retain(|_, server| Arc::strong_count(server) > 1 || locked(&server.breaker).is_open());
        }
        let server = || Arc::new(Server::new(name.to_owned(), port, self.per_server, Arc::clone(&self.changes)));
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

    /// For each server how much work is under way on its exports, and how much of it waited while it was silent.
    pub(super) fn works(&self) -> HashMap<String, (u64, u64)> {
        let mut servers: HashMap<String, (u64, u64)> = HashMap::new();
        for server in locked(&self.known).values() {
            let works = locked(&server.works);
            let (running, hanging) = servers.entry(server.name.clone()).or_default();
            *running += works.hangs.len() as u64;
            *hanging += works.hangs.values().filter(|hangs| **hangs).count() as u64;
        }
        servers
    }

    /// Changes whenever a server is found not to answer, or to answer again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
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
    /// Held by whoever asks an address of it.
    pub(super) question: Turn<()>,
    asked: Mutex<HashMap<SocketAddr, Asked>>,
    works: Mutex<Works>,
    changes: Arc<watch::Sender<()>>,
}

/// What the questions to one address came to.
#[derive(Debug)]
struct Asked {
    /// When the last one ended.
    ended: Instant,
    /// When the first one began that has had no answer since.
    silent_since: Option<Instant>,
}

/// Work on the exports of a server that is under way: whether it waited while the server was silent.
#[derive(Debug, Default)]
struct Works {
    begun: u64,
    hangs: HashMap<u64, bool>,
}

impl Server {
    fn new(name: String, port: u16, calls: usize, changes: Arc<watch::Sender<()>>) -> Self {
        Self {
            name,
            port,
            calls: Semaphore::new(calls),
            unmounts: Semaphore::new(calls),
            breaker: Mutex::default(),
            wanted: Mutex::new(Instant::now()),
            addresses: Mutex::default(),
            version: Mutex::default(),
            question: Turn::default(),
            asked: Mutex::default(),
            works: Mutex::default(),
            changes,
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
        let is_news = self.change(|breaker| breaker.fail(Instant::now(), reason.to_string()));
        self.changes.send_replace(());
        is_news
    }

    /// Notes what a question that began at this time came to.
    pub(super) fn note(&self, address: SocketAddr, begun: Instant, answers: bool) {
        let mut asked = locked(&self.asked);
        let asked = asked.entry(address).or_insert(Asked { ended: begun, silent_since: None });
        asked.ended = Instant::now();
        if answers {
            asked.silent_since = None;
        } else {
            asked.silent_since.get_or_insert(begun);
            locked(&self.works).hangs.values_mut().for_each(|hangs| *hangs = true);
        }
    }

    /// When the last question to an address ended.
    pub(super) fn asked(&self, address: SocketAddr) -> Option<Instant> {
        locked(&self.asked).get(&address).map(|asked| asked.ended)
    }

    /// For how long an address had not answered when it was asked last; none if it did.
    pub(super) fn silence(&self, address: SocketAddr) -> Option<Duration> {
        let asked = locked(&self.asked);
        let asked = asked.get(&address)?;
        asked.silent_since.map(|since| asked.ended - since)
    }

    /// Notes that work begins on an export. Gives its number.
    pub(super) fn begin(&self) -> u64 {
        let mut works = locked(&self.works);
        works.begun += 1;
        let number = works.begun;
        works.hangs.insert(number, false);
        number
    }

    /// Notes that work of this number has ended.
    pub(super) fn end(&self, number: u64) {
        locked(&self.works).hangs.remove(&number);
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
            (true, None) => {
                tracing::info!(server = self.name, "server answers again");
                self.changes.send_replace(());
            }
            _ => {}
        }
        changed
    }

    /// When it is to be asked whether it is back; none if it is well, or if nobody wanted it for long: then the next
    /// call finds out.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_address_is_silent_from_its_first_question_without_an_answer_to_its_next_answer() {
        let server = Servers::new(4).get("files", 2049);
        let [one, other]: [SocketAddr; 2] = ["10.0.0.1:2049", "10.0.0.2:2049"].map(|address| address.parse().unwrap());
        let now = Instant::now();
        assert_eq!((server.silence(one), server.asked(one)), (None, None));
        server.note(one, now.checked_sub(SECOND * 9).unwrap(), true);
        assert_eq!(server.silence(one), None);
        for begun in [SECOND * 5, SECOND * 2] {
            server.note(one, now.checked_sub(begun).unwrap(), false);
            assert!((SECOND * 5..SECOND * 30).contains(&server.silence(one).unwrap()));
        }
        assert!(server.asked(one).unwrap() >= now);
        assert_eq!(server.silence(other), None);
        server.note(one, now, true);
        assert_eq!(server.silence(one), None);
    }

    #[test]
    fn work_that_waited_while_its_server_was_silent_hangs_until_it_ends() {
        let servers = Servers::new(4);
        let server = servers.get("files", 2049);
        let address = "10.0.0.1:2049".parse().unwrap();
        let works = || servers.works()["files"];
        let (first, second) = (server.begin(), server.begin());
        server.note(address, Instant::now(), true);
        assert_eq!(works(), (2, 0));
        server.end(first);
        server.note(address, Instant::now(), false);
        let third = server.begin();
        assert_eq!(works(), (2, 1));
        server.note(address, Instant::now(), true);
        assert_eq!(works(), (2, 1), "it has not ended yet");
        server.end(second);
        server.end(third);
        assert_eq!(works(), (0, 0));
    }

    #[tokio::test]
    async fn a_change_is_reported_when_a_server_stops_answering_and_when_it_answers_again() {
        let servers = Servers::new(4);
        let server = servers.get("files", 2049);
        let mut changes = servers.changes();
        server.answered();
        assert!(!changes.has_changed().unwrap());
        let error = MountError::Unresolved { server: "files".into(), reason: "silence".into() };
        for is_news in [true, false] {
            assert_eq!(server.failed(&error), is_news);
            changes.changed().await.unwrap();
            assert!(server.check().is_err());
        }
        server.answered();
        changes.changed().await.unwrap();
        assert!(server.check().is_ok());
    }
}
