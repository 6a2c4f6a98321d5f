//! What is deleted and kept: brought back, freed when its time is over, freed from the command line.

use std::process::{Command, Output};
use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::{Driver, binary};
use crate::kit::http::{free_address, get};
use crate::kit::requests::{create, create_from, delete, of_volume, publish, unpublish};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_for};

fn trash(arguments: &[&str]) -> Output {
    let output =
        Command::new(binary()).arg("trash").args(arguments).arg("--export=127.0.0.1:/run/export").output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_deleted_volume_is_kept_as_long_as_its_class_says_and_can_be_brought_back() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let kept = [("trashRetention", "72h"), ("subDir", "team/kept")];
    let volume = made(&driver, create("pvc-kept", &kept)).await;
    std::fs::write(on_server("team/kept/file"), "data").unwrap();
    let other = made(&driver, create("pvc-other", &[])).await;
    removed(&driver, &volume).await;
    removed(&driver, &volume).await;
    removed(&driver, &other).await;
    assert!(!on_server("team/kept").exists());
    assert_eq!(names(".nfs-csi/subdirs"), Vec::<String>::new());
    wait_for("the other to be freed", Duration::from_secs(30), || (names(".nfs-csi/trash").len() == 2).then_some(()));
    let list = text(&trash(&["list"]).stdout);
    assert!(list.contains("pvc-kept") && list.contains("team/kept") && list.contains("71h"), "{list}");
    assert!(!list.contains("pvc-other"), "{list}");
    let unknown = trash(&["restore", "pvc-other"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("pvc-other"));
    // What stands in its place stays.
    std::fs::create_dir_all(on_server("team/kept/other")).unwrap();
    assert!(!trash(&["restore", "pvc-kept"]).status.success());
    std::fs::remove_dir_all(on_server("team/kept")).unwrap();
    let restored = trash(&["restore", "pvc-kept"]);
    assert!(restored.status.success());
    assert!(text(&restored.stdout).contains(&volume.volume_id));
    assert_eq!(std::fs::read_to_string(on_server("team/kept/file")).unwrap(), "data");
    assert_eq!(made(&driver, create("pvc-kept", &kept)).await, volume);
    removed(&driver, &volume).await;
    assert!(trash(&["purge", "pvc-kept"]).status.success());
    std::fs::remove_dir(on_server("team")).unwrap();
    no_litter();
}

#[tokio::test]
async fn what_was_kept_goes_when_its_time_is_over_also_after_a_restart() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--trash-retention=3s", "--export=127.0.0.1:/run/export"]);
    let volumes = [made(&driver, create("pvc-a", &[])).await, made(&driver, create("pvc-b", &[])).await];
    removed(&driver, &volumes[0]).await;
    assert_eq!(names(".nfs-csi/trash").len(), 2);
    no_litter();
    removed(&driver, &volumes[1]).await;
    driver.kill().await;
    assert_eq!(names(".nfs-csi/trash").len(), 2);
    let driver = Driver::start(folder.path(), &[]);
    // The export is looked through when it is first used.
    removed(&driver, &volumes[0]).await;
    no_litter();
}

#[tokio::test]
async fn a_volume_without_a_record_is_kept_and_brought_back_too() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--trash-retention=1h"]);
    std::fs::create_dir(on_server("pvc-go")).unwrap();
    std::fs::write(on_server("pvc-go/file"), "data").unwrap();
    let id = "127.0.0.1#run/export#pvc-go##";
    driver.controller().await.delete_volume(delete(id)).await.unwrap();
    assert!(!on_server("pvc-go").exists());
    assert!(trash(&["restore", id]).status.success());
    assert_eq!(std::fs::read_to_string(on_server("pvc-go/file")).unwrap(), "data");
    driver.controller().await.delete_volume(delete(id)).await.unwrap();
    assert!(trash(&["purge"]).status.success());
    no_litter();
    assert!(!trash(&["list", "--bogus"]).status.success());
}

#[tokio::test]
async fn what_broke_off_is_swept_when_nobody_asks_for_it_again() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--staging-retention=2s"]);
    let source = made(&driver, create("pvc-source", &[])).await;
    std::fs::create_dir_all(on_server(".nfs-csi/staging/v.abcdefghij234567.abcdefghij234567/half")).unwrap();
    std::fs::write(on_server(".nfs-csi/volumes/.abcdefghij234567.new"), "{").unwrap();
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
    wait_for("staging to be swept", Duration::from_secs(30), || names(".nfs-csi/staging").is_empty().then_some(()));
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    wait_for("all to be swept", Duration::from_secs(30), || {
        (!on_server(".nfs-csi/volumes/.abcdefghij234567.new").exists()).then_some(())
    });
    no_litter();
}

#[tokio::test]
async fn what_cannot_be_removed_yet_is_told_with_its_path_and_goes_when_it_can_be() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start(folder.path(), &[&format!("--metrics-address={address}")]);
    let volume = made(&driver, create("pvc-stuck", &[])).await;
    std::fs::create_dir_all(on_server("pvc-stuck/a/b")).unwrap();
    std::fs::write(on_server("pvc-stuck/a/b/immutable"), "data").unwrap();
    std::fs::write(on_server("pvc-stuck/a/b/other"), "data").unwrap();
    std::fs::write(on_server("pvc-stuck/other"), "data").unwrap();
    let held = std::fs::File::open(on_server("pvc-stuck/a/b/immutable")).unwrap();
    let set = |flags| rustix::fs::ioctl_setflags(&held, flags).unwrap();
    set(rustix::fs::IFlags::IMMUTABLE);
    removed(&driver, &volume).await;
    assert!(!on_server("pvc-stuck").exists());
    wait_for("the driver to tell what it cannot remove", Duration::from_secs(30), || {
        driver.log().contains("a/b/immutable").then_some(())
    });
    // All else is gone.
    wait_for("one directory to be left", Duration::from_secs(30), || {
        let left = names(".nfs-csi/trash");
        let files = left.iter().flat_map(|name| names(&format!(".nfs-csi/trash/{name}"))).collect::<Vec<_>>();
        (files == ["immutable"]).then_some(())
    });
    // Those who look at it see it: in the list, and by the metrics.
    let in_metrics = |name: &str, count: u64| {
        let line = format!("{name}{{export=\"127.0.0.1:/run/export\"}} {count}");
        get(address, "/metrics").is_some_and(|(_, text)| text.lines().any(|found| found == line))
    };
    wait_for("the metrics to tell", Duration::from_secs(30), || {
        let is_told = in_metrics("nfs_csi_trash_entries", 1) && in_metrics("nfs_csi_trash_stuck_entries", 1);
        is_told.then_some(())
    });
    let list = text(&trash(&["list"]).stdout);
    // By its path in the trash, into which a second try has moved the directory that is left.
    assert!(list.contains("cannot be freed, tried") && list.contains("immutable on 127.0.0.1:/run/export"), "{list}");
    set(rustix::fs::IFlags::empty());
    no_litter();
    wait_for("the metrics to tell that it went", Duration::from_secs(30), || {
        let is_told = in_metrics("nfs_csi_trash_entries", 0) && in_metrics("nfs_csi_trash_stuck_entries", 0);
        is_told.then_some(())
    });
}

#[tokio::test]
async fn a_file_that_a_pod_removed_and_has_open_still_is_no_obstacle() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = made(&driver, create("pvc-open", &[])).await;
    let target = folder.path().join("target");
    node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    std::fs::write(target.join("file"), "data").unwrap();
    let open = std::fs::File::open(target.join("file")).unwrap();
    std::fs::remove_file(target.join("file")).unwrap();
    assert!(names("pvc-open")[0].starts_with(".nfs"), "{:?}", names("pvc-open"));
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    removed(&driver, &volume).await;
    assert!(!on_server("pvc-open").exists());
    no_litter();
    drop(open);
}

#[tokio::test]
async fn a_volume_without_a_record_stays_for_a_while_whatever_the_operator_keeps() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--unrecorded-retention=1h"]);
    std::fs::create_dir(on_server("pvc-go")).unwrap();
    std::fs::write(on_server("pvc-go/file"), "data").unwrap();
    driver.controller().await.delete_volume(delete("127.0.0.1#run/export#pvc-go##")).await.unwrap();
    assert!(!on_server("pvc-go").exists());
    let list = text(&trash(&["list"]).stdout);
    assert!(list.contains("pvc-go") && list.contains("59m"), "{list}");
    let dry = text(&trash(&["purge", "--dry-run"]).stdout);
    assert!(dry.contains("would free v."), "{dry}");
    assert!(!text(&trash(&["purge", "--older-than=30m"]).stdout).contains("freed"));
    assert!(text(&trash(&["list"]).stdout).contains("pvc-go"));
    assert!(text(&trash(&["purge", "--older-than=0"]).stdout).contains("freed v."));
    no_litter();
}
