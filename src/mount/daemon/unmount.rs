//! Unmounting, whether the server lives or not.
//!
//! The mount table decides: a mount that is out of it is gone, even where the call that took it out goes on. That call
//! writes back what is left to write, and takes leave of the server: a server that answers is waited for, so that what a
//! pod has written is there when the next one starts elsewhere. One that does not answer is not.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::mounter::{Mounter, unexpected};
use super::servers::Server;
use super::table_watch::Top;
use super::worker_pool::worker_failed;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{Reply, Request};
use crate::mount::table::{Mount, Table};

/// More mounts than this on one path are somebody's mistake; the next call goes on with them.
const MOST_STACKED: usize = 100;
/// How long the call that took a mount out of the table goes on before its server is asked whether it is there.
const AT_ONCE: Duration = Duration::from_millis(100);
/// The same, each time after that.
const FAREWELL: Duration = Duration::from_secs(2);

type Call = JoinHandle<Result<Reply, MountError>>;

impl Mounter {
    /// Unmounts whatever is on the target; with `remove`, the empty mount point goes too. Nothing there is success.
    ///
    /// Each step is a request of its own: a worker that is left behind with a dead server must do nothing more to a
    /// path that may carry a new mount when it goes on.
    pub async fn unmount(self: &Arc<Self>, server: &str, target: &str, remove: bool) -> Result<(), MountError> {
        self.check_way(&Table::read()?, target).await?;
        for _ in 0..MOST_STACKED {
            let was_mounted = self.take_off(server, target).await?;
            // The kernel removes no directory that has a further mount on it.
            if if remove { self.remove(target).await? } else { !was_mounted } {
                return Ok(());
            }
        }
        Err(worker_failed(&format!("the unmount of {target}"), &format!("more than {MOST_STACKED} mounts are on it")))
    }

    /// Takes the topmost mount off the target; false where there is none.
    async fn take_off(self: &Arc<Self>, server: &str, target: &str) -> Result<bool, MountError> {
        let what = format!("the unmount of {target}");
        // Before the table is read, so that no change is missed.
        let mut changes = self.table().changes();
        let table = Table::read()?;
        let mount = table.at(Path::new(target));
        let (before, major) = (mount.map(Top::of), mount.map_or(4, Mount::major_version));
        let server = mount.map_or_else(|| self.servers().named(server), |mount| self.servers().of(mount));
        drop(table);
        let keep = || {
            if let Some(Top { device, .. }) = before {
                self.detached().add(device, &server.name);
            }
        };
        let mut call: Call = tokio::spawn({
            let (mounter, server) = (Arc::clone(self), Arc::clone(&server));
            let (what, request) = (what.clone(), Request::Unmount { target: target.to_owned() });
            async move { mounter.pool().ask(Some(&server.unmounts), &what, &request, mounter.limits().mount).await }
        });
        let is_gone = |table: &Table| before.is_some() && Top::at(table, target) != before;
        tokio::select! {
            biased;
            ended = &mut call => match ended.unwrap_or_else(|error| Err(worker_failed(&what, &error))) {
                Ok(Reply::Unmounted) => {
                    keep();
                    Ok(true)
                }
                Ok(Reply::NotMounted) => Ok(false),
                Ok(Reply::Failed(error)) => Err(error),
                Ok(reply) => Err(unexpected(&what, &reply)),
                Err(MountError::TimedOut { .. }) if Table::read().is_ok_and(|table| is_gone(&table)) => {
                    keep();
                    Ok(true)
                }
                Err(error) => Err(error),
            },
            () = changes.until(is_gone) => {
                keep();
                self.let_end(call, &server, &what, major).await;
                Ok(true)
            }
        }
    }

    /// Waits for a call whose mount is out of the table, while its server answers.
    async fn let_end(self: &Arc<Self>, mut call: Call, server: &Arc<Server>, what: &str, major: u32) {
        let end = Instant::now() + self.limits().mount;
        let mut patience = AT_ONCE;
        while server.check().is_ok() && Instant::now() < end {
            if timeout(patience, &mut call).await.is_ok() {
                return;
            }
            let (what, hint) = (what.to_owned(), String::new());
            let slow = MountError::TimedOut { what, seconds: patience.as_secs(), hint };
            self.make_sure(server, &slow, major).await;
            patience = FAREWELL;
        }
        call.abort();
    }

    /// Removes an empty mount point; false where something is mounted on it. No server is asked.
    async fn remove(&self, target: &str) -> Result<bool, MountError> {
        let what = format!("the removal of {target}");
        let request = Request::Remove { target: target.into() };
        match self.pool().ask(None, &what, &request, self.limits().mount).await? {
            Reply::Removed => Ok(true),
            Reply::StillMounted => Ok(false),
            Reply::Failed(error) => Err(error),
            reply => Err(unexpected(&what, &reply)),
        }
    }
}
