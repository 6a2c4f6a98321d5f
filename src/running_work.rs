//! The long work that runs now: clones, snapshots, restores and removals, and how far each is.
//!
//! Who begins such work adds it here, and has it counted until it drops what it got. `nfs-csi jobs` and dashboards read
//! it as metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::tree::Progress;

/// How many are listed each by itself, those first that have run longest. The others are added up by their kinds.
pub const LISTED: usize = 100;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// A volume is made with another one's data.
    Clone,
    /// A snapshot is taken.
    Snapshot,
    /// A volume is made with a snapshot's data.
    Restore,
    /// What was deleted is removed.
    Free,
}

impl WorkKind {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
            Self::Free => "free",
        }
    }
}

/// The work that runs. Clones have the same.
#[derive(Clone, Debug, Default)]
pub struct RunningWork {
    running: Arc<Mutex<BTreeMap<u64, Work>>>,
    next: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Work {
    kind: WorkKind,
    name: String,
    export: String,
    begun: Instant,
    progress: Arc<Progress>,
}

/// Work that is counted until this is dropped.
#[derive(Debug)]
pub struct Counted {
    work: RunningWork,
    number: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.work.running().remove(&self.number);
    }
}

/// How far some work is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkState {
    /// What is done.
    pub kind: WorkKind,
    /// The volume or snapshot that is made, or the entry of the trash that is removed; empty: the sum of several.
    pub name: String,
    /// The export, `server:/share`; empty: the sum of several.
    pub export: String,
    /// For how many seconds it has run; of several: the longest.
    pub seconds: u64,
    /// Entries that are done, of whatever kind.
    pub done_files: u64,
    /// Bytes in them.
    pub done_bytes: u64,
    /// Entries that are to be done yet; none: not known.
    pub left_files: Option<u64>,
    /// Bytes in them; none: not known.
    pub left_bytes: Option<u64>,
}

impl RunningWork {
    /// Adds work on `name` that begins now.
    #[must_use]
    pub fn begin(&self, kind: WorkKind, name: String, export: String, progress: Arc<Progress>) -> Counted {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running().insert(number, Work { kind, name, export, begun: Instant::now(), progress });
        Counted { work: self.clone(), number }
    }

    /// How far everything is: what has run longest first, then the sums of the rest.
    #[must_use]
    pub fn states(&self) -> Vec<WorkState> {
        let running = self.running();
        // In the order in which they began.
        let mut states = running.values().map(Work::state);
        let mut listed: Vec<WorkState> = states.by_ref().take(LISTED).collect();
        let mut sums: BTreeMap<WorkKind, WorkState> = BTreeMap::new();
        for state in states {
            let empty = WorkState { name: String::new(), export: String::new(), ..state.clone() };
            sums.entry(state.kind).and_modify(|sum| sum.add(&state)).or_insert(empty);
        }
        listed.extend(sums.into_values());
        listed
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Work>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn state(&self) -> WorkState {
        let Self { kind, name, export, begun, progress } = self;
        let (done_files, done_bytes) = (progress.files(), progress.bytes());
        let (files, bytes) = progress.expected();
        WorkState {
            kind: *kind,
            name: name.clone(),
            export: export.clone(),
            seconds: begun.elapsed().as_secs(),
            done_files,
            done_bytes,
            left_files: files.map(|files| files.saturating_sub(done_files)),
            left_bytes: bytes.map(|bytes| bytes.saturating_sub(done_bytes)),
        }
    }
}

impl WorkState {
    fn add(&mut self, other: &Self) {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        self.seconds = self.seconds.max(other.seconds);
        self.done_files += other.done_files;
        self.done_bytes += other.done_bytes;
        self.left_files = sum(self.left_files, other.left_files);
        self.left_bytes = sum(self.left_bytes, other.left_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_listed_while_it_runs_with_what_is_done_and_left() {
        let work = RunningWork::default();
        let progress = Arc::<Progress>::default();
        let running = work.begin(WorkKind::Restore, "pvc-1".into(), "nas:/a".into(), Arc::clone(&progress));
        progress.add(2, 10);
        let state = |work: &RunningWork| work.states().pop().unwrap();
        assert_eq!((state(&work).left_files, state(&work).left_bytes), (None, None));
        progress.expect(Some(5), Some(8));
        assert_eq!((state(&work).done_files, state(&work).left_files), (2, Some(3)));
        // More than was expected came.
        assert_eq!((state(&work).done_bytes, state(&work).left_bytes), (10, Some(0)));
        drop(running);
        assert_eq!(work.states(), []);
    }

    #[test]
    fn a_hundred_are_listed_by_themselves_and_the_rest_by_kind() {
        let work = RunningWork::default();
        let begin = |number: usize| {
            let progress = Arc::<Progress>::default();
            progress.add(1, 100);
            if number != LISTED + 1 {
                progress.expect(Some(3), None);
            }
            let kind = if number < LISTED + 4 { WorkKind::Free } else { WorkKind::Clone };
            work.begin(kind, number.to_string(), "nas:/a".into(), progress)
        };
        let mut running: Vec<Counted> = (0..LISTED + 6).map(begin).collect();
        let states = work.states();
        assert_eq!(states.len(), LISTED + 2);
        assert!(states[..LISTED].iter().enumerate().all(|(number, state)| state.name == number.to_string()));
        let sums: Vec<_> = states[LISTED..].iter().map(|sum| (sum.kind, sum.done_files, sum.left_files)).collect();
        assert_eq!(sums, [(WorkKind::Clone, 2, Some(4)), (WorkKind::Free, 4, None)]);
        assert!(states[LISTED..].iter().all(|sum| sum.name.is_empty() && sum.export.is_empty()));
        running.drain(..6);
        assert!(work.states().iter().all(|state| !state.name.is_empty()));
    }
}
