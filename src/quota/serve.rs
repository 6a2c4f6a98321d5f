//! The agent as a process: one thread for each file system, which waits for wishes and does what is due, and one for
//! signals and metrics.
//!
//! It needs no orderly end: it may be killed between any two calls, and the next one completes what it finds.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::agent::{Agent, Figures, Look, Rules};
use super::error::QuotaError;
use super::file_system::{Checked, Kind, check};
use super::folders::Folders;
use super::ids::IdRange;
use super::quotactl::Disk;
use super::watch::Watch;
use crate::health::{self, Readiness};
use crate::metrics::{self, Metrics};
use crate::telemetry::{self, LogFormat};
use crate::volume::quota_files::{AGENT, Agent as State, BEAT, FORMAT};

/// How often the folders are looked through for what no event told of.
const SCAN: Duration = Duration::from_secs(5);
/// How often they are looked through thoroughly, which costs a call for each volume: events tell of almost all that it finds.
const THOROUGH: Duration = Duration::from_mins(10);
/// Looking through the folders, and asking what is used, take at most such a part of the time each, however many volumes
/// there are: for so many times as long as it took, it is not done again.
const REST: u32 = 200;
/// How many directories are made in `ready/` before wishes are looked at again.
const BATCH: usize = 16;

/// What the agent is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The exports, by their paths on this host.
    pub exports: Vec<PathBuf>,
    /// The numbers of projects that are the agent's.
    pub ids: IdRange,
    /// How many directories are kept in `ready/` of each export.
    pub ready: u64,
    /// How often the kernel is asked what all projects use.
    pub usage_interval: Duration,
    /// Where metrics are answered, as `host:port`.
    pub metrics_address: Option<String>,
    /// What log lines look like.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: tracing::Level,
}

/// The exports of one file system, and the agent for them.
struct Worker {
    agent: Agent<Disk>,
    watch: Watch,
    disk: Disk,
    kind: Kind,
    ids: IdRange,
    usage_interval: Duration,
    host: String,
    seen: Arc<Mutex<Seen>>,
}

/// What a worker reports for metrics.
#[derive(Clone, Debug, Default)]
struct Seen {
    exports: Vec<(String, Figures)>,
    errors: u64,
    scan: Duration,
}

/// Runs the agent until it is told to end. Gives the status to exit with.
#[must_use]
pub fn run(settings: &Settings) -> ExitCode {
    telemetry::init(settings.log_format, settings.log_level);
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(QuotaError::from).and_then(|runtime| runtime.block_on(serve(settings)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the quota agent ends");
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: &Settings) -> Result<(), QuotaError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = Metrics::new("nfs-csi quota");
    let mut listener = None;
    if let Some(address) = &settings.metrics_address {
        listener = Some(health::bind(address)?);
    }
    let workers = workers(settings)?;
    let seen: Vec<_> = workers.iter().map(|worker| Arc::clone(&worker.seen)).collect();
    observe(&metrics, &seen);
    let ready = Readiness::default();
    if let Some(listener) = listener {
        tokio::spawn(health::serve(listener, metrics, ready.clone()));
    }
    let (report, mut reports) = mpsc::channel(workers.len().max(1));
    for mut worker in workers {
        let report = report.clone();
        std::thread::Builder::new().name("quota".into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| worker.work())).unwrap_or(QuotaError::Thread);
            // It is received while this process lives.
            let _ = report.blocking_send(ended);
        })?;
    }
    drop(report);
    ready.set(true);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        // A thread ends only where it cannot continue.
        ended = reports.recv() => return Err(ended.unwrap_or(QuotaError::Thread)),
    }
    tracing::info!("ended");
    Ok(())
}

/// Checks all exports, and opens them: those of one file system share its numbers.
fn workers(settings: &Settings) -> Result<Vec<Worker>, QuotaError> {
    let mut disks: BTreeMap<u64, (Checked, Vec<Folders>)> = BTreeMap::new();
    for path in &settings.exports {
        let checked = check(path)?;
        let folders = match Folders::open(path, checked.export.try_clone()?) {
            Err(QuotaError::Locked { path })
                if disks.values().any(|(_, all)| all.iter().any(|one| one.path() == path)) =>
            {
                return Err(QuotaError::Twice { path });
            }
            folders => folders?,
        };
        tracing::info!(
            export = %path.display(),
            file_system = checked.kind.name(),
            ids = %format_args!("{}-{}", settings.ids.first, settings.ids.last),
            version = env!("CARGO_PKG_VERSION"),
            "serving"
        );
        disks.entry(checked.device).or_insert_with(|| (checked, Vec::new())).1.push(folders);
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim_end().to_owned();
    let worker = |(checked, exports): (Checked, Vec<Folders>)| {
        let failed = |errno| QuotaError::Io { path: settings.exports.first().cloned().unwrap_or_default(), errno };
        let watch = Watch::start(exports.iter()).map_err(failed)?;
        let rules = Rules { ids: settings.ids, ready: settings.ready, block: checked.block };
        Ok(Worker {
            disk: Disk::of(checked.export.try_clone()?),
            agent: Agent::new(Disk::of(checked.export), rules, exports),
            watch,
            kind: checked.kind,
            ids: settings.ids,
            usage_interval: settings.usage_interval,
            host: host.clone(),
            seen: Arc::default(),
        })
    };
    disks.into_values().map(worker).collect()
}

impl Worker {
    /// Works until it cannot any more; gives the reason.
    fn work(&mut self) -> QuotaError {
        match self.work_on() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn work_on(&mut self) -> Result<std::convert::Infallible, QuotaError> {
        let mut now = Instant::now();
        self.agent.start(now)?;
        let (mut beat, mut scan, mut thorough, mut survey) =
            (now, now + SCAN, now + THOROUGH, now + self.usage_interval);
        let mut is_short = true;
        loop {
            if now >= beat {
                self.beat()?;
                beat = now + BEAT;
            }
            let due = beat.min(scan).min(survey);
            let longest = if is_short { Duration::ZERO } else { due.saturating_duration_since(now) };
            let events = self.watch.wait(longest).map_err(|errno| self.failed(errno))?;
            now = Instant::now();
            for (export, id) in events.projects {
                self.agent.answer(export, id, now)?;
            }
            if events.lost || now >= scan {
                let look = if events.lost || now >= thorough { Look::Thorough } else { Look::Quick };
                self.agent.scan(look, now)?;
                if look == Look::Thorough {
                    thorough = now + THOROUGH;
                }
                let took = now.elapsed();
                self.seen().scan = took;
                scan = now + SCAN.max(took * REST);
            }
            if now >= survey {
                self.check_enforced()?;
                let begun = Instant::now();
                self.agent.survey(now)?;
                survey = now + self.usage_interval.max(begun.elapsed() * REST);
            }
            is_short = self.agent.refill(BATCH, now)?;
            now = Instant::now();
        }
    }

    /// Shows that the agent lives: that its folders are where they were, and what it has given out.
    fn beat(&mut self) -> Result<(), QuotaError> {
        let mut exports = Vec::new();
        for (folders, figures) in self.agent.folders().zip(self.agent.figures()) {
            folders.are_in_place()?;
            let state = State {
                format: FORMAT,
                version: env!("CARGO_PKG_VERSION").into(),
                host: self.host.clone(),
                file_system: self.kind.name().into(),
                limits_root: self.kind.limits_root(),
                first_id: self.ids.first.get(),
                last_id: self.ids.last.get(),
                ready: figures.ready,
                volumes: figures.volumes,
                promised_bytes: figures.promised_bytes,
            };
            let text = serde_json::to_vec(&state).map_err(std::io::Error::from)?;
            let written = match folders.write(AGENT, &text) {
                // It is as it was, and the agent lives.
                Err(Errno::ENOSPC | Errno::EDQUOT) => folders.touch(),
                written => written,
            };
            written.map_err(|errno| QuotaError::Io { path: folders.path().into(), errno })?;
            exports.push((folders.path().display().to_string(), figures));
        }
        let errors = self.agent.errors();
        let mut seen = self.seen();
        seen.exports = exports;
        seen.errors = errors;
        Ok(())
    }

    fn check_enforced(&self) -> Result<(), QuotaError> {
        match self.disk.is_enforced() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.failed(Errno::ESRCH)),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn failed(&self, errno: Errno) -> QuotaError {
        let path = self.agent.folders().next().map(|folders| folders.path().to_owned()).unwrap_or_default();
        QuotaError::Io { path, errno }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers what the workers report.
fn observe(metrics: &Metrics, workers: &[Arc<Mutex<Seen>>]) {
    type Read = fn(&Seen) -> Vec<(String, u64)>;
    fn of_exports(seen: &Seen, figure: fn(&Figures) -> u64) -> Vec<(String, u64)> {
        seen.exports.iter().map(|(export, figures)| (export.clone(), figure(figures))).collect()
    }
    let readings: [(metrics::Reading, Read); 6] = [
        (metrics::QUOTA_PROJECTS, |seen| of_exports(seen, |figures| figures.volumes)),
        (metrics::QUOTA_PROMISED, |seen| of_exports(seen, |figures| figures.promised_bytes)),
        (metrics::QUOTA_READY, |seen| of_exports(seen, |figures| figures.ready)),
        (metrics::QUOTA_REFUSED, |seen| of_exports(seen, |figures| figures.refused)),
        (metrics::QUOTA_ERRORS, |seen| vec![(String::new(), seen.errors)]),
        (metrics::QUOTA_SCAN, |seen| vec![(String::new(), u64::try_from(seen.scan.as_millis()).unwrap_or(u64::MAX))]),
    ];
    for (reading, read) in readings {
        let workers = workers.to_vec();
        metrics.read(reading, move || {
            let one = |worker: &Arc<Mutex<Seen>>| read(&worker.lock().unwrap_or_else(PoisonError::into_inner));
            workers.iter().flat_map(one).collect()
        });
    }
}
