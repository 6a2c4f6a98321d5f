//! ControllerModifyVolume: what a VolumeAttributesClass changes.

use nfs_csi::proto::ControllerModifyVolumeRequest;
use tonic::Code;

use super::{Controller, SIZE, assert_well, condition, create, made, on_disk, record, shown};
use crate::kit::driver::Driver;
use crate::kit::quota::{Agent, DEADLINE, Export, XFS};
use crate::kit::requests::delete;
use crate::kit::{folder, wait_for};

async fn modify(controller: &mut Controller, id: &str, parameters: &[(&str, &str)]) -> Result<(), tonic::Status> {
    let mutable_parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let request = ControllerModifyVolumeRequest {
        volume_id: id.into(),
        mutable_parameters,
        ..ControllerModifyVolumeRequest::default()
    };
    controller.controller_modify_volume(request).await.map(drop)
}

#[tokio::test]
async fn what_deleting_does_is_changed_and_the_record_counts_and_not_the_id() {
    let export = Export::on(XFS);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let plain = [("quota", "none")];
    for (was, now) in [("retain", "delete"), ("delete", "retain"), ("archive", "delete")] {
        let volume = made(&mut controller, create(&export, "pvc-1", SIZE, &[plain[0], ("onDelete", was)])).await;
        let directory = on_disk(&export, &volume);
        for _ in 0..2 {
            modify(&mut controller, &volume.volume_id, &[("onDelete", now)]).await.unwrap();
        }
        assert!(!condition(&mut controller, &volume).await.abnormal);
        // Provisioners repeat it.
        for _ in 0..2 {
            controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
            assert_eq!(directory.exists(), now == "retain", "{was} {now}");
        }
        let _ = std::fs::remove_dir(&directory);
    }
    // One without a record gets one.
    std::fs::create_dir(export.on_disk("pvc-old")).unwrap();
    let share = export.path().to_str().unwrap().trim_start_matches('/');
    let id = format!("127.0.0.1#{share}#pvc-old##");
    modify(&mut controller, &id, &[("onDelete", "archive"), ("trashRetention", "72h")]).await.unwrap();
    assert_eq!(record(&export, "pvc-old").trash_retention, Some(72 * 3600));
    controller.delete_volume(delete(&id)).await.unwrap();
    assert!(export.on_disk("archived-pvc-old").is_dir());
    // One that is not there, and what cannot be changed.
    let error = modify(&mut controller, &format!("127.0.0.1#{share}#pvc-none##"), &[("onDelete", "retain")]).await;
    assert_eq!(error.unwrap_err().code(), Code::NotFound);
    let volume = made(&mut controller, create(&export, "pvc-2", SIZE, &plain)).await;
    for (parameters, code) in [
        (&[("server", "nas")][..], Code::InvalidArgument),
        (&[("onDelete", "burn")], Code::InvalidArgument),
        (&[("quota", "required")], Code::FailedPrecondition),
    ] {
        let error = modify(&mut controller, &volume.volume_id, parameters).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    modify(&mut controller, &volume.volume_id, &[]).await.unwrap();
    assert_well(&export);
}

#[tokio::test]
async fn a_limit_is_lifted_and_set_again_and_its_files_are_counted() {
    let export = Export::on(XFS);
    let agent = Agent::start(&export, &[]);
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let mut request = create(&export, "pvc-1", SIZE, &[]);
    // What the claim's own class says goes before the StorageClass.
    request.mutable_parameters = [("inodesPerGiB".into(), "4096".into()), ("onDelete".into(), "retain".into())].into();
    let volume = made(&mut controller, request).await;
    let project = record(&export, "pvc-1").project().unwrap();
    assert_eq!(export.kernel(project).limit.inodes, 64);
    assert!(volume.volume_id.ends_with("#retain"), "{}", volume.volume_id);
    modify(&mut controller, &volume.volume_id, &[("inodesPerGiB", "8192")]).await.unwrap();
    assert_eq!(export.kernel(project).limit.inodes, 128);
    modify(&mut controller, &volume.volume_id, &[("quota", "none")]).await.unwrap();
    assert!(shown(&on_disk(&export, &volume)) > 64 * SIZE);
    assert!(!condition(&mut controller, &volume).await.abnormal);
    modify(&mut controller, &volume.volume_id, &[("quota", "required")]).await.unwrap();
    assert_eq!(shown(&on_disk(&export, &volume)), SIZE);
    assert_eq!(export.kernel(project).limit.inodes, 128);
    agent.kill();
    let error = modify(&mut controller, &volume.volume_id, &[("inodesPerGiB", "4096")]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let _agent = Agent::start(&export, &[]);
    modify(&mut controller, &volume.volume_id, &[("inodesPerGiB", "4096"), ("onDelete", "delete")]).await.unwrap();
    assert_well(&export);
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    wait_for("the project to be free", DEADLINE, || export.kernel(project).is_unused().then_some(()));
}
