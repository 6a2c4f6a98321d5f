//! Volumes with limits and data from elsewhere: clones, restored snapshots, and what another controller takes over.

use std::path::Path;
use std::time::Duration;

use tonic::Code;

use super::{SIZE, assert_well, class, create, fits, made, on_disk, record, shown, with_size};
use crate::kit::client::{A, B, SERVER};
use crate::kit::driver::Driver;
use crate::kit::quota::{Agent, DEADLINE, Export, XFS};
use crate::kit::requests::{create_from, delete, delete_snapshot, of_snapshot, of_volume, snapshot};
use crate::kit::{folder, wait_for, wait_until};
use crate::trees::{assert_same, entries, fill};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_clone_and_a_restored_snapshot_have_limits_of_their_own() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&mut controller, create(&export, "pvc-source", SIZE, &[])).await;
    let directory = on_disk(&export, &source);
    fill(&directory);
    std::fs::write(directory.join("large"), vec![7; 8 << 20]).unwrap();
    let before = entries(&directory);
    let mut snapshots = Vec::new();
    for format in ["tree", "tar.zst"] {
        let request = snapshot(&format!("snap-{format}"), &source.volume_id, &[("snapshotFormat", format)]);
        let taken = controller.create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
        snapshots.push(taken.snapshot_id);
    }
    // What a snapshot takes is not charged to the volume.
    let project = record(&export, "pvc-source").project().unwrap();
    let charged = export.kernel(project).bytes;
    assert!(charged < 12 * MIB, "{charged}");
    let of = [of_volume(&source.volume_id), of_snapshot(&snapshots[0]), of_snapshot(&snapshots[1])];
    for (number, of) in of.into_iter().enumerate() {
        let name = format!("pvc-copy-{number}");
        let request = with_size(create_from(&name, of.clone(), &class(&export, &[])), SIZE);
        let copy = made(&mut controller, request.clone()).await;
        assert_eq!(made(&mut controller, request).await.volume_id, copy.volume_id);
        let place = on_disk(&export, &copy);
        assert_same(&before, &directory, &place);
        assert_eq!(shown(&place), SIZE);
        let own = record(&export, &name).project().unwrap();
        assert_ne!(own, project);
        assert_eq!(export.kernel(own).inodes, export.kernel(project).inodes, "{name}");
        assert!(!fits(&place.join("more"), 9 * MIB));
        std::fs::remove_file(place.join("more")).unwrap();
        // Without a limit, from what has one.
        let name = format!("pvc-free-{number}");
        let plain = with_size(create_from(&name, of, &class(&export, &[("quota", "none")])), SIZE);
        let free = made(&mut controller, plain).await;
        assert_eq!(export.project_of(&on_disk(&export, &free)), None);
    }
    assert_eq!(export.kernel(project).bytes, charged);
    assert_well(&export);
    for id in snapshots {
        controller.delete_snapshot(delete_snapshot(&id)).await.unwrap();
    }
}

#[tokio::test]
async fn a_source_that_is_larger_than_the_claim_is_refused_and_leaves_nothing() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let limited = made(&mut controller, create(&export, "pvc-limited", 2 * SIZE, &[])).await;
    // Its size says nothing of how much is in it.
    let free = made(&mut controller, create(&export, "pvc-free", SIZE, &[("quota", "none")])).await;
    std::fs::write(on_disk(&export, &free).join("large"), vec![7; 24 << 20]).unwrap();
    for source in [&limited, &free] {
        let request = create_from("pvc-copy", of_volume(&source.volume_id), &class(&export, &[]));
        let error = controller.create_volume(with_size(request, SIZE)).await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
        assert!(!export.on_disk("pvc-copy").exists());
        let staged = || crate::kit::names_in(&export.on_disk(".nfs-csi/staging"));
        wait_for("staging to be empty", DEADLINE, || staged().is_empty().then_some(()));
    }
    wait_for("one project to be left", DEADLINE, || (export.projects("applied").len() == 1).then_some(()));
    assert_well(&export);
}

#[tokio::test]
async fn a_clone_fills_a_limit_to_its_end() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&mut controller, create(&export, "pvc-source", SIZE, &[])).await;
    // As many blocks as there are, in several files.
    let mut number = 0;
    while fits(&on_disk(&export, &source).join(number.to_string()), MIB) {
        number += 1;
    }
    assert!(number >= 14, "{number}");
    let before = entries(&on_disk(&export, &source));
    let request = create_from("pvc-copy", of_volume(&source.volume_id), &class(&export, &[]));
    let copy = made(&mut controller, with_size(request, SIZE)).await;
    assert_same(&before, &on_disk(&export, &source), &on_disk(&export, &copy));
    assert_well(&export);
}

#[tokio::test]
async fn what_a_dead_controller_began_is_completed_by_another_with_its_limit() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let (one, other) = (folder(), folder());
    let flags = ["--takeover-after=1s"];
    let first = Driver::start_in(A, one.path(), &flags);
    let mut controller = first.controller().await;
    let at_server = [("server", SERVER)];
    let source = made(&mut controller, create(&export, "pvc-source", 4 * SIZE, &at_server)).await;
    let directory = on_disk(&export, &source);
    for number in 0..400 {
        std::fs::write(directory.join(format!("file {number}")), vec![7; 64 << 10]).unwrap();
    }
    let request = create_from("pvc-copy", of_volume(&source.volume_id), &class(&export, &at_server));
    let request = with_size(request, 4 * SIZE);
    let before = entries(&directory);
    let far = A.move_away(2);
    let begun = {
        let (mut controller, request) = (first.controller().await, request.clone());
        tokio::spawn(async move { controller.create_volume(request).await })
    };
    wait_until("a part of the copy", DEADLINE, || {
        let staging = export.on_disk(".nfs-csi/staging");
        let trees = crate::kit::names_in(&staging);
        trees.iter().any(|name| crate::kit::names_in(&staging.join(name)).len() > 20).then_some(())
    })
    .await;
    first.kill().await;
    assert!(begun.await.unwrap().is_err());
    drop(far);
    let second = Driver::start_in(B, other.path(), &flags);
    let mut controller = second.controller().await;
    let end = std::time::Instant::now() + DEADLINE;
    let copy = loop {
        match controller.create_volume(request.clone()).await {
            Ok(answer) => break answer.into_inner().volume.unwrap(),
            Err(error) => assert!(error.code() == Code::Aborted && std::time::Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_same(&before, &directory, &on_disk(&export, &copy));
    assert_eq!(shown(&on_disk(&export, &copy)), 4 * SIZE);
    let project = record(&export, "pvc-copy").project().unwrap();
    assert_all_charged(&export, &on_disk(&export, &copy), export.kernel(project).inodes);
    controller.delete_volume(delete(&source.volume_id)).await.unwrap();
    wait_for("two projects to be free", DEADLINE, || (export.projects("applied").len() == 1).then_some(()));
    assert_well(&export);
}

/// As many inodes are charged as there are.
fn assert_all_charged(_: &Export, directory: &Path, charged: u64) {
    let entries = std::fs::read_dir(directory).unwrap().count();
    assert_eq!(charged, entries as u64 + 1);
}
