//! kill -9 at any moment of CreateVolume and DeleteVolume: a retry gives one volume, complete, or none.

use std::time::Duration;

use crate::kit::driver::Driver;
use crate::kit::requests::{create, delete};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_for};

/// Moments between the first system call of an operation and its answer, and some after it.
const ROUNDS: u64 = 30;

fn moment(round: u64) -> Duration {
    Duration::from_micros(round * 200)
}

#[tokio::test]
async fn a_create_that_was_killed_is_completed_by_its_retry_without_litter() {
    let folder = folder();
    let mut cut_short = 0;
    for round in 0..ROUNDS {
        let subdir = [("subDir", "crash/${pv.metadata.name}"), ("csi.storage.k8s.io/pv/name", "pvc-crash")];
        let more = if round % 2 == 0 { &[][..] } else { &subdir[..] };
        let driver = Driver::start(folder.path(), &[]);
        let mut controller = driver.controller().await;
        // The export is mounted before, so that the moment falls into the operation itself.
        controller.create_volume(create("pvc-before", &[])).await.unwrap();
        let request = create("pvc-crash", more);
        let call = tokio::spawn(async move { controller.create_volume(request).await });
        tokio::time::sleep(moment(round)).await;
        driver.kill().await;
        cut_short += u32::from(call.await.unwrap().is_err());

        let driver = Driver::start(folder.path(), &[]);
        let mut controller = driver.controller().await;
        let volume = controller.create_volume(create("pvc-crash", more)).await.unwrap().into_inner().volume.unwrap();
        let directory = on_server(&volume.volume_context["subDir"]);
        assert!(directory.is_dir(), "round {round}");
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
        controller.delete_volume(delete("127.0.0.1#run/export#pvc-before##")).await.unwrap();
        no_litter(round);
    }
    assert!(cut_short > 2, "only {cut_short} of {ROUNDS} creates were cut short: the moments do not fit this machine");
    let _ = std::fs::remove_dir(on_server("crash"));
}

#[tokio::test]
async fn a_delete_that_was_killed_is_completed_by_its_retry_without_litter() {
    let folder = folder();
    let mut cut_short = 0;
    for round in 0..ROUNDS {
        let subdir = [("subDir", "crash/data")];
        let more = if round % 2 == 0 { &[][..] } else { &subdir[..] };
        let driver = Driver::start(folder.path(), &[]);
        let mut controller = driver.controller().await;
        let volume = controller.create_volume(create("pvc-crash", more)).await.unwrap().into_inner().volume.unwrap();
        let directory = on_server(&volume.volume_context["subDir"]);
        std::fs::create_dir_all(directory.join("a/b/c")).unwrap();
        std::fs::write(directory.join("a/file"), "data").unwrap();
        let id = volume.volume_id.clone();
        let call = tokio::spawn(async move { controller.delete_volume(delete(&id)).await });
        tokio::time::sleep(moment(round)).await;
        driver.kill().await;
        cut_short += u32::from(call.await.unwrap().is_err());
        // What is still there under its name is complete.
        if directory.exists() {
            assert_eq!(std::fs::read_to_string(directory.join("a/file")).unwrap(), "data", "round {round}");
        }

        let driver = Driver::start(folder.path(), &[]);
        let mut controller = driver.controller().await;
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
        assert!(!directory.exists(), "round {round}");
        no_litter(round);
    }
    assert!(cut_short > 2, "only {cut_short} of {ROUNDS} deletes were cut short: the moments do not fit this machine");
    let _ = std::fs::remove_dir(on_server("crash"));
}

fn no_litter(round: u64) {
    wait_for("the trash to be emptied", Duration::from_secs(30), || names(".nfs-csi/trash").is_empty().then_some(()));
    for folder in [".nfs-csi/volumes", ".nfs-csi/subdirs"] {
        assert_eq!(names(folder), Vec::<String>::new(), "round {round}: {folder}");
    }
    assert!(!names("").iter().any(|name| name.starts_with("pvc-")), "round {round}: {:?}", names(""));
}
