//! Volumes that are only read and made of a snapshot: they are the snapshot's tree, and nothing is copied.

use std::path::Path;
use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{
    ControllerGetVolumeRequest, ListVolumesRequest, ValidateVolumeCapabilitiesRequest, Volume, node_client,
};
use nfs_csi::volume::record_key::RecordKey;
use nix::errno::Errno;
use tonic::Code;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::requests::{
    by_hand, capability, create, create_from, delete, delete_snapshot, of_snapshot, of_volume, publish, read_from,
    snapshot, unpublish,
};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, mounts_at};
use crate::snapshots::taken;
use crate::trees::{Entries, assert_same, entries, fill};

const SNAPSHOT: &str = "127.0.0.1#run/export#snap#snap#pvc-source";
const SHARED: &str = ".nfs-csi/shared";

/// A volume and a snapshot of it; the volume's directory stays as it was then.
async fn source(driver: &Driver) -> (Volume, Entries) {
    let source = made(driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"));
    let before = entries(&on_server("pvc-source"));
    assert_eq!(taken(driver, "snap", &source.volume_id, &[]).await.snapshot_id, SNAPSHOT);
    (source, before)
}

async fn reader(driver: &Driver, name: &str) -> Volume {
    made(driver, read_from(name, of_snapshot(SNAPSHOT), &[])).await
}

async fn delete_the_snapshot(driver: &Driver) {
    driver.controller().await.delete_snapshot(delete_snapshot(SNAPSHOT)).await.unwrap();
}

/// Nothing of snapshots and their readers is left, nor of what was deleted.
fn nothing_left() {
    let end = std::time::Instant::now() + Duration::from_mins(1);
    while !names(SHARED).is_empty() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    for folder in [SHARED, ".nfs-csi/readers", ".nfs-csi/snapshots", ".nfs-csi/subdirs"] {
        assert_eq!(names(folder), Vec::<String>::new(), "{folder}");
    }
    no_litter();
}

/// Deletes volumes and then the snapshot, and makes sure that nothing is left.
async fn all_gone(driver: &Driver, volumes: &[&Volume]) {
    for volume in volumes {
        removed(driver, volume).await;
    }
    delete_the_snapshot(driver).await;
    nothing_left();
}

fn subdir(volume: &Volume) -> &str {
    &volume.volume_context["subDir"]
}

#[tokio::test]
async fn a_claim_of_readers_is_the_snapshot_itself_and_not_even_root_writes_to_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let (source, before) = source(&driver).await;
    let kept = std::fs::metadata(on_server(".nfs-csi/snapshots").join(&names(".nfs-csi/snapshots")[0]).join("data"));
    let inode = std::os::unix::fs::MetadataExt::ino(&kept.unwrap());
    let volume = reader(&driver, "pvc-reader").await;
    assert_eq!(reader(&driver, "pvc-reader").await, volume);
    let tree = on_server(subdir(&volume));
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&tree).unwrap()), inode);
    assert!(!on_server("pvc-reader").exists() && volume.capacity_bytes > 0);
    // Whatever the pod says, with either version, and where the server takes the node's root user for nobody.
    let target = folder.path().join("target");
    for (share, mode, options) in [
        ("/run/export", Mode::MultiNodeReaderOnly, &[][..]),
        ("/run/export", Mode::MultiNodeMultiWriter, &["rw"]),
        ("/run/export", Mode::MultiNodeMultiWriter, &["nfsvers=3", "nolock"]),
        ("/run/exports/squash-all-nodes", Mode::MultiNodeReaderOnly, &[]),
        ("/run/exports/squash-all-nodes", Mode::MultiNodeReaderOnly, &["nfsvers=3", "nolock"]),
    ] {
        let mut volume = volume.clone();
        volume.volume_context.insert("share".into(), share.into());
        node.node_publish_volume(publish(&volume, &target, mode, options)).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join("plain")).unwrap(), "plain", "{share} {options:?}");
        for write in [std::fs::write(target.join("plain"), "x"), std::fs::remove_file(target.join("plain"))] {
            assert_eq!(write.unwrap_err().raw_os_error(), Some(Errno::EROFS as i32), "{share} {options:?}");
        }
        // Not only this mount, which a container's runtime may make again without the flag.
        let mounted = mounts_at(&target).remove(0);
        assert!(mounted.split(" - ").nth(1).unwrap().split(' ').nth(2).unwrap().starts_with("ro"), "{mounted}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    assert_same(&before, &on_server("pvc-source"), &tree);
    // It is a source like others, and so is its snapshot.
    let copy = made(&driver, create_from("pvc-copy", of_volume(&volume.volume_id), &[])).await;
    let restored = made(&driver, create_from("pvc-restored", of_snapshot(SNAPSHOT), &[])).await;
    for name in ["pvc-copy", "pvc-restored"] {
        assert_same(&before, &on_server("pvc-source"), &on_server(name));
    }
    all_gone(&driver, &[&copy, &restored, &volume, &source]).await;
}

#[tokio::test]
async fn a_snapshot_and_its_readers_are_deleted_in_any_order() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let (source, before) = source(&driver).await;
    let target = folder.path().join("target");
    let is_read = async |node: &mut node_client::NodeClient<_>, volume: &Volume| {
        node.node_publish_volume(publish(volume, &target, Mode::MultiNodeReaderOnly, &[])).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join("plain")).unwrap(), "plain");
        node.node_unpublish_volume(unpublish(volume, &target)).await.unwrap();
    };
    // Readers go first: the snapshot is whole afterwards, and has readers again.
    let [one, two] = [reader(&driver, "pvc-1").await, reader(&driver, "pvc-2").await];
    assert_eq!((subdir(&one), names(SHARED).len()), (subdir(&two), 1));
    removed(&driver, &one).await;
    is_read(&mut node, &two).await;
    removed(&driver, &two).await;
    let restored = made(&driver, create_from("pvc-restored", of_snapshot(SNAPSHOT), &[])).await;
    assert_same(&before, &on_server("pvc-source"), &on_server("pvc-restored"));
    removed(&driver, &restored).await;
    // Then the snapshot: another one of its name has nothing to do with the first one's readers.
    let [one, two] = [reader(&driver, "pvc-1").await, reader(&driver, "pvc-2").await];
    delete_the_snapshot(&driver).await;
    is_read(&mut node, &one).await;
    let gone = driver.controller().await.create_volume(read_from("pvc-3", of_snapshot(SNAPSHOT), &[])).await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    std::fs::write(on_server("pvc-source/plain"), "later").unwrap();
    taken(&driver, "snap", &source.volume_id, &[]).await;
    let three = reader(&driver, "pvc-3").await;
    assert_ne!(subdir(&three), subdir(&one));
    assert_eq!(std::fs::read_to_string(on_server(subdir(&three)).join("plain")).unwrap(), "later");
    removed(&driver, &one).await;
    is_read(&mut node, &two).await;
    all_gone(&driver, &[&two, &three, &source]).await;
}

#[tokio::test]
async fn a_snapshot_without_readers_left_is_freed_with_its_tree() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let (source, _) = source(&driver).await;
    let volume = reader(&driver, "pvc-reader").await;
    removed(&driver, &volume).await;
    assert_eq!(names(SHARED).len(), 1);
    delete_the_snapshot(&driver).await;
    removed(&driver, &source).await;
    nothing_left();
}

#[tokio::test]
async fn a_reader_is_listed_and_confirmed_for_reading_only() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--export=127.0.0.1:/run/export"]);
    let mut controller = driver.controller().await;
    let (source, _) = source(&driver).await;
    let volume = reader(&driver, "pvc-reader").await;
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let found = listed.entries.iter().find(|entry| entry.volume.as_ref().unwrap().volume_id == volume.volume_id);
    assert!(!found.unwrap().status.as_ref().unwrap().volume_condition.as_ref().unwrap().abnormal);
    let get = ControllerGetVolumeRequest { volume_id: volume.volume_id.clone() };
    assert_eq!(
        controller.controller_get_volume(get).await.unwrap().into_inner().volume.unwrap().capacity_bytes,
        10 << 20
    );
    for (mode, is_confirmed) in [(Mode::MultiNodeReaderOnly, true), (Mode::MultiNodeMultiWriter, false)] {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: volume.volume_id.clone(),
            volume_capabilities: vec![capability(mode, &[])],
            ..ValidateVolumeCapabilitiesRequest::default()
        };
        let answer = controller.validate_volume_capabilities(request).await.unwrap().into_inner();
        assert_eq!((answer.confirmed.is_some(), answer.message.is_empty()), (is_confirmed, is_confirmed), "{mode:?}");
    }
    // The same name for something else.
    let other = create_from("pvc-reader", of_snapshot(SNAPSHOT), &[]);
    assert_eq!(controller.create_volume(other).await.unwrap_err().code(), Code::AlreadyExists);
    all_gone(&driver, &[&volume, &source]).await;
}

#[tokio::test]
async fn what_cannot_be_read_in_place_or_is_not_to_be_is_copied() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let (source, before) = source(&driver).await;
    let archive = "127.0.0.1#run/export#archive#archive#pvc-source";
    taken(&driver, "archive", &source.volume_id, &[("snapshotFormat", "tar.zst")]).await;
    let elsewhere = [("share", "/run/exports/other")];
    let mut copies = Vec::new();
    for (snapshot, more) in [(SNAPSHOT, &[("backingSnapshot", "false")][..]), (archive, &[]), (SNAPSHOT, &elsewhere)] {
        let name = format!("pvc-{}", copies.len());
        let copy = made(&driver, read_from(&name, of_snapshot(snapshot), more)).await;
        let place = if more == elsewhere { Path::new("/run/exports/other").join(&name) } else { on_server(&name) };
        assert_same(&before, &on_server("pvc-source"), &place);
        // A class that is changed later changes no volume.
        assert_eq!(
            subdir(&made(&driver, read_from(&name, of_snapshot(snapshot), &more[..more.len().min(1)])).await),
            name
        );
        copies.push(copy);
    }
    assert_eq!(names(SHARED), Vec::<String>::new());
    // Snapshots of version 0.1.0 have no name for it.
    let key = names(".nfs-csi/snapshots")
        .into_iter()
        .find(|key| on_server(&format!(".nfs-csi/snapshots/{key}/data")).exists());
    let manifest = on_server(&format!(".nfs-csi/snapshots/{}/manifest.json", key.unwrap()));
    let now = std::fs::read(&manifest).unwrap();
    let mut text: serde_json::Value = serde_json::from_slice(&now).unwrap();
    text.as_object_mut().unwrap().remove("secret").unwrap();
    std::fs::write(&manifest, text.to_string()).unwrap();
    let copy = made(&driver, read_from("pvc-old", of_snapshot(SNAPSHOT), &[])).await;
    assert_same(&before, &on_server("pvc-source"), &on_server("pvc-old"));
    removed(&driver, &copy).await;
    std::fs::write(&manifest, now).unwrap();
    // A copy stays one, whatever the class says by now.
    assert_eq!(made(&driver, read_from("pvc-0", of_snapshot(SNAPSHOT), &[])).await.volume_id, copies[0].volume_id);
    for copy in &copies {
        removed(&driver, copy).await;
    }
    removed(&driver, &source).await;
    delete_the_snapshot(&driver).await;
    driver.controller().await.delete_snapshot(delete_snapshot(archive)).await.unwrap();
    nothing_left();
}

#[tokio::test]
async fn nobody_gets_into_a_tree_whose_name_he_does_not_know() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let (source, _) = source(&driver).await;
    let volume = reader(&driver, "pvc-reader").await;
    // A squashed client with all of the share.
    let all = by_hand("all", &[("share", "/run/exports/squash-all-nodes")]);
    let target = folder.path().join("target");
    node.node_publish_volume(publish(&all, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    let errno = |error: std::io::Error| error.raw_os_error();
    for folder in ["", "/shared", "/snapshots", "/volumes", "/trash", "/staging", "/subdirs", "/readers"] {
        let listed = std::fs::read_dir(target.join(format!(".nfs-csi{folder}")));
        assert_eq!(listed.map(drop).map_err(errno), Err(Some(Errno::EACCES as i32)), "{folder}");
    }
    let made = std::fs::create_dir(target.join(SHARED).join("mine"));
    assert_eq!(made.map_err(errno), Err(Some(Errno::EACCES as i32)));
    node.node_unpublish_volume(unpublish(&all, &target)).await.unwrap();
    // A pod itself names no tree, and no class does.
    let mut inline = volume.clone();
    inline.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    let refused =
        node.node_publish_volume(publish(&inline, &target, Mode::MultiNodeReaderOnly, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let named = driver.controller().await.create_volume(create("pvc-named", &[("subDir", subdir(&volume))])).await;
    assert_eq!(named.unwrap_err().code(), Code::InvalidArgument);
    let by_id = format!("127.0.0.1#run/export#{}#x#", subdir(&volume));
    let refused = driver.controller().await.delete_volume(delete(&by_id)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    all_gone(&driver, &[&volume, &source]).await;
}

#[tokio::test]
async fn a_reader_that_was_killed_at_any_moment_of_its_life_is_completed_and_leaves_nothing() {
    const ROUNDS: u64 = 24;
    let folder = folder();
    let mut driver = Driver::start(folder.path(), &[]);
    let (source, before) = source(&driver).await;
    let id = format!("127.0.0.1#run/export#.nfs-csi/{}##", RecordKey::of("pvc-1"));
    let mut cut_short = [0; 4];
    for round in 0..ROUNDS {
        for (step, cut) in cut_short.iter_mut().enumerate() {
            let mut controller = driver.controller().await;
            let own_id = id.clone();
            // In odd rounds the snapshot goes before its last reader.
            let step = if round % 2 == 1 && step > 1 { 5 - step } else { step };
            let (take, read) =
                (snapshot("snap", &source.volume_id, &[]), read_from("pvc-1", of_snapshot(SNAPSHOT), &[]));
            let call = tokio::spawn(async move {
                match step {
                    0 => controller.create_snapshot(take).await.map(drop),
                    1 => controller.create_volume(read).await.map(drop),
                    2 => controller.delete_volume(delete(&own_id)).await.map(drop),
                    _ => controller.delete_snapshot(delete_snapshot(SNAPSHOT)).await.map(drop),
                }
            });
            let last = if step == 0 { 100_000 } else { 8_000 };
            tokio::time::sleep(Duration::from_micros(last * round * round / (ROUNDS * ROUNDS))).await;
            driver.kill().await;
            *cut += u32::from(call.await.unwrap().is_err());
            driver = Driver::start(folder.path(), &[]);
            match step {
                0 => drop(taken(&driver, "snap", &source.volume_id, &[]).await),
                1 => {
                    let volume = reader(&driver, "pvc-1").await;
                    assert_same(&before, &on_server("pvc-source"), &on_server(subdir(&volume)));
                }
                2 => drop(driver.controller().await.delete_volume(delete(&id)).await.unwrap()),
                _ => delete_the_snapshot(&driver).await,
            }
            assert_eq!(names(".nfs-csi/staging"), Vec::<String>::new(), "round {round}, step {step}");
        }
        nothing_left();
    }
    println!("cut short: snapshot, reader, delete of either: {cut_short:?} of {ROUNDS}");
    // A delete takes about as long as the shortest of the pauses.
    let [taken, made, deletes @ ..] = cut_short;
    let is_fit = taken > 0 && made > 0 && deletes.iter().sum::<u32>() > 0;
    assert!(is_fit, "{cut_short:?}: the moments do not fit this machine");
    removed(&driver, &source).await;
    nothing_left();
}
