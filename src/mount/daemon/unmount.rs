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
/// What a call takes at most whose server answers and that has nothing to write.
const AT_ONCE: Duration = Duration::from_millis(50);
/// How long a call goes on whose mount is out of the table, until its server is asked again whether it is there.
const FAREWELL: Duration = Duration::from_secs(2);

/// What was taken off a target.
enum Taken {
    /// A mount; there may be more, and the target is there.
    One,
    /// A mount, and the target with it.
    Last,
    /// Nothing was mounted there.
    Nothing,
}

type Call = JoinHandle<Result<Reply, MountError>>;

impl Mounter {
    /// Unmounts whatever is on the target; with `remove`, the empty mount point goes too. Nothing there is success.
    pub async fn unmount(self: &Arc<Self>, server: &str, target: &str, remove: bool) -> Result<(), MountError> {
        let path = Path::new(target);
        let mut table = Table::read_near(path)?;
        self.check_way(&table, target).await?;
        for _ in 0..MOST_STACKED {
            match self.take_off(&table, server, target, remove).await? {
                Taken::Last => return Ok(()),
                Taken::Nothing if !remove || self.remove(target).await? => return Ok(()),
                // The kernel removes no directory that has a further mount on it.
                Taken::One if remove && self.remove(target).await? => return Ok(()),
                Taken::One | Taken::Nothing => table = Table::read_near(path)?,
            }
        }
        Err(worker_failed(&format!("the unmount of {target}"), &format!("more than {MOST_STACKED} mounts are on it")))
    }

    /// Takes the topmost mount off the target, and the target too if it was the last one.
    ///
    /// A worker that is left behind with a dead server does nothing more to a path that may carry a new mount by then:
    /// it is killed.
    async fn take_off(
        self: &Arc<Self>,
        table: &Table,
        server: &str,
        target: &str,
        remove: bool,
    ) -> Result<Taken, MountError> {
        let what = format!("the unmount of {target}");
        let mount = table.at(Path::new(target));
        let (before, major) = (mount.map(Top::of), mount.map_or(4, Mount::major_version));
        let server = mount.map_or_else(|| self.servers().named(server), |mount| self.servers().of(mount));
        let keep = || {
            if let Some(Top { device, .. }) = before {
                self.detached().add(device, &server.name);
            }
        };
        let mut call: Call = tokio::spawn({
            let (mounter, server) = (Arc::clone(self), Arc::clone(&server));
            let (what, request) = (what.clone(), Request::Unmount { target: target.to_owned(), remove });
            async move { mounter.pool().ask(Some(&server.unmounts), &what, &request, mounter.limits().mount).await }
        });
        let is_gone = |table: &Table| before.is_some() && Top::at(table, target) != before;
        let ended = if let Ok(ended) = timeout(AT_ONCE, &mut call).await {
            Some(ended)
        } else {
            // Before the table is read, so that no change is missed.
            let mut changes = self.table().changes();
            if is_gone(&Table::read()?) {
                None
            } else {
                tokio::select! {
                    ended = &mut call => Some(ended),
                    () = changes.until(is_gone) => None,
                }
            }
        };
        let Some(ended) = ended else {
            keep();
            self.let_end(call, &server, &what, major).await;
            return Ok(Taken::One);
        };
        match ended.unwrap_or_else(|error| Err(worker_failed(&what, &error))) {
            Ok(Reply::Unmounted { removed }) => {
                keep();
                Ok(if removed { Taken::Last } else { Taken::One })
            }
            Ok(Reply::NotMounted) => Ok(Taken::Nothing),
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Err(unexpected(&what, &reply)),
            Err(MountError::TimedOut { .. }) if Table::read().is_ok_and(|table| is_gone(&table)) => {
                keep();
                Ok(Taken::One)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for a call whose mount is out of the table, while its server answers.
    async fn let_end(self: &Arc<Self>, mut call: Call, server: &Arc<Server>, what: &str, major: u32) {
        let end = Instant::now() + self.limits().mount;
        while Instant::now() < end {
            let slow = MountError::TimedOut { what: what.to_owned(), seconds: FAREWELL.as_secs(), hint: String::new() };
            self.make_sure(server, &slow, major).await;
            if server.check().is_err() {
                break;
            }
            if timeout(FAREWELL, &mut call).await.is_ok() {
                return;
            }
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
