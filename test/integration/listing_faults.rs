//! Lists of what cannot be read, of exports that do not answer, for callers that go away.

use std::collections::HashSet;
use std::os::unix::fs::{DirBuilderExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use nfs_csi::proto::ListVolumesRequest;
use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::mortal::{MORTAL, OTHER};
use crate::kit::requests::{create, snapshot};
use crate::kit::{folder, records, wait_for};
use crate::listing::{Share, conditions, keys, page, pages, snapshots};

#[tokio::test]
async fn what_cannot_be_read_is_abnormal_or_logged_and_does_not_fail_the_list() {
    let share = Share::new();
    for name in ["fine", "empty", "cut", "newer", "a-folder", "a-link"] {
        records::volume(share.disk(), name);
    }
    let record = |name| records::file(share.disk(), name);
    std::fs::write(record("empty"), "").unwrap();
    let text = std::fs::read(record("cut")).unwrap();
    std::fs::write(record("cut"), &text[..text.len() / 2]).unwrap();
    std::fs::write(record("newer"), "{\"format\":2}").unwrap();
    for name in ["a-folder", "a-link"] {
        std::fs::remove_file(record(name)).unwrap();
    }
    std::fs::create_dir(record("a-folder")).unwrap();
    symlink("/etc/hostname", record("a-link")).unwrap();
    // A tenant owns the directory that another's volume is in.
    std::fs::create_dir(share.disk().join("tenant")).unwrap();
    symlink("/etc", share.disk().join("tenant/linked")).unwrap();
    std::fs::write(share.disk().join("tenant/file"), "").unwrap();
    for name in ["tenant/linked", "tenant/linked/below", "tenant/file", "tenant/file/below", "tenant/gone"] {
        records::write(share.disk(), name, name);
    }
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&share.export()]);
    let mut controller = driver.controller().await;
    let listed = conditions(pages(&mut controller, 2, String::new()).await);
    let expected = [
        ("fine", None),
        ("tenant/linked", Some("symbolic link")),
        ("tenant/linked/below", Some("symbolic link")),
        ("tenant/file", Some("not a directory")),
        ("tenant/file/below", Some("not a directory")),
        ("tenant/gone", Some("missing")),
    ];
    assert_eq!(keys(&listed), expected.iter().map(|(name, _)| *name).collect());
    for (name, reason) in expected {
        match (&listed[name], reason) {
            (None, None) => {}
            (Some(message), Some(reason)) => assert!(message.contains(name) && message.contains(reason), "{message}"),
            (told, _) => panic!("{name}: {told:?}"),
        }
    }
    // Each once a list, not once a page.
    let log = driver.log();
    for name in ["empty", "cut", "newer", "a-folder", "a-link"] {
        let file = format!("{}.json", RecordKey::of(name));
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&file)).collect();
        assert!(lines.len() == 1 && lines[0].contains("WARN"), "{name}: {lines:?}");
    }
}

#[tokio::test]
async fn a_directory_that_may_not_be_looked_at_is_abnormal() {
    let disk = Path::new("/run/exports/squash-writable");
    records::folders(disk);
    std::fs::DirBuilder::new().mode(0o700).create(disk.join("closed")).unwrap();
    for name in ["open", "closed/volume"] {
        std::fs::create_dir(disk.join(name)).unwrap();
        records::write(disk, name, name);
    }
    // The user that root is squashed to.
    for path in ["", "volumes", "subdirs", "snapshots", "staging", "trash"] {
        chown(disk.join(".nfs-csi").join(path), Some(65534), Some(65534)).unwrap();
    }
    for name in ["open", "closed/volume"] {
        chown(records::file(disk, name), Some(65534), Some(65534)).unwrap();
    }
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--export=127.0.0.1:/run/exports/squash-writable"]);
    let listed = conditions(pages(&mut driver.controller().await, 0, String::new()).await);
    assert_eq!(keys(&listed), HashSet::from(["open", "closed/volume"]));
    assert_eq!(listed["open"], None);
    let message = listed["closed/volume"].as_ref().unwrap();
    assert!(message.contains("closed/volume") && message.contains("no_root_squash"), "{message}");
    // It makes folders there in the background.
    assert!(driver.stop().await.success());
    for path in ["open", "closed", ".nfs-csi"] {
        std::fs::remove_dir_all(disk.join(path)).unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_whose_manifest_cannot_be_read_is_logged_and_does_not_fail_the_list() {
    let share = Share::new();
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&share.export()]);
    let mut controller = driver.controller().await;
    let volume = controller.create_volume(create("pvc-1", &share.parameters())).await.unwrap().into_inner();
    let mut ids = Vec::new();
    for name in ["fine", "empty", "newer", "of-nothing"] {
        let taken = controller.create_snapshot(snapshot(name, &volume.volume.as_ref().unwrap().volume_id, &[])).await;
        ids.push(taken.unwrap().into_inner().snapshot.unwrap().snapshot_id);
    }
    // Another mount, which remembers nothing.
    driver.kill().await;
    drop(folder);
    let folder = crate::kit::folder();
    let manifest = |name: &str| share.disk().join(format!(".nfs-csi/snapshots/{}/manifest.json", RecordKey::of(name)));
    std::fs::write(manifest("empty"), "").unwrap();
    std::fs::write(manifest("newer"), "{\"format\":2}").unwrap();
    let text = std::fs::read_to_string(manifest("of-nothing")).unwrap();
    std::fs::write(manifest("of-nothing"), text.replace("127.0.0.1#", "nowhere")).unwrap();
    let driver = Driver::start(folder.path(), &[&share.export()]);
    let mut controller = driver.controller().await;
    let listed = snapshots(&mut controller, 1).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), [&ids[0]]);
    let log = driver.log();
    let key = |name| RecordKey::of(name).to_string();
    for named in [key("empty"), key("newer"), "of-nothing".to_owned()] {
        assert_eq!(log.lines().filter(|line| line.contains(&named)).count(), 1, "{named}: {log}");
    }
}

#[tokio::test]
async fn an_export_that_does_not_answer_is_logged_once_and_the_others_are_listed() {
    let share = Share::new();
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        records::volume(share.disk(), name);
    }
    let _dead = MORTAL.die();
    let dead = format!("--export={}:/", MORTAL.address);
    let never = format!("--export={}-never", share.name());
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&dead, &never, &share.export()]);
    let mut controller = driver.controller().await;
    let listed = conditions(pages(&mut controller, 1, String::new()).await);
    assert_eq!(keys(&listed), HashSet::from(["pvc-1", "pvc-2", "pvc-3"]));
    let log = driver.log();
    let told = |share: &str| {
        let is_told = |line: &&str| line.contains("a list is without") && line.contains(&format!("share={share} "));
        log.lines().filter(is_told).count()
    };
    assert_eq!(told(&format!("{}:/", MORTAL.address)), 1, "{log}");
    assert_eq!(told(&format!("{}-never", share.name())), 1, "{log}");
    drop(driver);
    // Nothing at all would be taken for all there is.
    let driver = Driver::start(folder.path(), &[&dead]);
    let refused = driver.controller().await.list_volumes(ListVolumesRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

/// Threads of a driver that read for a list.
fn readers(driver: &Driver) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", driver.pid())).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "list").count()
}

#[tokio::test]
async fn a_list_whose_caller_went_away_ends_at_the_next_entry() {
    let disk = OTHER.on_disk("");
    records::folders(&disk);
    let names: Vec<String> = (0..500).map(|number| format!("pvc-{number}")).collect();
    for name in &names {
        records::volume(&disk, name);
    }
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&format!("--export={}:/", OTHER.address)]);
    let mut controller = driver.controller().await;
    page(&mut controller, 1, String::new()).await;
    // All of them take longer than is waited for.
    let far = OTHER.move_away(400);
    let caller = tokio::spawn(async move { controller.list_volumes(ListVolumesRequest::default()).await });
    let limit = Duration::from_secs(30);
    // This thread is the caller's too.
    let waited = tokio::task::spawn_blocking(move || {
        wait_for("threads that read", limit, || (readers(&driver) > 0).then_some(()));
        driver
    });
    let driver = waited.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let waited = tokio::task::spawn_blocking(move || {
        wait_for("threads to end", limit, || (readers(&driver) == 0).then_some(()));
        driver
    });
    let driver = waited.await.unwrap();
    drop(far);
    assert_eq!(conditions(pages(&mut driver.controller().await, 0, String::new()).await).len(), names.len());
    assert!(driver.stop().await.success());
    for name in names.iter().map(String::as_str).chain([".nfs-csi"]) {
        std::fs::remove_dir_all(disk.join(name)).unwrap();
    }
}
