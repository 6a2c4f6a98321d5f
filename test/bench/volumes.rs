//! CreateVolume and DeleteVolume against bare mkdir, chmod and rename on the same server.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::floor::{Operations, Share, round_trips};
use crate::kit::driver::Driver;
use crate::kit::requests::{create, delete};
use crate::kit::{Folder, folder, wait_for};
use crate::report::Report;

/// How many volumes are made and deleted at each concurrency.
const COUNT: usize = 300;

/// Measures on one server, at each concurrency.
pub async fn at(report: &mut Report, latency: &str, server: &str, share: &str, concurrencies: &[usize]) {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let controller = driver.controller().await;
    let bare = Share::mount(server, share, folder.path().with_extension("bare"));
    // The first call mounts the export.
    let warm_up = volumes(&controller, (server, share), &[], (1, 1), "warm").await;
    remove(&controller, warm_up.ids, 1).await;
    for &concurrency in concurrencies {
        let [bare_create, bare_delete] = bare.rates(COUNT, concurrency);
        let peak = Peak::watch(&driver);
        let before = Operations::so_far(folder.path());
        let made = volumes(&controller, (server, share), &[], (COUNT, concurrency), "bench").await;
        let between = Operations::so_far(folder.path());
        let deleted = remove(&controller, made.ids, concurrency).await;
        // The reaper's part of a delete counts too.
        settle(&folder).await;
        let after = Operations::so_far(folder.path());
        let (removed, made_with) = (after.since(&between), between.since(&before));
        let at = format!("{latency}, {concurrency} at once");
        let least = match (latency, concurrency) {
            ("no latency", 10) => 200.0,
            ("1 ms", 10) => 80.0,
            _ => 0.0,
        };
        report.at_least(&format!("CreateVolume, {at}"), "/s", made.rate, least);
        report.at_least(&format!("DeleteVolume, {at}"), "/s", deleted, least);
        report.ratio(
            &format!("CreateVolume, {at}: time"),
            "mkdir + chmod",
            "ms",
            1e3 / made.rate,
            1e3 / bare_create,
            f64::INFINITY,
        );
        report.ratio(
            &format!("DeleteVolume, {at}: time"),
            "rename",
            "ms",
            1e3 / deleted,
            1e3 / bare_delete,
            f64::INFINITY,
        );
        for (what, operations, most) in [("CreateVolume", made_with, 11.0), ("DeleteVolume", removed, 9.0)] {
            // A few more on the way: the reaper's looks, the clock.
            let each = operations.sum() as f64 / COUNT as f64;
            report.at_most(&format!("{what}, {at}"), "round trips", each, most + 0.1);
            Report::detail(&format!("of {COUNT}: {operations}"));
        }
        if concurrency == 100 {
            report.at_most("resident memory, controller, 100 at once", "MB", peak.bytes() as f64 / 1e6, 20.0);
        }
    }
}

pub struct Made {
    pub ids: Vec<String>,
    pub rate: f64,
}

/// Makes volumes of a class, so many at once.
pub async fn volumes(
    controller: &ControllerClient<Channel>,
    (server, share): (&str, &str),
    class: &[(&str, &str)],
    (count, concurrency): (usize, usize),
    name: &str,
) -> Made {
    let class: Vec<(String, String)> =
        class.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..concurrency {
        let (mut controller, next) = (controller.clone(), Arc::clone(&next));
        let (server, share, name, class) = (server.to_owned(), share.to_owned(), name.to_owned(), class.clone());
        callers.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return ids;
                }
                let class = class.iter().map(|(key, value)| (key.as_str(), value.as_str()));
                let mut more = vec![("server", server.as_str()), ("share", &share), ("mountPermissions", "0777")];
                more.extend(class);
                let request = create(&provisioned(&format!("{name}-{concurrency}"), number), &more);
                ids.push(controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id);
            }
        });
    }
    let ids = callers.join_all().await.concat();
    Made { ids, rate: count as f64 / begun.elapsed().as_secs_f64() }
}

/// A name as provisioners give them.
fn provisioned(name: &str, number: usize) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = hasher.finish();
    format!("pvc-{:08x}-0000-4000-8000-{number:012x}", hash & 0xffff_ffff)
}

/// Deletes all; the rate a second.
pub async fn remove(controller: &ControllerClient<Channel>, ids: Vec<String>, concurrency: usize) -> f64 {
    let count = ids.len();
    let mut callers = JoinSet::new();
    let begun = Instant::now();
    for ids in ids.chunks(count.div_ceil(concurrency)) {
        let (mut controller, ids) = (controller.clone(), ids.to_vec());
        callers.spawn(async move {
            for id in ids {
                controller.delete_volume(delete(&id)).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    count as f64 / begun.elapsed().as_secs_f64()
}

/// Waits until the driver makes no more calls to the server.
pub async fn settle(folder: &Folder) {
    let mut last = round_trips(folder.path());
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = round_trips(folder.path());
        if now == last {
            return;
        }
        last = now;
    }
}

/// The largest resident memory of a driver and its workers, sampled.
pub struct Peak {
    bytes: Arc<AtomicU64>,
    _stop: std::sync::mpsc::Sender<()>,
}

impl Peak {
    pub fn watch(driver: &Driver) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let bytes = Arc::new(AtomicU64::new(0));
        let (pid, peak) = (driver.pid(), Arc::clone(&bytes));
        std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(250)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                peak.fetch_max(crate::kit::driver::resident_bytes(pid), Ordering::Relaxed);
            }
        });
        wait_for("a first sample of memory", Duration::from_secs(5), || {
            (bytes.load(Ordering::Relaxed) > 0).then_some(())
        });
        Self { bytes, _stop: stop }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
