//! kill -9 at any moment of clone, snapshot, restore and delete: the retry gives a complete result, or none, and
//! nothing is left over.

use std::time::Duration;

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, create_from, delete, delete_snapshot, of_snapshot, of_volume, snapshot};
use crate::kit::server::{names, on_server};
use crate::trees::{Entries, assert_same, entries, fill};

const ROUNDS: u32 = 32;
/// When each operation is over for sure, in milliseconds: clone, snapshot, restore, delete.
const LAST: [u64; 4] = [250, 250, 250, 10];

/// More of the moments are early ones: there is most to be cut short.
fn moment(round: u32, step: usize) -> Duration {
    Duration::from_millis(LAST[step]) * round * round / (ROUNDS * ROUNDS)
}

/// The source of all rounds: entries of every kind, and many files.
async fn source(driver: &Driver) -> (String, Entries) {
    let volume = made(driver, create("pvc-source", &[])).await;
    let root = on_server("pvc-source");
    fill(&root);
    for directory in 0..10 {
        let directory = root.join(format!("many-{directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..8 {
            std::fs::write(directory.join(file.to_string()), format!("file {file}")).unwrap();
        }
    }
    (volume.volume_id, entries(&root))
}

#[tokio::test]
async fn a_killed_clone_snapshot_restore_or_delete_is_completed_by_its_retry_without_litter() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let (source, before) = source(&driver).await;
    let snapshot_id = "127.0.0.1#run/export#snap#snap#pvc-source";
    // Each retry's driver is the next operation's, with the export mounted, so that the moment falls into that itself.
    let mut driver = driver;
    let mut cut_short = [0; 4];
    for round in 0..ROUNDS {
        let format = if round % 2 == 0 { "tree" } else { "tar.zst" };
        let given = [("subDir", "team/${pv.metadata.name}"), ("csi.storage.k8s.io/pv/name", "pvc-clone")];
        let (more, place) = if round % 4 < 2 { (&[][..], "pvc-clone") } else { (&given[..], "team/pvc-clone") };
        let take = snapshot("snap", &source, &[("snapshotFormat", format)]);
        let clone = create_from("pvc-clone", of_volume(&source), more);
        let restore = create_from("pvc-restored", of_snapshot(snapshot_id), &[]);
        for (step, cut) in cut_short.iter_mut().enumerate() {
            let mut controller = driver.controller().await;
            let (take, clone, restore) = (take.clone(), clone.clone(), restore.clone());
            let call = tokio::spawn(async move {
                match step {
                    0 => controller.create_volume(clone).await.map(drop),
                    1 => controller.create_snapshot(take).await.map(drop),
                    2 => controller.create_volume(restore).await.map(drop),
                    _ => controller.delete_volume(delete("127.0.0.1#run/export#pvc-restored##")).await.map(drop),
                }
            });
            tokio::time::sleep(moment(round, step)).await;
            driver.kill().await;
            *cut += u32::from(call.await.unwrap().is_err());
            // What is visible under its name is complete.
            for name in [place, "pvc-restored"].into_iter().filter(|name| on_server(name).exists()) {
                assert_same(&before, &on_server("pvc-source"), &on_server(name));
            }
            // The retry.
            driver = Driver::start(folder.path(), &[]);
            let mut controller = driver.controller().await;
            match step {
                0 => {
                    made(&driver, create_from("pvc-clone", of_volume(&source), more)).await;
                    assert_same(&before, &on_server("pvc-source"), &on_server(place));
                }
                1 => {
                    let request = snapshot("snap", &source, &[("snapshotFormat", format)]);
                    let taken = controller.create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
                    assert_eq!(taken.snapshot_id, snapshot_id);
                }
                2 => {
                    made(&driver, create_from("pvc-restored", of_snapshot(snapshot_id), &[])).await;
                    assert_same(&before, &on_server("pvc-source"), &on_server("pvc-restored"));
                }
                _ => {
                    controller.delete_volume(delete("127.0.0.1#run/export#pvc-restored##")).await.unwrap();
                    controller.delete_snapshot(delete_snapshot(snapshot_id)).await.unwrap();
                    let clone = made(&driver, create_from("pvc-clone", of_volume(&source), more)).await;
                    removed(&driver, &clone).await;
                }
            }
            no_litter();
        }
        assert_eq!(names(".nfs-csi/volumes").len(), 1, "round {round}");
        assert!(names(".nfs-csi/snapshots").is_empty() && names(".nfs-csi/subdirs").is_empty(), "round {round}");
        // The source was never touched.
        assert_same(&before, &on_server("pvc-source"), &on_server("pvc-source"));
    }
    println!("cut short: clone, snapshot, restore, delete: {cut_short:?} of {ROUNDS}");
    assert!(cut_short.iter().all(|&count| count > 0), "{cut_short:?}: the moments do not fit this machine");
    driver.controller().await.delete_volume(delete(&source)).await.unwrap();
    let _ = std::fs::remove_dir(on_server("team"));
    no_litter();
}
