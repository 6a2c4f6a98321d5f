//! The reaper: frees what was deleted, in the background, until it is gone.
//!
//! What a delete leaves is freed at once. Besides, each export is looked through now and then, the exports of earlier
//! runs too: for what a crash left, for what was kept and is due, for what could not be removed before, and for what
//! was being made and nobody asked for again. Each entry of the trash is freed by itself: a small one waits neither for
//! a huge one nor for one that cannot be removed, and each of those is tried again after a pause of its own.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc};

use crate::export::pool::Exports;
use crate::export::staging_sweep::Swept;
use crate::export::trash::{Kind, Trash, TrashName};
use crate::export::trash_free::{Failure, Needed, seconds_now};
use crate::export::{Export, ExportError};
use crate::metrics::{self, Metrics};
use crate::mount::options::Options;
use crate::running_work::{RunningWork, WorkKind};
use crate::tree::Progress;
use crate::volume::share::Share;

/// How long it waits before it tries again what could not be removed: doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// The same for an export that cannot be looked through.
const LONGEST_PAUSE_OF_EXPORT: Duration = Duration::from_mins(10);
/// How often an export is looked through at least, and at most where nothing is due.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// The same while something is left of what is being freed.
const REST_WAIT: Duration = Duration::from_secs(5);
/// How long it waits after an order. The answers to the deletes go out meanwhile, with the server to themselves.
const LULL: Duration = Duration::from_millis(5);
/// How many entries of one export are freed at once, and how long one counts: a huge one holds up no others.
const AT_ONCE: usize = 4;
const COUNTED: Duration = Duration::from_secs(30);
/// How often an entry is looked at again whose delete may be under way.
const LOOKS_AT_UNFINISHED: u32 = 3;
/// How many entries are freed at once on all exports.
const IN_ALL: usize = 64;

/// Where deletes leave what is to be freed.
#[derive(Debug)]
pub(super) struct Reaper {
    orders: mpsc::UnboundedSender<Order>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum Order {
    /// Free this entry of the trash, of which it was made sure that nobody needs it.
    Free(Arc<Export>, TrashName),
    /// Look through an export, and again now and then; or look sooner than planned.
    Watch(Share, Options),
}

/// What is under way, and what could not be done.
#[derive(Debug, Default)]
struct State {
    freed: HashSet<Entry>,
    stuck: HashMap<Entry, Stuck>,
    /// How many entries were in the trash of each export at the last look.
    seen: HashMap<Share, usize>,
    /// How much was left in staging of each export at the last sweep.
    staged: HashMap<Share, u64>,
}

type Entry = (Share, TrashName);

/// An entry that could not be freed.
#[derive(Debug)]
struct Stuck {
    failure: Failure,
    next: Instant,
}

impl Reaper {
    pub(super) fn start(exports: Arc<Exports>, staging_retention: Duration, running_work: RunningWork) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let state = Arc::default();
        let work = Work {
            exports,
            staging_retention,
            running: running_work,
            state: Arc::clone(&state),
            in_all: Arc::new(Semaphore::new(IN_ALL)),
            lanes: Arc::default(),
            watched: Arc::default(),
        };
        tokio::spawn(serve(received, work));
        Self { orders, state }
    }

    /// Frees what calls left to be freed: at once, or when its time is over.
    pub(super) fn free_garbage(&self, export: &Arc<Export>) {
        let mut is_kept = false;
        for name in export.take_garbage() {
            if name.keep_until == 0 {
                // The reaper ends with the process only; then the next one looks through the export.
                let _ = self.orders.send(Order::Free(Arc::clone(export), name));
            } else {
                is_kept = true;
            }
        }
        if is_kept {
            self.watch(export.share(), export.options());
        }
    }

    /// Looks through an export soon, and then now and then.
    pub(super) fn watch(&self, share: &Share, options: &Options) {
        let _ = self.orders.send(Order::Watch(share.clone(), options.clone()));
    }

    /// Adds to the metrics what is in the trash, what cannot be freed, and what is in staging.
    pub(super) fn observe(&self, metrics: &Metrics) {
        let state = Arc::clone(&self.state);
        metrics.read(metrics::TRASH, move || {
            locked(&state).seen.iter().map(|(share, entries)| (share.to_string(), *entries as u64)).collect()
        });
        let state = Arc::clone(&self.state);
        metrics.read(metrics::TRASH_STUCK, move || {
            let state = locked(&state);
            let mut counts: HashMap<&Share, u64> = state.seen.keys().map(|share| (share, 0)).collect();
            for (share, _) in state.stuck.keys() {
                *counts.entry(share).or_default() += 1;
            }
            counts.into_iter().map(|(share, count)| (share.to_string(), count)).collect()
        });
        let state = Arc::clone(&self.state);
        metrics.read(metrics::STAGING, move || {
            locked(&state).staged.iter().map(|(share, left)| (share.to_string(), *left)).collect()
        });
    }
}

/// What all of the reaper's tasks have in common.
#[derive(Clone, Debug)]
struct Work {
    exports: Arc<Exports>,
    staging_retention: Duration,
    running: RunningWork,
    state: Arc<Mutex<State>>,
    in_all: Arc<Semaphore>,
    lanes: Arc<Mutex<HashMap<Share, Arc<Semaphore>>>>,
    /// What makes the watcher of an export look sooner.
    watched: Arc<Mutex<HashMap<Share, Arc<Notify>>>>,
}

async fn serve(mut orders: mpsc::UnboundedReceiver<Order>, work: Work) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Free(export, name) => {
                let work = work.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LULL).await;
                    work.free(export, name, Vec::new(), true).await;
                });
            }
            Order::Watch(share, options) => {
                let mut watched = locked(&work.watched);
                let looks_sooner = watched.entry(share.clone()).or_insert_with(|| {
                    let soon = Arc::new(Notify::new());
                    tokio::spawn(work.clone().watch(share, options, Arc::clone(&soon)));
                    soon
                });
                looks_sooner.notify_one();
            }
        }
    }
}

impl Work {
    /// Frees an entry, unless that is under way, or is to wait.
    async fn free(&self, export: Arc<Export>, name: TrashName, rests: Vec<String>, is_checked: bool) {
        let entry = (export.share().clone(), name);
        let rests = rests.into();
        {
            let mut state = locked(&self.state);
            let waits = state.stuck.get(&entry).is_some_and(|stuck| stuck.next > Instant::now());
            if waits || !state.freed.insert(entry.clone()) {
                return;
            }
        }
        let mut freed = self.free_in_turn(&export, entry.1.clone(), &rests, is_checked).await;
        for _ in 0..LOOKS_AT_UNFINISHED {
            if !matches!(freed, Ok(Freed::Unfinished)) {
                break;
            }
            tokio::time::sleep(SHORTEST_WAIT).await;
            freed = self.free_in_turn(&export, entry.1.clone(), &rests, is_checked).await;
        }
        if let Err(error) = &freed {
            tracing::warn!(share = %entry.0, %error, "cannot free what was deleted yet");
        }
        let failure = {
            let mut state = locked(&self.state);
            state.freed.remove(&entry);
            match freed {
                // What was stuck is counted until the next look.
                Ok(_) if state.stuck.remove(&entry).is_some() => None,
                Ok(_) => return,
                Err(error) => Some(state.fail(entry.clone(), &error)),
            }
        };
        // The watcher counts anew, and tries again when it is time.
        let watcher = locked(&self.watched).get(&entry.0).map(Arc::clone);
        if let Some(watcher) = watcher {
            watcher.notify_one();
        }
        let Some(failure) = failure else { return };
        // For those who look at the trash by hand: where it cannot be written, they see the entry only.
        let name = entry.1;
        let noted: Result<(), ExportError> =
            export.run_in_background(move |export| export.note_failure(&name, &failure)).await;
        if let Err(error) = noted {
            tracing::debug!(share = %entry.0, %error, "cannot note why something was not freed");
        }
    }

    /// Waits for a turn. Whoever takes long gives it back and goes on.
    async fn free_in_turn(
        &self,
        export: &Arc<Export>,
        name: TrashName,
        rests: &Arc<[String]>,
        is_checked: bool,
    ) -> Result<Freed, ExportError> {
        let lane = Arc::clone(
            locked(&self.lanes).entry(export.share().clone()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))),
        );
        let rests = Arc::clone(rests);
        let _one_of_all = self.in_all.acquire().await;
        let turn = lane.acquire().await;
        let progress = Arc::<Progress>::default();
        let (share, shown) = (export.share().to_string(), name.to_string());
        let _running = self.running.begin(WorkKind::Free, shown, share, Arc::clone(&progress));
        let free = move |export: &Export| free(export, &name, (&rests, is_checked), &progress);
        let mut work = std::pin::pin!(export.run_in_background(free));
        if let Ok(freed) = tokio::time::timeout(COUNTED, &mut work).await {
            return freed;
        }
        drop(turn);
        work.await
    }

    /// Looks through one export, again and again.
    async fn watch(self, share: Share, options: Options, soon: Arc<Notify>) {
        let mut pause = FIRST_PAUSE;
        let mut swept: Option<Instant> = None;
        let mut is_silent = false;
        loop {
            if self.is_watched_by_its_name(&share) {
                return;
            }
            let is_due = swept.is_none_or(|last| last.elapsed() >= self.staging_retention);
            match self.look_through(&share, &options, is_due).await {
                Ok(wait) => {
                    (pause, is_silent) = (FIRST_PAUSE, false);
                    swept = if is_due { Some(Instant::now()) } else { swept };
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = soon.notified() => {}
                    }
                }
                Err(error) => {
                    // Once, and not for as long as an export is away.
                    if !std::mem::replace(&mut is_silent, true) {
                        tracing::warn!(%share, %error, "cannot look through the export for what is to be freed");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE_OF_EXPORT),
                        () = self.exports.back(&share, &options) => pause = FIRST_PAUSE,
                    }
                }
            }
        }
    }

    /// Whether the server map has given the export's server another name, by which it is looked through: then this ends.
    fn is_watched_by_its_name(&self, share: &Share) -> bool {
        let named = self.exports.canonical(share);
        let mut watched = locked(&self.watched);
        if named == *share || !watched.contains_key(&named) {
            return false;
        }
        watched.remove(share);
        let mut state = locked(&self.state);
        state.seen.remove(share);
        state.staged.remove(share);
        true
    }

    /// Frees what is due on an export, and sweeps what nobody needs. Gives when to look again.
    async fn look_through(&self, share: &Share, options: &Options, sweeps: bool) -> Result<Duration, ExportError> {
        let export = self.exports.open(share, options).await?;
        let retention = self.staging_retention;
        let looked = export.run_in_background(move |export| look(export, retention, sweeps)).await;
        let Looked { mut trash, now, is_apart, swept } = looked.inspect_err(|error: &ExportError| {
            if error.is_stale() {
                self.exports.forget(&export);
            }
        })?;
        {
            let mut state = locked(&self.state);
            state.seen.insert(share.clone(), trash.kept.len() + trash.due.len());
            if let Some(swept) = swept {
                state.staged.insert(share.clone(), swept.left);
            }
            let all: HashSet<&TrashName> = trash.due.iter().collect();
            state.stuck.retain(|(other, name), _| other != share || all.contains(name));
        }
        let next_stuck = {
            let state = locked(&self.state);
            let next = state.stuck.iter().filter(|((other, _), _)| other == share).map(|(_, stuck)| stuck.next).min();
            next.map(|next| next.saturating_duration_since(Instant::now()))
        };
        let has_left = !trash.left.is_empty();
        // By a clock that is wrong nothing is judged to be over its time.
        let due = trash.due.into_iter().filter(|name| !is_apart || name.keep_until == 0);
        // What was deleted just now and is kept has its time before it.
        let garbage = export.take_garbage().into_iter().filter(|name| name.keep_until == 0);
        for name in due.chain(garbage) {
            let (work, export) = (self.clone(), Arc::clone(&export));
            let rests = trash.rests.remove(&name).unwrap_or_default();
            tokio::spawn(async move { work.free(export, name, rests, false).await });
        }
        let next_due = trash.kept.iter().map(|name| Duration::from_secs(name.keep_until).saturating_sub(now)).min();
        let routine = (retention / 4).min(if has_left { REST_WAIT } else { LONGEST_WAIT });
        let next_swept = swept.and_then(|swept| swept.next);
        let wait = [next_due, next_stuck, next_swept].into_iter().flatten().fold(routine, Duration::min);
        Ok(wait.max(SHORTEST_WAIT))
    }
}

impl State {
    /// Notes that an entry could not be freed.
    fn fail(&mut self, entry: Entry, error: &ExportError) -> Failure {
        let since = seconds_now();
        let stuck = self.stuck.entry(entry).or_insert_with(|| Stuck {
            failure: Failure { reason: String::new(), tries: 0, since },
            next: Instant::now(),
        });
        let pause = FIRST_PAUSE.saturating_mul(1 << stuck.failure.tries.min(16)).min(LONGEST_PAUSE);
        stuck.failure.reason = error.to_string();
        stuck.failure.tries += 1;
        stuck.next = Instant::now() + pause;
        stuck.failure.clone()
    }
}

/// What was found on an export.
struct Looked {
    trash: Trash,
    /// The server's time.
    now: Duration,
    /// Whether this host's clock is wrong.
    is_apart: bool,
    /// What is left in staging; none where it was not swept.
    swept: Option<Swept>,
}

fn look(export: &Export, retention: Duration, sweeps: bool) -> Result<Looked, ExportError> {
    let Some(trash) = export.trash()? else {
        let swept = Some(Swept::default());
        return Ok(Looked { trash: Trash::default(), now: Duration::ZERO, is_apart: false, swept });
    };
    let is_apart = export.is_clock_apart()?;
    let mut swept = None;
    if !is_apart {
        export.sweep_trash(&trash)?;
        swept = Some(export.sweep_staging(retention)?);
        if sweeps {
            export.sweep_claims(retention)?;
            export.sweep_prepared(retention)?;
            export.throw_away_unused_trees(None)?.into_iter().for_each(|name| export.leave_to_reaper(name));
        }
    }
    Ok(Looked { trash, now: export.now(), is_apart, swept })
}

/// What the server's time may seem to go back: it tells it in ticks.
const TICK: Duration = Duration::from_secs(1);

/// What became of an entry.
enum Freed {
    Yes,
    /// It was needed.
    PutBack,
    /// It is to be kept for longer.
    Kept,
    /// Its delete is under way, or was cut short: then its retry completes it.
    Unfinished,
}

/// Frees an entry that nobody needs; one that somebody needs is put back.
fn free(
    export: &Export,
    name: &TrashName,
    (rests, is_checked): (&[String], bool),
    progress: &Progress,
) -> Result<Freed, ExportError> {
    if name.is_kept(export.now() + TICK) {
        return Ok(Freed::Kept);
    }
    if is_checked {
        return free_unneeded(export, name, (rests, false), progress);
    }
    match export.is_needed(name)? {
        Needed::No => free_unneeded(export, name, (rests, true), progress),
        Needed::By(subdir) if export.put_back(name, &subdir)? => Ok(Freed::PutBack),
        Needed::By(subdir) | Needed::Displaced(subdir) => Err(ExportError::Displaced {
            entry: name.to_string(),
            subdir: subdir.to_string(),
            share: export.share().to_string(),
        }),
        Needed::Unfinished => Ok(Freed::Unfinished),
    }
}

fn free_unneeded(
    export: &Export,
    name: &TrashName,
    (rests, all): (&[String], bool),
    progress: &Progress,
) -> Result<Freed, ExportError> {
    export.free(name, rests, all, progress)?;
    if name.kind == Kind::Snapshot {
        // Its tree, if volumes have read it and none does any more.
        for tree in export.throw_away_unused_trees(Some(&name.key))? {
            export.free(&tree, &[], true, progress)?;
        }
    }
    Ok(Freed::Yes)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::trash::Kind;
    use crate::volume::record_key::RecordKey;

    #[test]
    fn the_metrics_have_the_trash_and_what_is_in_staging() {
        let reaper = Reaper { orders: mpsc::unbounded_channel().0, state: Arc::default() };
        let metrics = Metrics::new("d");
        reaper.observe(&metrics);
        let share = Share::parse("nas:/export").unwrap();
        locked(&reaper.state).seen.insert(share.clone(), 2);
        locked(&reaper.state).staged.insert(share, 3);
        for (metric, value) in [("trash_entries", 2), ("trash_stuck_entries", 0), ("staging_entries", 3)] {
            let line = format!("nfs_csi_{metric}{{export=\"nas:/export\"}} {value}\n");
            assert!(metrics.text().contains(&line), "{line}: {}", metrics.text());
        }
    }

    #[test]
    fn what_is_kept_is_not_freed_whoever_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let export = Export::local(folder.path());
        let entry = |kept| TrashName::new(Kind::Volume, RecordKey::of("pvc-1"), export.now(), kept);
        let path = |name: &TrashName| folder.path().join(format!(".nfs-csi/trash/{name}/data"));
        for (kept, is_checked, is_freed) in [(1000, true, false), (1000, false, false), (0, true, true)] {
            let name = entry(Duration::from_secs(kept));
            std::fs::create_dir_all(path(&name)).unwrap();
            free(&export, &name, (&[], is_checked), &Progress::default()).unwrap();
            assert_eq!(!path(&name).exists(), is_freed, "{name}");
        }
    }
}
