//! How much is done at once on one export: the bound that all operations on it share, and the workers of one operation.
//!
//! Nearly all of the work on a tree is waiting for a server's answers, so many workers are right even for one
//! processor; but the kernel's client and the server both lose when too many ask at once. An operation begins with the
//! thread that calls it. Others join only when there is something for them to do, since a thread costs more than a few
//! files, and leave when a further operation begins on the same export: each then has an equal part.
//!
//! Tasks lie on a stack. What was found last is done first: so a tree is walked downwards, and what waits is bounded by
//! its depth and not by its width.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

/// Workers on one export, if nothing else is said. At a round trip of 1 ms, 16 to 32 were measured to be fastest, and
/// 64 slower.
pub const DEFAULT_WORKERS: usize = 24;

/// What may be done at once on one export. Its clones share one bound.
#[derive(Clone, Debug)]
pub struct Effort {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workers: usize,
    operations: AtomicUsize,
}

impl Default for Effort {
    fn default() -> Self {
        Self::new(DEFAULT_WORKERS)
    }
}

impl Effort {
    /// At most so many workers over all operations; each operation has one at least.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { shared: Arc::new(Shared { workers, operations: AtomicUsize::new(0) }) }
    }

    /// How many workers an operation may have now.
    fn share(&self) -> usize {
        (self.shared.workers / self.shared.operations.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Does `first` and all that comes of it; returns when nothing is left, or when the work was stopped.
    pub(super) fn run<W: Work>(&self, work: &W, first: W::Task) {
        let _operation = Operation::begin(&self.shared);
        let crew = Crew {
            effort: self,
            work,
            tasks: Mutex::new(Tasks { waiting: VecDeque::from([first]), workers: 1, idle: 0 }),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        };
        thread::scope(|scope| Worker { crew: &crew, scope }.work(true));
    }
}

/// Counts an operation until it ends, by a panic too: it would take its part of the workers for ever.
struct Operation<'a>(&'a Shared);

impl<'a> Operation<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.operations.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An operation that is done in tasks.
pub(super) trait Work: Sync + Sized {
    /// A piece of it.
    type Task: Send;

    /// How many workers it has a use for now, however many it may have.
    fn most_workers(&self) -> usize {
        usize::MAX
    }

    /// Does one; further ones go to the `worker`.
    fn carry_out(&self, task: Self::Task, worker: &Worker<'_, '_, Self>);
}

/// The workers of one operation.
struct Crew<'a, W: Work> {
    effort: &'a Effort,
    work: &'a W,
    tasks: Mutex<Tasks<W::Task>>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl<W: Work> Crew<'_, W> {
    /// How many workers there may be now.
    fn most(&self) -> usize {
        self.effort.share().min(self.work.most_workers())
    }
}

struct Tasks<T> {
    waiting: VecDeque<T>,
    workers: usize,
    idle: usize,
}

/// One of an operation's workers, as its tasks see it.
pub(super) struct Worker<'scope, 'crew, W: Work> {
    crew: &'crew Crew<'crew, W>,
    scope: &'scope Scope<'scope, 'crew>,
}

impl<'crew, W: Work> Worker<'_, 'crew, W> {
    /// Adds tasks, to be done before all that wait, the last one first.
    pub(super) fn push(&self, tasks: impl IntoIterator<Item = W::Task>) {
        let mut waiting = self.tasks();
        let before = waiting.waiting.len();
        waiting.waiting.extend(tasks);
        let added = waiting.waiting.len() - before;
        for _ in 0..added.min(waiting.idle) {
            self.crew.changed.notify_one();
        }
        // One of them this worker itself takes next.
        if waiting.waiting.len() > 1 {
            self.recruit(&mut waiting);
        }
    }

    /// Adds a task to be done after all that wait.
    pub(super) fn push_last(&self, task: W::Task) {
        self.tasks().waiting.push_front(task);
        self.crew.changed.notify_one();
    }

    /// How many tasks wait.
    pub(super) fn waiting(&self) -> usize {
        self.tasks().waiting.len()
    }

    /// Whether there is a worker, or may be one, that has nothing to do: asked by one that has much to do yet. If so,
    /// and tasks wait already, the worker is called to them.
    pub(super) fn has_help(&self) -> bool {
        let mut tasks = self.tasks();
        if tasks.waiting.is_empty() {
            return tasks.idle > 0 || tasks.workers < self.crew.most();
        }
        self.recruit(&mut tasks);
        false
    }

    /// Calls one more worker if tasks wait. That one calls the next.
    pub(super) fn call_another(&self) {
        self.recruit(&mut self.tasks());
    }

    /// Ends the operation: tasks that wait are dropped, those that run should end soon.
    pub(super) fn stop(&self) {
        self.crew.stopped.store(true, Ordering::Relaxed);
        // With the lock, so that no worker is between its look at `stopped` and its sleep.
        drop(self.tasks());
        self.crew.changed.notify_all();
    }

    /// Whether the operation is to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.crew.stopped.load(Ordering::Relaxed)
    }

    fn tasks(&self) -> MutexGuard<'crew, Tasks<W::Task>> {
        self.crew.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker if more tasks wait than there are idle ones. Where no thread can be had, there is one less.
    fn recruit(&self, tasks: &mut Tasks<W::Task>) {
        if tasks.waiting.len() <= tasks.idle || tasks.workers >= self.crew.most() {
            return;
        }
        let worker = Worker { crew: self.crew, scope: self.scope };
        let started = thread::Builder::new().name("tree".into()).spawn_scoped(self.scope, move || worker.work(false));
        if started.is_ok() {
            tasks.workers += 1;
        }
    }

    fn work(&self, is_first: bool) {
        let _guard = EndOnPanic(self);
        while let Some(task) = self.next(is_first) {
            self.crew.work.carry_out(task, self);
        }
    }

    /// The next task; none when this worker is to leave. The first one stays to the end.
    fn next(&self, is_first: bool) -> Option<W::Task> {
        let mut tasks = self.tasks();
        loop {
            if self.is_stopped() {
                tasks.waiting.clear();
                return None;
            }
            if !is_first && tasks.workers > self.crew.most() {
                tasks.workers -= 1;
                self.crew.changed.notify_all();
                return None;
            }
            if let Some(task) = tasks.waiting.pop_back() {
                // Each worker calls the next: a single one would be busy with nothing else.
                if tasks.waiting.len() > 1 {
                    self.recruit(&mut tasks);
                }
                return Some(task);
            }
            if tasks.idle + 1 == tasks.workers {
                self.crew.stopped.store(true, Ordering::Relaxed);
                self.crew.changed.notify_all();
                return None;
            }
            tasks.idle += 1;
            tasks = self.crew.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner);
            tasks.idle -= 1;
        }
    }
}

/// The others would wait for ever for a worker that panicked.
struct EndOnPanic<'a, 'scope, 'crew, W: Work>(&'a Worker<'scope, 'crew, W>);

impl<W: Work> Drop for EndOnPanic<'_, '_, '_, W> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    /// A task of `n` makes two of `n - 1`.
    struct Halves {
        done: AtomicUsize,
        stop_at: usize,
        threads: Mutex<HashSet<ThreadId>>,
        pause: Duration,
    }

    impl Halves {
        fn new(pause: Duration) -> Self {
            Self { done: AtomicUsize::new(0), stop_at: usize::MAX, threads: Mutex::default(), pause }
        }
    }

    impl Work for Halves {
        type Task = u32;

        fn carry_out(&self, task: u32, worker: &Worker<'_, '_, Self>) {
            self.threads.lock().unwrap().insert(thread::current().id());
            thread::sleep(self.pause);
            if self.done.fetch_add(1, Ordering::Relaxed) == self.stop_at {
                worker.stop();
            }
            if task > 0 {
                worker.push([task - 1, task - 1]);
            }
        }
    }

    #[test]
    fn all_that_comes_of_a_task_is_done_by_at_most_the_workers_allowed() {
        let work = Halves::new(Duration::from_micros(100));
        Effort::new(4).run(&work, 9);
        assert_eq!(work.done.into_inner(), 1023);
        let threads = work.threads.into_inner().unwrap().len();
        assert!((2..=4).contains(&threads), "{threads} threads");
    }

    #[test]
    fn a_single_task_is_done_by_the_caller_alone() {
        let work = Halves::new(Duration::ZERO);
        Effort::new(4).run(&work, 0);
        assert_eq!(work.threads.into_inner().unwrap(), HashSet::from([thread::current().id()]));
    }

    #[test]
    fn what_is_stopped_leaves_the_rest_undone() {
        let mut work = Halves::new(Duration::ZERO);
        work.stop_at = 5;
        Effort::new(4).run(&work, 20);
        assert!(work.done.into_inner() < 100);
    }

    /// Panics in its last task.
    struct Panicking;

    impl Work for Panicking {
        type Task = u32;

        fn carry_out(&self, task: u32, worker: &Worker<'_, '_, Self>) {
            assert!(task > 0, "a worker panics in this test");
            worker.push([task - 1]);
        }
    }

    #[test]
    fn an_operation_that_panics_takes_no_workers_from_those_after_it() {
        let effort = Effort::new(4);
        for tasks in 0..3 {
            let run = || effort.run(&Panicking, tasks);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(effort.share(), 4);
        }
    }

    #[test]
    fn operations_on_one_export_share_its_workers() {
        let effort = Effort::new(4);
        let first = Halves::new(Duration::from_millis(1));
        let second = Halves::new(Duration::from_millis(1));
        let most = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| effort.run(&first, 10));
            let start = Instant::now();
            while effort.shared.operations.load(Ordering::Relaxed) == 0 && start.elapsed() < Duration::from_secs(10) {
                thread::yield_now();
            }
            effort.run(&second, 8);
            most.store(effort.share(), Ordering::Relaxed);
        });
        assert!(second.threads.into_inner().unwrap().len() <= 2);
        assert_eq!(effort.share(), 4);
    }
}
