//! Exports on which the driver's own folder cannot be made, or not be read: what others made there is found all the
//! same.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_content_source::Type;
use nfs_csi::proto::{
    ControllerGetVolumeRequest, ListSnapshotsRequest, ListVolumesRequest, ValidateVolumeCapabilitiesRequest,
};
use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{capability, create_from, delete, of_snapshot, of_volume};
use crate::kit::server::SHARE;
use crate::kit::{folder, records};
use crate::listing::{Controller, pages, snapshots};

/// The volume `pvc-1` and the snapshot `snap` of it that another driver made, on a share's disk.
fn others(disk: &Path) -> Vec<PathBuf> {
    let [volume, archives] = ["pvc-1", "snap"].map(|name| disk.join(name));
    for folder in [&volume, &archives] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    std::fs::write(volume.join("file"), "kept").unwrap();
    let mut tar = std::process::Command::new("tar");
    let packed = tar.arg("-czf").arg(archives.join("pvc-1.tar.gz")).arg("-C").arg(&volume).arg(".").status();
    assert!(packed.unwrap().success());
    vec![volume, archives]
}

/// What another driver made there is found, and is a source.
async fn is_readable(controller: &mut Controller, share: &str) {
    let id = format!("127.0.0.1#{share}#pvc-1##");
    let get = ControllerGetVolumeRequest { volume_id: id.clone() };
    let found = controller.controller_get_volume(get).await.unwrap().into_inner();
    assert!(!found.status.unwrap().volume_condition.unwrap().abnormal);
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![capability(Mode::MultiNodeReaderOnly, &[])],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    assert!(controller.validate_volume_capabilities(request).await.unwrap().into_inner().confirmed.is_some());
    let snapshot = format!("127.0.0.1#{share}#snap#snap#pvc-1");
    let request = ListSnapshotsRequest { snapshot_id: snapshot.clone(), ..ListSnapshotsRequest::default() };
    assert_eq!(controller.list_snapshots(request).await.unwrap().into_inner().entries.len(), 1);
    is_source(controller, of_snapshot(&snapshot)).await;
}

async fn is_source(controller: &mut Controller, source: Type) {
    let made = controller.create_volume(create_from("pvc-made", source, &[])).await.unwrap().into_inner();
    assert_eq!(std::fs::read_to_string(Path::new(SHARE).join("pvc-made/file")).unwrap(), "kept");
    controller.delete_volume(delete(&made.volume.unwrap().volume_id)).await.unwrap();
}

#[tokio::test]
async fn volumes_are_read_where_the_driver_can_make_no_folder() {
    for export in ["readonly", "squash"] {
        let disk = Path::new("/run/exports").join(export);
        let share = format!("run/exports/{export}");
        let made = others(&disk);
        let folder = folder();
        let driver = Driver::start(folder.path(), &[&format!("--export=127.0.0.1:/{share}")]);
        let mut controller = driver.controller().await;
        assert!(pages(&mut controller, 0, String::new()).await.concat().is_empty());
        assert!(snapshots(&mut controller, 0).await.is_empty());
        is_readable(&mut controller, &share).await;
        is_source(&mut controller, of_volume(&format!("127.0.0.1#{share}#pvc-1##"))).await;
        let never = ControllerGetVolumeRequest { volume_id: format!("127.0.0.1#{share}#never##") };
        assert_eq!(controller.controller_get_volume(never).await.unwrap_err().code(), Code::NotFound);
        assert!(!disk.join(".nfs-csi").exists());
        for path in made {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}

#[tokio::test]
async fn a_folder_that_may_not_be_read_hides_no_record() {
    let disk = Path::new("/run/exports/squash");
    let mut made = others(disk);
    records::folders(disk);
    made.push(disk.join(".nfs-csi"));
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--export=127.0.0.1:/run/exports/squash"]);
    let mut controller = driver.controller().await;
    let list = controller.list_volumes(ListVolumesRequest::default()).await;
    assert_eq!(list.unwrap_err().code(), Code::PermissionDenied);
    // What an id says all of is found.
    is_readable(&mut controller, "run/exports/squash").await;
    // What only a record says is not known to be gone.
    let id = format!("127.0.0.1#run/exports/squash#.nfs-csi/{}##", RecordKey::of("pvc-1"));
    let get = ControllerGetVolumeRequest { volume_id: id.clone() };
    assert_eq!(controller.controller_get_volume(get).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(controller.delete_volume(delete(&id)).await.unwrap_err().code(), Code::PermissionDenied);
    for path in made {
        std::fs::remove_dir_all(path).unwrap();
    }
}
