//! ListVolumes, ListSnapshots, ControllerGetVolume and GetCapacity.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::list_volumes_response::Entry;
use nfs_csi::proto::{
    ControllerGetVolumeRequest, GetCapacityRequest, ListSnapshotsRequest, ListVolumesRequest, Snapshot,
};
use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;
use tonic::transport::Channel;

use crate::kit::driver::Driver;
use crate::kit::requests::{create, delete, delete_snapshot, parameters, snapshot};
use crate::kit::server::{SHARE, on_server};
use crate::kit::{folder, records};

const EXPORT: &str = "--export=127.0.0.1:/run/export";

/// A share of its own below the guest's export; it goes with the value.
pub struct Share(tempfile::TempDir);

impl Share {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("listing-").tempdir_in(SHARE).unwrap();
        records::folders(folder.path());
        Self(folder)
    }

    pub fn disk(&self) -> &Path {
        self.0.path()
    }

    pub fn export(&self) -> String {
        format!("--export={}", self.name())
    }

    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.disk().display())
    }

    pub fn parameters(&self) -> [(&str, &str); 2] {
        [("server", "127.0.0.1"), ("share", self.disk().to_str().unwrap())]
    }
}

pub type Controller = ControllerClient<Channel>;

/// One page, and the token of the next.
pub async fn page(controller: &mut Controller, max_entries: i32, starting_token: String) -> (Vec<Entry>, String) {
    let request = ListVolumesRequest { max_entries, starting_token };
    let page = controller.list_volumes(request).await.unwrap().into_inner();
    (page.entries, page.next_token)
}

/// The pages from a token on.
pub async fn pages(controller: &mut Controller, max_entries: i32, mut token: String) -> Vec<Vec<Entry>> {
    let mut pages = Vec::new();
    loop {
        let (entries, next) = page(controller, max_entries, token.clone()).await;
        pages.push(entries);
        if next.is_empty() {
            return pages;
        }
        assert_ne!(next, token);
        token = next;
    }
}

/// What is wrong with each volume, by the names that end their ids; none: nothing.
pub fn conditions(pages: Vec<Vec<Entry>>) -> HashMap<String, Option<String>> {
    let condition = |entry: Entry| {
        let condition = entry.status.unwrap().volume_condition.unwrap();
        let id = entry.volume.unwrap().volume_id;
        (id.split('#').nth(2).unwrap().to_owned(), condition.abnormal.then_some(condition.message))
    };
    let all: Vec<_> = pages.into_iter().flatten().map(condition).collect();
    let count = all.len();
    let conditions: HashMap<_, _> = all.into_iter().collect();
    assert_eq!(conditions.len(), count, "a volume is listed twice");
    conditions
}

pub fn keys<T>(map: &HashMap<String, T>) -> HashSet<&str> {
    map.keys().map(String::as_str).collect()
}

/// All snapshots, by their ids.
pub async fn snapshots(controller: &mut Controller, max_entries: i32) -> HashMap<String, Snapshot> {
    let (mut all, mut starting_token) = (HashMap::new(), String::new());
    loop {
        let request = ListSnapshotsRequest { max_entries, starting_token, ..ListSnapshotsRequest::default() };
        let page = controller.list_snapshots(request).await.unwrap().into_inner();
        for entry in page.entries {
            let snapshot = entry.snapshot.unwrap();
            assert!(all.insert(snapshot.snapshot_id.clone(), snapshot).is_none(), "a snapshot is listed twice");
        }
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return all;
        }
    }
}

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
    let mut controller = driver.controller().await;
    let key = "abcdefghij234567";
    let tokens = [
        "invalid-token".to_owned(),
        format!("127.0.0.1:/run/export#{key}"),
        format!("volumes#1#nowhere#{key}"),
        format!("volumes#1#127.0.0.1:/run/export#{key}x"),
        format!("volumes#x#127.0.0.1:/run/export#{key}"),
        format!("snapshots#1#127.0.0.1:/run/export#{key}"),
    ];
    for starting_token in tokens {
        let request = ListVolumesRequest { max_entries: 1, starting_token };
        assert_eq!(controller.list_volumes(request.clone()).await.unwrap_err().code(), Code::Aborted, "{request:?}");
    }
    let starting_token = format!("volumes#1#127.0.0.1:/run/export#{key}");
    let request = ListSnapshotsRequest { starting_token, ..ListSnapshotsRequest::default() };
    assert_eq!(controller.list_snapshots(request).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn a_page_has_at_most_500_entries_whatever_is_asked_for_and_a_list_goes_on_after_a_restart() {
    let share = Share::new();
    let names: Vec<String> = (0..1100).map(|number| format!("pvc-{number}")).collect();
    for name in &names {
        records::volume(share.disk(), name);
    }
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&share.export()]);
    let mut controller = driver.controller().await;
    for most in [0, 500, 1_000_000] {
        let pages = pages(&mut controller, most, String::new()).await;
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500, 100]);
        let listed = conditions(pages);
        assert_eq!(keys(&listed), names.iter().map(String::as_str).collect());
        assert!(listed.values().all(Option::is_none));
    }
    let (first, token) = page(&mut controller, 300, String::new()).await;
    let mut in_order: Vec<&String> = names.iter().collect();
    in_order.sort_by_key(|name| RecordKey::of(name));
    // Of what is deleted meanwhile, what was listed does not matter, and the rest is left out.
    for gone in [in_order[10], in_order[300], in_order[700]] {
        std::fs::remove_file(records::file(share.disk(), gone)).unwrap();
    }
    driver.kill().await;
    let driver = Driver::start(folder.path(), &[&share.export()]);
    let mut rest = pages(&mut driver.controller().await, 300, token).await;
    rest.push(first);
    let listed = conditions(rest);
    assert_eq!(listed.len(), names.len() - 2);
    assert!(!listed.contains_key(in_order[300]) && !listed.contains_key(in_order[700]));
}

#[tokio::test]
async fn a_cluster_that_lists_its_own_sees_nothing_of_the_others() {
    let share = Share::new();
    let folder = folder();
    let clusters: [(&str, &[&str]); 3] = [("a", &["--cluster-id=a"]), ("b", &["--cluster-id=b"]), ("none", &[])];
    let mut made = HashMap::new();
    for (cluster, flags) in clusters {
        let driver = Driver::start(folder.path(), flags);
        let mut controller = driver.controller().await;
        let mut ids = Vec::new();
        for number in 0..20 {
            let request = create(&format!("pvc-{cluster}-{number}"), &share.parameters());
            let volume = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap();
            ids.push(volume.volume_id);
        }
        let taken = controller.create_snapshot(snapshot(&format!("snap-{cluster}"), &ids[0], &[])).await.unwrap();
        made.insert(cluster, (ids, taken.into_inner().snapshot.unwrap()));
        assert!(driver.stop().await.success());
    }
    let driver = Driver::start(folder.path(), &["--cluster-id=a", "--list-own-only", &share.export()]);
    let mut controller = driver.controller().await;
    for most in [0, 1, 7] {
        let listed = pages(&mut controller, most, String::new()).await.into_iter().flatten();
        let listed: Vec<String> = listed.map(|entry| entry.volume.unwrap().volume_id).collect();
        assert_eq!(listed.len(), 20);
        assert_eq!(listed.iter().collect::<HashSet<_>>(), made["a"].0.iter().collect::<HashSet<_>>());
        let listed = snapshots(&mut controller, most).await;
        assert_eq!(listed.keys().collect::<Vec<_>>(), [&made["a"].1.snapshot_id]);
    }
    // Another's is found by its id: an administrator may want it here.
    let others = &made["b"].1;
    let request = ListSnapshotsRequest { snapshot_id: others.snapshot_id.clone(), ..ListSnapshotsRequest::default() };
    let found = controller.list_snapshots(request).await.unwrap().into_inner().entries;
    assert_eq!(found[0].snapshot.as_ref(), Some(others));
    assert!(driver.stop().await.success());
    let driver = Driver::start(folder.path(), &["--cluster-id=a", &share.export()]);
    let mut controller = driver.controller().await;
    assert_eq!(pages(&mut controller, 0, String::new()).await.concat().len(), 60);
    assert_eq!(snapshots(&mut controller, 0).await.len(), 3);
    for (ids, snapshot) in made.values() {
        controller.delete_snapshot(delete_snapshot(&snapshot.snapshot_id)).await.unwrap();
        for id in ids {
            controller.delete_volume(delete(id)).await.unwrap();
        }
    }
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
