//! What the driver tells Prometheus: every metric's name is in this file.
//!
//! Calls are measured as they happen ([`Metrics::begin`]). What a part of the driver holds at the moment is asked for
//! when it is scraped ([`Metrics::read`]): the part registers a [`Reading`] with a closure, and keeps no count of its
//! own for it. A closure must not wait for anything but a short lock.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::running_work::{RunningWork, WorkKind, WorkState};

const BUILD: &str = "nfs_csi_build";
const CALL_SECONDS: &str = "nfs_csi_call_duration_seconds";
const CALLS_RUNNING: &str = "nfs_csi_calls_running";
const MOUNT_SECONDS: &str = "nfs_csi_mount_duration_seconds";
const MOUNT_FAILURES: &str = "nfs_csi_mount_failures";

/// Volumes that are published on this node, by server.
pub const PUBLISHED: Reading = Reading {
    name: "nfs_csi_published_volumes",
    help: "Target paths on which a volume is published, by the server in the volume",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// Where those volumes are mounted from.
pub const MOUNTED_VOLUMES: Reading = Reading {
    name: "nfs_csi_mounted_volumes",
    help: "Published volumes by the server in the volume and the address at which it is mounted: another one than the \
           server map has now is that of pods which run since before the server moved",
    kind: Kind::Gauge,
    labels: &["server", "address"],
};

/// Whether the server map on disk is in force.
pub const SERVER_MAP_REFUSED: Reading = Reading {
    name: "nfs_csi_server_map_refused",
    help: "1 while the file of the server map is wrong or gone, and what it said before is in force; else 0",
    kind: Kind::Gauge,
    labels: &[],
};

/// Whether pods can have volumes on this node.
pub const REGISTERED: Reading = Reading {
    name: "nfs_csi_registered",
    help: "1 if the kubelet has registered the driver, which makes itself known to it, 0 if it has not or refuses it",
    kind: Kind::Gauge,
    labels: &[],
};

/// Worker processes, which make the calls that may block.
pub const WORKERS: Reading = Reading {
    name: "nfs_csi_worker_processes",
    help: "Worker processes that there are",
    kind: Kind::Gauge,
    labels: &[],
};

/// Worker processes that were killed.
pub const WORKERS_KILLED: Reading = Reading {
    name: "nfs_csi_worker_processes_killed",
    help: "Worker processes that were killed because a server did not answer in time",
    kind: Kind::Counter,
    labels: &[],
};

/// Worker processes that cannot be ended.
pub const WORKERS_STUCK: Reading = Reading {
    name: "nfs_csi_worker_processes_stuck",
    help: "Worker processes that were killed and that the kernel has not let go, since their call waits uninterruptibly",
    kind: Kind::Gauge,
    labels: &[],
};

/// The breakers.
pub const REFUSED: Reading = Reading {
    name: "nfs_csi_server_refused",
    help: "1 for a server whose calls are refused because it does not answer, 0 for the others",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// Work on exports, which waits for servers on threads of this process.
pub const EXPORT_CALLS: Reading = Reading {
    name: "nfs_csi_export_calls",
    help: "Calls on exports that are under way in this process, by server",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// What of it hangs.
pub const EXPORT_CALLS_HANGING: Reading = Reading {
    name: "nfs_csi_export_calls_hanging",
    help: "Calls on exports that are under way although their server stopped to answer, by server",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// Mounts.
pub const MOUNTS: Reading = Reading {
    name: "nfs_csi_mounts",
    help: "NFS mounts that this process sees, by the server in their source",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// What is unmounted and not gone.
pub const DETACHED: Reading = Reading {
    name: "nfs_csi_detached_file_systems",
    help: "NFS file systems that were unmounted and that the kernel holds still, since somebody has a file open there \
           or writes what the server does not take",
    kind: Kind::Gauge,
    labels: &["server"],
};

/// What the kernel's NFS client counts.
pub const NFS_CALLS: Reading = Reading {
    name: "nfs_csi_nfs_calls",
    help: "Calls that the kernel's NFS client made on mounts that this process sees, by server",
    kind: Kind::Counter,
    labels: &["server"],
};

/// The same.
pub const NFS_RETRANSMISSIONS: Reading = Reading {
    name: "nfs_csi_nfs_retransmissions",
    help: "How often the kernel's NFS client sent a call again, by server",
    kind: Kind::Counter,
    labels: &["server"],
};

/// The same.
pub const NFS_TIMEOUTS: Reading = Reading {
    name: "nfs_csi_nfs_timeouts",
    help: "How often a call of the kernel's NFS client was not answered in time, by server",
    kind: Kind::Counter,
    labels: &["server"],
};

/// The same.
pub const NFS_ROUND_TRIPS: Reading = Reading {
    name: "nfs_csi_nfs_round_trip_milliseconds",
    help: "How long calls of the kernel's NFS client were on the way, from sending to the answer, in all, by server",
    kind: Kind::Counter,
    labels: &["server"],
};

/// What is in the trash.
pub const TRASH: Reading = Reading {
    name: "nfs_csi_trash_entries",
    help: "Deleted volumes and snapshots that are in the trash, kept or about to be freed, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// What cannot be freed.
pub const TRASH_STUCK: Reading = Reading {
    name: "nfs_csi_trash_stuck_entries",
    help: "Entries of the trash that could not be freed at the last try, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// What is in staging.
pub const STAGING: Reading = Reading {
    name: "nfs_csi_staging_entries",
    help: "Clones, snapshots and restores in staging, under way or cut short and not swept yet, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// Volumes whose limit does not hold.
pub const UNENFORCED: Reading = Reading {
    name: "nfs_csi_volumes_unenforced",
    help: "Volumes without the limit that was asked for, as far as they were created, listed or looked at, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// What a quota agent has given out.
pub const QUOTA_PROJECTS: Reading = Reading {
    name: "nfs_csi_quota_projects",
    help: "Projects with a limit that a driver asked for, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// The same in bytes.
pub const QUOTA_PROMISED: Reading = Reading {
    name: "nfs_csi_quota_promised_bytes",
    help: "The sum of the limits of these projects, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// What it can give out at once.
pub const QUOTA_READY: Reading = Reading {
    name: "nfs_csi_quota_ready_directories",
    help: "Directories that wait for a volume, by export",
    kind: Kind::Gauge,
    labels: &["export"],
};

/// What it did not give out.
pub const QUOTA_REFUSED: Reading = Reading {
    name: "nfs_csi_quota_refused",
    help: "Limits that were asked for and refused, by export",
    kind: Kind::Counter,
    labels: &["export"],
};

/// What went wrong.
pub const QUOTA_ERRORS: Reading = Reading {
    name: "nfs_csi_quota_errors",
    help: "Steps of the quota agent that failed and are tried again",
    kind: Kind::Counter,
    labels: &[],
};

/// How long it takes to look for work.
pub const QUOTA_SCAN: Reading = Reading {
    name: "nfs_csi_quota_scan_milliseconds",
    help: "How long the last look through the folders of the exports took",
    kind: Kind::Gauge,
    labels: &[],
};

/// What tells long work apart.
const OF_WORK: &[&str] = &["kind", "volume", "export"];

/// Long work: for how long it has run.
pub const WORK_SECONDS: Reading = Reading {
    name: "nfs_csi_work_running_seconds",
    help: "How long a clone, snapshot, restore or removal has run; volume \"\" is the longest of those beyond the first 100",
    kind: Kind::Gauge,
    labels: OF_WORK,
};

/// The same: entries that are done.
pub const WORK_DONE_FILES: Reading = Reading {
    name: "nfs_csi_work_done_files",
    help: "Files and directories that a clone, snapshot, restore or removal is done with",
    kind: Kind::Gauge,
    labels: OF_WORK,
};

/// The same: entries that are left.
pub const WORK_LEFT_FILES: Reading = Reading {
    name: "nfs_csi_work_left_files",
    help: "Files and directories that are left to do, where that is known",
    kind: Kind::Gauge,
    labels: OF_WORK,
};

/// The same: bytes that are done.
pub const WORK_DONE_BYTES: Reading = Reading {
    name: "nfs_csi_work_done_bytes",
    help: "Bytes in the files that a clone, snapshot or restore is done with",
    kind: Kind::Gauge,
    labels: OF_WORK,
};

/// The same: bytes that are left.
pub const WORK_LEFT_BYTES: Reading = Reading {
    name: "nfs_csi_work_left_bytes",
    help: "Bytes that are left to do, where that is known, about",
    kind: Kind::Gauge,
    labels: OF_WORK,
};

/// The form of what [`Metrics::text`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper ends of the histogram's buckets, in seconds: from a mount of a known server to a long clone.
const BUCKETS: [f64; 14] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// How a call ended whose caller went away before its answer.
const CANCELLED: &str = "CANCELLED";

/// Something that is read when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The metric's name.
    pub name: &'static str,
    help: &'static str,
    kind: Kind,
    /// What tells the values apart; empty where there is one only.
    labels: &'static [&'static str],
}

/// Whether a reading may become less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may.
    Gauge,
    /// It never does while the process lives; its name gets `_total`.
    Counter,
}

/// How long mounts take, and why some fail.
#[derive(Clone, Debug)]
pub struct MountTimes {
    durations: Family<MadeMount, Histogram, fn() -> Histogram>,
    failures: Family<FailedMount, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MadeMount {
    server: String,
    version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailedMount {
    server: String,
    cause: &'static str,
}

impl Default for MountTimes {
    fn default() -> Self {
        Self { durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)), failures: Family::default() }
    }
}

impl MountTimes {
    /// A mount was made, with this version of NFS.
    pub fn made(&self, server: &str, version: &str, time: Duration) {
        let labels = MadeMount { server: server.to_owned(), version: version.to_owned() };
        self.durations.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// A mount was not made.
    pub fn failed(&self, server: &str, cause: &'static str) {
        self.failures.get_or_create(&FailedMount { server: server.to_owned(), cause }).inc();
    }
}

/// All metrics of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    durations: Family<Ended, Histogram, fn() -> Histogram>,
    running: Family<Running, Gauge>,
    mounts: MountTimes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Running {
    method: &'static str,
}

/// A call that is under way. Where it is dropped before its end, its caller went away.
#[derive(Debug)]
pub struct Call {
    metrics: Arc<Metrics>,
    method: &'static str,
    code: &'static str,
    begun: Instant,
    took: Option<Duration>,
}

impl Metrics {
    /// No call yet, and nothing to read.
    #[must_use]
    pub fn new(driver_name: &str) -> Arc<Self> {
        let mut registry = Registry::default();
        let build = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("driver", driver_name.to_owned())];
        registry.register(BUILD, "The driver's version and name", Info::new(build.to_vec()));
        let durations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        registry.register(CALL_SECONDS, "How long calls took, by method and gRPC code", durations.clone());
        let running = Family::default();
        registry.register(CALLS_RUNNING, "Calls that are under way, by method", running.clone());
        let mounts = MountTimes::default();
        registry.register(MOUNT_SECONDS, "How long mounts took, by server and NFS version", mounts.durations.clone());
        registry.register(MOUNT_FAILURES, "Mounts that were not made, by server and cause", mounts.failures.clone());
        Arc::new(Self { registry: Mutex::new(registry), durations, running, mounts })
    }

    /// Where mounts are counted.
    #[must_use]
    pub fn mounts(&self) -> MountTimes {
        self.mounts.clone()
    }

    /// Counts a call from now on.
    #[must_use]
    pub fn begin(self: &Arc<Self>, method: &'static str) -> Call {
        self.running.get_or_create(&Running { method }).inc();
        Call { metrics: Arc::clone(self), method, code: CANCELLED, begun: Instant::now(), took: None }
    }

    /// Adds what `state` gives whenever it is asked for: a number for each value of the reading's label. Where it has
    /// no label, their sum is told.
    pub fn read(&self, reading: Reading, state: impl Fn() -> Vec<(String, u64)> + Send + Sync + 'static) {
        self.read_sets(reading, move || state().into_iter().map(|(value, number)| (vec![value], number)).collect());
    }

    /// The same for a reading with several labels: a number for each set of their values.
    pub fn read_sets(&self, reading: Reading, state: impl Fn() -> Vec<(Vec<String>, u64)> + Send + Sync + 'static) {
        let reader = Reader { reading, state: Box::new(state) };
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).register_collector(Box::new(reader));
    }

    /// Adds how far long work is, whenever it is asked for.
    pub fn read_running_work(&self, work: &RunningWork) {
        let read = |reading, number: fn(&WorkState) -> Option<u64>| {
            let work = work.clone();
            let state = move || {
                let values = |state: WorkState| {
                    let number = number(&state)?;
                    Some((vec![state.kind.name().to_owned(), state.name, state.export], number))
                };
                work.states().into_iter().filter_map(values).collect()
            };
            self.read_sets(reading, state);
        };
        read(WORK_SECONDS, |state| Some(state.seconds));
        read(WORK_DONE_FILES, |state| Some(state.done_files));
        read(WORK_LEFT_FILES, |state| state.left_files);
        // Who removes files does not ask how large they are.
        read(WORK_DONE_BYTES, |state| Some(state.done_bytes).filter(|_| state.kind != WorkKind::Free));
        read(WORK_LEFT_BYTES, |state| state.left_bytes);
    }

    /// All metrics as they are now.
    #[must_use]
    pub fn text(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing to a string does not fail; a reading that would could only be cut short.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

impl Call {
    /// It ended with this code. Gives how long it took, in milliseconds.
    #[must_use]
    pub fn end(mut self, code: &'static str) -> f64 {
        self.code = code;
        self.took.insert(self.begun.elapsed()).as_secs_f64() * 1000.0
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (method, code) = (self.method, self.code);
        self.metrics.running.get_or_create(&Running { method }).dec();
        let histogram = self.metrics.durations.get_or_create(&Ended { method, code });
        histogram.observe(self.took.unwrap_or_else(|| self.begun.elapsed()).as_secs_f64());
    }
}

/// Gives numbers, each with the values of the reading's labels.
type State = Box<dyn Fn() -> Vec<(Vec<String>, u64)> + Send + Sync>;

struct Reader {
    reading: Reading,
    state: State,
}

impl fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reading.fmt(formatter)
    }
}

impl Collector for Reader {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Reading { name, help, kind, labels } = self.reading;
        let kind_of = match kind {
            Kind::Gauge => ConstGauge::new(0u64).metric_type(),
            Kind::Counter => ConstCounter::new(0u64).metric_type(),
        };
        let mut metric = encoder.encode_descriptor(name, help, None, kind_of)?;
        if labels.is_empty() {
            let number = (self.state)().into_iter().map(|(_, number)| number).sum();
            return encode(kind, number, metric);
        }
        for (values, number) in (self.state)() {
            let labels: Vec<(&str, String)> = labels.iter().copied().zip(values).collect();
            encode(kind, number, metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn encode(kind: Kind, number: u64, metric: MetricEncoder) -> fmt::Result {
    match kind {
        Kind::Gauge => ConstGauge::new(number).encode(metric),
        Kind::Counter => ConstCounter::new(number).encode(metric),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Reading = Reading { name: "killed", help: "Killed", kind: Kind::Counter, labels: &[] };

    #[test]
    fn a_call_is_counted_with_its_code_and_its_time() {
        let metrics = Metrics::new("example.org");
        let call = metrics.begin("CreateVolume");
        assert!(metrics.text().contains("nfs_csi_calls_running{method=\"CreateVolume\"} 1\n"));
        assert!(call.end("OK") >= 0.0);
        drop(metrics.begin("CreateVolume"));
        let text = metrics.text();
        for line in [
            "nfs_csi_calls_running{method=\"CreateVolume\"} 0",
            "nfs_csi_call_duration_seconds_count{method=\"CreateVolume\",code=\"OK\"} 1",
            "nfs_csi_call_duration_seconds_count{method=\"CreateVolume\",code=\"CANCELLED\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("le=\"300.0\""), "{text}");
    }

    #[test]
    fn the_version_is_told() {
        let line = format!("nfs_csi_build_info{{version=\"{}\",driver=\"d\"}} 1", env!("CARGO_PKG_VERSION"));
        let text = Metrics::new("d").text();
        assert!(text.contains(&line), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn what_a_part_holds_is_read_when_it_is_asked_for() {
        let metrics = Metrics::new("d");
        let servers = Arc::new(Mutex::new(vec![("a\"b".to_owned(), 1)]));
        let state = Arc::clone(&servers);
        metrics.read(PUBLISHED, move || state.lock().unwrap().clone());
        metrics.read(KILLED, || vec![(String::new(), 7)]);
        assert!(metrics.text().contains("nfs_csi_published_volumes{server=\"a\\\"b\"} 1\n"), "{}", metrics.text());
        assert!(metrics.text().contains("\nkilled_total 7\n"), "{}", metrics.text());
        servers.lock().unwrap()[0] = ("c".into(), 2);
        assert!(metrics.text().contains("nfs_csi_published_volumes{server=\"c\"} 2\n"), "{}", metrics.text());
        assert!(metrics.text().contains("# TYPE nfs_csi_published_volumes gauge\n"), "{}", metrics.text());
    }
}
