//! The reaper: frees what was deleted, behind everybody's back, until it is gone.
//!
//! What a delete leaves is freed at once. Besides, each export is looked through now and then, first when it is used
//! first: for what a crash left, for what was kept and is due, for what could not be removed before, and for what was
//! being made and nobody asked for again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, mpsc};

use crate::export::pool::Exports;
use crate::export::trash::TrashName;
use crate::export::{Export, ExportError};
use crate::mount::options::Options;
use crate::volume::share::Share;

/// How long it waits before it tries again what could not be removed: doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// How often an export is looked through at least, and at most where nothing is due.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// How many directories are freed in one go.
const BATCH: usize = 64;
/// How long it waits for more of them. The answers to the deletes go out meanwhile, with the server to themselves.
const LULL: Duration = Duration::from_millis(5);

/// Where deletes leave what is to be freed.
#[derive(Debug)]
pub(super) struct Reaper {
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    /// Free what has this name in the trash.
    Free(Arc<Export>, String),
    /// Look through an export, and go on doing so; or look sooner than planned.
    Watch(Share, Options),
}

impl Reaper {
    pub(super) fn start(exports: Arc<Exports>, staging_retention: Duration) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        tokio::spawn(serve(received, exports, staging_retention));
        Self { orders }
    }

    /// Frees what has this name in the trash: at once, or when its time is over.
    pub(super) fn free(&self, export: Arc<Export>, name: &TrashName) {
        if name.is_kept() {
            return self.watch(&export);
        }
        // The reaper ends with the process only; then the next one looks through the export.
        let _ = self.orders.send(Order::Free(export, name.to_string()));
    }

    /// Looks through an export soon, and then now and then.
    pub(super) fn watch(&self, export: &Export) {
        let _ = self.orders.send(Order::Watch(export.share().clone(), export.options().clone()));
    }
}

async fn serve(mut orders: mpsc::UnboundedReceiver<Order>, exports: Arc<Exports>, staging_retention: Duration) {
    let mut watched: HashMap<Share, Arc<Notify>> = HashMap::new();
    let mut received = Vec::new();
    while orders.recv_many(&mut received, BATCH).await > 0 {
        tokio::time::sleep(LULL).await;
        while received.len() < BATCH
            && let Ok(order) = orders.try_recv()
        {
            received.push(order);
        }
        let mut batches: Vec<(Arc<Export>, Vec<String>)> = Vec::new();
        for order in received.drain(..) {
            match order {
                Order::Free(export, name) => match batches.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &export)) {
                    Some((_, names)) => names.push(name),
                    None => batches.push((export, vec![name])),
                },
                Order::Watch(share, options) => {
                    let looks_sooner = watched.entry(share.clone()).or_insert_with(|| {
                        let soon = Arc::new(Notify::new());
                        tokio::spawn(watch(Arc::clone(&exports), share, options, staging_retention, Arc::clone(&soon)));
                        soon
                    });
                    looks_sooner.notify_one();
                }
            }
        }
        for (export, names) in batches {
            let soon = watched.get(export.share()).map(Arc::clone);
            tokio::spawn(async move {
                let left = export.run_in_background(move |export| Ok::<_, ExportError>(free(export, names))).await;
                // What could not be removed is the watcher's from now on.
                if left.is_ok_and(|left| left > 0)
                    && let Some(soon) = soon
                {
                    soon.notify_one();
                }
            });
        }
    }
}

/// Looks through one export, again and again.
async fn watch(exports: Arc<Exports>, share: Share, options: Options, staging_retention: Duration, soon: Arc<Notify>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let wait = match look_through(&exports, &share, &options, staging_retention).await {
            Ok(Looked { left: 0, next }) => {
                pause = FIRST_PAUSE;
                next
            }
            outcome => {
                if let Err(error) = outcome {
                    tracing::warn!(%share, %error, "cannot look through the export for what is to be freed");
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                tokio::time::sleep(pause / 2).await;
                continue;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = soon.notified() => {}
        }
    }
}

/// What was found on an export.
struct Looked {
    /// How much could not be removed.
    left: usize,
    /// When to look again.
    next: Duration,
}

async fn look_through(
    exports: &Arc<Exports>,
    share: &Share,
    options: &Options,
    staging_retention: Duration,
) -> Result<Looked, ExportError> {
    let export = exports.open(share, options).await?;
    let looked = export
        .run_in_background(move |export| {
            let routine = (staging_retention / 4).min(LONGEST_WAIT);
            let Some(trash) = export.trash()? else { return Ok(Looked { left: 0, next: routine }) };
            let given_up = export.sweep_staging(staging_retention)?;
            let left = free(export, trash.due.into_iter().chain(given_up));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let due = trash.kept.iter().map(|name| Duration::from_secs(name.keep_until).saturating_sub(now)).min();
            Ok(Looked { left, next: due.unwrap_or(routine).min(routine).max(SHORTEST_WAIT) })
        })
        .await;
    if let Err(error) = &looked
        && ExportError::is_stale(error)
    {
        exports.forget(&export);
    }
    looked
}

/// Frees what it can; gives how many could not be freed.
fn free(export: &Export, names: impl IntoIterator<Item = String>) -> usize {
    let mut left = 0;
    for name in names {
        if let Err(error) = export.free(&name) {
            tracing::warn!(share = %export.share(), %error, "cannot free what was deleted yet");
            left += 1;
        }
    }
    left
}
