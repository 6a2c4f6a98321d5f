//! The server of an export that this process works on through mounts of its own.
//!
//! A thread that waits in the kernel for a server cannot be ended alone, and `soft` does not bound its wait: the first
//! call after a server's death takes 18 to 27 s, or the server's lease (90 s) if that is longer, calls in one directory
//! wait for each other, and an open after the lease is over takes minutes (measured, NFS 4.2). So whenever work takes
//! long, the server is asked RPC NULL beside it, at the address where it is mounted. If it does not answer, callers
//! need not wait for the work any longer. If the silence lasts, the mounts are given up: MNT_FORCE ends the calls that
//! wait, and a new mount is a new connection. (The old one came back 25 s later than a server that was dead for 30 s.)

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::mounter::{Mounter, mapped_error};
use super::servers::Server;
use crate::mount::options::Options;
use crate::mount::protocol::Request;
use crate::mount::protocol::error::MountError;
use crate::mount::table::{Mount, Table};

/// How long work may take until its server is asked, and how soon it is asked again. Together with the time that a
/// server has for an answer this is how long a call waits that is the first to notice.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a server is silent until its mounts are given up: two questions, and shorter than TCP's pauses have become.
const LOST_AFTER: Duration = Duration::from_secs(4);
/// How long the call may take that ends others. It waits for no server.
const ABORT: Duration = Duration::from_secs(2);

/// The server of a mounted export.
#[derive(Debug)]
pub struct HeldServer {
    mounter: Arc<Mounter>,
    server: Arc<Server>,
    /// Where the kernel has it; none where it cannot be asked.
    address: Option<SocketAddr>,
    major: u32,
    /// Each work holds one.
    works: Arc<()>,
}

/// Work on an export, counted until this is dropped.
#[derive(Debug)]
pub struct Work {
    server: Arc<Server>,
    number: u64,
    _of_export: Arc<()>,
}

impl Mounter {
    /// The server that was found under this name or address, an export of which is mounted with these options at
    /// `point`.
    #[must_use]
    pub fn held(self: &Arc<Self>, name: &str, options: &Options, point: &Path) -> HeldServer {
        let table = Table::read().unwrap_or_default();
        let mount = table.at(point);
        // Only over TCP can it be asked. The kernel may use another address than the one asked for (NFS 4.1 sees that
        // two addresses are one server's).
        let address =
            mount.and_then(|mount| mount.address(options.port())).filter(|_| options.transport().can_be_asked());
        HeldServer {
            mounter: Arc::clone(self),
            server: self.server(name, options),
            address,
            major: mount.map_or(4, Mount::major_version),
            works: Arc::default(),
        }
    }

    /// An error while calls for the server are refused, at all of its addresses.
    pub fn check(&self, name: &str, options: &Options) -> Result<(), MountError> {
        let addresses = self.map().addresses(name);
        let mut refusal = None;
        for address in &addresses {
            match self.server(address, options).check() {
                Ok(()) => return Ok(()),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        refusal.map_or(Ok(()), |error| Err(mapped_error(name, &addresses, error)))
    }
}

impl HeldServer {
    /// An error while the server is known not to answer where it is mounted.
    pub fn check(&self) -> Result<(), MountError> {
        if self.silence().is_some() { self.server.check() } else { Ok(()) }
    }

    /// For how long it has not answered, where that is so long that its mounts are to be given up.
    #[must_use]
    pub fn loss(&self) -> Option<Duration> {
        self.silence().filter(|silence| *silence >= LOST_AFTER)
    }

    /// Counts work on the export from now on.
    #[must_use]
    pub fn begin(&self) -> Work {
        Work { server: Arc::clone(&self.server), number: self.server.begin(), _of_export: Arc::clone(&self.works) }
    }

    /// How much work on the export is under way.
    #[must_use]
    pub fn works(&self) -> usize {
        Arc::strong_count(&self.works) - 1
    }

    /// Waits for work. While that takes long, the server is asked now and then whether it is there.
    pub async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(address) = self.address else { return work.await };
        let mut work = std::pin::pin!(work);
        loop {
            if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
                return done;
            }
            let (mounter, server, major) = (Arc::clone(&self.mounter), Arc::clone(&self.server), self.major);
            // The answer counts also where this caller goes away.
            let asked = tokio::spawn(async move { mounter.ask_held(&server, address, major).await });
            tokio::select! {
                done = &mut work => return done,
                _ = asked => {}
            }
        }
    }

    /// Ends the calls that wait for the server at a mount point.
    pub async fn abort(&self, point: &Path) {
        let target = point.to_string_lossy().into_owned();
        let what = format!("the end of calls on {target}");
        let request = Request::Abort { target };
        let ended = self.mounter.pool().ask(Some(&self.server.unmounts), &what, &request, ABORT).await;
        if let Err(error) = ended {
            tracing::debug!(server = self.server.name, %error, "cannot end the calls that wait");
        }
    }

    fn silence(&self) -> Option<Duration> {
        self.server.silence(self.address?)
    }
}

impl Mounter {
    /// Asks a server at the address where it is mounted, unless that was done just now.
    async fn ask_held(self: &Arc<Self>, server: &Arc<Server>, address: SocketAddr, major: u32) {
        let _one_at_a_time = server.question.lock().await;
        if server.asked(address).is_some_and(|ended| ended.elapsed() < PATIENCE) {
            return;
        }
        if let Err(error) = self.question(server, address, major, self.limits().ping).await {
            self.blame(server, &error, major);
        }
    }

    /// Changes whenever a server is found not to answer, or to answer again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.servers().changes()
    }

    fn server(&self, name: &str, options: &Options) -> Arc<Server> {
        self.servers().get(name, options.port(), options.transport())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.server.end(self.number);
    }
}
