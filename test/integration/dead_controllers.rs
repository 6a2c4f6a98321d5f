//! A controller whose server dies: its calls are refused with the reason, what hangs in the kernel is ended, and all
//! goes on when the server is back.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{
    ControllerGetVolumeRequest, CreateVolumeRequest, GetCapacityRequest, ListSnapshotsRequest, ListVolumesRequest,
    ValidateVolumeCapabilitiesRequest, Volume,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::cloning::made;
use crate::kit::driver::Driver;
use crate::kit::http::{free_address, get};
use crate::kit::mortal::{MORTAL, OTHER, Server};
use crate::kit::requests::{
    MIB, capability, create, create_from, delete, delete_snapshot, expand, of_volume, parameters, snapshot,
};
use crate::kit::{folder, nfs_mounts_below, wait_until};

type Controller = ControllerClient<Channel>;

/// What any state is waited for at most; and calls, which took 150 s and more where only the kernel ended them.
const LONGEST: Duration = Duration::from_secs(30);

async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, call).await.expect("an answer")
}

fn assert_refused(method: &str, refused: &Status) {
    assert_eq!(refused.code(), Code::Unavailable, "{method}: {refused}");
    for part in [MORTAL.address, "no answer to RPC NULL", "it answered last at 20", "asked again in"] {
        assert!(refused.message().contains(part), "{method}, {part}: {refused}");
    }
}

/// All calls that a controller takes, on a volume and a snapshot of it.
async fn all_calls(controller: &Controller, volume: &Volume, snapshot_id: &str) -> Vec<(&'static str, Option<Status>)> {
    let mut controller = controller.clone();
    let id = &volume.volume_id;
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, &[])],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let get = ControllerGetVolumeRequest { volume_id: id.clone() };
    let capacity = GetCapacityRequest { parameters: parameters(&MORTAL.parameters()), ..GetCapacityRequest::default() };
    let new = create("pvc-new", &MORTAL.parameters());
    let clone = create_from("pvc-clone", of_volume(id), &MORTAL.parameters());
    vec![
        ("CreateVolume", soon(controller.create_volume(new)).await.err()),
        ("CreateVolume of a volume", soon(controller.create_volume(clone)).await.err()),
        ("CreateSnapshot", soon(controller.create_snapshot(snapshot("other", id, &[]))).await.err()),
        ("ListVolumes", soon(controller.list_volumes(ListVolumesRequest::default())).await.err()),
        ("ListSnapshots", soon(controller.list_snapshots(ListSnapshotsRequest::default())).await.err()),
        ("ControllerGetVolume", soon(controller.controller_get_volume(get)).await.err()),
        ("ControllerExpandVolume", soon(controller.controller_expand_volume(expand(id, 20 * MIB, 0))).await.err()),
        ("GetCapacity", soon(controller.get_capacity(capacity)).await.err()),
        ("ValidateVolumeCapabilities", soon(controller.validate_volume_capabilities(validate)).await.err()),
        ("DeleteSnapshot", soon(controller.delete_snapshot(delete_snapshot(snapshot_id))).await.err()),
        ("DeleteVolume", soon(controller.delete_volume(delete(id))).await.err()),
    ]
}

/// Tries until the server's return is noticed.
async fn created_again(controller: &Controller, request: &CreateVolumeRequest) -> Volume {
    let end = Instant::now() + LONGEST;
    loop {
        match soon(controller.clone().create_volume(request.clone())).await {
            Ok(made) => return made.into_inner().volume.unwrap(),
            Err(status) => {
                assert!(matches!(status.code(), Code::Unavailable | Code::Aborted), "{status}");
                assert!(Instant::now() < end, "{status}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn names(server: Server, path: &str) -> Vec<String> {
    let Ok(entries) = server.on_disk(path).read_dir() else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Nothing is left on the server of what was made and deleted.
async fn no_litter(server: Server) {
    wait_until("the trash to be emptied", LONGEST, || names(server, ".nfs-csi/trash").is_empty().then_some(())).await;
    for folder in [".nfs-csi/staging", ".nfs-csi/volumes", ".nfs-csi/snapshots"] {
        // A record whose answer was lost on its way is swept after some minutes.
        let left = names(server, folder).into_iter().filter(|name| !name.starts_with("r2."));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new(), "{folder}");
    }
    let left = names(server, "").into_iter().filter(|name| name.starts_with("pvc-"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
}

fn metric(address: SocketAddr, name: &str) -> Option<u64> {
    let (_, text) = get(address, "/metrics")?;
    let name = format!("{name}{{server=\"{}\"}} ", MORTAL.address);
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

#[tokio::test]
async fn every_call_on_a_held_export_of_a_dead_server_is_refused_with_the_reason_and_works_when_it_is_back() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start_as("controller", folder.path(), &[&format!("--metrics-address={address}")]);
    let mut controller = driver.controller().await;
    let volume = made(&driver, create("pvc-held", &MORTAL.parameters())).await;
    let taken = controller.create_snapshot(snapshot("held", &volume.volume_id, &[])).await.unwrap();
    let taken = taken.into_inner().snapshot.unwrap().snapshot_id;
    let dead = MORTAL.die();
    for _ in 0..2 {
        for (method, refused) in all_calls(&controller, &volume, &taken).await {
            assert_refused(method, &refused.unwrap_or_else(|| panic!("{method} is not refused")));
        }
    }
    let elsewhere = soon(made(&driver, create("pvc-elsewhere", &OTHER.parameters()))).await;
    soon(controller.delete_volume(delete(&elsewhere.volume_id))).await.unwrap();
    assert_eq!(metric(address, "nfs_csi_server_refused"), Some(1));
    // It is given up: nothing waits for it any more.
    let mounted = || nfs_mounts_below(folder.path()).len();
    wait_until("the dead server's exports to be unmounted", LONGEST, || (mounted() <= 2).then_some(())).await;
    wait_until("all work on them to end", LONGEST, || {
        (metric(address, "nfs_csi_export_calls") == Some(0)).then_some(())
    })
    .await;
    drop(dead);
    created_again(&controller, &create("pvc-held", &MORTAL.parameters())).await;
    for (method, refused) in all_calls(&controller, &volume, &taken).await {
        assert!(refused.is_none(), "{method}: {refused:?}");
    }
    for name in ["pvc-new", "pvc-clone"] {
        let again = created_again(&controller, &create_or_clone(name, &volume)).await;
        controller.delete_volume(delete(&again.volume_id)).await.unwrap();
    }
    let other = controller.create_snapshot(snapshot("other", &volume.volume_id, &[])).await.unwrap().into_inner();
    controller.delete_snapshot(delete_snapshot(&other.snapshot.unwrap().snapshot_id)).await.unwrap();
    no_litter(MORTAL).await;
}

fn create_or_clone(name: &str, source: &Volume) -> CreateVolumeRequest {
    match name {
        "pvc-clone" => create_from(name, of_volume(&source.volume_id), &MORTAL.parameters()),
        name => create(name, &MORTAL.parameters()),
    }
}

#[tokio::test]
async fn calls_that_are_under_way_when_the_server_dies_are_answered_and_completed_by_their_retries() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start_as("controller", folder.path(), &[&format!("--metrics-address={address}")]);
    let controller = driver.controller().await;
    made(&driver, create("pvc-0", &MORTAL.parameters())).await;
    // More than are let through at once.
    let requests: Vec<_> = (0..40).map(|number| create(&format!("pvc-{number}"), &MORTAL.parameters())).collect();
    let far = MORTAL.move_away(20);
    let calls: Vec<_> = requests
        .iter()
        .map(|request| {
            let (mut controller, request) = (controller.clone(), request.clone());
            tokio::spawn(async move { controller.create_volume(request).await })
        })
        .collect();
    wait_until("some to be made", LONGEST, || (names(MORTAL, "").len() > 6).then_some(())).await;
    let dead = MORTAL.die();
    let hanging = wait_until("those that hang to be counted", LONGEST, || {
        metric(address, "nfs_csi_export_calls_hanging").filter(|count| *count > 0)
    })
    .await;
    // 16 calls, and what looks through the export in the background.
    assert!(hanging <= 32, "{hanging} hang");
    let mut refused = 0;
    for call in calls {
        if let Err(status) = soon(call).await.unwrap() {
            assert_refused("CreateVolume", &status);
            refused += 1;
        }
    }
    assert!(refused > 16, "{refused} of 40 calls were refused");
    wait_until("what hangs to be ended", LONGEST, || {
        (metric(address, "nfs_csi_export_calls_hanging") == Some(0)).then_some(())
    })
    .await;
    wait_until("all threads to end", LONGEST, || (driver.waiting_threads() == 0).then_some(())).await;
    drop(dead);
    drop(far);
    for request in &requests {
        let volume = created_again(&controller, request).await;
        assert!(MORTAL.on_disk(&request.name).is_dir());
        soon(controller.clone().delete_volume(delete(&volume.volume_id))).await.unwrap();
    }
    no_litter(MORTAL).await;
}

/// Fills a volume with files that take long to copy from far away.
fn fill(volume: &str) {
    for directory in 0..20 {
        let directory = MORTAL.on_disk(&format!("{volume}/{directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..50 {
            std::fs::write(directory.join(file.to_string()), vec![1; 4096]).unwrap();
        }
    }
}

/// How many files are in such trees below a folder, however far down.
fn files_below(folder: &Path) -> usize {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn a_clone_whose_server_dies_or_whose_source_s_does_ends_and_is_completed_by_its_retry() {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &MORTAL.parameters())).await;
    fill("pvc-source");
    for (round, target) in [MORTAL, OTHER].into_iter().enumerate() {
        let request = create_from("pvc-clone", of_volume(&source.volume_id), &target.parameters());
        let far = MORTAL.move_away(20);
        let call = tokio::spawn({
            let (mut controller, request) = (controller.clone(), request.clone());
            async move { controller.create_volume(request).await }
        });
        let files = || files_below(&target.on_disk(".nfs-csi/staging"));
        wait_until("some files to be copied", LONGEST, || (files() > 60).then_some(())).await;
        let dead = MORTAL.die();
        assert_refused("CreateVolume", &soon(call).await.unwrap().unwrap_err());
        // Nothing waits for it, and nothing is lost.
        let given_up = || driver.log().matches("export given up").count();
        wait_until("the dead export to be given up", LONGEST, || (given_up() > round).then_some(())).await;
        wait_until("the clone's threads to end", LONGEST, || (driver.waiting_threads() == 0).then_some(())).await;
        assert!(files() > 60 && !target.on_disk("pvc-clone").exists());
        drop(dead);
        drop(far);
        let clone = created_again(&controller, &request).await;
        for directory in 0..20 {
            assert_eq!(names(target, &format!("pvc-clone/{directory}")).len(), 50);
        }
        soon(controller.delete_volume(delete(&clone.volume_id))).await.unwrap();
    }
    soon(controller.delete_volume(delete(&source.volume_id))).await.unwrap();
    for server in [MORTAL, OTHER] {
        no_litter(server).await;
    }
}

#[tokio::test]
async fn a_removal_whose_server_dies_ends_and_is_completed_when_it_is_back() {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let mut controller = driver.controller().await;
    let volume = made(&driver, create("pvc-full", &MORTAL.parameters())).await;
    fill("pvc-full");
    let far = MORTAL.move_away(20);
    soon(controller.delete_volume(delete(&volume.volume_id))).await.unwrap();
    let left = || files_below(&MORTAL.on_disk(".nfs-csi/trash"));
    let before = wait_until("some files to be removed", LONGEST, || Some(left()).filter(|left| *left < 950)).await;
    let dead = MORTAL.die();
    // Each of the files would hang, one after the other.
    assert!(before > 100, "{before} are left");
    wait_until("the dead export to be given up", LONGEST, || driver.log().contains("export given up").then_some(()))
        .await;
    wait_until("the removal's threads to end", LONGEST, || (driver.waiting_threads() == 0).then_some(())).await;
    assert!(left() > 0);
    drop(dead);
    drop(far);
    no_litter(MORTAL).await;
}

#[tokio::test]
async fn sigterm_ends_a_controller_whose_calls_hang_and_leaves_no_mount() {
    for is_noticed in [false, true] {
        let folder = folder();
        let driver = Driver::start_as("controller", folder.path(), &[]);
        let controller = driver.controller().await;
        let first = made(&driver, create("pvc-first", &MORTAL.parameters())).await;
        let dead = MORTAL.die();
        let call = || {
            let mut controller = controller.clone();
            tokio::spawn(async move { controller.create_volume(create("pvc-second", &MORTAL.parameters())).await })
        };
        let calls = [call(), call()];
        if is_noticed {
            for call in calls {
                assert_refused("CreateVolume", &soon(call).await.unwrap().unwrap_err());
            }
        } else {
            wait_until("a call to hang", LONGEST, || (driver.waiting_threads() > 0).then_some(())).await;
        }
        assert!(soon(driver.stop()).await.success());
        assert_eq!(nfs_mounts_below(folder.path()), Vec::<PathBuf>::new());
        drop(dead);
        // What it left is completed by the next one.
        let driver = Driver::start_as("controller", folder.path(), &[]);
        let mut controller = driver.controller().await;
        let second = created_again(&controller, &create("pvc-second", &MORTAL.parameters())).await;
        for volume in [first, second] {
            soon(controller.delete_volume(delete(&volume.volume_id))).await.unwrap();
        }
        no_litter(MORTAL).await;
    }
}

#[tokio::test]
async fn a_stopped_server_is_named_and_its_exports_are_mounted_again_when_it_is_back() {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let mut controller = driver.controller().await;
    let request = create("pvc-held", &MORTAL.parameters());
    made(&driver, request.clone()).await;
    MORTAL.run("rpc.nfsd 0");
    let refused = soon(controller.create_volume(request.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains(MORTAL.address) && refused.message().contains("refused"), "{refused}");
    wait_until("its export to be given up", LONGEST, || driver.log().contains("export given up").then_some(())).await;
    MORTAL.run("rpc.nfsd -N 3 4");
    let volume = created_again(&controller, &request).await;
    soon(controller.delete_volume(delete(&volume.volume_id))).await.unwrap();
    no_litter(MORTAL).await;
}

#[tokio::test]
async fn a_server_that_is_only_slow_is_waited_for() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start_as("controller", folder.path(), &[&format!("--metrics-address={address}")]);
    let held = made(&driver, create("pvc-held", &MORTAL.parameters())).await;
    let far = MORTAL.move_away(300);
    // Some ten round trips.
    let slow = made(&driver, create("pvc-slow", &MORTAL.parameters())).await;
    assert_eq!(metric(address, "nfs_csi_export_calls_hanging"), Some(0));
    drop(far);
    for volume in [held, slow] {
        driver.controller().await.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
    no_litter(MORTAL).await;
    assert!(!driver.log().contains("server does not answer"), "{}", driver.log());
}
