//! The server map: servers that moved, exports that are not the ones meant, and options that no call brings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{GetCapacityRequest, ListVolumesRequest, Volume};
use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;
use tonic::transport::Channel;

use crate::kit::driver::{Driver, binary};
use crate::kit::http::{free_address, get};
use crate::kit::mortal::{MORTAL, OTHER, Server};
use crate::kit::requests::{
    by_hand, capability, create, create_from, delete, expand, of_snapshot, of_volume, parameters, publish, read_from,
    snapshot, unpublish,
};
use crate::kit::{folder, mounts_at, names_in, wait_for};

const RWX: Mode = Mode::MultiNodeMultiWriter;
const LIMIT: Duration = Duration::from_mins(2);
/// A server that serves at this port only (test/integration/job).
const AT_2050: Server = Server::named("at-2050", "10.0.13.1");

/// A server that serves NFS 3 only.
const ONLY_3: Server = Server::named("only-3", "10.0.14.1");

/// A directory on a server that is a share of its own for one test; it goes with the value.
struct OnServer(tempfile::TempDir);

impl OnServer {
    fn new(server: Server) -> Self {
        Self(tempfile::Builder::new().prefix("map-").tempdir_in(server.on_disk("")).unwrap())
    }

    /// The directory of this path on another server.
    fn at(&self, server: Server) -> Self {
        let folder = tempfile::Builder::new().prefix(&self.name()).rand_bytes(0).tempdir_in(server.on_disk(""));
        Self(folder.unwrap())
    }

    fn name(&self) -> String {
        self.0.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn share(&self) -> String {
        format!("/{}", self.name())
    }

    fn on_disk(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Copies all that is here to the same place on another server.
    fn copy_to(&self, other: &Self) {
        let (from, to) = (self.on_disk("."), other.on_disk("."));
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    }

    /// The export's id.
    fn id(&self) -> String {
        let text = std::fs::read_to_string(self.on_disk(".nfs-csi/export.json")).unwrap();
        let identity: serde_json::Value = serde_json::from_str(&text).unwrap();
        identity["id"].as_str().unwrap().to_owned()
    }
}

/// Writes the map as the kubelet does: under another name first.
fn write(map: &Path, servers: &str) {
    let new = map.with_extension("new");
    std::fs::write(&new, format!("{{\"servers\": {{{servers}}}}}")).unwrap();
    std::fs::rename(&new, map).unwrap();
}

/// Writes the map, and waits until the driver has read it.
fn change(driver: &Driver, map: &Path, servers: &str) {
    let reads = || driver.log().matches("server map read").count();
    let before = reads();
    write(map, servers);
    wait_for("the map to be read", LIMIT, || (reads() > before).then_some(()));
}

async fn created(calls: &mut ControllerClient<Channel>, name: &str, server: &str, share: &str) -> Volume {
    let request = create(name, &[("server", server), ("share", share)]);
    calls.create_volume(request).await.unwrap().into_inner().volume.unwrap()
}

async fn listed(calls: &mut ControllerClient<Channel>) -> Vec<String> {
    let page = calls.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let mut ids: Vec<String> = page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect();
    ids.sort_unstable();
    ids
}

/// What `nfs-csi list` finds that has lost its counterpart, where these volumes have a PersistentVolume each.
fn orphans(export: &str, servers: &str, volumes: &[Volume]) -> serde_json::Value {
    let (folder, driver) = (folder(), "nfs.csi.k8s.io");
    let item = |volume: &Volume| {
        let csi = serde_json::json!({
            "driver": driver, "volumeHandle": volume.volume_id, "volumeAttributes": volume.volume_context,
        });
        serde_json::json!({"kind": "PersistentVolume", "metadata": {"name": volume.volume_id}, "spec": {"csi": csi}})
    };
    let list = serde_json::json!({"kind": "List", "items": volumes.iter().map(item).collect::<Vec<_>>()});
    let pvs = folder.path().join("pvs.json");
    std::fs::write(&pvs, list.to_string()).unwrap();
    let mut command = Command::new(binary());
    command.args(["list", "--export", export, servers, "--orphans", "--output=json", "--pvs"]).arg(&pvs);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    report["entries"].clone()
}

#[tokio::test]
async fn twenty_claims_follow_a_server_that_moved_and_their_ids_stay() {
    let (folder, old) = (folder(), OnServer::new(MORTAL));
    let (share, map, address) = (old.share(), folder.path().join("servers.json"), free_address());
    let flags = [format!("--servers={}", map.display()), format!("--metrics-address={address}")];
    let driver = Driver::start(folder.path(), &flags.each_ref().map(String::as_str));
    let (mut calls, mut node) = (driver.controller().await, driver.node().await);
    let mut volumes = Vec::new();
    for number in 0..19 {
        volumes.push(created(&mut calls, &format!("pvc-{number}"), MORTAL.address, &share).await);
    }
    // One that csi-driver-nfs made.
    std::fs::create_dir(old.on_disk("pvc-go")).unwrap();
    let id = format!("{}#{}#pvc-go##", MORTAL.address, old.name());
    volumes.push(by_hand(&id, &[("server", MORTAL.address), ("share", &share), ("subdir", "pvc-go")]));
    let target = |kind: &str, number: usize| folder.path().join(format!("{kind}-{number}"));
    for (number, volume) in volumes.iter().enumerate() {
        node.node_publish_volume(publish(volume, &target("old", number), RWX, &[])).await.unwrap();
        std::fs::write(target("old", number).join("data"), number.to_string()).unwrap();
    }
    let ids: Vec<String> = listed(&mut calls).await;
    assert_eq!(ids.len(), 19);
    let taken = calls.create_snapshot(snapshot("snapshot", &ids[0], &[])).await.unwrap().into_inner();
    let taken = taken.snapshot.unwrap().snapshot_id;
    nix::unistd::sync();

    let new = old.at(OTHER);
    old.copy_to(&new);
    let nas = format!(r#""nas1": {{"address": "{}", "was": ["{}"]}}"#, OTHER.address, MORTAL.address);
    change(&driver, &map, &nas);
    // Pods that run go on where they are, also when the kubelet asks again.
    for (number, volume) in volumes.iter().enumerate() {
        let target = target("old", number);
        node.node_publish_volume(publish(volume, &target, RWX, &[])).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join("data")).unwrap(), number.to_string());
        assert!(mounts_at(&target)[0].contains(&format!("addr={}", MORTAL.address)), "{:?}", mounts_at(&target));
    }
    let dead = MORTAL.die();
    // A node needs nothing of what the driver keeps there.
    for (number, volume) in volumes.iter().enumerate() {
        let target = target("new", number);
        node.node_publish_volume(publish(volume, &target, RWX, &[])).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join("data")).unwrap(), number.to_string());
        assert!(mounts_at(&target)[0].contains(&format!("addr={}", OTHER.address)), "{:?}", mounts_at(&target));
        // Asked for again, it is there.
        node.node_publish_volume(publish(volume, &target, RWX, &[])).await.unwrap();
    }
    let metrics = get(address, "/metrics").unwrap().1;
    for mounted in [MORTAL, OTHER] {
        let line =
            format!("nfs_csi_mounted_volumes{{server=\"{}\",address=\"{}\"}} 20", MORTAL.address, mounted.address);
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // The directories of a copy have other inode numbers than the records: first that is repaired.
    let refused = calls.delete_volume(delete(&ids[0])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let repair = format!("nfs-csi check --repair --export nas1:{share}");
    assert!(refused.message().contains(&repair), "{refused}");
    let arguments = repair.split_whitespace().skip(1).chain([flags[0].as_str()]);
    assert!(Command::new(binary()).args(arguments).status().unwrap().success());
    assert!(names_in(&new.on_disk(".nfs-csi/volumes")).iter().all(|name| !name.contains(".new")));
    // Each is listed once, by the id that it has in its PersistentVolume.
    assert_eq!(listed(&mut calls).await, ids);
    assert_eq!(orphans(&format!("nas1:{share}"), &flags[0], &volumes), serde_json::json!([]));
    let clone = create_from("pvc-clone", of_volume(&ids[0]), &[("server", "nas1"), ("share", &share)]);
    let clone = calls.create_volume(clone).await.unwrap().into_inner().volume.unwrap();
    assert!(clone.volume_id.starts_with("nas1#"), "{}", clone.volume_id);
    let fresh = created(&mut calls, "pvc-fresh", "nas1", &share).await;
    calls.controller_expand_volume(expand(&ids[1], 1 << 30, 0)).await.unwrap();
    // A snapshot of before is read and restored.
    let readers = read_from("pvc-readers", of_snapshot(&taken), &[("server", "nas1"), ("share", &share)]);
    let readers = calls.create_volume(readers).await.unwrap().into_inner().volume.unwrap();
    let restored = create_from("pvc-restored", of_snapshot(&taken), &[("server", "nas1"), ("share", &share)]);
    let restored = calls.create_volume(restored).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(std::fs::read_to_string(new.on_disk("pvc-restored/data")).unwrap(), "0");
    for (number, volume) in volumes.iter().enumerate() {
        for kind in ["old", "new"] {
            node.node_unpublish_volume(unpublish(volume, &target(kind, number))).await.unwrap();
        }
        calls.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
    let mut left = [clone.volume_id, fresh.volume_id, readers.volume_id, restored.volume_id];
    left.sort_unstable();
    assert_eq!(listed(&mut calls).await, left);
    // What has no record is kept for a day.
    let kept = RecordKey::of("pvc-go").to_string();
    let is_freed = || names_in(&new.on_disk(".nfs-csi/trash")).iter().all(|name| name.contains(&kept));
    wait_for("all to be freed", LIMIT, || is_freed().then_some(()));
    assert_eq!(names_in(&new.on_disk(".")), [".nfs-csi", "pvc-clone", "pvc-fresh", "pvc-restored"]);
    drop(dead);
    assert_eq!(names_in(&old.on_disk(".")).len(), 21);
}

#[tokio::test]
async fn the_first_address_that_answers_is_used() {
    let (folder, share) = (folder(), OnServer::new(OTHER));
    let map = folder.path().join("servers.json");
    write(&map, &format!(r#""nas": {{"address": ["{}", "{}"]}}"#, MORTAL.address, OTHER.address));
    let servers = format!("--servers={}", map.display());
    let driver = Driver::start(folder.path(), &[&servers, "--ping-timeout=300ms"]);
    let dead = MORTAL.die();
    let volume = created(&mut driver.controller().await, "pvc-1", "nas", &share.share()).await;
    assert!(share.on_disk("pvc-1").is_dir());
    let (target, mut node) = (folder.path().join("target"), driver.node().await);
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    assert!(mounts_at(&target)[0].contains(OTHER.address), "{:?}", mounts_at(&target));
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    drop(dead);
    // Where none answers, the error names the server as the volume does, and where it was looked for.
    change(&driver, &map, r#""nas": {"address": ["127.0.0.1", "127.0.0.9"], "mountOptions": ["port=9"]}"#);
    let refused = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("nas is 127.0.0.1, 127.0.0.9 in the server map"), "{refused}");
}

#[tokio::test]
async fn another_export_under_the_name_of_one_is_refused_and_left_as_it_is() {
    let (folder, right) = (folder(), OnServer::new(OTHER));
    let (share, map) = (right.share(), folder.path().join("servers.json"));
    let servers = format!("--servers={}", map.display());
    let driver = Driver::start(folder.path(), &[&servers]);
    let mut calls = driver.controller().await;
    let volume = created(&mut calls, "pvc-1", OTHER.address, &share).await;
    let id = right.id();
    assert!(driver.log().contains(OTHER.address));
    let empty = right.at(MORTAL);
    let at = |server: Server| {
        let export = format!(r#""exports": {{"{share}": {{"id": "{id}"}}}}"#);
        format!(r#""nas": {{"address": "{}", "was": ["{}"], {export}}}"#, server.address, OTHER.address)
    };
    change(&driver, &map, &at(MORTAL));
    let by_name = |server| parameters(&[("server", server), ("share", share.as_str())]);
    let refusals = [
        calls.create_volume(create("pvc-2", &[("server", "nas"), ("share", &share)])).await.map(drop),
        calls.create_volume(create("pvc-1", &[("server", OTHER.address), ("share", &share)])).await.map(drop),
        calls.delete_volume(delete(&volume.volume_id)).await.map(drop),
        calls.controller_expand_volume(expand(&volume.volume_id, 1 << 30, 0)).await.map(drop),
        calls.create_snapshot(snapshot("snapshot", &volume.volume_id, &[])).await.map(drop),
        calls.get_capacity(GetCapacityRequest { parameters: by_name("nas"), ..Default::default() }).await.map(drop),
        calls.list_volumes(ListVolumesRequest::default()).await.map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let told = [format!("nas:{share}"), format!("its id is none, and {id} is wanted"), "server map".into()];
        assert!(told.iter().all(|told| refused.message().contains(told)), "{refused}");
    }
    assert!(names_in(&empty.on_disk(".")).is_empty());
    // One that another driver has worked on is another one too.
    let driver_of_another = crate::kit::folder();
    let another = Driver::start(driver_of_another.path(), &[]);
    created(&mut another.controller().await, "pvc-other", MORTAL.address, &share).await;
    let refused = calls.delete_volume(delete(&volume.volume_id)).await.unwrap_err();
    assert!(refused.message().contains(&format!("its id is {}", empty.id())), "{refused}");
    // With the right one, what was refused is done.
    change(&driver, &map, &at(OTHER));
    calls.delete_volume(delete(&volume.volume_id)).await.unwrap();
    wait_for("it to be freed", LIMIT, || names_in(&right.on_disk(".")).eq(&[".nfs-csi"]).then_some(()));
    assert!(listed(&mut calls).await.is_empty());
}

/// Makes a volume with options, and lists, expands and deletes it without any after a restart of the driver.
async fn follows_options(on: Server, top: &str, options: &[&str], shown: [&str; 2]) {
    let (folder, directory) = (folder(), OnServer::new(on));
    let share = format!("{top}{}", directory.share());
    let mut request = create("pvc-1", &[("server", on.address), ("share", &share)]);
    request.volume_capabilities = vec![capability(RWX, options)];
    let driver = Driver::start(folder.path(), &[]);
    let volume = driver.controller().await.create_volume(request).await.unwrap().into_inner().volume.unwrap();
    assert!(driver.stop().await.success());
    let driver = Driver::start(folder.path(), &[]);
    let mut calls = driver.controller().await;
    assert_eq!(listed(&mut calls).await, std::slice::from_ref(&volume.volume_id));
    // The first of these lines is from before the restart.
    let log = driver.log();
    let mounted: Vec<&str> = log.lines().filter(|line| line.contains("export mounted")).collect();
    assert!(mounted.len() == 2 && shown.iter().all(|shown| mounted[1].contains(shown)), "{mounted:?}");
    let wanted = parameters(&[("server", on.address), ("share", &share)]);
    calls.get_capacity(GetCapacityRequest { parameters: wanted, ..Default::default() }).await.unwrap();
    calls.controller_expand_volume(expand(&volume.volume_id, 1 << 30, 0)).await.unwrap();
    calls.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert!(!directory.on_disk("pvc-1").exists());
}

#[tokio::test]
async fn after_a_restart_calls_without_options_reach_an_export_that_needs_them() {
    follows_options(AT_2050, "", &["port=2050", "nfsvers=4.1", "hard"], ["port=2050", "version=\"4.1\""]).await;
    follows_options(ONLY_3, "/srv", &["nfsvers=3", "nolock"], ["vers=3", "version=\"3\""]).await;
}

#[tokio::test]
async fn the_map_s_options_reach_an_export_for_a_driver_that_knows_nothing_of_it() {
    let (folder, share) = (folder(), OnServer::new(AT_2050));
    let map = folder.path().join("servers.json");
    let options = r#""mountOptions": ["port=2050", "nfsvers=4.2"]"#;
    write(&map, &format!(r#""nas": {{"address": "{}", "was": ["old-nas"], {options}}}"#, AT_2050.address));
    let driver = Driver::start(folder.path(), &[&format!("--servers={}", map.display())]);
    let mut calls = driver.controller().await;
    std::fs::create_dir(share.on_disk("pvc-go")).unwrap();
    let id = format!("old-nas#{}#pvc-go##", share.name());
    let volume = by_hand(&id, &[("server", "old-nas"), ("share", &share.share()), ("subdir", "pvc-go")]);
    let (target, mut node) = (folder.path().join("target"), driver.node().await);
    // What the volume has cannot be changed: the map's options win.
    node.node_publish_volume(publish(&volume, &target, RWX, &["nfsvers=3", "port=9"])).await.unwrap();
    assert!(mounts_at(&target)[0].contains("port=2050"), "{:?}", mounts_at(&target));
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    calls.delete_volume(delete(&id)).await.unwrap();
    assert!(!share.on_disk("pvc-go").exists());
}
