//! What the kernel's NFS client counts, by server: `/proc/self/mountstats`, which asks no server.
//!
//! The kernel counts for each file system since it was mounted. The sums here do not shrink when one goes.

use std::collections::{HashMap, HashSet};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::mount::table::{self, Table};

const STATISTICS: &str = "/proc/self/mountstats";

/// All sums are told of one look, which may be long: each file system has some sixty lines.
const MOMENT: Duration = Duration::from_millis(500);

/// Sums over all kinds of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    /// How many were made.
    pub(super) made: u64,
    /// How often one was sent again.
    pub(super) retransmissions: u64,
    /// How often one was not answered in time.
    pub(super) timeouts: u64,
    /// From sending to the answer, in milliseconds.
    pub(super) round_trips: u64,
}

/// What was read until now.
#[derive(Debug, Default)]
pub(super) struct Statistics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What each file system had at the last look, by its device.
    last: HashMap<(u32, u32), Calls>,
    servers: HashMap<String, Calls>,
    read: Option<Instant>,
}

impl Statistics {
    /// One of the sums, by server, as it is now or was a moment ago.
    pub(super) fn read(&self, what: fn(&Calls) -> u64) -> Vec<(String, u64)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.is_none_or(|read| read.elapsed() > MOMENT) {
            let text = std::fs::read_to_string(STATISTICS).unwrap_or_default();
            state.note(&Table::read().unwrap_or_default(), &text);
            state.read = Some(Instant::now());
        }
        state.servers.iter().map(|(server, calls)| (server.clone(), what(calls))).collect()
    }
}

impl State {
    fn note(&mut self, table: &Table, text: &str) {
        let mounts: HashMap<&Path, _> =
            table.iter().filter(|mount| mount.is_nfs()).map(|mount| (mount.mount_point.as_path(), mount)).collect();
        let mut seen = HashSet::new();
        for block in text.split("\ndevice ") {
            let Some(mount) = mount_point(block).and_then(|point| mounts.get(point.as_path()).copied()) else {
                continue;
            };
            // All mounts of a file system tell the same.
            if !seen.insert(mount.device) {
                continue;
            }
            let now = Calls::of(block);
            let last = self.last.insert(mount.device, now).unwrap_or_default();
            *self.servers.entry(mount.server().to_owned()).or_default() += now.since(last);
        }
        self.last.retain(|device, _| seen.contains(device));
    }
}

/// Of `[device ]SOURCE mounted on PATH with fstype …`.
fn mount_point(block: &str) -> Option<PathBuf> {
    let (_, rest) = block.lines().next()?.split_once(" mounted on ")?;
    let (point, _) = rest.split_once(" with fstype ")?;
    Some(table::path(point.as_bytes()))
}

impl Calls {
    /// The sums of a file system's lines `KIND: calls transmissions timeouts sent received queued round-trip …`.
    fn of(block: &str) -> Self {
        let Some((_, lines)) = block.split_once("per-op statistics") else { return Self::default() };
        let mut sum = Self::default();
        for line in lines.lines() {
            let Some((_, numbers)) = line.split_once(": ") else { continue };
            let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
            if let [made, transmissions, timeouts, _, _, _, round_trips, ..] = *numbers {
                let retransmissions = transmissions.saturating_sub(made);
                sum += Self { made, retransmissions, timeouts, round_trips };
            }
        }
        sum
    }

    /// What came since another look; all of it, where the file system is another one by now.
    fn since(self, last: Self) -> Self {
        if self.made < last.made {
            return self;
        }
        Self {
            made: self.made - last.made,
            retransmissions: self.retransmissions.saturating_sub(last.retransmissions),
            timeouts: self.timeouts.saturating_sub(last.timeouts),
            round_trips: self.round_trips.saturating_sub(last.round_trips),
        }
    }
}

impl AddAssign for Calls {
    fn add_assign(&mut self, more: Self) {
        self.made += more.made;
        self.retransmissions += more.retransmissions;
        self.timeouts += more.timeouts;
        self.round_trips += more.round_trips;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(devices: &[(&str, &str)]) -> Table {
        let line = |(number, (device, point)): (usize, &(&str, &str))| {
            format!("{number} 1 {device} / {point} rw shared:1 - nfs4 files:/x rw,vers=4.2\n")
        };
        Table::parse(devices.iter().enumerate().map(line).collect::<String>().as_bytes()).unwrap()
    }

    fn block(point: &str, reads: u64) -> String {
        format!(
            "device files:/x mounted on {point} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1 1 0
\t        READ: {reads} {} 2 100 200 3 40 50 0
\t       WRITE: 0 0 0 0 0 0 0 0 0

",
            reads + 1
        )
    }

    #[test]
    fn each_file_system_counts_once_and_what_it_had_stays() {
        let mut state = State::default();
        let text =
            format!("device proc mounted on /proc with fstype proc\n{}{}", block("/a", 10), block("/b\\040c", 10));
        state.note(&table(&[("0:40", "/a"), ("0:40", "/b\\040c")]), &text);
        let once = Calls { made: 11, retransmissions: 1, timeouts: 2, round_trips: 41 };
        assert_eq!(state.servers["files"], once);
        state.note(&table(&[("0:40", "/a")]), &block("/a", 15));
        assert_eq!(state.servers["files"], Calls { made: 16, ..once });
        state.note(&Table::default(), "");
        assert_eq!(state.servers["files"], Calls { made: 16, ..once });
        // Another one with the same number.
        state.note(&table(&[("0:40", "/a")]), &block("/a", 1));
        assert_eq!(state.servers["files"].made, 18);
    }
}
