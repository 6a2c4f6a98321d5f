//! What the driver costs, as ratios to the bare system calls it is made of, measured in one run: `make bench`.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a benchmark")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../kit/mod.rs"]
mod kit;

mod floor;
mod report;
mod volumes;

use std::time::{Duration, Instant};

use nfs_csi::proto::ProbeRequest;
use nfs_csi::proto::volume_capability::access_mode::Mode;

use kit::driver::{Driver, binary};
use kit::folder;
use kit::requests::{create, delete, publish, unpublish};
use report::Report;

/// How often a single call is measured; the median counts.
const SAMPLES: usize = 30;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut report = Report::default();
    process(&mut report).await;
    publishing(&mut report).await;
    volumes::at(&mut report, "no latency", kit::server::SERVER, kit::server::SHARE, &[1, 10, 100]).await;
    if let Ok(delayed) = std::env::var("E2E_DELAYED") {
        let (server, share) = delayed.split_once(':').expect("E2E_DELAYED is server:/share");
        volumes::at(&mut report, "1 ms", server, share, &[10]).await;
    }
    report.print();
    if let Ok(path) = std::env::var("E2E_BENCH_JSON") {
        std::fs::write(path, report.json()).expect("the file for the figures");
    }
    std::process::exit(i32::from(report.failed()));
}

/// Memory, size and start.
async fn process(report: &mut Report) {
    let size = std::fs::metadata(binary()).unwrap().len();
    report.at_most("binary size", "MB", size as f64 / 1e6, 12.0);

    let mut starts = Vec::new();
    for _ in 0..5 {
        let folder = folder();
        let begun = Instant::now();
        let driver = Driver::start_as("node", folder.path(), &[]);
        driver.identity().await.probe(ProbeRequest {}).await.unwrap();
        starts.push(begun.elapsed());
        assert!(driver.stop().await.success());
    }
    report.at_most("exec to the first answered Probe", "ms", milliseconds(median(starts)), 150.0);

    for command in ["node", "controller"] {
        let folder = folder();
        let driver = Driver::start_as(command, folder.path(), &[]);
        driver.identity().await.probe(ProbeRequest {}).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        report.at_most(&format!("resident memory, {command}, idle, with workers"), "MB", megabytes(&driver), 10.0);
    }
}

fn megabytes(driver: &Driver) -> f64 {
    driver.resident_bytes() as f64 / 1e6
}

/// NodePublishVolume and NodeUnpublishVolume against bare mount(2) and umount2(2), each with an RPC NULL.
async fn publishing(report: &mut Report) {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let (mut controller, mut node) = (driver.controller().await, driver.node().await);
    let volume = controller.create_volume(create("pvc-bench", &[])).await.unwrap().into_inner().volume.unwrap();
    let target = folder.path().join("target");
    for (version, bounded) in [("4.2", true), ("3", false)] {
        let option = format!("nfsvers={version}");
        let options: &[&str] = if version == "3" { &[&option, "nolock"] } else { &[&option] };
        let source = "127.0.0.1:/run/export/pvc-bench";
        let mut times = [const { Vec::new() }; 4];
        // One more than counted, so that the server is known to all.
        for sample in 0..=SAMPLES {
            let [bare_mount, bare_unmount] = floor::mount(source, &folder.path().join("bare"), version);
            let begun = Instant::now();
            node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, options)).await.unwrap();
            let published = begun.elapsed();
            let begun = Instant::now();
            node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
            let unpublished = begun.elapsed();
            if sample > 0 {
                for (times, time) in times.iter_mut().zip([bare_mount, published, bare_unmount, unpublished]) {
                    times.push(time);
                }
            }
        }
        let [bare_mount, published, bare_unmount, unpublished] = times.map(|times| milliseconds(median(times)));
        let bound = if bounded { 2.0 } else { f64::INFINITY };
        report.ratio(&format!("NodePublishVolume, NFS {version}"), "mount(2) + RPC NULL", "ms", published, bare_mount, bound);
        report.ratio(&format!("NodeUnpublishVolume, NFS {version}"), "umount2(2) + RPC NULL", "ms", unpublished, bare_unmount, bound);
    }
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
}

pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
