//! A volume with a limit from its creation to its end; with an agent, and without one.

use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{GetCapacityRequest, ListVolumesRequest};
use tonic::Code;

use super::{SIZE, assert_well, class, condition, create, fits, made, on_disk, on_export, record, shown};
use crate::kit::driver::Driver;
use crate::kit::http::{free_address, get};
use crate::kit::quota::{Agent, DEADLINE, EXT4, Export, XFS, write_as};
use crate::kit::requests::{delete, expand, parameters, publish, stats, unpublish};
use crate::kit::{folder, wait_for};

#[tokio::test]
async fn a_volume_has_its_size_in_every_view_and_takes_no_byte_more() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let more = [("inodesPerGiB", "2048"), ("uid", "1000"), ("mode", "0770"), ("subDir", "team/${pv.metadata.name}")];
    let more = [&more[..], &[("csi.storage.k8s.io/pv/name", "pvc-1")]].concat();
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &more)).await;
    assert_eq!(volume.capacity_bytes.unsigned_abs(), SIZE);
    // The same again.
    assert_eq!(made(&mut controller, create(&export, "pvc-1", SIZE, &more)).await, volume);
    assert_eq!(export.project_of(&on_disk(&export, &volume)), record(&export, "pvc-1").project());

    let mut node = driver.node().await;
    let target = folder.path().join("target");
    node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    assert_eq!(shown(&target), SIZE);
    let usage = node.node_get_volume_stats(stats(&volume, &target)).await.unwrap().into_inner().usage;
    let total = |unit: i32| usage.iter().find(|usage| usage.unit == unit).unwrap().total;
    // Bytes, and inodes.
    assert_eq!((total(1), total(2)), (i64::try_from(SIZE).unwrap(), 32));
    let (fits_user, text) = write_as(1000, &target.join("user"), 8 * 1024);
    assert!(fits_user, "{text}");
    for uid in [1000, 0] {
        let (fits, text) = write_as(uid, &target.join("large"), 9 * 1024);
        assert!(!fits && text.contains("No space left"), "{uid}: {text}");
        let _ = std::fs::remove_file(target.join("large"));
    }
    let found = condition(&mut controller, &volume).await;
    assert!(!found.abnormal && found.message.contains(&format!("of {SIZE} bytes")), "{found:?}");
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let entry = listed.entries.iter().find(|entry| entry.volume.as_ref().unwrap().volume_id == volume.volume_id);
    let found = entry.unwrap().status.clone().unwrap().volume_condition.unwrap();
    assert!(found.message.contains("are used"), "{found:?}");

    // A limit that somebody changed is seen.
    export.set_limit(record(&export, "pvc-1").project().unwrap(), 2 * SIZE);
    let found = condition(&mut controller, &volume).await;
    assert!(found.abnormal && found.message.contains("not in force"), "{found:?}");
    export.set_limit(record(&export, "pvc-1").project().unwrap(), SIZE);

    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert_well(&export);
    let project = record(&export, "pvc-1").project().unwrap();
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    wait_for("the project to be free", DEADLINE, || export.kernel(project).is_unused().then_some(()));
}

#[tokio::test]
async fn a_writer_at_the_limit_goes_on_when_the_claim_is_expanded() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[])).await;
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    assert!(!fits(&target.join("file"), SIZE + 1));
    let size = i64::try_from(2 * SIZE).unwrap();
    for _ in 0..2 {
        let grown = controller.controller_expand_volume(expand(&volume.volume_id, size, 0)).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (size, false));
        assert_eq!(shown(&target), 2 * SIZE);
    }
    assert!(fits(&target.join("file"), SIZE + 1));
    assert_eq!(record(&export, "pvc-1").capacity_bytes, 2 * SIZE);
    let error = controller.controller_expand_volume(expand(&volume.volume_id, 1, 1)).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert_well(&export);
}

#[tokio::test]
async fn without_its_agent_a_volume_is_not_made_and_not_expanded_and_all_goes_on_when_it_is_back() {
    let export = Export::on(XFS);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    // Never there.
    let error = controller.create_volume(create(&export, "pvc-1", SIZE, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let share = export.path().to_str().unwrap();
    for word in [share, "nfs-csi quota", "no quota agent was ever on it"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    let agent = Agent::start(&export, &[]);
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[])).await;
    agent.kill();
    // It has directories ready, and answers nothing.
    let error = controller.create_volume(create(&export, "pvc-2", SIZE, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("quota agent"), "{error}");
    let grown = expand(&volume.volume_id, i64::try_from(2 * SIZE).unwrap(), 0);
    let error = controller.controller_expand_volume(grown.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(record(&export, "pvc-1").capacity_bytes, SIZE);
    // What needs no agent works: its limit holds, and it is deleted.
    assert!(!fits(&on_disk(&export, &volume).join("file"), SIZE + 1));
    let preferred = create(&export, "pvc-3", SIZE, &[("quota", "preferred")]);
    let other = made(&mut controller, preferred).await;
    controller.delete_volume(delete(&other.volume_id)).await.unwrap();
    // In time it is known to be silent.
    let state = export.on_disk(".nfs-csi/quota/agent.json");
    let old = std::time::SystemTime::now() - Duration::from_hours(1);
    std::fs::File::open(&state).unwrap().set_modified(old).unwrap();

    let _agent = Agent::start(&export, &[]);
    let made = wait_until_made(&mut controller, create(&export, "pvc-2", SIZE, &[])).await;
    assert_eq!(shown(&on_disk(&export, &made)), SIZE);
    let grown = controller.controller_expand_volume(grown).await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes.unsigned_abs(), 2 * SIZE);
    assert_well(&export);
}

async fn wait_until_made(
    controller: &mut super::Controller,
    request: nfs_csi::proto::CreateVolumeRequest,
) -> nfs_csi::proto::Volume {
    let end = std::time::Instant::now() + DEADLINE;
    loop {
        match controller.create_volume(request.clone()).await {
            Ok(answer) => return answer.into_inner().volume.unwrap(),
            Err(error) if error.code() == Code::Unavailable && std::time::Instant::now() < end => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_preferred_limit_that_cannot_be_had_is_left_out_and_reported() {
    let export = Export::on(XFS);
    let folder = folder();
    let address = free_address();
    let driver = Driver::start(folder.path(), &[&format!("--metrics-address={address}")]);
    let unenforced = |count: u32| {
        let (_, text) = get(address, "/metrics").unwrap();
        let line = format!("nfs_csi_volumes_unenforced{{export=\"127.0.0.1:{}\"}} {count}", export.path().display());
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    };
    let mut controller = driver.controller().await;
    let request = create(&export, "pvc-1", SIZE, &[("quota", "preferred")]);
    let volume = made(&mut controller, request.clone()).await;
    assert_eq!(made(&mut controller, request).await, volume);
    let found = condition(&mut controller, &volume).await;
    assert!(found.abnormal && found.message.contains("has no limit of its size"), "{found:?}");
    assert!(driver.log().contains("made without a limit"), "{}", driver.log());
    unenforced(1);
    let has = record(&export, "pvc-1");
    assert_eq!((has.format, has.project()), (2, None));
    // With an agent it is as with `required`.
    let _agent = Agent::start(&export, &[]);
    let volume = made(&mut controller, create(&export, "pvc-2", SIZE, &[("quota", "preferred")])).await;
    assert_eq!(shown(&on_disk(&export, &volume)), SIZE);
    assert!(!condition(&mut controller, &volume).await.abnormal);
    // Another mode is another volume.
    let error = controller.create_volume(create(&export, "pvc-2", SIZE, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists, "{error}");
    let share = export.path().to_str().unwrap().trim_start_matches('/');
    controller.delete_volume(delete(&format!("127.0.0.1#{share}#pvc-1##"))).await.unwrap();
    unenforced(0);
}

#[tokio::test]
async fn an_export_whose_limits_do_not_hold_for_root_needs_the_consent_of_the_class() {
    let export = Export::on(EXT4);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let error = controller.create_volume(create(&export, "pvc-1", SIZE, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("ext4") && error.message().contains("rootExempt"), "{error}");
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[("rootExempt", "true")])).await;
    assert_eq!(shown(&on_disk(&export, &volume)), SIZE);
    let (fits, text) = write_as(1000, &export.over_nfs("pvc-1/file"), 1024);
    assert!(!fits, "the directory is root's: {text}");
    std::os::unix::fs::chown(on_disk(&export, &volume), Some(1000), Some(1000)).unwrap();
    let (fits, text) = write_as(1000, &export.over_nfs("pvc-1/file"), 17 * 1024);
    assert!(!fits && text.contains("quota exceeded"), "{text}");
    assert_well(&export);
}

#[tokio::test]
async fn a_directory_that_cannot_have_a_limit_of_its_own_is_refused() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let mut refused = async |name: &str, subdir: &str, reason: &str| {
        let error = controller.create_volume(create(&export, name, SIZE, &[("subDir", subdir)])).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains(reason), "{error}");
    };
    std::fs::create_dir_all(export.on_disk("full/of/files")).unwrap();
    refused("pvc-full", "full", "something is in it already").await;
    let mut other = driver.controller().await;
    made(&mut other, create(&export, "pvc-1", SIZE, &[("subDir", "one")])).await;
    refused("pvc-2", "one", "another volume's too").await;
    refused("pvc-3", "one/inside", "inside of a directory that has a limit").await;
    made(&mut other, create(&export, "pvc-4", SIZE, &[("quota", "none"), ("subDir", "two")])).await;
    refused("pvc-5", "two", "another volume's too").await;
    let error = other.create_volume(create(&export, "pvc-6", 0, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert_well(&export);
    // What was claimed for those that were refused is free again in the end.
    wait_for("the limited directories to go", DEADLINE, || export.unclaimed().is_empty().then_some(()));
}

#[tokio::test]
async fn no_more_is_promised_of_an_export_than_its_class_allows() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let total = shown(export.path());
    let bound = [("overcommit", "1.5")];
    made(&mut controller, create(&export, "pvc-1", total, &bound)).await;
    let error = controller.create_volume(create(&export, "pvc-2", total, &bound)).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("promised"), "{error}");
    assert!(!export.on_disk("pvc-2").exists());
    let capacity = async |parameters| {
        let request = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
        let mut controller = driver.controller().await;
        controller.get_capacity(request).await.unwrap().into_inner().available_capacity.unsigned_abs()
    };
    let left = capacity(parameters(&class(&export, &bound))).await;
    assert!(left <= total / 2 && left > total / 4, "{left} of {total}");
    assert!(capacity(parameters(&class(&export, &[]))).await > total / 2);
    made(&mut controller, create(&export, "pvc-3", total / 4, &bound)).await;
}

#[tokio::test]
async fn a_volume_in_the_trash_keeps_its_limit_and_comes_back_with_it() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let kept = [("trashRetention", "72h")];
    let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &kept)).await;
    std::fs::write(on_disk(&export, &volume).join("file"), "data").unwrap();
    let project = record(&export, "pvc-1").project().unwrap();
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert!(!on_disk(&export, &volume).exists());
    assert_eq!(export.kernel(project).limit.bytes, SIZE);
    let share = format!("127.0.0.1:{}", export.path().display());
    assert!(on_export(&share, &["trash", "restore", "pvc-1"]).status.success());
    assert_eq!(record(&export, "pvc-1").project(), Some(project));
    assert!(!fits(&on_disk(&export, &volume).join("large"), SIZE));
    assert_eq!(made(&mut controller, create(&export, "pvc-1", SIZE, &kept)).await, volume);
    assert_well(&export);
}

#[tokio::test]
async fn a_directory_that_is_not_ready_any_more_costs_another_claim_and_not_the_volume() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    // The driver has listed all that is ready.
    made(&mut controller, create(&export, "pvc-1", SIZE, &[])).await;
    for id in export.ready() {
        std::fs::remove_dir(export.on_disk(&format!(".nfs-csi/quota/ready/{id}"))).unwrap();
    }
    wait_for("other directories to be ready", DEADLINE, || (export.ready().len() >= 4).then_some(()));
    for name in ["pvc-2", "pvc-3"] {
        let volume = made(&mut controller, create(&export, name, SIZE, &[])).await;
        assert_eq!(shown(&on_disk(&export, &volume)), SIZE);
    }
    assert_well(&export);
}
