//! Turns: the worker that works on something first, and those that come for the same one meanwhile and wait for it.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is being worked on, one entry a worker.
#[derive(Debug)]
pub(super) struct Turns<K> {
    taken: Mutex<HashSet<K>>,
    ended: Condvar,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { taken: Mutex::default(), ended: Condvar::new() }
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Waits until no other worker works on this.
    pub(super) fn take(&self, key: K) -> Turn<'_, K> {
        let mut taken = self.taken();
        while !taken.insert(key.clone()) {
            taken = self.ended.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { turns: self, key }
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's turn: it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a, K: Clone + Eq + Hash> {
    turns: &'a Turns<K>,
    key: K,
}

impl<K: Clone + Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.key);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn one_worker_at_a_time_works_on_a_thing_and_others_on_other_things() {
        let turns = Turns::default();
        let busy = AtomicBool::new(false);
        let other = turns.take(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _turn = turns.take(1);
                        assert!(!busy.swap(true, Ordering::SeqCst));
                        busy.store(false, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(other);
        assert!(turns.taken().is_empty());
    }
}
