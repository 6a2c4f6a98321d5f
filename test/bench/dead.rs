//! A node on which one server is dead, and another one alive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nfs_csi::proto::identity_client::IdentityClient;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{ProbeRequest, Volume};
use tonic::Code;
use tonic::transport::Channel;

use crate::kit::driver::Driver;
use crate::kit::mortal::{MORTAL, OTHER};
use crate::kit::requests::{by_hand, publish, stats, unpublish};
use crate::kit::{folder, mounts_at};
use crate::report::Report;
use crate::{median, milliseconds};

const RWX: Mode = Mode::MultiNodeMultiWriter;
/// Publications on the living server.
const LIVING: usize = 100;
/// How often they are made, before, meanwhile and afterwards.
const ROUNDS: usize = 5;
/// Volumes of the dead one that a drain unpublishes.
const DRAINED: usize = 200;
/// Calls on the dead one.
const CALLS: usize = 1000;

/// The node plugin, and where it publishes.
struct Site {
    node: NodeClient<Channel>,
    identity: IdentityClient<Channel>,
    folder: PathBuf,
    dead: Volume,
    living: Volume,
}

pub async fn server(report: &mut Report) {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &["--volume-stats-cache=0"]);
    let site = Site {
        node: driver.node().await,
        identity: driver.identity().await,
        folder: folder.path().to_owned(),
        dead: by_hand("mortal", &MORTAL.parameters()),
        living: by_hand("other", &OTHER.parameters()),
    };
    // A pod of each server's stays: both are known on this host.
    let (kept, living) = (site.target("kept"), site.target("living"));
    site.publish(&site.dead, &kept).await.unwrap();
    site.publish(&site.living, &living).await.unwrap();
    let doomed: Vec<PathBuf> = (0..5).map(|number| site.target(&format!("doomed-{number}"))).collect();
    for target in &doomed {
        site.publish(&site.dead, target).await.unwrap();
    }
    site.living_round().await;
    let mut alone = rounds(async || site.living_round().await).await;
    let before = Resources::of(&driver);

    let dead = MORTAL.die();
    let (first, code) = timed(site.publish(&site.dead, &site.target("first"))).await;
    assert_eq!(code.unwrap_err(), Code::Unavailable);
    report.at_most("NodePublish on the dead server, the first", "ms", milliseconds(first), 3000.0);
    let mut later = Vec::new();
    for _ in 0..CALLS {
        let (time, code) = timed(site.publish(&site.dead, &site.target("later"))).await;
        assert_eq!(code.unwrap_err(), Code::Unavailable);
        later.push(time);
    }
    report.at_most("NodePublish on the dead server, later ones", "ms", milliseconds(median(later)), 10.0);
    let (time, told) = timed(site.node.clone().node_get_volume_stats(stats(&site.dead, &kept))).await;
    assert!(told.unwrap().into_inner().volume_condition.unwrap().abnormal);
    report.at_most("NodeGetVolumeStats of a dead volume", "ms", milliseconds(time), 3000.0);

    let stop = Arc::new(AtomicBool::new(false));
    let nagging = tokio::spawn(nag(site.node.clone(), site.dead.clone(), site.target("nag"), Arc::clone(&stop)));
    let meanwhile = median(rounds(async || site.living_round().await).await);
    stop.store(true, Ordering::Relaxed);
    nagging.await.unwrap();

    let mut unpublished = Duration::ZERO;
    for target in doomed.iter().chain([&kept]) {
        let (time, ended) = timed(site.unpublish(&site.dead, target)).await;
        ended.unwrap();
        assert!(mounts_at(target).is_empty() && !target.exists());
        unpublished = unpublished.max(time);
    }
    report.at_most("NodeUnpublish of dead volumes, the slowest", "ms", milliseconds(unpublished), 1000.0);
    let after = Resources::settled(&driver, &before).await;
    report.at_most("processes after 1,000 calls on the dead server", "", after.processes, before.processes);
    report.at_most("threads after 1,000 calls on the dead server", "", after.threads, before.threads);
    report.ratio("memory after 1,000 calls on the dead server", "before", "MB", after.memory, before.memory, 1.1);

    drop(dead);
    let back = Instant::now();
    while site.publish(&site.dead, &kept).await.is_err() {
        assert!(back.elapsed() < Duration::from_mins(1));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    report.at_most("the dead server is back: until NodePublish works", "s", back.elapsed().as_secs_f64(), 5.0);
    site.unpublish(&site.dead, &kept).await.unwrap();
    let left = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let left = left.lines().filter(|line| line.contains(&format!(" {}:/", MORTAL.address))).count();
    report.at_most("mounts of it that are left", "", left as f64, 0.0);

    site.drain(report).await;
    alone.extend(rounds(async || site.living_round().await).await);
    let what = "100 NodePublish on the living server meanwhile";
    report.ratio(what, "with no server dead", "ms", milliseconds(meanwhile), milliseconds(median(alone)), 1.2);
    site.unpublish(&site.living, &living).await.unwrap();
}

/// Calls on the dead server, one after the other, as of kubelets that do not give up.
async fn nag(node: NodeClient<Channel>, volume: Volume, target: PathBuf, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let _ = node.clone().node_publish_volume(publish(&volume, &target, RWX, &[])).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Site {
    fn target(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    async fn publish(&self, volume: &Volume, target: &Path) -> Result<(), Code> {
        let published = self.node.clone().node_publish_volume(publish(volume, target, RWX, &[])).await;
        published.map(drop).map_err(|status| status.code())
    }

    async fn unpublish(&self, volume: &Volume, target: &Path) -> Result<(), Code> {
        let unpublished = self.node.clone().node_unpublish_volume(unpublish(volume, target)).await;
        unpublished.map(drop).map_err(|status| status.code())
    }

    /// A node is drained while the server is dead of which it has many volumes, each with a superblock of its own, as
    /// exports have. The driver goes on answering.
    async fn drain(&self, report: &mut Report) {
        let targets: Vec<PathBuf> = (0..DRAINED).map(|number| self.target(&format!("drained-{number}"))).collect();
        for target in &targets {
            let request = publish(&self.dead, target, RWX, &["nosharecache"]);
            self.node.clone().node_publish_volume(request).await.unwrap();
        }
        let dead = MORTAL.die();
        let begun = Instant::now();
        let calls = targets.iter().map(|target| {
            let (mut node, request) = (self.node.clone(), unpublish(&self.dead, target));
            tokio::spawn(async move { node.node_unpublish_volume(request).await })
        });
        let calls: Vec<_> = calls.collect();
        let mut answers = Vec::new();
        while calls.iter().any(|call| !call.is_finished()) {
            let (time, answer) = timed(self.identity.clone().probe(ProbeRequest {})).await;
            answer.unwrap();
            answers.push(time);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let drained = begun.elapsed();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        report.at_most("NodeUnpublish of 200 volumes of a dead server at once", "s", drained.as_secs_f64(), 30.0);
        report.at_most("Probe meanwhile", "ms", milliseconds(median(answers)), 50.0);
        drop(dead);
    }

    /// What a hundred publications on the living server take.
    async fn living_round(&self) -> Duration {
        let targets: Vec<PathBuf> = (0..LIVING).map(|number| self.target(&format!("living-{number}"))).collect();
        let begun = Instant::now();
        for target in &targets {
            self.publish(&self.living, target).await.unwrap();
        }
        let time = begun.elapsed();
        for target in &targets {
            self.unpublish(&self.living, target).await.unwrap();
        }
        time
    }
}

/// What the plugin holds.
struct Resources {
    processes: f64,
    threads: f64,
    /// In MB.
    memory: f64,
}

impl Resources {
    fn of(driver: &Driver) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{}/status", driver.pid())).unwrap();
        let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
        Self {
            processes: 1.0 + driver.workers().len() as f64,
            threads: threads.trim().parse().unwrap(),
            memory: driver.resident_bytes() as f64 / 1e6,
        }
    }

    /// When what is idle was given back.
    async fn settled(driver: &Driver, before: &Self) -> Self {
        let begun = Instant::now();
        loop {
            let now = Self::of(driver);
            let is_settled = now.processes <= before.processes && now.threads <= before.threads;
            if is_settled || begun.elapsed() > Duration::from_mins(2) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// What is done on the living server, several times.
pub async fn rounds(round: impl AsyncFn() -> Duration) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(round().await);
    }
    times
}

/// How long a call takes.
pub async fn timed<T>(call: impl Future<Output = T>) -> (Duration, T) {
    let begun = Instant::now();
    let outcome = call.await;
    (begun.elapsed(), outcome)
}
