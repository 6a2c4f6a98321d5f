//! A tree that is very wide and very deep, by a driver that may have few descriptors.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Command;

use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, XattrFlags, linkat, setxattr};

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, create_from, delete_snapshot, of_snapshot, of_volume};
use crate::kit::server::on_server;
use crate::snapshots::taken;
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

/// A default access list, which all directories below inherit, with entries for so many users: in the kernel's form of
/// `system.posix_acl_default`.
fn default_list(users: u32) -> Vec<u8> {
    let (user_of_file, user, group_of_file, mask, other) = (1_u16, 2_u16, 4_u16, 16_u16, 32_u16);
    let nobody = u32::MAX;
    let users = (1..=users).map(|id| (user, 4_u16, id));
    let entries = std::iter::once((user_of_file, 7, nobody)).chain(users).chain([
        (group_of_file, 5, nobody),
        (mask, 7, nobody),
        (other, 0, nobody),
    ]);
    let entries = entries.flat_map(|(tag, permissions, id)| {
        let numbers = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
        [numbers, id.to_le_bytes().to_vec()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

#[tokio::test]
async fn long_paths_of_linked_files_and_large_access_lists_take_little_memory() {
    const PAIRS: usize = 400;
    const LONG: usize = 2000;
    const CHAIN: usize = 4000;
    // A list that XFS keeps in one block: this guest has not the mappings that thousands of larger ones take.
    const USERS: u32 = 300;
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    let root = on_server("pvc-source");
    let name = "n".repeat(255);
    descend(&root, &name, LONG, true);
    let mut at = OwnedFd::from(File::open(&root).unwrap());
    for _ in 0..LONG {
        at = nfs_csi::beneath::open_dir(&at, name.as_str()).unwrap();
    }
    nix::sys::stat::mkdirat(&at, "links", Mode::S_IRWXU).unwrap();
    let links = nfs_csi::beneath::open_dir(&at, "links").unwrap();
    for file in 0..PAIRS {
        let file = file.to_string();
        rustix::fs::mknodat(&at, &file, rustix::fs::FileType::RegularFile, rustix::fs::Mode::RUSR, 0).unwrap();
        linkat(&at, &file, &links, &file, AtFlags::empty()).unwrap();
    }
    let listed = root.join("listed");
    std::fs::create_dir(&listed).unwrap();
    setxattr(&listed, "system.posix_acl_default", &default_list(USERS), XattrFlags::empty()).unwrap();
    descend(&listed, "d", CHAIN, true);
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
    let cloned = driver.most_resident_bytes();
    let snapshot = taken(&driver, "snap", &source.volume_id, &[("snapshotFormat", "tar.zst")]).await;
    let archived = driver.most_resident_bytes();
    let restored = made(&driver, create_from("pvc-restored", of_snapshot(&snapshot.snapshot_id), &[])).await;
    let resident = driver.most_resident_bytes();
    println!("{cloned} bytes after the clone, {archived} after the archive, {resident} after its restore");
    driver.controller().await.delete_snapshot(delete_snapshot(&snapshot.snapshot_id)).await.unwrap();
    for volume in [&restored, &clone, &source] {
        removed(&driver, volume).await;
    }
    no_litter();
    assert!((1..=MEMORY).contains(&resident), "{resident} bytes");
}
