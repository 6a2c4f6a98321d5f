//! Lists of volumes and snapshots, page by page.
//!
//! The keys of a share are read once a list and kept between its pages, so a page costs what it returns and not what
//! exists. What they name is read by several threads, since nearly all of that time is waiting for the server. Keys
//! that are created meanwhile may be missed, as the CSI specification allows.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;

use super::{Export, ExportError, Folder};
use crate::beneath;
use crate::volume::record_key::RecordKey;
use crate::volume::share::Share;

/// Threads that read for one page.
const READERS: usize = 8;
/// Threads that read all there is: for one caller who asks seldom.
const READERS_OF_ALL: usize = 48;
/// How many more entries are read at once where entries were filtered out.
const READ_AHEAD: usize = 4 * READERS;
/// How many entries of one share are logged in one list because they cannot be read; further ones only with `debug`.
const LOGGED: usize = 10;
/// How many lists have their keys kept: at 16 bytes a key, 1.6 MB each for 100,000 volumes.
const KEPT: usize = 4;
/// How long keys are kept for a next page that nobody asks for.
const KEPT_FOR: Duration = Duration::from_mins(5);

/// What a list is of: a volume's record or a snapshot's manifest.
pub trait Listed: Sized {
    /// The folder that has all of them.
    const FOLDER: Folder;

    /// The key of what has this name there; none if it is something else.
    fn key(name: &OsStr) -> Option<RecordKey>;

    /// Reads one in its folder; none if it is gone.
    fn read_in(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<Self>, ExportError>;

    /// The same, by what is remembered of it where that costs the server less.
    fn read(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<Self>, ExportError> {
        Self::read_in(export, folder, key)
    }
}

/// Whether somebody still waits for the work: the caller holds the other end, and dropping that ends the work.
pub type Caller = Weak<()>;

/// What becomes of an entry.
#[derive(Debug)]
pub enum Entry<T> {
    /// It is in the list.
    Listed(T),
    /// The list is not of it.
    Filtered,
    /// It has nothing that it could be listed by.
    LeftOut(ExportError),
}

/// The keys of what a share had when they were read, in their order.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<RecordKey>,
    /// How many of them were left out because they cannot be read.
    left_out: AtomicUsize,
}

/// What a page gets of one share.
#[derive(Debug)]
pub struct Part<T> {
    /// The entries.
    pub found: Vec<T>,
    /// How many were read for that.
    pub read: usize,
    /// The key of the last that was read.
    pub last: Option<RecordKey>,
    /// Whether there are more.
    pub is_cut: bool,
}

/// How much a page may have.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Entries.
    pub entries: usize,
    /// Entries that are read for them, those that are filtered out too.
    pub reads: usize,
}

impl Export {
    /// The keys of all there is of a kind, in their order.
    ///
    /// # Errors
    /// Where the server fails.
    pub fn keys<R: Listed>(&self) -> Result<Vec<RecordKey>, ExportError> {
        let caller = Arc::new(());
        Keys::read::<R>(self, &Arc::downgrade(&caller)).map(|keys| keys.keys)
    }

    /// All that these keys name, in their order, each with its key; an entry that cannot be read is the error of that
    /// entry. What is gone is left out. They are read in the mount for trees, which remembers names: what was replaced in
    /// the last seconds may be read as it was before.
    ///
    /// # Errors
    /// Where the export does not answer.
    pub fn read_keys<R: Listed + Send>(&self, keys: &[RecordKey]) -> Result<Vec<Keyed<R>>, ExportError> {
        let folder = match self.known_folder(R::FOLDER) {
            Some(folder) => Some(folder),
            None => self.own_folder(R::FOLDER)?,
        };
        let Some(folder) = folder.filter(|_| !keys.is_empty()) else { return Ok(Vec::new()) };
        let read = |key: &RecordKey| match R::read_in(self, &folder, key) {
            Err(error) if error.is_stale() => R::read_in(self, &folder, key),
            read => read,
        };
        self.for_each(keys, |key| {
            Ok(match read(key) {
                Ok(read) => read.map(|read| (key.clone(), Ok(read))),
                Err(error) => Some((key.clone(), Err(self.of_entry_alone(&folder, error)?))),
            })
        })
    }

    /// What `work` gives of each item, in their order, by several threads: nearly all of the time is waiting for the
    /// server. None: nothing.
    ///
    /// # Errors
    /// The first error of `work`, which ends it all.
    pub fn for_each<K: Sync, T: Send>(
        &self,
        items: &[K],
        work: impl Fn(&K) -> Result<Option<T>, ExportError> + Sync,
    ) -> Result<Vec<T>, ExportError> {
        Ok(read_all(self, items, READERS_OF_ALL, &work)?.into_iter().flatten().collect())
    }
}

/// What a key names, or why that cannot be read.
pub type Keyed<R> = (RecordKey, Result<R, ExportError>);

impl Keys {
    /// Reads the keys of all there is on a share; none where the driver has no folder.
    ///
    /// # Errors
    /// Where the folder cannot be read; ECANCELED if the caller is gone.
    pub fn read<R: Listed>(export: &Export, caller: &Caller) -> Result<Self, ExportError> {
        let mut keys = match export.own_folder(R::FOLDER)? {
            Some(folder) => beneath::collect_names(&folder, |name| check(caller).map(|()| R::key(name))),
            None => Ok(Vec::new()),
        }
        .map_err(|errno| export.failed("list", R::FOLDER.name(), errno))?;
        keys.sort_unstable();
        keys.shrink_to_fit();
        Ok(Self { keys, left_out: AtomicUsize::new(0) })
    }

    /// Reads what follows `after` (none: the first), as far as there is room, and gives what `describe` makes of it. An
    /// entry that cannot be read is logged and left out.
    ///
    /// # Errors
    /// Where the export does not answer; ECANCELED if the caller is gone.
    pub fn page<R: Listed, T: Send>(
        &self,
        export: &Export,
        after: Option<&RecordKey>,
        room: Room,
        caller: &Caller,
        describe: impl Fn(R) -> Result<Entry<T>, ExportError> + Sync,
    ) -> Result<Part<T>, ExportError> {
        let rest = &self.keys[after.map_or(0, |after| self.keys.partition_point(|key| key <= after))..];
        let mut part = Part { found: Vec::new(), read: 0, last: None, is_cut: false };
        let Some(folder) = export.own_folder(R::FOLDER)?.filter(|_| !rest.is_empty()) else { return Ok(part) };
        let read = |key: &RecordKey| {
            check(caller).map_err(|errno| export.failed("list", R::FOLDER.name(), errno))?;
            let entry = match read_again::<R>(export, &folder, key) {
                Ok(Some(entry)) => describe(entry)?,
                // Deleted since the keys were read.
                Ok(None) => Entry::Filtered,
                Err(error) => Entry::LeftOut(export.of_entry_alone(&folder, error)?),
            };
            Ok(match entry {
                Entry::Listed(entry) => Some(entry),
                Entry::Filtered => None,
                Entry::LeftOut(error) => {
                    self.log(export, &error);
                    None
                }
            })
        };
        let most = room.reads.min(rest.len());
        while part.found.len() < room.entries && part.read < most {
            let wanted = room.entries - part.found.len();
            // What was filtered out so far says that most of the next may be too.
            let ahead = if part.read == 0 { wanted } else { wanted.max(READ_AHEAD) };
            let batch = &rest[part.read..most.min(part.read + ahead)];
            for (key, entry) in batch.iter().zip(read_all(export, batch, READERS, &read)?) {
                if part.found.len() < room.entries {
                    part.found.extend(entry);
                    part.read += 1;
                    part.last = Some(key.clone());
                }
            }
        }
        part.is_cut = part.read < rest.len();
        Ok(part)
    }

    fn log(&self, export: &Export, error: &ExportError) {
        let share = export.share();
        if self.left_out.fetch_add(1, Ordering::Relaxed) < LOGGED {
            tracing::warn!(%share, %error, "left out of a list");
        } else {
            tracing::debug!(%share, %error, "left out of a list");
        }
    }
}

impl Export {
    /// The error of one entry in `folder`, if it is that entry's alone.
    ///
    /// # Errors
    /// The error of the export, if it is not: the folder has to answer.
    pub fn of_entry_alone(&self, folder: impl AsFd, error: ExportError) -> Result<ExportError, ExportError> {
        let answers = || {
            // Not answered from the client's memory.
            fstatvfs(folder).map_err(|errno| self.failed("look at", ".", errno))
        };
        match error {
            ExportError::Record { .. } | ExportError::NewerRecord { .. } => Ok(error),
            ExportError::Io { errno: Errno::ETIMEDOUT | Errno::ECANCELED, .. } => Err(error),
            ExportError::Io { .. } => answers().map(|_| error),
            error => Err(error),
        }
    }
}

/// Another driver may replace the file at the moment in which it is read.
fn read_again<R: Listed>(export: &Export, folder: &OwnedFd, key: &RecordKey) -> Result<Option<R>, ExportError> {
    match R::read(export, folder, key) {
        Err(error) if error.is_stale() => R::read(export, folder, key),
        read => read,
    }
}

fn check(caller: &Caller) -> nix::Result<()> {
    if caller.strong_count() == 0 { Err(Errno::ECANCELED) } else { Ok(()) }
}

/// What `read` gives of each key, in their order, by this thread and further ones. The first error ends it all.
fn read_all<K: Sync, T: Send>(
    export: &Export,
    keys: &[K],
    readers: usize,
    read: &(impl Fn(&K) -> Result<Option<T>, ExportError> + Sync),
) -> Result<Vec<Option<T>>, ExportError> {
    let next = AtomicUsize::new(0);
    let reader = || {
        let mut all = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(key) = keys.get(at) else { return Ok(all) };
            match read(key) {
                Ok(entry) => all.push((at, entry)),
                Err(error) => {
                    next.store(keys.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut all = thread::scope(|scope| {
        let start = |_| thread::Builder::new().name("list".into()).spawn_scoped(scope, reader).ok();
        // Where no thread can be had, there is one less.
        let others: Vec<_> = (1..readers.min(keys.len())).filter_map(start).collect();
        let mut all = reader()?;
        for other in others {
            let defect = || ExportError::Defect { share: export.share().to_string() };
            all.extend(other.join().map_err(|_| defect())??);
        }
        Ok::<_, ExportError>(all)
    })?;
    all.sort_unstable_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, entry)| entry).collect())
}

/// The keys of the lists whose next page may be asked for soon.
#[derive(Debug)]
pub struct Listings {
    next: AtomicU64,
    /// The one that was used last at the end.
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    listing: u64,
    share: Share,
    keys: Arc<Keys>,
    used: Instant,
}

impl Default for Listings {
    fn default() -> Self {
        // Another process, which gets this one's token, has other numbers: its keys may be older than the list.
        Self { next: AtomicU64::new(RandomState::new().hash_one(())), kept: Mutex::default() }
    }
}

impl Listings {
    /// The number of a list that begins.
    #[must_use]
    pub fn begin(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The keys that a list has of a share, if they are kept still.
    #[must_use]
    pub fn keys(&self, listing: u64, share: &Share) -> Option<Arc<Keys>> {
        self.keys_at(listing, share, Instant::now())
    }

    fn keys_at(&self, listing: u64, share: &Share, now: Instant) -> Option<Arc<Keys>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| now.duration_since(kept.used) < KEPT_FOR);
        kept.iter().find(|kept| kept.listing == listing && kept.share == *share).map(|kept| Arc::clone(&kept.keys))
    }

    /// Keeps the keys of the share that a list has come to, or (none) nothing more of it.
    pub fn keep(&self, listing: u64, keys: Option<(Share, Arc<Keys>)>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.listing != listing);
        kept.extend(keys.map(|(share, keys)| Kept { listing, share, keys, used: Instant::now() }));
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
