//! What goes wrong in the middle of a clone, a snapshot, a restore or a delete: the right code, the source as it was,
//! nothing half-made under a name, and a retry that goes on.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tonic::{Code, Request};

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::requests::{create, create_from, of_snapshot, of_volume, snapshot};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_until};

const MIB: usize = 1 << 20;
/// An export of 48 MiB, of which a 64th is left to others.
const SMALL: &str = "/run/exports/small";
const MARGIN: u64 = 48 * MIB as u64 / 64;

fn free_on_small() -> u64 {
    let stat = nix::sys::statvfs::statvfs(SMALL).unwrap();
    stat.blocks_available() * stat.fragment_size()
}

/// Files of no content that a reflink could share, in some folders.
fn fill(root: &Path, folders: usize, files: usize, bytes: usize) {
    for directory in 0..folders {
        let directory = root.join(directory.to_string());
        std::fs::create_dir(&directory).unwrap();
        for file in 0..files {
            std::fs::write(directory.join(file.to_string()), vec![1; bytes]).unwrap();
        }
    }
}

fn inodes(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                found.insert(path, entry.metadata().unwrap().ino());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_full_export_is_told_and_the_retry_goes_on_when_there_is_room() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 4, 8, MIB);
    let small = PathBuf::from("/run/exports/small");
    let on_small = [("share", "/run/exports/small")];
    let ballast = small.join("ballast");
    std::fs::write(&ballast, vec![1; 20 * MIB]).unwrap();
    let clone = create_from("pvc-clone", of_volume(&source.volume_id), &on_small);
    let take = |format| {
        let more = [("share", "/run/exports/small"), ("snapshotFormat", format)];
        snapshot("snap", &source.volume_id, &more)
    };
    let refused = controller.create_volume(clone.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("/run/exports/small") && refused.message().contains("full"), "{refused}");
    assert!(!small.join("pvc-clone").exists());
    let refused = controller.create_snapshot(take("tree")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(std::fs::read_dir(small.join(".nfs-csi/snapshots")).unwrap().next().is_none());
    assert_eq!(inodes(&on_server("pvc-source")).len(), 32);
    // Room is made.
    std::fs::remove_file(&ballast).unwrap();
    for left in std::fs::read_dir(small.join(".nfs-csi/staging")).unwrap().flatten() {
        if left.file_name().to_string_lossy().starts_with("s.") {
            std::fs::remove_dir_all(left.path()).unwrap();
        }
    }
    let clone = made(&driver, clone).await;
    assert_eq!(inodes(&small.join("pvc-clone")).len(), 32);
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_clone_without_space_leaves_a_margin_and_what_there_is_of_it_is_freed_unless_it_is_tried_again() {
    let folder = folder();
    // A quarter of it is less than five minutes.
    let driver = Driver::start(folder.path(), &["--staging-retention=40s"]);
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 4, 16, MIB);
    let before = free_on_small();
    let clone = create_from("pvc-clone", of_volume(&source.volume_id), &[("share", SMALL)]);
    let refused = driver.controller().await.create_volume(clone).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    for part in ["127.0.0.1", SMALL, "pvc-source", " bytes are free", "free space or enlarge it"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    let free = free_on_small();
    assert!(free >= MARGIN - 64 * 1024 && free + MARGIN < before, "{free} of {before} bytes are free");
    let ballast = Path::new(SMALL).join("another-tenant");
    std::fs::write(&ballast, vec![1; MIB / 2]).unwrap();
    std::fs::remove_file(&ballast).unwrap();
    let is_free = || (free_on_small() + MARGIN >= before).then_some(());
    wait_until("the space to be free again", Duration::from_mins(2), is_free).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn what_was_unpacked_of_an_archive_for_which_there_is_no_space_is_freed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 4, 16, MIB);
    let archive = snapshot("snap", &source.volume_id, &[("snapshotFormat", "tar.zst")]);
    let archive = controller.create_snapshot(archive).await.unwrap().into_inner().snapshot.unwrap().snapshot_id;
    let before = free_on_small();
    let restored = create_from("pvc-restored", of_snapshot(&archive), &[("share", SMALL)]);
    let refused = controller.create_volume(restored).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains(SMALL) && refused.message().contains("are free"), "{refused}");
    let is_free = || (free_on_small() + MARGIN >= before).then_some(());
    wait_until("the space to be free again", Duration::from_mins(2), is_free).await;
    controller.delete_snapshot(crate::kit::requests::delete_snapshot(&archive)).await.unwrap();
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_killed_clone_is_resumed_and_what_was_complete_is_not_copied_again() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 20, 40, 4096);
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &[]);
    let mut controller = driver.controller().await;
    let call = tokio::spawn({
        let request = request.clone();
        async move { controller.create_volume(request).await }
    });
    // More files than there are workers: some are complete then.
    let half_done = || {
        let name = names(".nfs-csi/staging").pop()?;
        let staged = on_server(&format!(".nfs-csi/staging/{name}"));
        let folders = staged.read_dir().ok()?.flatten().filter_map(|folder| folder.path().read_dir().ok());
        (folders.map(Iterator::count).sum::<usize>() > 60).then_some(staged)
    };
    let staged = loop {
        // The call is this process's too.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!call.is_finished());
        if let Some(staged) = half_done() {
            break staged;
        }
    };
    driver.kill().await;
    call.await.unwrap().unwrap_err();
    // Complete is what has its source's time.
    let is_complete = |path: &PathBuf| {
        let time = |root: &Path| {
            std::fs::metadata(root.join(path)).map(|stat| (stat.mtime(), stat.mtime_nsec(), stat.size())).ok()
        };
        time(&staged) == time(&on_server("pvc-source"))
    };
    let before: BTreeMap<_, _> = inodes(&staged).into_iter().filter(|(path, _)| is_complete(path)).collect();
    assert!(before.len() > 10 && before.len() < 800, "{} of 800 files were complete", before.len());
    let driver = Driver::start(folder.path(), &[]);
    let clone = made(&driver, request).await;
    let after = inodes(&on_server("pvc-clone"));
    assert_eq!(after.len(), 800);
    for (path, inode) in before {
        assert_eq!(after[&path], inode, "{}", path.display());
    }
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_is_told_and_the_retry_goes_on_when_it_is_back() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 20, 50, 4096);
    let taken = controller.create_snapshot(snapshot("snap", &source.volume_id, &[])).await.unwrap();
    let taken = taken.into_inner().snapshot.unwrap().snapshot_id;
    for request in [
        create_from("pvc-clone", of_volume(&source.volume_id), &[]),
        create_from("pvc-restored", of_snapshot(&taken), &[]),
    ] {
        let mut hasty = Request::new(request.clone());
        hasty.set_timeout(Duration::from_millis(80));
        controller.create_volume(hasty).await.unwrap_err();
        // At once: a program for it takes as long as the clone does.
        std::fs::write("/proc/fs/nfsd/threads", "0").unwrap();
        let dead = controller.create_volume(request.clone()).await.unwrap_err();
        assert_eq!(dead.code(), Code::Unavailable, "{dead}");
        assert!(dead.message().contains("127.0.0.1"), "{dead}");
        assert!(!on_server(&request.name).exists());
        assert!(Command::new("rpc.nfsd").arg("8").status().unwrap().success());
        let volume = wait_until_served(&driver, &request).await;
        assert_eq!(inodes(&on_server(&request.name)).len(), 1000);
        removed(&driver, &volume).await;
    }
    assert_eq!(inodes(&on_server("pvc-source")).len(), 1000);
    let mut controller = driver.controller().await;
    controller.delete_snapshot(crate::kit::requests::delete_snapshot(&taken)).await.unwrap();
    removed(&driver, &source).await;
    no_litter();
}

/// After a restart a server lets its clients reclaim their locks first, and takes nothing new meanwhile.
async fn wait_until_served(driver: &Driver, request: &nfs_csi::proto::CreateVolumeRequest) -> nfs_csi::proto::Volume {
    let end = std::time::Instant::now() + Duration::from_mins(3);
    loop {
        match driver.controller().await.create_volume(request.clone()).await {
            Ok(made) => return made.into_inner().volume.unwrap(),
            Err(status) => {
                assert!(matches!(status.code(), Code::Unavailable | Code::Aborted), "{status}");
                assert!(std::time::Instant::now() < end, "{status}");
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn what_is_taken_away_below_a_clone_that_runs_is_an_error_and_the_retry_makes_it_whole() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"), 20, 50, 4096);
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &[]);
    let mut hasty = Request::new(request.clone());
    hasty.set_timeout(Duration::from_millis(80));
    controller.create_volume(hasty).await.unwrap_err();
    // All at once: one file less would be noticed by nobody. It may have been put in place just now.
    let taken_away = on_server("taken-away");
    std::fs::create_dir(&taken_away).unwrap();
    for staged in names(".nfs-csi/staging") {
        let _ = std::fs::rename(on_server(&format!(".nfs-csi/staging/{staged}")), taken_away.join(&staged));
    }
    // The clone may be making files there yet.
    while taken_away.exists() {
        let _ = std::fs::remove_dir_all(&taken_away);
    }
    let clone = wait_until_served(&driver, &request).await;
    assert_eq!(inodes(&on_server("pvc-clone")).len(), 1000);
    assert_eq!(inodes(&on_server("pvc-source")).len(), 1000);
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_squashed_root_that_cannot_keep_owners_is_told_which_export_option_is_missing() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    std::fs::write(on_server("pvc-source/file"), "data").unwrap();
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &[("share", "/run/exports/squash-writable")]);
    let refused = driver.controller().await.create_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("no_root_squash"), "{refused}");
    assert!(!Path::new("/run/exports/squash-writable/pvc-clone").exists());
    removed(&driver, &source).await;
    no_litter();
}
