//! How full volumes are, as their servers told last.
//!
//! A kubelet asks for every volume once a minute or so. The volumes of one file system are all that full: so one of them
//! is asked for, and the others are told the same. A server may limit a directory by a quota, and tells the quota's
//! figures then: so a volume is asked for itself at first, and later too if its size is not its neighbours'. It is also
//! asked for itself now and then, for the server may have lost this directory alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as Turn;
use tokio::time::Instant;

use crate::mount::protocol::Usage;
use crate::mount::protocol::error::MountError;
use crate::mount::table::Mount;

/// How long a volume is told what its neighbours were told.
const SHARED: Duration = Duration::from_mins(5);

/// What was told of a mount, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The mount's number in the table: another mount on the same path is another volume, perhaps.
    mount: u64,
    pub(super) usage: Usage,
    /// When the server told it.
    pub(super) since: Instant,
    /// When the volume itself was asked for last.
    asked: Instant,
}

/// What a server told of a file system, or why it did not, and when. Held by whoever asks it.
type FileSystem = Arc<Turn<Option<(Result<Usage, MountError>, Instant)>>>;

/// How full the volumes on this node were.
#[derive(Debug)]
pub(super) struct Usages {
    /// How long figures are told again without asking the server.
    kept: Duration,
    /// By their mount points.
    volumes: Mutex<HashMap<String, Known>>,
    /// By their devices.
    file_systems: Mutex<HashMap<(u32, u32), FileSystem>>,
}

impl Usages {
    pub(super) fn new(kept: Duration) -> Self {
        Self { kept, volumes: Mutex::default(), file_systems: Mutex::default() }
    }

    /// How full the volume on a mount is; `ask` asks its server.
    pub(super) async fn get(
        &self,
        mount: &Mount,
        ask: impl AsyncFnOnce() -> Result<Usage, MountError>,
    ) -> Result<Usage, MountError> {
        let last = self.last(mount);
        if let Some(known) = last.filter(|known| known.since.elapsed() < self.kept) {
            return Ok(known.usage);
        }
        let file_system = self.file_system(mount.device);
        let begun = Instant::now();
        let mut told = file_system.lock().await;
        match (&*told, last) {
            (Some((Ok(usage), since)), Some(known))
                if since.elapsed() < self.kept
                    && known.asked.elapsed() < SHARED
                    && (usage.total_bytes, usage.total_inodes)
                        == (known.usage.total_bytes, known.usage.total_inodes) =>
            {
                let (usage, since) = (*usage, *since);
                self.note(mount, Known { usage, since, ..known });
                return Ok(usage);
            }
            // Who waited for a question to a silent server asks no other one.
            (Some((Err(error @ MountError::TimedOut { .. }), ended)), _) if *ended > begun => {
                return Err(error.clone());
            }
            _ => {}
        }
        let asked = Instant::now();
        let answer = ask().await;
        *told = Some((answer.clone(), if answer.is_ok() { asked } else { Instant::now() }));
        let usage = answer?;
        self.note(mount, Known { mount: mount.id, usage, since: asked, asked });
        Ok(usage)
    }

    /// What was told of a mount last.
    pub(super) fn last(&self, mount: &Mount) -> Option<Known> {
        self.volumes().get(&point(mount)).copied().filter(|known| known.mount == mount.id)
    }

    /// Forgets how full the volume on a mount point was.
    pub(super) fn forget(&self, mount_point: &str) {
        self.volumes().remove(mount_point);
    }

    fn note(&self, mount: &Mount, known: Known) {
        self.volumes().insert(point(mount), known);
    }

    fn file_system(&self, device: (u32, u32)) -> FileSystem {
        let mut all = self.file_systems.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody asks for at the moment, and of which nothing is to be told again.
        all.retain(|_, one| {
            Arc::strong_count(one) > 1
                || one.try_lock().is_ok_and(|told| told.as_ref().is_some_and(|(_, since)| since.elapsed() < self.kept))
        });
        Arc::clone(all.entry(device).or_default())
    }

    fn volumes(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn point(mount: &Mount) -> String {
    mount.mount_point.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::mount::table::Table;

    const KEPT: Duration = Duration::from_mins(1);

    /// Three volumes: two of one file system, and one of another.
    fn table() -> Table {
        let line = |id: u32, device: &str, point: &str| {
            format!("{id} 1 {device} / {point} rw,relatime shared:1 - nfs4 files:/{point} rw,vers=4.2\n")
        };
        let text = [line(10, "0:40", "/one"), line(11, "0:40", "/two"), line(12, "0:41", "/three")].concat();
        Table::parse(text.as_bytes()).unwrap()
    }

    fn usage(total_bytes: u64, used_bytes: u64) -> Usage {
        Usage { total_bytes, used_bytes, ..Usage::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_is_asked_for_once_and_each_volume_of_it_now_and_then() {
        let (usages, table, asked) = (Usages::new(KEPT), table(), Cell::new(0));
        let get = async |point: &str, answer: Usage| {
            let mount = table.at(std::path::Path::new(point)).unwrap();
            let ask = async || {
                asked.set(asked.get() + 1);
                Ok(answer)
            };
            usages.get(mount, ask).await.unwrap()
        };
        for point in ["/one", "/two", "/three", "/one"] {
            assert_eq!(get(point, usage(100, 1)).await, usage(100, 1));
        }
        assert_eq!(asked.take(), 3, "each for itself at first");
        tokio::time::advance(KEPT).await;
        assert_eq!(get("/one", usage(100, 2)).await, usage(100, 2));
        assert_eq!(get("/two", usage(0, 0)).await, usage(100, 2), "as its neighbour");
        assert_eq!(get("/three", usage(100, 3)).await, usage(100, 3));
        assert_eq!(asked.take(), 2);
        // One of them has got a quota.
        tokio::time::advance(SHARED).await;
        assert_eq!(get("/one", usage(100, 4)).await, usage(100, 4));
        assert_eq!(get("/two", usage(10, 4)).await, usage(10, 4));
        assert_eq!(asked.take(), 2);
        tokio::time::advance(KEPT).await;
        assert_eq!(get("/one", usage(100, 5)).await, usage(100, 5));
        assert_eq!(get("/two", usage(10, 5)).await, usage(10, 5), "its size is another");
        assert_eq!(asked.take(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_question_to_a_silent_server_is_told_what_came_of_it() {
        let (usages, table, asked) = (Usages::new(KEPT), table(), Cell::new(0));
        let get = async |point: &str| {
            let mount = table.at(std::path::Path::new(point)).unwrap();
            let ask = async || {
                asked.set(asked.get() + 1);
                tokio::time::sleep(Duration::from_secs(2)).await;
                Err(MountError::TimedOut { what: "the look".into(), seconds: 2, hint: String::new() })
            };
            usages.get(mount, ask).await.unwrap_err()
        };
        let begun = Instant::now();
        tokio::join!(get("/one"), get("/two"));
        assert_eq!((begun.elapsed().as_secs(), asked.take()), (2, 1));
        get("/two").await;
        assert_eq!(asked.take(), 1, "a later call asks again");
    }
}
