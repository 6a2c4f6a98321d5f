//! The reaper: frees what was deleted, behind everybody's back, until it is gone.
//!
//! It begins anew with each start of the driver by looking into the trash, so a crash only delays it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::export::{Export, ExportError};

/// How long it waits before it tries again what could not be removed: doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// How many directories are freed in one go.
const BATCH: usize = 64;

/// Where deletes leave what is to be freed.
#[derive(Debug)]
pub(super) struct Reaper {
    work: mpsc::UnboundedSender<Work>,
}

#[derive(Debug)]
struct Work {
    export: Arc<Export>,
    /// The name in the trash; none: all that is there.
    name: Option<String>,
}

impl Reaper {
    pub(super) fn start() -> Self {
        let (work, orders) = mpsc::unbounded_channel();
        tokio::spawn(serve(orders));
        Self { work }
    }

    /// Frees one directory in the trash.
    pub(super) fn free(&self, export: Arc<Export>, name: String) {
        // The reaper ends with the process only; then the next one sweeps.
        let _ = self.work.send(Work { export, name: Some(name) });
    }

    /// Frees all that is in the trash.
    pub(super) fn sweep(&self, export: Arc<Export>) {
        let _ = self.work.send(Work { export, name: None });
    }
}

async fn serve(mut orders: mpsc::UnboundedReceiver<Work>) {
    let mut running = JoinSet::new();
    let mut waiting = Vec::new();
    while orders.recv_many(&mut waiting, BATCH).await > 0 {
        for (export, names) in by_export(waiting.drain(..)) {
            running.spawn(reap(export, names));
        }
        while running.try_join_next().is_some() {}
    }
}

/// Orders for one export are carried out together; a sweep takes all.
fn by_export(orders: impl Iterator<Item = Work>) -> Vec<(Arc<Export>, Option<Vec<String>>)> {
    let mut exports: Vec<(Arc<Export>, Option<Vec<String>>)> = Vec::new();
    for Work { export, name } in orders {
        let names = match exports.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &export)) {
            Some((_, names)) => names,
            None => &mut exports.push_mut((export, Some(Vec::new()))).1,
        };
        match (names.as_mut(), name) {
            (Some(names), Some(name)) => names.push(name),
            _ => *names = None,
        }
    }
    exports
}

/// Frees these names, or all, until it is done.
async fn reap(export: Arc<Export>, names: Option<Vec<String>>) {
    let mut pause = FIRST_PAUSE;
    let mut names = names;
    loop {
        let tried = names.clone();
        let share = export.share().to_string();
        match export.run_in_background(move |export| free(export, tried)).await {
            Ok(left) if left.is_empty() => return,
            Ok(left) => names = Some(left),
            Err(error) => {
                let error: ExportError = error;
                tracing::warn!(share, %error, "cannot look into the trash");
                if error.is_refusal() {
                    return;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Frees what it can; gives the names that are left.
fn free(export: &Export, names: Option<Vec<String>>) -> Result<Vec<String>, ExportError> {
    let names: VecDeque<String> = match names {
        Some(names) => names.into(),
        None => export.trash()?.into_iter().filter_map(|name| name.into_string().ok()).collect(),
    };
    let mut left = Vec::new();
    for name in names {
        if let Err(error) = export.free(&name) {
            tracing::warn!(share = %export.share(), %error, "cannot free a deleted volume yet");
            left.push(name);
        }
    }
    Ok(left)
}
