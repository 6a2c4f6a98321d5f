//! `nfs-csi jobs`: long work that runs, and how far it is.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::cloning::made;
use crate::kit::client::{A, SERVER};
use crate::kit::driver::{Driver, binary};
use crate::kit::requests::{create, create_from, delete, of_snapshot, of_volume, snapshot};
use crate::kit::{folder, wait_until};
use crate::listing::Share;

const FILES: usize = 3000;
const DEADLINE: Duration = Duration::from_mins(2);
/// In a network of its own there is nobody else.
const ADDRESS: &str = "127.0.0.1:29652";

/// What the command prints beside the driver.
fn jobs(arguments: &[&str]) -> Output {
    let output = A.enter().arg(binary()).arg("jobs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The job of a kind, while it runs.
fn job(kind: &str) -> Option<Value> {
    let all: Value = serde_json::from_slice(&jobs(&["--output=json"]).stdout).unwrap();
    all.as_array().unwrap().iter().find(|job| job["kind"] == kind).cloned()
}

#[tokio::test]
async fn clones_snapshots_restores_and_removals_are_shown_while_they_run() {
    let (share, folder) = (Share::new(), folder());
    let driver = Driver::start_in(A, folder.path(), &[&format!("--metrics-address={ADDRESS}")]);
    assert_eq!(String::from_utf8(jobs(&[]).stdout).unwrap(), "nothing is running\n");
    let class = [("server", SERVER), ("share", share.disk().to_str().unwrap())];
    let source = made(&driver, create("pvc-source", &class)).await;
    for number in 0..FILES {
        std::fs::write(share.disk().join(format!("pvc-source/{number}")), "some data").unwrap();
    }
    let mut controller = driver.controller().await;
    // Far away, so that there is time to look.
    let far = A.move_away(20);
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &class);
    let cloning = tokio::spawn(async move { controller.create_volume(request).await });
    let clone = wait_until("the clone to be shown with a part of it done", DEADLINE, || {
        job("clone").filter(|job| job["doneFiles"].as_u64() > Some(0))
    });
    let clone = clone.await;
    assert_eq!(
        (&clone["name"], &clone["export"]),
        (&"pvc-clone".into(), &share.name().replace("127.0.0.1", SERVER).into())
    );
    assert!(clone["doneFiles"].as_u64().unwrap() < FILES as u64 && clone["leftFiles"].is_null(), "{clone}");
    let text = String::from_utf8(jobs(&[]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("clone ") && line.contains("pvc-clone")), "{text}");
    drop(far);
    let clone = cloning.await.unwrap().unwrap().into_inner().volume.unwrap();

    // What a snapshot has is known.
    let mut controller = driver.controller().await;
    let taken = controller.create_snapshot(snapshot("snap-1", &source.volume_id, &[])).await.unwrap().into_inner();
    let taken = taken.snapshot.unwrap().snapshot_id;
    let far = A.move_away(20);
    let request = create_from("pvc-restored", of_snapshot(&taken), &class);
    let restoring = tokio::spawn(async move { controller.create_volume(request).await });
    let restore = wait_until("the restore to be shown with its end in sight", DEADLINE, || {
        job("restore").filter(|job| job["doneFiles"].as_u64() > Some(0))
    });
    let restore = restore.await;
    let count = |what: &str| restore[what].as_u64().unwrap();
    assert_eq!(count("doneFiles") + count("leftFiles"), FILES as u64, "{restore}");
    assert_eq!(count("doneBytes") + count("leftBytes"), 9 * FILES as u64, "{restore}");
    drop(far);
    let restored = restoring.await.unwrap().unwrap().into_inner().volume.unwrap();

    let mut controller = driver.controller().await;
    let far = A.move_away(20);
    controller.delete_volume(delete(&clone.volume_id)).await.unwrap();
    let free = wait_until("the removal to be shown", DEADLINE, || {
        job("free").filter(|job| job["doneFiles"].as_u64() > Some(0))
    });
    let free = free.await;
    assert!(free["name"].as_str().unwrap().starts_with("v.") && free["doneBytes"].is_null(), "{free}");
    drop(far);
    for volume in [source, restored] {
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
    wait_until("all to be freed", DEADLINE, || job("free").is_none().then_some(())).await;
    drop(controller);
    assert!(driver.stop().await.success());
}

#[test]
fn where_no_controller_answers_that_is_said() {
    let address: SocketAddr = crate::kit::http::free_address();
    let (status, text) = crate::kit::driver::run(&["jobs", &format!("--metrics-address={address}")]);
    assert!(status.code() == Some(2) && text.contains(&address.to_string()), "{text}");
}
