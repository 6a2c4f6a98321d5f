//! Volumes with the data of another volume.

use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{CapacityRange, CreateVolumeRequest, Volume};
use tonic::{Code, Request};

use crate::kit::driver::Driver;
use crate::kit::mortal::OTHER;
use crate::kit::requests::{MIB, capability, create, create_from, delete, of_volume};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_for};
use crate::trees::{assert_same, assert_same_but, entries, fill};

pub async fn made(driver: &Driver, request: CreateVolumeRequest) -> Volume {
    driver.controller().await.create_volume(request).await.unwrap().into_inner().volume.unwrap()
}

pub async fn removed(driver: &Driver, volume: &Volume) {
    driver.controller().await.delete_volume(delete(&volume.volume_id)).await.unwrap();
}

/// Nothing is left of what was being made, and nothing of what was deleted.
pub fn no_litter() {
    assert_eq!(names(".nfs-csi/staging"), Vec::<String>::new());
    // Hundreds of thousands of names are freed in minutes where others are at work on this machine.
    let is_empty = || names(".nfs-csi/trash").is_empty().then_some(());
    wait_for("the trash to be emptied", Duration::from_mins(10), is_empty);
    let hidden = |folder: &str| names(folder).into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>();
    assert_eq!(hidden(".nfs-csi/volumes"), Vec::<String>::new());
}

#[tokio::test]
async fn a_clone_has_every_attribute_of_its_source_and_leaves_it_as_it_was() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"));
    let before = entries(&on_server("pvc-source"));
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &[]);
    let clone = made(&driver, request.clone()).await;
    assert_eq!(clone.content_source, request.volume_content_source);
    assert_same(&before, &on_server("pvc-source"), &on_server("pvc-clone"));
    assert_eq!(made(&driver, request).await, clone);
    // What is written to one is not in the other.
    std::fs::write(on_server("pvc-clone/plain"), "changed").unwrap();
    assert_eq!(std::fs::read_to_string(on_server("pvc-source/plain")).unwrap(), "plain");
    removed(&driver, &source).await;
    assert_eq!(std::fs::read_to_string(on_server("pvc-clone/plain")).unwrap(), "changed");
    removed(&driver, &clone).await;
    no_litter();
}

#[tokio::test]
async fn a_clone_on_another_export_without_reflinks_is_the_same() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    fill(&on_server("pvc-source"));
    let before = entries(&on_server("pvc-source"));
    let other = on_server("../exports/other");
    let request = create_from("pvc-other", of_volume(&source.volume_id), &[("share", "/run/exports/other")]);
    let clone = made(&driver, request).await;
    assert_same(&before, &on_server("pvc-source"), &other.join("pvc-other"));
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_clone_through_an_older_version_of_nfs_lacks_only_users_extended_attributes() {
    let folder = folder();
    for options in [&["nfsvers=4.1"][..], &["nfsvers=3", "nolock"]] {
        let driver = Driver::start(folder.path(), &[]);
        let request = CreateVolumeRequest {
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, options)],
            ..create("pvc-source", &[])
        };
        let source = made(&driver, request.clone()).await;
        fill(&on_server("pvc-source"));
        let before = entries(&on_server("pvc-source"));
        let clone = create_from("pvc-clone", of_volume(&source.volume_id), &[]);
        let clone =
            made(&driver, CreateVolumeRequest { volume_capabilities: request.volume_capabilities, ..clone }).await;
        assert_same_but(&before, &on_server("pvc-source"), &on_server("pvc-clone"), |entry| {
            entry.xattrs.retain(|name, _| !name.starts_with(b"user."));
        });
        removed(&driver, &clone).await;
        removed(&driver, &source).await;
        no_litter();
    }
}

#[tokio::test]
async fn a_class_s_owner_and_permissions_are_those_of_the_clone_s_directory() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[("mode", "0700")])).await;
    std::fs::write(on_server("pvc-source/file"), "data").unwrap();
    let more = [("mode", "2770"), ("uid", "1000"), ("gid", "2000")];
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &more)).await;
    let stat = std::fs::metadata(on_server("pvc-clone")).unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o2770, 1000, 2000));
    let stat = std::fs::metadata(on_server("pvc-clone/file")).unwrap();
    assert_eq!((stat.uid(), stat.gid()), (0, 0));
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
}

#[tokio::test]
async fn a_clone_is_as_large_as_its_source_or_larger_and_its_source_must_be_there() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &[])).await;
    let sized = |name: &str, required_bytes, limit_bytes| CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
        ..create_from(name, of_volume(&source.volume_id), &[])
    };
    for (required, limit) in [(5 * MIB, 0), (0, 5 * MIB), (1, 20 * MIB)] {
        let refused = controller.create_volume(sized("pvc-small", required, limit)).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        assert!(refused.message().contains("10485760"), "{refused}");
    }
    let same = made(&driver, sized("pvc-same", 0, 0)).await;
    let larger = made(&driver, sized("pvc-larger", 20 * MIB, 20 * MIB)).await;
    assert_eq!((same.capacity_bytes, larger.capacity_bytes), (10 * MIB, 20 * MIB));
    for id in ["127.0.0.1#run/export#pvc-never##", "somebody/elses", "some-id"] {
        let refused = controller.create_volume(create_from("pvc-x", of_volume(id), &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    // The same name with another source, or without one, is another volume.
    for request in [create("pvc-same", &[]), create_from("pvc-same", of_volume(&larger.volume_id), &[])] {
        let refused = controller.create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    }
    for volume in [&source, &same, &larger] {
        removed(&driver, volume).await;
    }
    no_litter();
}

#[tokio::test]
async fn a_directory_that_holds_files_is_never_mixed_with_a_clone() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    std::fs::write(on_server("pvc-source/file"), "new").unwrap();
    std::fs::create_dir_all(on_server("taken")).unwrap();
    std::fs::write(on_server("taken/file"), "old").unwrap();
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &[("subDir", "taken")]);
    let refused = driver.controller().await.create_volume(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("taken"), "{refused}");
    assert_eq!(std::fs::read_to_string(on_server("taken/file")).unwrap(), "old");
    assert_eq!(names(".nfs-csi/subdirs"), Vec::<String>::new());
    // An empty one is taken.
    std::fs::remove_file(on_server("taken/file")).unwrap();
    let clone = made(&driver, request).await;
    assert_eq!(std::fs::read_to_string(on_server("taken/file")).unwrap(), "new");
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

#[tokio::test]
async fn a_tenant_s_links_are_copied_and_never_followed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, create("pvc-source", &[])).await;
    std::fs::create_dir_all(on_server("neighbour")).unwrap();
    std::fs::write(on_server("neighbour/secret"), "secret").unwrap();
    symlink("../neighbour", on_server("pvc-source/relative")).unwrap();
    symlink(on_server("neighbour"), on_server("pvc-source/absolute")).unwrap();
    let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
    for name in ["relative", "absolute"] {
        assert!(std::fs::symlink_metadata(on_server(&format!("pvc-clone/{name}"))).unwrap().is_symlink());
    }
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
    assert_eq!(std::fs::read_to_string(on_server("neighbour/secret")).unwrap(), "secret");
    std::fs::remove_dir_all(on_server("neighbour")).unwrap();
}

#[tokio::test]
async fn a_clone_goes_on_after_its_call_s_deadline_and_the_retry_gets_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = made(&driver, create("pvc-source", &OTHER.parameters())).await;
    for directory in 0..20 {
        std::fs::create_dir(OTHER.on_disk(&format!("pvc-source/{directory}"))).unwrap();
        for file in 0..50 {
            std::fs::write(OTHER.on_disk(&format!("pvc-source/{directory}/{file}")), [0; 4096]).unwrap();
        }
    }
    let _far = OTHER.move_away(5);
    let request = create_from("pvc-clone", of_volume(&source.volume_id), &OTHER.parameters());
    let mut hasty = Request::new(request.clone());
    hasty.set_timeout(Duration::from_secs(1));
    let late = controller.create_volume(hasty).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert!(late.message().contains("files") && late.message().contains("MiB"), "{late}");
    assert!(!OTHER.on_disk("pvc-clone").exists());
    // Meanwhile nobody deletes the source, or makes something else under the name.
    let refused = controller.delete_volume(delete(&source.volume_id)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let refused = controller.create_volume(create("pvc-clone", &OTHER.parameters())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let clone = made(&driver, request).await;
    assert_eq!(std::fs::read_dir(OTHER.on_disk("pvc-clone")).unwrap().count(), 20);
    assert_eq!(std::fs::read_dir(OTHER.on_disk("pvc-clone/19")).unwrap().count(), 50);
    let made = driver.log().lines().filter(|line| line.contains("CreateVolume") && line.contains("\"OK\"")).count();
    assert_eq!(made, 2, "{}", driver.log());
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    assert_eq!(std::fs::read_dir(OTHER.on_disk(".nfs-csi/staging")).unwrap().count(), 0);
}
