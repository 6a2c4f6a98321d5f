//! What is known of each NFS server: whether it answers, where it is, which versions it refused, how much is asked of
//! it at a time, and what works on its exports. All of it belongs to one server, so that a dead one is alone.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Mutex as Turn, Semaphore, watch};

use super::breaker::{Breaker, Refusal};
use crate::mount::options::{Transport, Version};
use crate::mount::protocol::error::MountError;
use crate::mount::table::Mount;

/// NFS's own port.
pub(super) const NFS_PORT: u16 = 2049;
/// Servers beyond these are forgotten when they are not in use: a pod's author may name any.
const MOST: usize = 1024;
/// How long addresses are taken as they were looked up.
const ADDRESSES_KEPT: Duration = Duration::from_mins(1);
/// The same where none of them answers: the server may have moved.
const DOUBTFUL_KEPT: Duration = Duration::from_secs(30);
/// How long a name that could not be looked up is not looked up again.
const LOOKUP_PAUSE: Duration = Duration::from_secs(5);
/// How long a version that a server does not have is not asked for again.
const REFUSAL_KEPT: Duration = Duration::from_mins(10);
/// How long a server that does not answer is asked after the last call that wanted it.
const WANTED: Duration = Duration::from_mins(10);

/// All servers that calls named.
#[derive(Debug)]
pub(super) struct Servers {
    per_server: usize,
    known: Mutex<HashMap<(String, u16, Transport), Arc<Server>>>,
    /// Changes whenever a server is found not to answer, or to answer again.
    changes: Arc<watch::Sender<()>>,
}

impl Servers {
    /// Each may have so many calls under way.
    pub(super) fn new(per_server: usize) -> Self {
        Self { per_server, known: Mutex::default(), changes: Arc::default() }
    }

    /// The server of this name (or address) whose NFS is on this port of this transport.
    pub(super) fn get(&self, name: &str, port: u16, transport: Transport) -> Arc<Server> {
        let mut known = locked(&self.known);
        if known.len() >= MOST {
            known.retain(|_, server| Arc::strong_count(server) > 1 || locked(&server.breaker).is_open());
        }
        let server =
            || Arc::new(Server::new(name.to_owned(), port, transport, self.per_server, Arc::clone(&self.changes)));
        Arc::clone(known.entry((name.to_owned(), port, transport)).or_insert_with(server))
    }

    /// The server of a mount.
    pub(super) fn of(&self, mount: &Mount) -> Arc<Server> {
        self.get(mount.server(), mount.port().unwrap_or(NFS_PORT), mount.transport())
    }

    /// The server of this name, for what says no more of it.
    pub(super) fn named(&self, name: &str) -> Arc<Server> {
        self.get(name, NFS_PORT, Transport::Tcp)
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
    pub(super) transport: Transport,
    /// Calls that ask it something.
    pub(super) calls: Semaphore,
    /// Unmounts, which are let through whatever the other calls do.
    pub(super) unmounts: Semaphore,
    breaker: Mutex<Breaker>,
    /// Mounts of which manner hang.
    manners: Mutex<HashMap<Manner, Breaker>>,
    wanted: Mutex<Instant>,
    addresses: Mutex<Addresses>,
    /// Held by whoever looks its name up.
    pub(super) lookup: Turn<()>,
    /// The versions that it does not have, and when that was seen.
    lacking: Mutex<HashMap<Version, Instant>>,
    /// Held by whoever asks an address of it.
    pub(super) question: Turn<()>,
    asked: Mutex<HashMap<SocketAddr, Asked>>,
    works: Mutex<Works>,
    changes: Arc<watch::Sender<()>>,
}

/// What mounts of a server have in common that hang together: the version (3 needs mountd), and what they are secured
/// by (Kerberos needs a KDC).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Manner {
    pub(super) major: u32,
    pub(super) security: String,
}

/// Where a server is, as its name says.
#[derive(Debug, Default)]
struct Addresses {
    /// As they were looked up last, the one that answered first; empty: never.
    found: Vec<SocketAddr>,
    /// When that was, and how long they are taken as they are.
    since: Option<Instant>,
    kept: Duration,
    /// Why the last lookup failed, and until when none is made.
    failure: Option<(MountError, Instant)>,
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
    fn new(name: String, port: u16, transport: Transport, calls: usize, changes: Arc<watch::Sender<()>>) -> Self {
        Self {
            name,
            port,
            transport,
            calls: Semaphore::new(calls),
            unmounts: Semaphore::new(calls),
            breaker: Mutex::default(),
            wanted: Mutex::new(Instant::now()),
            addresses: Mutex::default(),
            lookup: Turn::default(),
            lacking: Mutex::default(),
            manners: Mutex::default(),
            question: Turn::default(),
            asked: Mutex::default(),
            works: Mutex::default(),
            changes,
        }
    }

    /// An error while the server is known not to answer.
    pub(super) fn check(&self) -> Result<(), MountError> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), MountError> {
        *locked(&self.wanted) = now;
        locked(&self.breaker).refusal(now).map_or(Ok(()), |refusal| Err(self.refused_for(refusal)))
    }

    /// The same for a mount, also while mounts of its manner are known to hang.
    pub(super) fn check_mount(&self, manner: &Manner) -> Result<(), MountError> {
        let now = Instant::now();
        self.check_at(now)?;
        let mut manners = locked(&self.manners);
        let Some(breaker) = manners.get_mut(manner) else { return Ok(()) };
        breaker.end_rest(now);
        breaker.refusal(now).map_or(Ok(()), |refusal| Err(self.refused_for(refusal)))
    }

    fn refused_for(&self, refusal: Refusal) -> MountError {
        MountError::Refused {
            server: self.name.clone(),
            reason: refusal.reason,
            answered: refusal.answered.map_or_else(
                || "it has not answered since this process started".into(),
                |ago| format!("it answered last at {}", prost_types::Timestamp::from(SystemTime::now() - ago)),
            ),
            milliseconds: u64::try_from(refusal.next.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Notes that it answers.
    pub(super) fn answered(&self, now: Instant) {
        self.change(|breaker| breaker.answer(now));
    }

    /// Notes that a mount of this manner worked, and which versions it does not have.
    pub(super) fn worked(&self, manner: &Manner, lacking: &[Version]) {
        self.change(Breaker::work);
        locked(&self.manners).remove(manner);
        locked(&self.lacking).extend(lacking.iter().map(|version| (*version, Instant::now())));
    }

    /// Those of the versions that it is not known not to have; all, if that is none.
    pub(super) fn not_lacking(&self, candidates: Vec<Version>) -> Vec<Version> {
        let lacking = locked(&self.lacking);
        let is_lacking = |version: &Version| lacking.get(version).is_some_and(|since| since.elapsed() < REFUSAL_KEPT);
        if candidates.iter().all(is_lacking) {
            return candidates;
        }
        candidates.into_iter().filter(|version| !is_lacking(version)).collect()
    }

    /// Notes that it does not answer. True if it has to be asked from now on.
    pub(super) fn failed(&self, reason: &MountError) -> bool {
        let is_news = self.change(|breaker| breaker.fail(Instant::now(), reason.to_string()));
        self.changes.send_replace(());
        is_news
    }

    /// Notes that an address answered.
    pub(super) fn note_answer(&self, address: SocketAddr, at: Instant) {
        locked(&self.asked).insert(address, Asked { ended: at, silent_since: None });
        self.answered(at);
    }

    /// Notes that an address did not answer a question that began and ended at these times.
    pub(super) fn note_silence(&self, address: SocketAddr, begun: Instant, ended: Instant) {
        let mut asked = locked(&self.asked);
        let asked = asked.entry(address).or_insert(Asked { ended, silent_since: None });
        asked.ended = ended;
        asked.silent_since.get_or_insert(begun);
        locked(&self.works).hangs.values_mut().for_each(|hangs| *hangs = true);
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

    /// Notes that it lets a mount of this manner hang.
    pub(super) fn hung(&self, manner: &Manner, reason: &MountError) {
        let mut manners = locked(&self.manners);
        if manners.entry(manner.clone()).or_default().hang(Instant::now(), reason.to_string()) {
            tracing::warn!(
                server = self.name,
                version = manner.major,
                security = manner.security,
                %reason,
                "mounts of this kind hang: they are refused for a while"
            );
        }
    }

    /// Notes that a call to it hangs, where it cannot be asked whether it is there. True if that is news.
    pub(super) fn stopped(&self, reason: &MountError) -> bool {
        self.change(|breaker| breaker.hang(Instant::now(), reason.to_string()))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = locked(&self.breaker);
        let was_open = breaker.is_open();
        let changed = change(&mut breaker);
        match (was_open, breaker.reason()) {
            (false, Some(reason)) => {
                tracing::warn!(server = self.name, reason, "server does not answer: its calls are refused");
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

    /// Its addresses, the one that answered last first, if they need not be looked up now; or why they cannot be.
    pub(super) fn addresses(&self) -> Option<Result<Vec<SocketAddr>, MountError>> {
        let addresses = locked(&self.addresses);
        let now = Instant::now();
        if addresses.since.is_some_and(|since| since.elapsed() < addresses.kept) {
            return Some(Ok(addresses.found.clone()));
        }
        let (error, _) = addresses.failure.as_ref().filter(|(_, until)| *until > now)?;
        Some(if addresses.found.is_empty() { Err(error.clone()) } else { Ok(addresses.found.clone()) })
    }

    /// Notes what a lookup of its name came to. Gives what is to be used: while lookups fail, what was found before.
    pub(super) fn looked_up(&self, found: Result<Vec<SocketAddr>, MountError>) -> Result<Vec<SocketAddr>, MountError> {
        let mut addresses = locked(&self.addresses);
        match found {
            Ok(mut found) => {
                if let Some(answered) = addresses.found.first() {
                    found.sort_by_key(|address| address != answered);
                }
                *addresses = Addresses { found, since: Some(Instant::now()), kept: ADDRESSES_KEPT, failure: None };
            }
            Err(error) => {
                addresses.failure = Some((error.clone(), Instant::now() + LOOKUP_PAUSE));
                if addresses.found.is_empty() {
                    return Err(error);
                }
                tracing::warn!(server = self.name, %error, "its last known addresses are used");
            }
        }
        Ok(addresses.found.clone())
    }

    /// Notes which of its addresses answers.
    pub(super) fn found_at(&self, address: SocketAddr) {
        locked(&self.addresses).found.sort_by_key(|found| *found != address);
    }

    /// Notes that none of its addresses answers: perhaps it has moved.
    pub(super) fn not_found(&self) {
        locked(&self.addresses).kept = DOUBTFUL_KEPT;
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
        let server = Servers::new(4).get("files", 2049, Transport::Tcp);
        let [one, other]: [SocketAddr; 2] = ["10.0.0.1:2049", "10.0.0.2:2049"].map(|address| address.parse().unwrap());
        let now = Instant::now();
        assert_eq!((server.silence(one), server.asked(one)), (None, None));
        server.note_answer(one, now.checked_sub(SECOND * 9).unwrap());
        assert_eq!(server.silence(one), None);
        for begun in [SECOND * 5, SECOND * 2] {
            server.note_silence(one, now.checked_sub(begun).unwrap(), Instant::now());
            assert!((SECOND * 5..SECOND * 30).contains(&server.silence(one).unwrap()));
        }
        assert!(server.asked(one).unwrap() >= now);
        assert_eq!(server.silence(other), None);
        server.note_answer(one, now);
        assert_eq!(server.silence(one), None);
    }

    #[test]
    fn work_that_waited_while_its_server_was_silent_hangs_until_it_ends() {
        let servers = Servers::new(4);
        let server = servers.get("files", 2049, Transport::Tcp);
        let address = "10.0.0.1:2049".parse().unwrap();
        let works = || servers.works()["files"];
        let (first, second) = (server.begin(), server.begin());
        server.note_answer(address, Instant::now());
        assert_eq!(works(), (2, 0));
        server.end(first);
        server.note_silence(address, Instant::now(), Instant::now());
        let third = server.begin();
        assert_eq!(works(), (2, 1));
        server.note_answer(address, Instant::now());
        assert_eq!(works(), (2, 1), "it has not ended yet");
        server.end(second);
        server.end(third);
        assert_eq!(works(), (0, 0));
    }

    #[test]
    fn only_what_was_refused_is_remembered_of_the_versions() {
        use Version::{V3, V4_0, V4_1, V4_2};
        let servers = Servers::new(4);
        let server = servers.get("files", 2049, Transport::Tcp);
        let manner = |major| Manner { major, security: String::new() };
        let all = || vec![V4_2, V4_1, V4_0];
        // A volume that asks for 3, or for 4.0, says nothing of the others.
        server.worked(&manner(3), &[]);
        server.worked(&manner(4), &[]);
        assert_eq!(server.not_lacking(all()), all());
        server.worked(&manner(4), &[V4_2]);
        assert_eq!(server.not_lacking(all()), [V4_1, V4_0]);
        assert_eq!(server.not_lacking(vec![V4_2]), [V4_2], "who asks for nothing else is answered by the server");
        assert_eq!(server.not_lacking(vec![V3]), [V3]);
        let other_port = servers.get("files", 2050, Transport::Tcp);
        let other_transport = servers.get("files", 2049, Transport::Rdma);
        assert!([other_port, other_transport].iter().all(|server| server.not_lacking(all()) == all()));
    }

    #[test]
    fn mounts_that_hang_hold_up_those_of_their_manner_only() {
        let server = Servers::new(4).get("files", 2049, Transport::Tcp);
        let [old, kerberos, usual] =
            [(3, ""), (4, "sec=krb5"), (4, "")].map(|(major, security)| Manner { major, security: security.into() });
        let hangs = MountError::TimedOut { what: "the mount".into(), seconds: 15, hint: "a dead mountd".into() };
        server.hung(&old, &hangs);
        server.hung(&kerberos, &hangs);
        assert!(server.check().is_ok() && server.check_mount(&usual).is_ok());
        for manner in [&old, &kerberos] {
            let refused = server.check_mount(manner).unwrap_err();
            assert!(refused.to_string().contains("a dead mountd"), "{refused}");
        }
        server.worked(&usual, &[]);
        assert!(server.check_mount(&old).is_err());
        server.worked(&old, &[]);
        assert!(server.check_mount(&old).is_ok() && server.check_mount(&kerberos).is_err());
    }

    #[test]
    fn addresses_are_used_while_lookups_fail_and_the_one_that_answered_comes_first() {
        let server = Servers::new(4).get("files", 2049, Transport::Tcp);
        let [one, other]: [SocketAddr; 2] = ["10.0.0.1:2049", "10.0.0.2:2049"].map(|address| address.parse().unwrap());
        let failure = || MountError::Unresolved { server: "files".into(), reason: "silence".into() };
        assert_eq!(server.addresses(), None);
        assert_eq!(server.looked_up(Err(failure())), Err(failure()));
        assert_eq!(server.addresses(), Some(Err(failure())), "it is not looked up again at once");
        assert_eq!(server.looked_up(Ok(vec![one, other])), Ok(vec![one, other]));
        server.found_at(other);
        assert_eq!(server.addresses(), Some(Ok(vec![other, one])));
        assert_eq!(server.looked_up(Ok(vec![one, other])), Ok(vec![other, one]));
        assert_eq!(server.looked_up(Err(failure())), Ok(vec![other, one]));
    }

    #[tokio::test]
    async fn a_change_is_reported_when_a_server_stops_answering_and_when_it_answers_again() {
        let servers = Servers::new(4);
        let server = servers.get("files", 2049, Transport::Tcp);
        let mut changes = servers.changes();
        server.answered(Instant::now());
        assert!(!changes.has_changed().unwrap());
        let error = MountError::Unresolved { server: "files".into(), reason: "silence".into() };
        for is_news in [true, false] {
            assert_eq!(server.failed(&error), is_news);
            changes.changed().await.unwrap();
            assert!(server.check().is_err());
        }
        server.answered(Instant::now());
        changes.changed().await.unwrap();
        assert!(server.check().is_ok());
    }
}
