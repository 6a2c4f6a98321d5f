//! What the driver costs, as ratios to the bare system calls it is made of, measured in one run: `make bench`.
//!
//! usage: bench [outside] [PART]
//!
//! All parts are measured, or the one that is named; `outside` measures what needs no NFS server. The directory with a
//! million names takes half an hour: it is left out unless it is named or E2E_BENCH_MILLION is 1, and the files with two
//! names (links, names) unless they are named.
#![allow(missing_docs, unreachable_pub, reason = "a program of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::must_use_candidate, reason = "figures for people, and no library")]

#[path = "../kit/mod.rs"]
mod kit;

mod dead;
mod dead_export;
mod floor;
mod lists;
mod mapped;
mod names;
mod quotas;
mod readers;
mod report;
mod servers;
mod trees;
mod volumes;

use std::time::{Duration, Instant};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{NodeGetInfoRequest, ProbeRequest};

use kit::driver::{Driver, binary};
use kit::folder;
use kit::requests::{create, delete, publish, unpublish};
use kit::server::{SERVER, SHARE};
use report::Report;

const RWX: Mode = Mode::MultiNodeMultiWriter;
/// How often a single call is measured; the median counts.
const SAMPLES: usize = 30;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_outside = arguments.first().is_some_and(|first| first == "outside");
    let only = arguments.split_off(usize::from(is_outside)).pop();
    let mut parts = vec![
        "start", "publish", "dead", "volumes", "quotas", "map", "lists", "list", "readers", "file", "files", "servers",
        "crews",
    ];
    if std::env::var("E2E_BENCH_MILLION").is_ok_and(|value| value == "1") || only.as_deref() == Some("million") {
        parts.push("million");
    }
    parts.extend(only.as_deref().filter(|only| ["links", "names"].contains(only)));
    parts.retain(|part| only.as_ref().is_none_or(|only| only == part));
    assert!(
        !parts.is_empty(),
        "the parts are start, publish, dead, volumes, quotas, map, lists, list, readers, file, files, servers, crews, links, names and million"
    );
    let mut report = Report::default();
    Report::head();
    for part in parts {
        match part {
            // A node plugin does not start where the kernel has no NFS.
            "start" if is_outside => start(&mut report, "controller", "outside the guest", 50.0).await,
            "names" if is_outside => names::two_each(&mut report),
            "names" => {}
            _ if is_outside => {}
            "start" => {
                start(&mut report, "node", "in the guest", 150.0).await;
                process(&mut report).await;
            }
            "publish" => publishing(&mut report).await,
            "dead" => {
                dead::server(&mut report).await;
                dead_export::controller(&mut report).await;
            }
            "volumes" => {
                volumes::at(&mut report, "no latency", SERVER, SHARE, &[1, 10, 100]).await;
                let delayed = std::env::var("E2E_DELAYED").expect("E2E_DELAYED is server:/share");
                let (server, share) = delayed.split_once(':').expect("E2E_DELAYED is server:/share");
                volumes::at(&mut report, "1 ms", server, share, &[10]).await;
            }
            "quotas" => quotas::against_none(&mut report).await,
            "map" => mapped::against_none(&mut report).await,
            "lists" => lists::many(&mut report).await,
            "list" => lists::command(&mut report),
            "readers" => readers::of_a_large_snapshot(&mut report).await,
            "file" => trees::one_file(&mut report).await,
            "files" => trees::many_files(&mut report).await,
            "servers" => servers::without_copies(&mut report).await,
            "crews" => trees::crews(&mut report).await,
            "links" => trees::links(&mut report).await,
            _ => trees::million(&mut report).await,
        }
    }
    if let Ok(path) = std::env::var("E2E_BENCH_JSON") {
        std::fs::write(path, report.json()).expect("the file for the figures");
    }
    std::process::exit(i32::from(report.failed()));
}

/// From exec to an answer.
async fn start(report: &mut Report, command: &str, place: &str, bound: f64) {
    let mut starts = Vec::new();
    for _ in 0..5 {
        let folder = folder();
        let begun = Instant::now();
        let driver = Driver::start_as(command, folder.path(), &[]);
        driver.identity().await.probe(ProbeRequest {}).await.unwrap();
        starts.push(begun.elapsed());
        assert!(driver.stop().await.success());
    }
    report.at_most(
        &format!("exec to the first answered Probe, {command}, {place}"),
        "ms",
        milliseconds(median(starts)),
        bound,
    );
}

/// Size and memory.
async fn process(report: &mut Report) {
    let size = std::fs::metadata(binary()).unwrap().len();
    report.at_most("binary size", "MB", size as f64 / 1e6, 12.0);

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

/// NodePublishVolume and NodeUnpublishVolume against bare mount(2) and umount2(2), each with an RPC NULL, on servers
/// that this host has mounted already.
async fn publishing(report: &mut Report) {
    let near = std::env::var("E2E_NEAR").expect("E2E_NEAR is server:/share");
    for (server, share, version, bounded) in
        [(near.trim_end_matches(":/"), "/", "4.2", true), (SERVER, SHARE, "3", false)]
    {
        let folder = folder();
        // As in a container: the folder in which mounts are made hands none of them on.
        let driver = Driver::start(folder.path(), &["--working-mount-dir=/run/private"]);
        let (mut controller, mut node) = (driver.controller().await, driver.node().await);
        let option = format!("nfsvers={version}");
        let options: &[&str] = if version == "3" { &[&option, "nolock"] } else { &[&option] };
        let parameters = [("server", server), ("share", share)];
        let volume =
            controller.create_volume(create("pvc-bench", &parameters)).await.unwrap().into_inner().volume.unwrap();
        // Another pod's mount of the volume stays: the server is known, as on any node that is in use.
        let other = folder.path().join("other");
        node.node_publish_volume(publish(&volume, &other, RWX, options)).await.unwrap();
        let (target, bare) = (folder.path().join("target"), folder.path().join("bare"));
        let path = format!("{}/pvc-bench", share.trim_end_matches('/'));
        let mut times = [const { Vec::new() }; 5];
        let (mut calls, mut processes) = (0, 0);
        // The first round is not counted: all are warm then.
        for round in 0..=SAMPLES {
            settle().await;
            let [bare_mount, bare_unmount] = floor::mount(server, &path, &bare, version);
            settle().await;
            let before = (calls_of_nfsd(), processes_started());
            let begun = Instant::now();
            node.node_publish_volume(publish(&volume, &target, RWX, options)).await.unwrap();
            let published = begun.elapsed();
            settle().await;
            (calls, processes) = (calls_of_nfsd() - before.0, processes_started() - before.1);
            let begun = Instant::now();
            node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
            let unpublished = begun.elapsed();
            settle().await;
            let begun = Instant::now();
            node.node_get_info(NodeGetInfoRequest {}).await.unwrap();
            let empty = begun.elapsed();
            if round > 0 {
                for (times, time) in times.iter_mut().zip([bare_mount, published, bare_unmount, unpublished, empty]) {
                    times.push(time);
                }
            }
        }
        let [bare_mount, published, bare_unmount, unpublished, empty] = times.map(|times| milliseconds(median(times)));
        // Of the gRPC exchange, and of each call's line in the log and its metrics, the bare calls have nothing, and here
        // these take as long as they do: so each call is held against them alone, and (with the bound) against them and
        // a call that is nothing else.
        let bound = if bounded { 1.5 } else { f64::INFINITY };
        for (what, time, [floor, with_call], bare) in [
            ("NodePublishVolume", published, ["mount(2) + NULL", "mount(2) + NULL + empty call"], bare_mount),
            ("NodeUnpublishVolume", unpublished, ["umount2(2) + NULL", "umount2(2) + NULL + empty call"], bare_unmount),
        ] {
            let what = format!("{what}, NFS {version}");
            report.ratio(&what, floor, "ms", time, bare, f64::INFINITY);
            report.ratio(&what, with_call, "ms", time, bare + empty, bound);
        }
        report.at_most(&format!("processes started for a NodePublishVolume, NFS {version}"), "", processes as f64, 0.0);
        if version == "3" {
            report.at_most("calls to nfsd for a NodePublishVolume, NFS 3", "", calls as f64, 8.0);
        }
        let targets = [(); 10].map(|()| tempfile::Builder::new().tempdir_in(folder.path()).unwrap().keep());
        for target in &targets {
            node.node_publish_volume(publish(&volume, target, RWX, options)).await.unwrap();
        }
        let calls = targets.map(|target| {
            let (mut node, request) = (node.clone(), unpublish(&volume, &target));
            tokio::spawn(async move { node.node_unpublish_volume(request).await.unwrap() })
        });
        for call in calls {
            call.await.unwrap();
        }
        // The processes that were started for them are kept for a while.
        let what = format!("resident memory after ten NodeUnpublishVolume at once, NFS {version}");
        report.at_most(&what, "MB", megabytes(&driver), 15.0);
        node.node_unpublish_volume(unpublish(&volume, &other)).await.unwrap();
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
}

/// How many calls this guest's own NFS server has had.
fn calls_of_nfsd() -> u64 {
    let statistics = std::fs::read_to_string("/proc/net/rpc/nfsd").unwrap();
    let calls = statistics.lines().find_map(|line| line.strip_prefix("rpc ")).unwrap();
    calls.split(' ').next().unwrap().parse().unwrap()
}

/// How many processes, kernel threads too, this guest has started.
fn processes_started() -> u64 {
    let statistics = std::fs::read_to_string("/proc/stat").unwrap();
    statistics.lines().find_map(|line| line.strip_prefix("processes ")).unwrap().parse().unwrap()
}

/// Lets the kernel finish what the last call left for later: there is one processor.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(30)).await;
}

/// The middle one.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// For people.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
