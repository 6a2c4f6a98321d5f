//! NodePublishVolume, NodeUnpublishVolume and NodeGetVolumeStats.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_usage::Unit;
use nfs_csi::proto::{NodeGetInfoRequest, ValidateVolumeCapabilitiesRequest, Volume};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{by_hand, capability, create, delete, publish, stats, unpublish};
use crate::kit::server::on_server;
use crate::kit::{folder, mounts_at, nfs_mounts_below};

const RWX: Mode = Mode::MultiNodeMultiWriter;

async fn volume(driver: &Driver, name: &str) -> Volume {
    let created = driver.controller().await.create_volume(create(name, &[("mountPermissions", "0777")])).await;
    created.unwrap().into_inner().volume.unwrap()
}

async fn remove(driver: &Driver, volume: &Volume) {
    driver.controller().await.delete_volume(delete(&volume.volume_id)).await.unwrap();
}

#[tokio::test]
async fn a_volume_is_mounted_with_each_version_of_nfs() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-versions").await;
    for version in ["4.2", "4.1", "4.0", "3"] {
        let target = folder.path().join("target");
        let options = [&format!("nfsvers={version}"), "nolock"];
        let options = if version == "3" { &options[..] } else { &options[..1] };
        node.publish_volume_with(&volume, &target, RWX, options).await;
        let mounted = mounts_at(&target);
        assert_eq!(mounted.len(), 1, "{mounted:?}");
        assert!(mounted[0].contains(&format!("vers={version},")), "{mounted:?}");
        assert!(mounted[0].contains(" 127.0.0.1:/run/export/pvc-versions "), "{mounted:?}");
        std::fs::write(target.join("file"), version).unwrap();
        assert_eq!(std::fs::read_to_string(on_server("pvc-versions/file")).unwrap(), version);
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(mounts_at(&target).is_empty() && !target.exists());
    }
    remove(&driver, &volume).await;
}

/// Shorter to read where a publish has to succeed.
trait PublishWith {
    async fn publish_volume_with(&mut self, volume: &Volume, target: &Path, mode: Mode, options: &[&str]);
}

impl PublishWith for nfs_csi::proto::node_client::NodeClient<tonic::transport::Channel> {
    async fn publish_volume_with(&mut self, volume: &Volume, target: &Path, mode: Mode, options: &[&str]) {
        self.node_publish_volume(publish(volume, target, mode, options)).await.unwrap();
    }
}

#[tokio::test]
async fn the_newest_version_that_the_server_has_is_taken_and_options_become_flags_and_data() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-options").await;
    let target = folder.path().join("target");
    node.publish_volume_with(
        &volume,
        &target,
        RWX,
        &["noatime,nosuid", "timeo=70", "_netdev", "defaults", "rsize=65536"],
    )
    .await;
    let mounted = mounts_at(&target).remove(0);
    for expected in ["vers=4.2", "noatime", "nosuid", "timeo=70", "rsize=65536", "addr=127.0.0.1"] {
        assert!(mounted.contains(expected), "{expected}: {mounted}");
    }
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();

    let refused = node.node_publish_volume(publish(&volume, &target, RWX, &["hard", "bogusopt"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("bogusopt") && refused.message().contains("nconnect"), "{refused}");
    assert!(!target.exists());
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn a_read_only_publish_refuses_writes_and_its_neighbour_takes_them() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-readonly").await;
    let [writable, by_flag, by_mode, by_option] =
        ["writable", "by-flag", "by-mode", "by-option"].map(|name| folder.path().join(name));
    node.publish_volume_with(&volume, &writable, RWX, &[]).await;
    let mut request = publish(&volume, &by_flag, RWX, &[]);
    request.readonly = true;
    node.node_publish_volume(request).await.unwrap();
    node.publish_volume_with(&volume, &by_mode, Mode::MultiNodeReaderOnly, &["nosuid"]).await;
    node.publish_volume_with(&volume, &by_option, RWX, &["ro"]).await;
    for target in [&by_flag, &by_mode, &by_option] {
        let error = std::fs::write(target.join("refused"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EROFS as i32));
    }
    assert!(mounts_at(&by_mode)[0].contains("nosuid"));
    let device = |target: &Path| std::fs::metadata(target).unwrap().dev();
    assert_eq!(device(&by_flag), device(&writable), "for one pod, the superblock is shared");
    // What a container's runtime does for a pod that says nothing of readOnly.
    for target in [&by_mode, &by_option] {
        mount(Some("none"), target, None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, None::<&str>).unwrap();
        let error = std::fs::write(target.join("refused"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EROFS as i32));
    }
    std::fs::write(writable.join("file"), "seen by all").unwrap();
    assert_eq!(std::fs::read_to_string(by_mode.join("file")).unwrap(), "seen by all");
    for target in [&writable, &by_flag, &by_mode, &by_option] {
        node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
    }
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn a_read_only_volume_is_read_only_for_those_too_whom_its_mount_is_handed_on_to() {
    let folder = folder();
    let driver = Driver::start_apart(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-handed-on").await;
    let target = folder.path().join("target");
    let mut request = publish(&volume, &target, RWX, &[]);
    request.readonly = true;
    node.node_publish_volume(request.clone()).await.unwrap();
    assert_eq!(mounts_at(&target).len(), 1);
    let error = std::fs::write(target.join("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EROFS as i32));
    // The same again is no change there either.
    node.node_publish_volume(request).await.unwrap();
    assert_eq!(mounts_at(&target).len(), 1);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(mounts_at(&target).is_empty());
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn publishing_again_is_no_change_and_publishing_otherwise_is_refused_also_after_a_restart() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let volume = volume(&driver, "pvc-again").await;
    let other = self::volume(&driver, "pvc-other").await;
    let target = folder.path().join("target");
    driver.node().await.publish_volume_with(&volume, &target, RWX, &["noatime"]).await;
    let before = mounts_at(&target);
    driver.kill().await;

    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    node.publish_volume_with(&volume, &target, RWX, &["noatime"]).await;
    assert_eq!(mounts_at(&target), before);
    let mut read_only = publish(&volume, &target, RWX, &["noatime"]);
    read_only.readonly = true;
    for request in [publish(&other, &target, RWX, &["noatime"]), read_only] {
        let refused = node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        assert!(refused.message().contains("pvc-again"), "{refused}");
    }
    // Options that were edited since are for the next pod; this one keeps its mount.
    for _ in 0..2 {
        node.publish_volume_with(&volume, &target, RWX, &["nodiratime"]).await;
        assert!(driver.log().contains("take effect with the next pod"), "{}", driver.log());
    }
    assert_eq!(mounts_at(&target), before);
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(!target.exists());
    }
    remove(&driver, &volume).await;
    remove(&driver, &other).await;
}

#[tokio::test]
async fn a_share_that_is_a_link_on_the_server_is_published_again_also_after_a_kill() {
    let folder = folder();
    let link = on_server("link");
    symlink("real", &link).unwrap();
    std::fs::create_dir(on_server("real")).unwrap();
    let volume = by_hand("linked", &[("share", "/run/export/link")]);
    let target = folder.path().join("target");
    for _ in 0..2 {
        let driver = Driver::start(folder.path(), &[]);
        let mut node = driver.node().await;
        for _ in 0..2 {
            node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
            assert_eq!(mounts_at(&target).len(), 1);
            assert!(mounts_at(&target)[0].contains("/run/export/real"));
        }
        driver.kill().await;
    }
    let driver = Driver::start(folder.path(), &[]);
    driver.node().await.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    std::fs::remove_file(link).unwrap();
    std::fs::remove_dir(on_server("real")).unwrap();
}

#[tokio::test]
async fn a_mount_that_this_driver_did_not_make_is_taken_over_if_it_is_the_volume_s() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-foreign").await;
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let source = "127.0.0.1:/run/export/pvc-foreign";
    let data = "vers=4.2,addr=127.0.0.1";
    mount(Some(source), &target, Some("nfs4"), MsFlags::empty(), Some(data)).unwrap();
    node.publish_volume_with(&volume, &target, RWX, &[]).await;
    assert_eq!(mounts_at(&target).len(), 1);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();

    std::fs::create_dir(&target).unwrap();
    mount(Some("t"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let refused = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("tmpfs"), "{refused}");
    nix::mount::umount(&target).unwrap();
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn a_volume_for_one_pod_at_a_time_has_one_target_also_after_a_restart() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let volume = volume(&driver, "pvc-single").await;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let single = Mode::SingleNodeSingleWriter;
    driver.node().await.publish_volume_with(&volume, &first, single, &[]).await;
    driver.kill().await;

    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    for mode in [single, Mode::SingleNodeMultiWriter] {
        let refused = node.node_publish_volume(publish(&volume, &second, mode, &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("first"), "{refused}");
    }
    node.publish_volume_with(&volume, &first, single, &[]).await;
    node.node_unpublish_volume(unpublish(&volume, &first)).await.unwrap();
    for round in 0..10 {
        let requests = [&first, &second].map(|target| publish(&volume, target, single, &[]));
        let [one, other] = requests.map(|request| {
            let mut node = node.clone();
            tokio::spawn(async move { node.node_publish_volume(request).await })
        });
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        assert!(one.is_ok() != other.is_ok(), "at once, round {round}: {one:?}, {other:?}");
        for target in [&first, &second] {
            node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
        }
    }
    node.publish_volume_with(&volume, &second, Mode::SingleNodeMultiWriter, &[]).await;
    node.publish_volume_with(&volume, &first, Mode::SingleNodeMultiWriter, &[]).await;
    for target in [&first, &second] {
        node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
    }
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn a_volume_that_an_administrator_wrote_down_is_mounted_with_and_without_a_subdir() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    std::fs::create_dir_all(on_server("static/deep er")).unwrap();
    std::fs::write(on_server("static/deep er/file"), "data").unwrap();
    let target = folder.path().join("target");
    for (volume, file) in [
        (by_hand("any-handle", &[]), "static/deep er/file"),
        (by_hand("another", &[("subdir", "/static/")]), "deep er/file"),
        (by_hand("third", &[("SubDir", "static/deep er")]), "file"),
        (Volume { volume_id: "127.0.0.1#run/export#static##".into(), ..Volume::default() }, "deep er/file"),
        (Volume { volume_id: "127.0.0.1/run/export/static".into(), ..Volume::default() }, "deep er/file"),
    ] {
        node.publish_volume_with(&volume, &target, RWX, &[]).await;
        assert_eq!(std::fs::read_to_string(target.join(file)).unwrap(), "data");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    let missing = by_hand("missing", &[("subDir", "not-there")]);
    let refused = node.node_publish_volume(publish(&missing, &target, RWX, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert!(refused.message().contains("127.0.0.1:/run/export/not-there"), "{refused}");
    assert!(!target.exists());
    std::fs::remove_dir_all(on_server("static")).unwrap();
}

#[tokio::test]
async fn unknown_attributes_of_a_volume_have_no_effect_but_one_warning_that_shows_no_value() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let (mut node, mut controller) = (driver.node().await, driver.controller().await);
    std::fs::create_dir(on_server("odd")).unwrap();
    let more = [
        ("subDir", "odd"),
        ("sub-dir", "hunter2"),
        ("backup", "hunter2"),
        ("csi.storage.k8s.io/pod.name", "web-0"),
        ("example.com/team", "x"),
    ];
    let volume = by_hand("127.0.0.1#run/export#odd##", &more);
    let confirmed = controller.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id.clone(),
        volume_context: volume.volume_context.clone(),
        volume_capabilities: vec![capability(RWX, &[])],
        ..ValidateVolumeCapabilitiesRequest::default()
    });
    assert_eq!(confirmed.await.unwrap().into_inner().confirmed.unwrap().volume_context, volume.volume_context);
    // The kubelet's first call fails, it repeats it, and another pod of the node has the volume too.
    let (missing, target, second) =
        (folder.path().join("no/target"), folder.path().join("target"), folder.path().join("second"));
    node.node_publish_volume(publish(&volume, &missing, RWX, &[])).await.unwrap_err();
    for target in [&target, &target, &second] {
        node.publish_volume_with(&volume, target, RWX, &[]).await;
    }
    assert!(mounts_at(&target).concat().contains(" 127.0.0.1:/run/export/odd "));
    for target in [&target, &second] {
        node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
    }
    let log = driver.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("have no effect")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for part in [" WARN ", volume.volume_id.as_str(), "backup", "sub-dir"] {
        assert!(warnings[0].contains(part), "{log}");
    }
    assert!(!["hunter2", "csi.storage.k8s.io", "example.com"].iter().any(|part| log.contains(part)), "{log}");
    std::fs::remove_dir(on_server("odd")).unwrap();
}

#[tokio::test]
async fn a_tenant_s_link_in_a_volume_s_path_is_never_followed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    std::fs::create_dir_all(on_server("tenant/real")).unwrap();
    std::fs::create_dir_all(on_server("tenant/other")).unwrap();
    std::fs::create_dir_all(on_server("neighbour/secret")).unwrap();
    symlink("../neighbour", on_server("tenant/link")).unwrap();
    let target = folder.path().join("target");
    for subdir in ["tenant/link", "tenant/link/secret"] {
        let volume = by_hand("link", &[("subDir", subdir)]);
        for options in [&["nfsvers=4.2"][..], &["nfsvers=4.0"], &["nfsvers=3", "nolock"]] {
            let refused = node.node_publish_volume(publish(&volume, &target, RWX, options)).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{subdir} {options:?}: {refused}");
            assert!(refused.message().contains("symbolic link"), "{refused}");
            assert!(mounts_at(&target).is_empty() && !target.exists());
        }
    }
    // A file system of the server's below the share is no link, nor is one that is not shared with other mounts.
    mount(Some("tmpfs"), &on_server("tenant/other"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    std::fs::create_dir_all(on_server("tenant/other/real")).unwrap();
    for subdir in ["tenant/real", "tenant/other/real"] {
        let volume = by_hand("real", &[("subDir", subdir)]);
        for options in [&["nfsvers=4.2"][..], &["nfsvers=3", "nolock"], &["nfsvers=3", "nolock", "nosharecache"]] {
            node.publish_volume_with(&volume, &target, RWX, options).await;
            node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        }
    }
    drop(driver);
    // The server's caches have it for a while.
    umount2(&on_server("tenant/other"), MntFlags::MNT_DETACH).unwrap();
    assert_eq!(nfs_mounts_below(Path::new("/")), Vec::<PathBuf>::new());
    std::fs::remove_dir_all(on_server("tenant")).unwrap();
    std::fs::remove_dir_all(on_server("neighbour")).unwrap();
}

#[tokio::test]
async fn a_mount_comes_to_its_target_only_when_it_is_complete() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-complete").await;
    std::fs::create_dir_all(on_server("tenant")).unwrap();
    symlink("../pvc-complete", on_server("tenant/link")).unwrap();
    let linked = by_hand("link", &[("subDir", "tenant/link")]);
    let target = folder.path().join("target");
    let watch = Watch::start(&target);
    for _ in 0..40 {
        let mut request = publish(&volume, &target, RWX, &[]);
        request.readonly = true;
        node.node_publish_volume(request).await.unwrap();
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        // Whether it is what was asked for takes a further mount to find out.
        let request = publish(&linked, &target, RWX, &["nfsvers=3", "nolock"]);
        node.node_publish_volume(request).await.unwrap_err();
    }
    assert_eq!(watch.end(), Vec::<String>::new(), "writable, or led there by a link");
    std::fs::remove_dir_all(on_server("tenant")).unwrap();
    remove(&driver, &volume).await;
}

/// Looks at a target all the time, beside the test.
struct Watch {
    told_to_end: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Watch {
    /// Notes what is mounted there that may be written to.
    fn start(target: &Path) -> Self {
        let (target, told_to_end) = (target.to_owned(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&told_to_end);
        let is_writable = |line: &String| line.split(' ').nth(5).is_some_and(|flags| flags.starts_with("rw"));
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !told.load(Ordering::Relaxed) {
                seen.extend(mounts_at(&target).into_iter().filter(is_writable));
            }
            seen
        });
        Self { told_to_end, thread }
    }

    fn end(self) -> Vec<String> {
        self.told_to_end.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[tokio::test]
async fn permissions_of_a_volume_written_by_hand_are_set_at_publish() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    std::fs::create_dir(on_server("perm")).unwrap();
    let target = folder.path().join("target");
    let volume = by_hand("perm", &[("subDir", "perm"), ("mountPermissions", "0770")]);
    node.publish_volume_with(&volume, &target, RWX, &[]).await;
    assert_eq!(std::fs::metadata(on_server("perm")).unwrap().mode() & 0o7777, 0o770);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    // What a kubelet sets for a pod with a fsGroup stays, and is set where it is asked for.
    std::fs::set_permissions(on_server("perm"), Permissions::from_mode(0o3775)).unwrap();
    for (asked, is) in [("0770", 0o3770), ("0777", 0o3777), ("4755", 0o7755)] {
        let volume = by_hand("perm", &[("subDir", "perm"), ("mountPermissions", asked)]);
        node.publish_volume_with(&volume, &target, RWX, &[]).await;
        assert_eq!(std::fs::metadata(on_server("perm")).unwrap().mode() & 0o7777, is, "{asked}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    std::fs::remove_dir(on_server("perm")).unwrap();
}

#[tokio::test]
async fn a_volume_in_use_is_unpublished_and_whoever_has_it_open_keeps_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-busy").await;
    let target = folder.path().join("target");
    node.publish_volume_with(&volume, &target, RWX, &[]).await;
    let mut open = File::create(target.join("file")).unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(mounts_at(&target).is_empty() && !target.exists());
    std::io::Write::write_all(&mut open, b"still written").unwrap();
    open.sync_all().unwrap();
    drop(open);
    assert_eq!(std::fs::read_to_string(on_server("pvc-busy/file")).unwrap(), "still written");
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn mounts_stacked_on_a_target_all_go_and_files_below_a_target_are_kept() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-stack").await;
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let data = "vers=4.2,addr=127.0.0.1";
    for source in ["127.0.0.1:/run/export/pvc-stack", "127.0.0.1:/run/export"] {
        mount(Some(source), &target, Some("nfs4"), MsFlags::empty(), Some(data)).unwrap();
        mount(Some("t"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    }
    assert_eq!(mounts_at(&target).len(), 4);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(mounts_at(&target).is_empty() && !target.exists());

    // What was written while nothing was mounted is on this host's disk: it is not the driver's to delete.
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("local"), "kept").unwrap();
    let refused = node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap_err();
    assert!(refused.message().contains("holds files"), "{refused}");
    assert_eq!(std::fs::read_to_string(target.join("local")).unwrap(), "kept");
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn a_target_below_a_linked_folder_is_found_again() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-linked").await;
    std::fs::create_dir(folder.path().join("disk")).unwrap();
    symlink("disk", folder.path().join("kubelet")).unwrap();
    let target = folder.path().join("kubelet/target");
    for _ in 0..2 {
        node.publish_volume_with(&volume, &target, RWX, &[]).await;
        assert_eq!(mounts_at(&folder.path().join("disk/target")).len(), 1);
    }
    node.node_get_volume_stats(stats(&volume, &target)).await.unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(mounts_at(&folder.path().join("disk/target")).is_empty() && !target.exists());
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn stats_tell_bytes_and_inodes_and_the_condition() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = volume(&driver, "pvc-stats").await;
    let target = folder.path().join("target");
    let refused = node.node_get_volume_stats(stats(&volume, &target)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    node.publish_volume_with(&volume, &target, RWX, &[]).await;
    let told = node.node_get_volume_stats(stats(&volume, &target)).await.unwrap().into_inner();
    let of = |unit: Unit| told.usage.iter().find(|usage| usage.unit == i32::from(unit)).unwrap();
    let (bytes, inodes) = (of(Unit::Bytes), of(Unit::Inodes));
    assert!(bytes.total > 0 && bytes.available <= bytes.total && bytes.used + bytes.available <= bytes.total);
    assert!(inodes.total > 0 && inodes.used + inodes.available == inodes.total);
    assert!(!told.volume_condition.unwrap().abnormal);
    let another = by_hand("another", &[]);
    assert_eq!(node.node_get_volume_stats(stats(&another, &target)).await.unwrap_err().code(), Code::NotFound);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    remove(&driver, &volume).await;
}

#[tokio::test]
async fn the_node_names_itself() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let info = driver.node().await.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, "guest");
}

#[tokio::test]
async fn one_worker_serves_call_after_call() {
    let folder = folder();
    // A controller has work of its own, at its start above all.
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = by_hand("workers", &[]);
    let target = folder.path().join("target");
    let mut workers = Vec::new();
    for _ in 0..20 {
        node.publish_volume_with(&volume, &target, RWX, &[]).await;
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        workers.push(driver.workers());
    }
    assert!(workers.iter().all(|now| *now == workers[0] && now.len() == 1), "{workers:?}");
}
