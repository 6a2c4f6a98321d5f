//! Which volumes are without the limit that is asked for, as far as this controller has seen since it started.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::metrics::{self, Metrics};
use crate::volume::share::Share;

/// The ids of such volumes, by their share.
#[derive(Clone, Debug, Default)]
pub(super) struct Unenforced(Arc<Mutex<HashMap<Share, HashSet<String>>>>);

impl Unenforced {
    /// Notes whether a volume is one of them.
    pub(super) fn note(&self, share: &Share, id: &str, is_unenforced: bool) {
        let mut all = self.all();
        if is_unenforced {
            all.entry(share.clone()).or_default().insert(id.to_owned());
        } else if let Some(ids) = all.get_mut(share) {
            ids.remove(id);
        }
    }

    /// Tells the metrics how many there are.
    pub(super) fn observe(&self, metrics: &Metrics) {
        let own = self.clone();
        metrics.read(metrics::UNENFORCED, move || {
            own.all().iter().map(|(share, ids)| (share.to_string(), ids.len() as u64)).collect()
        });
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Share, HashSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
