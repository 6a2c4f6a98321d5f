//! The mount table, watched once for all that wait for a change of it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use crate::mount::table::{Mount, Table, TableError};

/// The file that tells of changes by a priority event (proc(5)).
const TABLE: &str = "/proc/self/mountinfo";
/// How soon after a change the table is read for the next one.
const PAUSE: Duration = Duration::from_millis(10);

/// Reads the table after each change, while somebody waits: on a thread of its own, for a long table takes its time.
#[derive(Debug)]
pub(super) struct TableWatch {
    tables: Arc<watch::Sender<Table>>,
    thread: Thread,
}

/// The changes from a moment on.
#[derive(Debug)]
pub(super) struct Changes(watch::Receiver<Table>);

impl TableWatch {
    /// The thread ends with this process.
    pub(super) fn start() -> io::Result<Self> {
        let file = File::open(TABLE)?;
        let tables = Arc::new(watch::Sender::default());
        let told = Arc::downgrade(&tables);
        let watcher = std::thread::Builder::new().name("mount-table".into()).spawn(move || follow(&file, &told))?;
        Ok(Self { tables, thread: watcher.thread().clone() })
    }

    pub(super) fn changes(&self) -> Changes {
        let changes = Changes(self.tables.subscribe());
        self.thread.unpark();
        changes
    }
}

fn follow(file: &File, told: &Weak<watch::Sender<Table>>) {
    loop {
        while told.upgrade().is_some_and(|tables| tables.receiver_count() == 0) {
            std::thread::park();
        }
        // What has changed since the last one ends it at once.
        match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLPRI)], PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return tracing::error!(%error, "cannot watch the mount table"),
        }
        let Some(tables) = told.upgrade() else { return };
        if let Ok(table) = Table::read() {
            tables.send_replace(table);
        }
        std::thread::sleep(PAUSE);
    }
}

impl Changes {
    /// Waits until a changed table is so.
    pub(super) async fn until(&mut self, is_so: impl Fn(&Table) -> bool) {
        loop {
            if self.0.changed().await.is_err() {
                // The watch has ended, and this process with it.
                return std::future::pending().await;
            }
            if is_so(&self.0.borrow_and_update()) {
                return;
            }
        }
    }
}

/// What is mounted on a path: the topmost mount's number, and its file system's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Top {
    id: u64,
    pub(super) device: (u32, u32),
}

impl Top {
    pub(super) fn of(mount: &Mount) -> Self {
        Self { id: mount.id, device: mount.device }
    }

    /// The topmost mount on a path, if there is one.
    pub(super) fn at(table: &Table, path: &str) -> Option<Self> {
        table.at(Path::new(path)).map(Self::of)
    }
}

/// Whether something is mounted on a path. A table that cannot be read says nothing; then it counts as there.
pub(super) fn is_mounted(path: &str) -> bool {
    Table::read_on(&[Path::new(path)]).map_or_else(|_: TableError| true, |table| Top::at(&table, path).is_some())
}
