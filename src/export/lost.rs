//! Exports whose server stops to answer: who waits for work on them is answered, and when the silence lasts, what hangs
//! in the kernel is ended and the mounts go. The next call after the server's return mounts them again.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::pool::Exports;
use super::{Export, ExportError};
use crate::mount::daemon::held::{HeldServer, Work};
use crate::mount::options::Options;
use crate::volume::share::Share;

/// How soon what hangs is ended again. Calls in one directory wait for each other in the kernel: when one is ended, the
/// next asks the server. Where that helps nobody, the pause becomes longer.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Export {
    /// An error while the server is known not to answer.
    pub(super) fn check_server(&self) -> Result<(), ExportError> {
        self.server.as_ref().map_or(Ok(()), |server| Ok(server.check()?))
    }

    /// Counts work on this export that is under way.
    #[must_use]
    pub fn count_work(&self) -> Option<Work> {
        self.server.as_ref().map(HeldServer::begin)
    }

    /// Waits for work on this export, and asks the server when it takes long.
    ///
    /// # Errors
    /// What the work gives; that the server does not answer, where the work failed and that is the reason.
    pub async fn watched<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        E: From<ExportError>,
    {
        let ended = match &self.server {
            Some(server) => server.watch(work).await,
            None => work.await,
        };
        if ended.is_err() {
            self.check_server()?;
            if let Some(silence) = self.lost.get() {
                return Err(ExportError::Lost { share: self.share.to_string(), seconds: silence.as_secs() }.into());
            }
        }
        ended
    }

    /// Whether its mounts were given up.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    fn loss(&self) -> Option<Duration> {
        self.server.as_ref()?.loss()
    }

    /// Ends calls for as long as there are any and the server does not answer; then nobody uses the export any more.
    async fn end_calls(self: Arc<Self>) {
        let (mut pause, mut left) = (SHORTEST_PAUSE, usize::MAX);
        while Arc::strong_count(&self) > 1 {
            let server = self.server.as_ref().filter(|server| server.loss().is_some() && server.works() > 0);
            if let Some(server) = server {
                for point in self.mount_points() {
                    server.abort(&point).await;
                }
            }
            let works = server.map_or(0, HeldServer::works);
            pause = if works < left { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            left = works;
            tokio::time::sleep(pause).await;
        }
    }
}

impl Exports {
    /// Waits for work on exports for a caller. When a server of theirs does not answer, so is the caller: the work goes
    /// on until the kernel lets it end.
    ///
    /// # Errors
    /// What the work gives, or what calls for the server are refused with.
    pub async fn unless_silent<T, E>(
        &self,
        on: &[(Share, Options)],
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E>
    where
        E: From<ExportError>,
    {
        let mut changes = self.mounter.changes();
        for (share, options) in on {
            self.check(share, options)?;
        }
        let silence = async {
            loop {
                // Its sender lives as long as the mounter.
                let _ = changes.changed().await;
                let mut held = on.iter().filter_map(|(share, options)| self.find(share, options));
                if let Some(error) = held.find_map(|export| export.check_server().err()) {
                    return error;
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            error = silence => Err(error.into()),
        }
    }

    /// Waits until the server of a share answers again; for ever where it is not known not to.
    pub async fn back(&self, share: &Share, options: &Options) {
        let mut changes = self.mounter.changes();
        if self.check(share, options).is_ok() {
            return std::future::pending().await;
        }
        while self.check(share, options).is_err() {
            let _ = changes.changed().await;
        }
    }

    fn check(&self, share: &Share, options: &Options) -> Result<(), ExportError> {
        match self.find(share, options) {
            Some(export) => export.check_server(),
            None => Ok(self.mounter.check(&share.server().to_string(), &self.options(share, options))?),
        }
    }

    /// Forgets the exports whose servers are lost, and ends what waits for them.
    pub(super) fn give_up_lost(self: &Arc<Self>) {
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, export) in mounted.extract_if(|_, export| export.loss().is_some()) {
            let silence = *export.lost.get_or_init(|| export.loss().unwrap_or_default());
            tracing::warn!(share = %export.share, seconds = silence.as_secs(), "server does not answer: export given up");
            let exports = Arc::clone(self);
            tokio::spawn(async move {
                let (share, points) = (export.share.clone(), export.mount_points());
                export.end_calls().await;
                exports.unmount(&share, &points).await;
            });
        }
    }

    /// From now on gives exports up whenever a server is found to be silent for long.
    pub(super) fn give_up_in_time(self: &Arc<Self>) {
        let (exports, mut changes) = (Arc::downgrade(self), self.mounter.changes());
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(exports) = exports.upgrade() else { return };
                exports.give_up_lost();
            }
        });
    }
}
