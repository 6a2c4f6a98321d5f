//! ListVolumes, ControllerGetVolume and GetCapacity.

use std::collections::HashSet;

use nfs_csi::proto::{ControllerGetVolumeRequest, GetCapacityRequest, ListVolumesRequest};
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{create, delete, parameters};
use crate::kit::server::on_server;

const EXPORT: &str = "--export=127.0.0.1:/run/export";

#[tokio::test]
async fn the_list_has_every_volume_once_page_by_page_also_after_a_restart() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let mut made = HashSet::new();
    for number in 0..7 {
        let request =
            create(&format!("pvc-list-{number}"), &[("onDelete", if number % 2 == 0 { "delete" } else { "retain" })]);
        made.insert(controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id);
    }
    driver.kill().await;
    let driver = Driver::start(folder.path(), &[EXPORT]);
    let mut controller = driver.controller().await;
    let mut listed = Vec::new();
    let mut starting_token = String::new();
    loop {
        let page =
            controller.list_volumes(ListVolumesRequest { max_entries: 3, starting_token }).await.unwrap().into_inner();
        assert!(page.entries.len() <= 3);
        for entry in page.entries {
            assert!(!entry.status.unwrap().volume_condition.unwrap().abnormal);
            listed.push(entry.volume.unwrap().volume_id);
        }
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    let listed_once: HashSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed_once.len(), listed.len());
    assert!(made.is_subset(&listed_once), "{listed:?}");
    for id in &made {
        controller.delete_volume(delete(id)).await.unwrap();
    }
    for number in [1, 3, 5] {
        std::fs::remove_dir(on_server(&format!("pvc-list-{number}"))).unwrap();
    }
}

#[tokio::test]
async fn a_token_that_was_never_given_is_aborted() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[EXPORT]);
    let request = ListVolumesRequest { max_entries: 1, starting_token: "invalid-token".into() };
    let refused = driver.controller().await.list_volumes(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
}

#[tokio::test]
async fn a_volume_whose_directory_is_missing_is_abnormal_and_one_that_never_was_is_not_found() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let id = controller.create_volume(create("pvc-gone", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    let get = |id: &str| ControllerGetVolumeRequest { volume_id: id.into() };
    let found = controller.controller_get_volume(get(&id)).await.unwrap().into_inner();
    assert_eq!(found.volume.unwrap().volume_id, id);
    assert!(!found.status.unwrap().volume_condition.unwrap().abnormal);
    std::fs::remove_dir(on_server("pvc-gone")).unwrap();
    // The client's cache of names may be some seconds old.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(70);
    loop {
        let found = controller.controller_get_volume(get(&id)).await.unwrap().into_inner();
        let condition = found.status.unwrap().volume_condition.unwrap();
        if condition.abnormal {
            assert!(condition.message.contains("pvc-gone"), "{}", condition.message);
            break;
        }
        assert!(std::time::Instant::now() < end, "the missing directory was not noticed");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    controller.delete_volume(delete(&id)).await.unwrap();
    let missing = controller.controller_get_volume(get("127.0.0.1#run/export#pvc-never##")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(
        missing.message().contains("pvc-never") && missing.message().contains("127.0.0.1:/run/export"),
        "{missing}"
    );
}

#[tokio::test]
async fn the_capacity_is_what_the_server_has_free() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let request = GetCapacityRequest { parameters: parameters(&[]), ..GetCapacityRequest::default() };
    let told = controller.get_capacity(request).await.unwrap().into_inner().available_capacity;
    let stat = nix::sys::statvfs::statvfs(&on_server("")).unwrap();
    let free = i64::try_from(stat.blocks_available() * stat.fragment_size()).unwrap();
    assert!((told - free).abs() < free / 10, "{told} {free}");
    // Without parameters: what all exports known have.
    let sum = controller.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner().available_capacity;
    assert!((sum - told).abs() < free / 10, "{sum} {told}");
}
