//! Snapshots: taken, listed, restored, deleted; and the archives of csi-driver-nfs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nfs_csi::proto::{GetSnapshotRequest, ListSnapshotsRequest, Snapshot};
use tonic::Code;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::requests::{MIB, create, create_from, delete_snapshot, of_snapshot, snapshot};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_until};
use crate::trees::{assert_same, entries, fill};

pub async fn taken(driver: &Driver, name: &str, volume: &str, more: &[(&str, &str)]) -> Snapshot {
    driver
        .controller()
        .await
        .create_snapshot(snapshot(name, volume, more))
        .await
        .unwrap()
        .into_inner()
        .snapshot
        .unwrap()
}

async fn listed(driver: &Driver, request: ListSnapshotsRequest) -> Vec<Snapshot> {
    let list = driver.controller().await.list_snapshots(request).await.unwrap().into_inner();
    list.entries.into_iter().map(|entry| entry.snapshot.unwrap()).collect()
}

#[tokio::test]
async fn a_restored_snapshot_has_every_attribute_of_the_volume_as_it_was() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    for format in ["tree", "tar.zst"] {
        let source = made(&driver, create("pvc-source", &[])).await;
        fill(&on_server("pvc-source"));
        let before = entries(&on_server("pvc-source"));
        let taken_now = taken(&driver, "snap", &source.volume_id, &[("snapshotFormat", format)]).await;
        assert_eq!(taken_now.snapshot_id, "127.0.0.1#run/export#snap#snap#pvc-source");
        assert_eq!((taken_now.source_volume_id.as_str(), taken_now.size_bytes), (&*source.volume_id, 10 * MIB));
        assert!(taken_now.ready_to_use && taken_now.creation_time.is_some());
        std::fs::create_dir(on_server("kept")).unwrap();
        let kept = Command::new("cp").arg("-a").args([on_server("pvc-source/."), on_server("kept")]).status().unwrap();
        assert!(kept.success());
        removed(&driver, &source).await;
        let request = create_from("pvc-restored", of_snapshot(&taken_now.snapshot_id), &[]);
        let restored = made(&driver, request).await;
        assert_same(&before, &on_server("kept"), &on_server("pvc-restored"));
        driver.controller().await.delete_snapshot(delete_snapshot(&taken_now.snapshot_id)).await.unwrap();
        removed(&driver, &restored).await;
        no_litter();
        assert_eq!(names(".nfs-csi/snapshots"), Vec::<String>::new());
        std::fs::remove_dir_all(on_server("kept")).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_archived_over_version_3_is_left_out() {
    let folder = folder();
    // A client of version 3 cannot read a file without a name, though it has it open.
    let driver = Driver::start(folder.path(), &["--mount-options=nfsvers=3,nolock"]);
    let source = made(&driver, create("pvc-source", &[])).await;
    std::fs::write(on_server("pvc-source/large"), vec![1; 256 << 20]).unwrap();
    std::fs::write(on_server("pvc-source/small"), "data").unwrap();
    let (mut controller, request) =
        (driver.controller().await, snapshot("snap", &source.volume_id, &[("snapshotFormat", "tar.zst")]));
    let call = tokio::spawn(async move { controller.create_snapshot(request).await });
    let open = format!("/proc/{}/fd", driver.pid());
    let is_open = || {
        let mut files = std::fs::read_dir(&open).unwrap().flatten().filter_map(|file| file.path().read_link().ok());
        files.any(|file| file.ends_with("pvc-source/large")).then_some(())
    };
    wait_until("the file to be read", Duration::from_mins(1), is_open).await;
    std::fs::remove_file(on_server("pvc-source/large")).unwrap();
    let taken = call.await.unwrap().unwrap().into_inner().snapshot.unwrap();
    assert!(driver.log().contains("vanished=1"), "{}", driver.log());
    let restored = made(&driver, create_from("pvc-restored", of_snapshot(&taken.snapshot_id), &[])).await;
    assert_eq!(std::fs::read(on_server("pvc-restored/small")).unwrap(), b"data");
    driver.controller().await.delete_snapshot(delete_snapshot(&taken.snapshot_id)).await.unwrap();
    removed(&driver, &restored).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_snapshot_is_taken_once_and_another_of_its_name_is_refused() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let (one, two) = (made(&driver, create("pvc-1", &[])).await, made(&driver, create("pvc-2", &[])).await);
    std::fs::write(on_server("pvc-1/file"), "before").unwrap();
    let first = taken(&driver, "snap", &one.volume_id, &[]).await;
    std::fs::write(on_server("pvc-1/file"), "after").unwrap();
    assert_eq!(taken(&driver, "snap", &one.volume_id, &[]).await, first);
    let refused = controller.create_snapshot(snapshot("snap", &two.volume_id, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    let restored = made(&driver, create_from("pvc-3", of_snapshot(&first.snapshot_id), &[])).await;
    assert_eq!(std::fs::read_to_string(on_server("pvc-3/file")).unwrap(), "before");
    for id in ["127.0.0.1#run/export#pvc-never##", "nobody-s"] {
        let refused = controller.create_snapshot(snapshot("other", id, &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    for _ in 0..2 {
        controller.delete_snapshot(delete_snapshot(&first.snapshot_id)).await.unwrap();
    }
    controller.delete_snapshot(delete_snapshot("nobody-s")).await.unwrap();
    let refused =
        controller.create_volume(create_from("pvc-4", of_snapshot(&first.snapshot_id), &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    for volume in [&one, &two, &restored] {
        removed(&driver, volume).await;
    }
    no_litter();
}

#[tokio::test]
async fn snapshots_are_listed_by_id_by_volume_all_and_in_pages() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let (one, two) = (made(&driver, create("pvc-1", &[])).await, made(&driver, create("pvc-2", &[])).await);
    let mut all = Vec::new();
    for (name, volume) in [("snap-a", &one), ("snap-b", &one), ("snap-c", &two)] {
        all.push(taken(&driver, name, &volume.volume_id, &[]).await);
    }
    // Kept elsewhere than its volume.
    all.push(taken(&driver, "snap-d", &two.volume_id, &[("share", "/run/exports/other")]).await);
    assert_eq!(all[3].snapshot_id, "127.0.0.1#run/exports/other#snap-d#snap-d#pvc-2");
    let sorted = |mut snapshots: Vec<Snapshot>| {
        snapshots.sort_by(|one, other| one.snapshot_id.cmp(&other.snapshot_id));
        snapshots
    };
    assert_eq!(sorted(listed(&driver, ListSnapshotsRequest::default()).await), sorted(all.clone()));
    let of_volume = |id: &str| ListSnapshotsRequest { source_volume_id: id.into(), ..ListSnapshotsRequest::default() };
    assert_eq!(sorted(listed(&driver, of_volume(&one.volume_id)).await), sorted(all[..2].to_vec()));
    assert!(listed(&driver, of_volume("nobody-s")).await.is_empty());
    let of_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.into(), ..ListSnapshotsRequest::default() };
    assert_eq!(listed(&driver, of_id(&all[2].snapshot_id)).await, [all[2].clone()]);
    for id in ["nobody-s", "127.0.0.1#run/export#never#never#pvc-1"] {
        assert!(listed(&driver, of_id(id)).await.is_empty());
        let request = GetSnapshotRequest { snapshot_id: id.into(), ..GetSnapshotRequest::default() };
        assert_eq!(controller.get_snapshot(request).await.unwrap_err().code(), Code::NotFound);
    }
    let request = GetSnapshotRequest { snapshot_id: all[0].snapshot_id.clone(), ..GetSnapshotRequest::default() };
    assert_eq!(controller.get_snapshot(request).await.unwrap().into_inner().snapshot, Some(all[0].clone()));
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let request = ListSnapshotsRequest { max_entries: 1, starting_token: token, ..ListSnapshotsRequest::default() };
        let page = controller.list_snapshots(request).await.unwrap().into_inner();
        assert!(page.entries.len() <= 1);
        paged.extend(page.entries.into_iter().map(|entry| entry.snapshot.unwrap()));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(sorted(paged), sorted(all.clone()));
    let request = ListSnapshotsRequest { starting_token: "never-given".into(), ..ListSnapshotsRequest::default() };
    assert_eq!(controller.list_snapshots(request).await.unwrap_err().code(), Code::Aborted);
    for snapshot in &all {
        controller.delete_snapshot(delete_snapshot(&snapshot.snapshot_id)).await.unwrap();
    }
    removed(&driver, &one).await;
    removed(&driver, &two).await;
    no_litter();
}

/// An archive as csi-driver-nfs makes it: names without a folder before them.
fn archive(tree: &Path, to: &Path, compress: &str) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let mut command = Command::new("tar");
    command.arg(compress).arg(to).arg("-C").arg(tree);
    command.args(std::fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().file_name()));
    assert!(command.status().unwrap().success());
}

#[tokio::test]
async fn an_archive_of_csi_driver_nfs_is_restored_listed_and_deleted() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("sub/dir")).unwrap();
    std::fs::write(tree.join("sub/dir/file"), "archived").unwrap();
    std::os::unix::fs::symlink("sub/dir/file", tree.join("link")).unwrap();
    for (name, file, compress) in [("go-1", "go-1/pvc-old.tar.gz", "-czf"), ("go-2", "go-2/pvc-old.tar", "-cf")] {
        archive(&tree, &on_server(file), compress);
        let id = format!("127.0.0.1#run/export#{name}#{name}#pvc-old");
        let request = ListSnapshotsRequest { snapshot_id: id.clone(), ..ListSnapshotsRequest::default() };
        let found = listed(&driver, request).await;
        assert_eq!((found.len(), found[0].snapshot_id.as_str(), found[0].ready_to_use), (1, id.as_str(), true));
        let restored = made(&driver, create_from("pvc-new", of_snapshot(&id), &[])).await;
        assert_eq!(std::fs::read_to_string(on_server("pvc-new/link")).unwrap(), "archived");
        for _ in 0..2 {
            controller.delete_snapshot(delete_snapshot(&id)).await.unwrap();
        }
        assert!(!on_server(name).exists());
        removed(&driver, &restored).await;
    }
    no_litter();
}

#[tokio::test]
async fn a_hostile_archive_writes_nothing_outside_and_leaves_no_volume() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    std::fs::create_dir_all(on_server("victim")).unwrap();
    std::fs::write(on_server("victim/file"), "untouched").unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "evil").unwrap();
    std::os::unix::fs::symlink("/run/export/victim", tree.join("way")).unwrap();
    let to = on_server("evil/pvc-old.tar");
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let tar = |arguments: &[&str]| {
        let status = Command::new("tar").args(arguments).current_dir(&tree).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    };
    let archive = to.to_str().unwrap();
    let id = "127.0.0.1#run/export#evil#evil#pvc-old";
    for rename in ["s,file,../victim/file,", "s,file,/run/export/victim/file,", "s,file,way/file,"] {
        tar(&["-cf", archive, "-P", "--transform", rename, "way", "file"]);
        let refused = controller.create_volume(create_from("pvc-evil", of_snapshot(id), &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{rename}: {refused}");
        assert_eq!(std::fs::read_to_string(on_server("victim/file")).unwrap(), "untouched");
        assert_eq!(names("victim"), ["file"]);
        assert!(!on_server("pvc-evil").exists());
    }
    // Who may write there could make no device himself.
    let device = tree.join("device");
    let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU);
    nix::sys::stat::mknod(&device, kind, mode, nix::sys::stat::makedev(1, 3)).unwrap();
    tar(&["-cf", archive, "device"]);
    let refused = controller.create_volume(create_from("pvc-evil", of_snapshot(id), &[])).await.unwrap_err();
    assert!(refused.message().contains("device node") && !on_server("pvc-evil").exists(), "{refused}");
    // Cut short, and no archive at all.
    tar(&["-cf", archive, "file"]);
    for bytes in [std::fs::read(&to).unwrap()[..700].to_vec(), b"this is no archive".to_vec()] {
        std::fs::write(&to, bytes).unwrap();
        let refused = controller.create_volume(create_from("pvc-evil", of_snapshot(id), &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss, "{refused}");
        assert!(!on_server("pvc-evil").exists());
    }
    controller.delete_snapshot(delete_snapshot(id)).await.unwrap();
    std::fs::remove_dir_all(on_server("victim")).unwrap();
    for left in names(".nfs-csi/staging") {
        std::fs::remove_dir_all(on_server(&format!(".nfs-csi/staging/{left}"))).unwrap();
    }
    no_litter();
}
