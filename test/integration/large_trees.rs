//! A tree that is very wide and very deep, by a driver that may have few descriptors.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use nfs_csi::beneath;
use nix::sys::stat::{Mode, mkdirat};

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, create_from, of_volume};
use crate::kit::server::on_server;

const NAMES: usize = 200_000;
const DEPTH: usize = 5000;
const DESCRIPTORS: usize = 1024;
/// The most that may be resident, in KiB.
const MEMORY: usize = 64 * 1024;

/// The directory at this depth; those above are made where they are to be.
fn descend(root: &Path, make: bool) -> OwnedFd {
    let mut at = OwnedFd::from(File::open(root).unwrap());
    for _ in 0..DEPTH {
        if make {
            mkdirat(&at, "directory", Mode::S_IRWXU).unwrap();
        }
        at = beneath::open_dir(&at, "directory").unwrap();
    }
    at
}

/// What the kernel tells of a process, in KiB.
fn most_resident(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn two_hundred_thousand_names_and_five_thousand_levels_take_few_descriptors_and_little_memory() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let limit = ["--pid".into(), driver.pid().to_string(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")];
    assert!(Command::new("prlimit").args(limit).status().unwrap().success());
    let source = made(&driver, create("pvc-source", &[])).await;
    let wide = on_server("pvc-source/wide");
    std::fs::create_dir(&wide).unwrap();
    for number in 0..NAMES {
        File::create(wide.join(number.to_string())).unwrap();
    }
    drop(descend(&on_server("pvc-source"), true));
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
    assert_eq!(std::fs::read_dir(on_server("pvc-clone/wide")).unwrap().count(), NAMES);
    drop(descend(&on_server("pvc-clone"), false));
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
    let resident = most_resident(driver.pid());
    assert!(resident <= MEMORY, "{resident} KiB");
}
