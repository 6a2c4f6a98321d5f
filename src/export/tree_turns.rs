//! Whose turn it is to work on a tree. Such work may take hours, so its number is bounded for the process, and
//! archives, which take much memory, have a bound of their own: a small clone waits for neither four long archives nor
//! a few huge clones on its export.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// Works on trees at once, in this process.
const IN_ALL: usize = 16;
/// Archives that are written at once, in this process: each holds tens of megabytes for its compressor.
const ARCHIVES: usize = 2;
/// Works on trees of one share at once that were begun lately.
const YOUNG: usize = 4;
/// How long a work counts as begun lately.
const IS_YOUNG: Duration = Duration::from_mins(1);

/// What is to be done with a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeWork {
    /// It is copied.
    Copy,
    /// It becomes an archive.
    Archive,
}

/// The turns of all exports of this process.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    archives: Arc<Semaphore>,
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(IN_ALL)), archives: Arc::new(Semaphore::new(ARCHIVES)) })
    }

    /// A share's own turns.
    pub(super) fn of_share() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(YOUNG))
    }

    /// Waits for a turn. It is over when it is dropped; after a while it no longer counts on its share.
    pub(super) async fn take(&self, work: TreeWork, share: &Arc<Semaphore>) -> Result<Turn, AcquireError> {
        // In this order nothing waits while it holds what others could use.
        let archive = match work {
            TreeWork::Archive => Some(Arc::clone(&self.archives).acquire_owned().await?),
            TreeWork::Copy => None,
        };
        let young = Arc::new(Mutex::new(Some(Arc::clone(share).acquire_owned().await?)));
        let all = Arc::clone(&self.all).acquire_owned().await?;
        let given_back = Arc::clone(&young);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(IS_YOUNG).await;
            given_back.lock().unwrap_or_else(PoisonError::into_inner).take();
        });
        Ok(Turn { _all: all, _archive: archive, _young: young, timer })
    }
}

/// A turn that was taken.
#[derive(Debug)]
pub(super) struct Turn {
    _all: OwnedSemaphorePermit,
    _archive: Option<OwnedSemaphorePermit>,
    _young: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    timer: JoinHandle<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_free(turns: &Turns, work: TreeWork, share: &Arc<Semaphore>) -> bool {
        tokio::time::timeout(Duration::from_secs(5), turns.take(work, share)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_waits_neither_for_archives_nor_for_copies_that_take_long() {
        let (turns, share) = (Turns::new(), Turns::of_share());
        let mut archives = Vec::new();
        for _ in 0..ARCHIVES {
            archives.push(turns.take(TreeWork::Archive, &share).await.unwrap());
        }
        assert!(!is_free(&turns, TreeWork::Archive, &share).await);
        assert!(is_free(&turns, TreeWork::Copy, &share).await);
        let mut copies = Vec::new();
        for _ in ARCHIVES..YOUNG {
            copies.push(turns.take(TreeWork::Copy, &share).await.unwrap());
        }
        assert!(!is_free(&turns, TreeWork::Copy, &share).await);
        assert!(is_free(&turns, TreeWork::Copy, &Turns::of_share()).await, "another export has turns of its own");
        tokio::time::sleep(IS_YOUNG).await;
        assert!(is_free(&turns, TreeWork::Copy, &share).await);
        drop(archives);
        assert!(is_free(&turns, TreeWork::Archive, &share).await);
    }

    #[tokio::test(start_paused = true)]
    async fn all_works_of_the_process_have_a_bound() {
        let turns = Turns::new();
        let mut taken = Vec::new();
        for _ in 0..IN_ALL {
            taken.push(turns.take(TreeWork::Copy, &Turns::of_share()).await.unwrap());
        }
        let share = Turns::of_share();
        assert!(!is_free(&turns, TreeWork::Copy, &share).await);
        taken.pop();
        assert!(is_free(&turns, TreeWork::Copy, &share).await);
    }
}
