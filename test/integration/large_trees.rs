//! A tree that is very wide and very deep, by a driver that may have few descriptors.

use std::fs::File;
use std::process::Command;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, create_from, of_volume};
use crate::kit::server::on_server;
use crate::trees::descend;

const NAMES: usize = 200_000;
const DEPTH: usize = 5000;
const DESCRIPTORS: usize = 1024;
/// The most that may be resident, in bytes.
const MEMORY: u64 = 64 << 20;

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
    descend(&on_server("pvc-source"), "directory", DEPTH, true);
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
    assert_eq!(std::fs::read_dir(on_server("pvc-clone/wide")).unwrap().count(), NAMES);
    descend(&on_server("pvc-clone"), "directory", DEPTH, false);
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
    let resident = driver.most_resident_bytes();
    assert!((1..=MEMORY).contains(&resident), "{resident} bytes");
}
