//! Lists of very many volumes, and CreateVolume and DeleteVolume beside them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nfs_csi::proto::ListVolumesRequest;
use nfs_csi::proto::controller_client::ControllerClient;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::floor::Operations;
use crate::kit::driver::{Driver, binary};
use crate::kit::requests::{create, delete};
use crate::kit::{folder, records};
use crate::report::Report;
use crate::trees::bare::forget;
use crate::volumes::{Peak, settle};
use crate::{SAMPLES, median, milliseconds};

const VOLUMES: usize = 100_000;
const PAGE: i32 = 500;
/// What the command lists.
const LISTED: usize = 20_000;
/// Lists that are timed; before them another one, with nothing cached, is counted.
const LISTS: usize = 3;
/// The largest resident memory of the controller with its workers, in bytes.
const MEMORY: f64 = 64e6;

/// The servers with the volumes (test/bench/job), and their disk.
const SERVERS: [(&str, &str); 2] = [("no latency", "10.0.3.1"), ("1 ms", "10.0.4.1")];
const DISK: &str = "/run/disks/reflinks";
/// A server like the first, without volumes.
const EMPTY: &str = "10.0.5.1";

pub async fn many(report: &mut Report) {
    let disk = Path::new(DISK);
    let names = || (0..VOLUMES).map(|number| format!("pvc-list-{number}"));
    records::folders(disk);
    names().for_each(|name| records::volume(disk, &name));
    for (latency, server) in SERVERS {
        pages(report, latency, server).await;
    }
    beside(report).await;
    std::fs::remove_dir_all(disk.join(".nfs-csi")).unwrap();
    names().for_each(|name| std::fs::remove_dir(disk.join(name)).unwrap());
}

/// `nfs-csi list`, with the cluster's PersistentVolumes to compare with.
pub fn command(report: &mut Report) {
    let (disk, folder) = (Path::new(DISK), folder());
    let names = || (0..LISTED).map(|number| format!("pvc-list-{number}"));
    records::folders(disk);
    names().for_each(|name| records::numbered_volume(disk, &name));
    // With a round trip of 1 ms the questions for all volumes are a minute of waiting, which the readers share.
    for ((latency, server), bound) in SERVERS.into_iter().zip([5.0, 10.0]) {
        let volumes: Vec<_> = names()
            .map(|name| {
                let csi = json!({"driver": "nfs.csi.k8s.io", "volumeHandle": format!("{server}##{name}##")});
                json!({"metadata": {"name": name}, "spec": {"csi": csi}})
            })
            .collect();
        let pvs = folder.path().join("pvs.json");
        std::fs::write(&pvs, json!({"kind": "List", "items": volumes}).to_string()).unwrap();
        let list = || {
            forget();
            let mut command = Command::new(binary());
            command.args([
                "list",
                "--output=json",
                &format!("--export={server}:/"),
                &format!("--pvs={}", pvs.display()),
            ]);
            let begun = Instant::now();
            let output = command.stderr(Stdio::inherit()).output().unwrap();
            let time = begun.elapsed();
            let list: Value = serde_json::from_slice(&output.stdout).unwrap();
            let entries = list["entries"].as_array().unwrap().iter();
            assert_eq!(entries.filter(|entry| !entry["pv"].is_null() && entry["orphan"].is_null()).count(), LISTED);
            time
        };
        let times = (0..LISTS).map(|_| list()).collect();
        let what = format!("nfs-csi list of 20,000 volumes and their PersistentVolumes, {latency}, nothing cached");
        report.at_most(&what, "s", median(times).as_secs_f64(), bound);
    }
    std::fs::remove_dir_all(disk.join(".nfs-csi")).unwrap();
    names().for_each(|name| std::fs::remove_dir(disk.join(name)).unwrap());
}

/// A list by pages.
async fn pages(report: &mut Report, latency: &str, server: &str) {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[&format!("--export={server}:/")]);
    let mut controller = driver.controller().await;
    let peak = Peak::watch(&driver);
    // The first call mounts the export, and has it looked through for what others left.
    let request = ListVolumesRequest { max_entries: 1, ..ListVolumesRequest::default() };
    controller.list_volumes(request).await.unwrap();
    settle(&folder).await;
    forget();
    let before = Operations::so_far(folder.path());
    let cold: Duration = list(&mut controller).await.iter().sum();
    settle(&folder).await;
    let operations = Operations::so_far(folder.path()).since(&before);
    let at = format!("100,000 volumes by pages of {PAGE}, {latency}");
    report.at_most(&format!("list of {at}, nothing cached"), "s", cold.as_secs_f64(), f64::INFINITY);
    // OPEN, READ, CLOSE and LOOKUP; and a few for the names.
    let of_entry = operations.sum() as f64 / VOLUMES as f64;
    report.at_most(&format!("list of {at}, an entry"), "round trips", of_entry, 4.001);
    Report::detail(&operations);
    let [mut first, mut middle, mut last] = [const { Vec::new() }; 3];
    for _ in 0..LISTS {
        let times = list(&mut controller).await;
        first.push(times[0]);
        middle.extend(&times[times.len() / 2 - 1..=times.len() / 2 + 1]);
        last.push(times[times.len() - 1]);
    }
    let [first, middle, last] = [first, middle, last].map(median).map(milliseconds);
    report.ratio(&format!("a page in the middle of {at}"), "the first page", "ms", middle, first, 1.5);
    report.ratio(&format!("the last page of {at}"), "the first page", "ms", last, first, 1.5);
    // It reads the names too.
    report.ratio(&format!("the first page of {at}"), "the last page", "ms", first, last, f64::INFINITY);
    let what = format!("resident memory, controller, list of {at}");
    report.at_most(&what, "MB", peak.bytes() as f64 / 1e6, MEMORY / 1e6);
}

/// How long each page of a whole list takes.
async fn list(controller: &mut ControllerClient<Channel>) -> Vec<Duration> {
    let (mut times, mut listed, mut starting_token) = (Vec::new(), 0, String::new());
    loop {
        let begun = Instant::now();
        let request = ListVolumesRequest { max_entries: PAGE, starting_token };
        let page = controller.list_volumes(request).await.unwrap().into_inner();
        times.push(begun.elapsed());
        listed += page.entries.len();
        starting_token = page.next_token;
        if starting_token.is_empty() {
            assert_eq!(listed, VOLUMES);
            return times;
        }
    }
}

/// CreateVolume and DeleteVolume beside all these volumes, in turn with those on an export that has none.
async fn beside(report: &mut Report) {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let mut controller = driver.controller().await;
    let [mut created, mut deleted] = [const { [Vec::new(), Vec::new()] }; 2];
    // The first round is not counted: it mounts the exports, and has them looked through.
    for round in 0..=SAMPLES {
        for (at, server) in [SERVERS[0].1, EMPTY].into_iter().enumerate() {
            let request = create(&format!("pvc-beside-{round}"), &[("server", server), ("share", "/")]);
            settle(&folder).await;
            let begun = Instant::now();
            let made = controller.create_volume(request).await.unwrap().into_inner();
            let create = begun.elapsed();
            settle(&folder).await;
            let begun = Instant::now();
            controller.delete_volume(delete(&made.volume.unwrap().volume_id)).await.unwrap();
            if round > 0 {
                created[at].push(create);
                deleted[at].push(begun.elapsed());
            }
        }
    }
    for (what, times) in [("CreateVolume", created), ("DeleteVolume", deleted)] {
        let [beside, alone] = times.map(median).map(milliseconds);
        report.ratio(&format!("{what} beside 100,000 volumes"), "beside none", "ms", beside, alone, 1.2);
    }
}
