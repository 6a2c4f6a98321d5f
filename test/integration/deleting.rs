//! DeleteVolume: what goes, what stays, and what is never touched.

use nfs_csi::volume::record_key::RecordKey;
use std::os::unix::fs::symlink;
use std::time::Duration;

use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{create, delete};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, wait_for};
use crate::trees::descend;

fn trash_is_empty() {
    wait_for("the trash to be emptied", Duration::from_secs(30), || names(".nfs-csi/trash").is_empty().then_some(()));
}

#[tokio::test]
async fn a_deleted_volume_is_gone_with_all_in_it_and_so_is_its_record() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let records = names(".nfs-csi/volumes").len();
    let id = controller.create_volume(create("pvc-full", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    assert_eq!(names(".nfs-csi/volumes").len(), records + 1);
    std::fs::create_dir_all(on_server("pvc-full/a/b/c")).unwrap();
    std::fs::write(on_server("pvc-full/a/b/file"), "data").unwrap();
    std::fs::create_dir(on_server("outside")).unwrap();
    std::fs::write(on_server("outside/kept"), "kept").unwrap();
    symlink("../../outside", on_server("pvc-full/a/relative")).unwrap();
    symlink(on_server("outside"), on_server("pvc-full/absolute")).unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
    assert!(!on_server("pvc-full").exists());
    assert_eq!(names(".nfs-csi/volumes").len(), records);
    trash_is_empty();
    assert_eq!(std::fs::read_to_string(on_server("outside/kept")).unwrap(), "kept");
    std::fs::remove_dir_all(on_server("outside")).unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
}

#[tokio::test]
async fn a_retained_volume_keeps_its_directory() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let request = create("pvc-retain", &[("onDelete", "retain")]);
    let id = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id;
    assert_eq!(id, "127.0.0.1#run/export#pvc-retain##retain");
    std::fs::write(on_server("pvc-retain/file"), "kept").unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
    assert_eq!(std::fs::read_to_string(on_server("pvc-retain/file")).unwrap(), "kept");
    controller.delete_volume(delete(&id)).await.unwrap();
    std::fs::remove_dir_all(on_server("pvc-retain")).unwrap();
}

#[tokio::test]
async fn archives_of_one_name_are_kept_side_by_side() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--default-ondelete-policy=archive"]);
    let mut controller = driver.controller().await;
    for content in ["first", "second", "third"] {
        let request = create("pvc-archive", &[("subDir", "team/data")]);
        let id = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id;
        assert_eq!(id, "127.0.0.1#run/export#team/data#pvc-archive#archive");
        std::fs::write(on_server("team/data/file"), content).unwrap();
        controller.delete_volume(delete(&id)).await.unwrap();
        assert!(!on_server("team/data").exists());
        controller.delete_volume(delete(&id)).await.unwrap();
    }
    let archived: Vec<String> = names("archived-team")
        .iter()
        .map(|name| std::fs::read_to_string(on_server(&format!("archived-team/{name}/file"))).unwrap())
        .collect();
    assert_eq!(archived, ["first", "second", "third"], "{:?}", names("archived-team"));
    assert_eq!(names("archived-team")[0], "data");
    std::fs::remove_dir_all(on_server("archived-team")).unwrap();
    assert!(!on_server("team").exists(), "what the driver made on the way goes with the last volume in it");
}

#[tokio::test]
async fn data_that_several_volumes_name_goes_with_the_last_of_them() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let mut ids = Vec::new();
    for name in ["pvc-one", "pvc-two", "pvc-three"] {
        let request = create(name, &[("subDir", "common/place")]);
        ids.push(controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id);
    }
    std::fs::write(on_server("common/place/file"), "kept").unwrap();
    for id in &ids[..2] {
        controller.delete_volume(delete(id)).await.unwrap();
        controller.delete_volume(delete(id)).await.unwrap();
        assert_eq!(std::fs::read_to_string(on_server("common/place/file")).unwrap(), "kept");
    }
    controller.delete_volume(delete(&ids[2])).await.unwrap();
    assert!(!on_server("common/place").exists());
    assert_eq!(names(".nfs-csi/subdirs"), Vec::<String>::new());
    assert!(!on_server("common").exists(), "what the driver made on the way goes with the last volume in it");
}

#[tokio::test]
async fn a_directory_that_is_another_volume_s_own_stays_with_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let own = controller.create_volume(create("pvc-own", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    let guest = create("pvc-guest", &[("subDir", "pvc-own")]);
    let guest = controller.create_volume(guest).await.unwrap().into_inner().volume.unwrap().volume_id;
    controller.delete_volume(delete(&guest)).await.unwrap();
    assert!(on_server("pvc-own").exists());
    let guest = create("pvc-guest", &[("subDir", "pvc-own")]);
    let guest = controller.create_volume(guest).await.unwrap().into_inner().volume.unwrap().volume_id;
    controller.delete_volume(delete(&own)).await.unwrap();
    assert!(on_server("pvc-own").exists());
    controller.delete_volume(delete(&guest)).await.unwrap();
    assert!(!on_server("pvc-own").exists());
}

#[tokio::test]
async fn a_volume_with_another_inside_is_not_deleted_before_that_one() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let outer = create("pvc-outer", &[("subDir", "outer")]);
    let outer = controller.create_volume(outer).await.unwrap().into_inner().volume.unwrap().volume_id;
    let inner = create("pvc-inner", &[("subDir", "outer/inner")]);
    let inner = controller.create_volume(inner).await.unwrap().into_inner().volume.unwrap().volume_id;
    let refused = controller.delete_volume(delete(&outer)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(on_server("outer/inner").exists());
    controller.delete_volume(delete(&inner)).await.unwrap();
    controller.delete_volume(delete(&outer)).await.unwrap();
    assert!(!on_server("outer").exists());
}

#[tokio::test]
async fn what_was_deleted_before_a_restart_is_freed_after_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let id = controller.create_volume(create("pvc-left", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    driver.kill().await;
    // As if the driver had been killed between the rename and the removal.
    std::fs::create_dir_all(on_server("pvc-left/deep/deeper")).unwrap();
    let name = format!(".nfs-csi/trash/v.{}.17a0000000000000.0", RecordKey::of("pvc-left"));
    std::fs::rename(on_server("pvc-left"), on_server(&name)).unwrap();
    let driver = Driver::start(folder.path(), &[]);
    driver.controller().await.delete_volume(delete(&id)).await.unwrap();
    trash_is_empty();
}

#[tokio::test]
async fn a_tree_deeper_than_a_path_may_be_long_is_freed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let id = controller.create_volume(create("pvc-deep", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    descend(&on_server("pvc-deep"), "a-directory-with-a-long-name", 400, true);
    controller.delete_volume(delete(&id)).await.unwrap();
    trash_is_empty();
}

#[tokio::test]
async fn ids_of_nobody_are_deleted_already() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    for id in ["reallyfakevolumeid", "some/path", "my-static-pv", "127.0.0.1#run/export#pvc-nobody##"] {
        controller.delete_volume(delete(id)).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_there_before_its_volume_stays_unless_the_class_says_otherwise() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let file = on_server("projects/file");
    for (more, stays) in [(None, true), (Some(("onDelete", "delete")), false)] {
        std::fs::create_dir_all(on_server("projects")).unwrap();
        std::fs::write(&file, "ten years of work").unwrap();
        let class: Vec<_> = [("subDir", "projects")].into_iter().chain(more).collect();
        // The second one names what the first one found.
        let mut ids = Vec::new();
        for name in ["pvc-one", "pvc-two"] {
            let created = controller.create_volume(create(name, &class)).await.unwrap().into_inner();
            ids.push(created.volume.unwrap().volume_id);
        }
        // Provisioners repeat a delete, and then there is no record any more.
        for id in ids.iter().chain(&ids) {
            controller.delete_volume(delete(id)).await.unwrap();
        }
        assert_eq!(file.exists(), stays);
        assert_eq!(names(".nfs-csi/subdirs"), Vec::<String>::new());
    }
    trash_is_empty();
}

#[tokio::test]
async fn a_volume_whose_directory_was_replaced_and_that_is_created_again_goes_with_what_is_in_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let class = [("subDir", "replaced")];
    controller.create_volume(create("pvc-replaced", &class)).await.unwrap();
    // As from a backup: another directory, with data.
    std::fs::rename(on_server("replaced"), on_server("replaced-before")).unwrap();
    std::fs::create_dir(on_server("replaced")).unwrap();
    std::fs::write(on_server("replaced/file"), "ten years of work").unwrap();
    let created = controller.create_volume(create("pvc-replaced", &class)).await.unwrap().into_inner();
    controller.delete_volume(delete(&created.volume.unwrap().volume_id)).await.unwrap();
    assert!(!on_server("replaced").exists());
    std::fs::remove_dir(on_server("replaced-before")).unwrap();
    trash_is_empty();
}
