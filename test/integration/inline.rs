//! Inline (CSI ephemeral) volumes: where they may be, and the scratch directories that live and die with their pods.

use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nfs_csi::proto::Volume;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{by_hand, publish, unpublish};
use crate::kit::server::{names, on_server};
use crate::kit::{Folder, folder, mounts_at, nfs_mounts_below, wait_for};

/// What the kubelet asks for with every inline volume.
const MODE: Mode = Mode::SingleNodeWriter;
const ALLOWED: &str = "--allow-inline-volumes=127.0.0.1:/run/export/inline";

/// A folder on the server, gone with all that is in it when this is dropped.
struct Place;

impl Place {
    fn new() -> Self {
        std::fs::create_dir_all(on_server("inline/team/data")).unwrap();
        std::fs::write(on_server("inline/team/data/file"), "data").unwrap();
        std::fs::create_dir_all(on_server("inline-not/data")).unwrap();
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["inline", "inline-not"] {
            let _ = std::fs::remove_dir_all(on_server(name));
        }
    }
}

fn inline(handle: &str, more: &[(&str, &str)]) -> Volume {
    let ephemeral: HashMap<String, String> = [("csi.storage.k8s.io/ephemeral".into(), "true".into())].into();
    let mut volume = by_hand(handle, more);
    volume.volume_context.extend(ephemeral);
    volume
}

fn scratch(handle: &str) -> Volume {
    inline(handle, &[("share", "/run/export/inline"), ("subDir", "team"), ("inlineScratch", "true")])
}

/// The scratch directories on the server.
fn scratches() -> Vec<String> {
    names("inline/team").into_iter().filter(|name| name.starts_with("inline-")).collect()
}

fn none_left(folder: &Folder) {
    wait_for("the scratch directories to be gone", Duration::from_secs(30), || scratches().is_empty().then_some(()));
    for records in ["published", "scratch"] {
        wait_for("their records to be gone", Duration::from_secs(10), || {
            std::fs::read_dir(folder.path().join(records)).unwrap().next().is_none().then_some(())
        });
    }
    assert_eq!(std::fs::read_to_string(on_server("inline/team/data/file")).unwrap(), "data");
}

#[tokio::test]
async fn an_inline_volume_is_refused_unless_a_pattern_covers_it() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let share = ("share", "/run/export/inline");
    let driver = Driver::start(folder.path(), &[]);
    let request = publish(&inline("csi-off", &[share]), &target, MODE, &[]);
    let refused = driver.node().await.node_publish_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("--allow-inline-volumes"), "{refused}");
    // Where the CSIDriver object does not ask for pods' information, the kubelet says nothing, and the pod anything.
    let id = format!("csi-{}", "0123456789abcdef".repeat(4));
    for said in [&[share][..], &[share, ("csi.storage.k8s.io/ephemeral", "false")]] {
        let request = publish(&by_hand(&id, said), &target, MODE, &[]);
        let refused = driver.node().await.node_publish_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("--allow-inline-volumes"), "{refused}");
    }
    assert!(driver.stop().await.success());

    let driver = Driver::start(folder.path(), &[ALLOWED, "--allow-inline-volumes=nas:/,*:/public"]);
    let mut node = driver.node().await;
    let cases: [&[(&str, &str)]; 7] = [
        &[],
        &[("share", "/run/export/inline-not")],
        &[("subDir", "inline-not/data")],
        &[("server", "localhost"), share],
        &[share, ("mountOptions", "nfsvers=3,mountaddr=10.0.0.1")],
        &[share, ("subDir", "../inline-not")],
        &[share, ("subDir", ".nfs-csi/volumes")],
    ];
    for more in cases {
        let refused =
            node.node_publish_volume(publish(&inline("csi-no", more), &target, MODE, &[])).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{more:?}: {refused}");
        let named = ["--allow-inline-volumes", "subDir"].iter().any(|named| refused.message().contains(named));
        assert!(named, "{more:?}: {refused}");
    }
    let mut nowhere = inline("127.0.0.1#run/export#inline##", &[]);
    for key in ["server", "share"] {
        nowhere.volume_context.remove(key);
    }
    let refused = node.node_publish_volume(publish(&nowhere, &target, MODE, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let persistent = by_hand("handle", &[("inlineScratch", "true")]);
    let refused = node.node_publish_volume(publish(&persistent, &target, MODE, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(!target.exists());
}

#[tokio::test]
async fn an_inline_volume_is_the_share_or_a_directory_that_exists_with_its_own_mount_options() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("share", "/run/export/inline")], "team/data/file"),
        (&[("share", "/run/export/inline"), ("subDir", "team/data")], "file"),
        (&[("share", "/run/export/inline/team"), ("subDir", "data")], "file"),
        (&[("subDir", "inline/team")], "data/file"),
    ];
    for (more, file) in cases {
        let volume = inline("csi-1", &[more, &[("mountOptions", "nfsvers=4.1,noatime")]].concat());
        node.node_publish_volume(publish(&volume, &target, MODE, &[])).await.unwrap();
        assert_eq!(std::fs::read_to_string(target.join(file)).unwrap(), "data", "{more:?}");
        let mounted = mounts_at(&target).concat();
        assert!(mounted.contains("vers=4.1") && mounted.contains("noatime"), "{mounted}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(!target.exists());
    }
    let missing = inline("csi-2", &[("share", "/run/export/inline"), ("subDir", "missing")]);
    let refused = node.node_publish_volume(publish(&missing, &target, MODE, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert!(!on_server("inline/missing").exists());
}

#[tokio::test]
async fn unknown_attributes_of_an_inline_volume_have_no_effect_but_a_warning() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    let more = [("share", "/run/export/inline"), ("subDir", "team"), ("flavour", "sweet")];
    let volume = inline("csi-odd", &more);
    node.node_publish_volume(publish(&volume, &target, MODE, &[])).await.unwrap();
    assert_eq!(std::fs::read_to_string(target.join("data/file")).unwrap(), "data");
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    let log = driver.log();
    assert!(log.lines().any(|line| line.contains("flavour") && line.contains("csi-odd")), "{log}");
}

#[tokio::test]
async fn a_tenant_s_link_below_an_allowed_place_leads_nowhere() {
    let folder = folder();
    let _place = Place::new();
    symlink("../inline-not", on_server("inline/link")).unwrap();
    symlink("/run/export/inline-not", on_server("inline/absolute")).unwrap();
    let target = folder.path().join("target");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    for link in ["link", "absolute"] {
        for options in ["nfsvers=4.2", "nfsvers=3,nolock"] {
            let share = format!("/run/export/inline/{link}");
            for more in [&[("share", share.as_str())][..], &[("share", share.as_str()), ("subDir", "data")]] {
                let volume = inline("csi-link", more);
                let refused = node.node_publish_volume(publish(&volume, &target, MODE, &[options])).await;
                let refused = refused.expect_err(&format!("{more:?} {options}"));
                assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
                assert!(refused.message().contains("symbolic link"), "{refused}");
                let scratch = inline("csi-link", &[more, &[("inlineScratch", "true")]].concat());
                let refused = node.node_publish_volume(publish(&scratch, &target, MODE, &[options])).await.unwrap_err();
                assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            }
        }
    }
    assert!(mounts_at(&target).is_empty());
    assert_eq!(names("inline-not"), ["data"]);
    assert!(names("inline-not/data").is_empty());
}

#[tokio::test]
async fn a_scratch_directory_is_the_pod_s_own_and_goes_with_it() {
    let folder = folder();
    let _place = Place::new();
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    let targets = ["first", "second"].map(|name| folder.path().join(name));
    for (number, target) in targets.iter().enumerate() {
        let request = publish(&scratch(&format!("csi-{number}")), target, MODE, &[]);
        // Asked for again, it is the same.
        for _ in 0..2 {
            node.node_publish_volume(request.clone()).await.unwrap();
        }
        assert!(std::fs::read_dir(target).unwrap().next().is_none());
        assert_eq!(std::fs::metadata(target).unwrap().mode() & 0o7777, 0o777);
        std::fs::create_dir_all(target.join("a/b/c")).unwrap();
        std::fs::write(target.join("a/file"), number.to_string()).unwrap();
        symlink(on_server("inline/team/data"), target.join("link")).unwrap();
        symlink("../../data", target.join("a/link")).unwrap();
    }
    assert_eq!(scratches().len(), 2);
    assert_eq!(std::fs::read_to_string(targets[0].join("a/file")).unwrap(), "0");
    // Only root sees what is in the outer directory, and where nothing is mounted but for the pods nothing is left
    // over.
    let outer = on_server("inline/team").join(&scratches()[0]);
    assert_eq!(std::fs::metadata(outer).unwrap().mode() & 0o7777, 0o711);
    assert_eq!(nfs_mounts_below(folder.path()).len(), 2);
    node.node_unpublish_volume(unpublish(&scratch("csi-0"), &targets[0])).await.unwrap();
    wait_for("its removal", Duration::from_secs(10), || (scratches().len() == 1).then_some(()));
    assert_eq!(std::fs::read_to_string(targets[1].join("a/file")).unwrap(), "1");
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish(&scratch("csi-1"), &targets[1])).await.unwrap();
    }
    none_left(&folder);
    assert!(nfs_mounts_below(folder.path()).is_empty());
}

#[tokio::test]
async fn a_scratch_directory_goes_also_after_a_restart_and_without_the_flag() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let volume = scratch("csi-1");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let request = publish(&volume, &target, MODE, &["nfsvers=4.1"]);
    driver.node().await.node_publish_volume(request.clone()).await.unwrap();
    std::fs::write(target.join("file"), "kept").unwrap();
    driver.kill().await;

    // A node that was rebooted: the mount is gone, the pod is not.
    nix::mount::umount(&target).unwrap();
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    driver.node().await.node_publish_volume(request).await.unwrap();
    assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "kept");
    assert!(driver.stop().await.success());

    let driver = Driver::start(folder.path(), &[]);
    driver.node().await.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    none_left(&folder);
}

#[tokio::test]
async fn what_cannot_be_removed_keeps_no_pod_and_is_removed_later() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let volume = scratch("csi-1");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    node.node_publish_volume(publish(&volume, &target, MODE, &[])).await.unwrap();
    std::fs::create_dir(target.join("busy")).unwrap();
    let inner = names(&format!("inline/team/{}", scratches()[0])).remove(0);
    let busy = on_server("inline/team").join(&scratches()[0]).join(inner).join("busy");
    immutable(&busy, true);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(!target.exists());
    wait_for("the failure to be told", Duration::from_secs(10), || driver.log().contains("inline-").then_some(()));
    assert_eq!(scratches().len(), 1);
    driver.kill().await;
    // Where it is now is told by the removal, which moves directories up.
    for path in directories(&on_server("inline/team").join(&scratches()[0])) {
        immutable(&path, false);
    }
    let _driver = Driver::start(folder.path(), &[]);
    none_left(&folder);
}

/// Stands before the NFS server. Shut, it lets nothing through, and drops what it let in.
#[derive(Clone)]
struct Door {
    port: u16,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Door {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let door = Self { port, open: Arc::new(AtomicBool::new(true)), streams: Arc::default() };
        let inside = door.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten().filter(|_| inside.open.load(Ordering::SeqCst)) {
                let nfsd = TcpStream::connect("127.0.0.1:2049").unwrap();
                for (mut from, mut to) in [(&stream, &nfsd), (&nfsd, &stream)].map(|(from, to)| (copy(from), copy(to)))
                {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                inside.streams.lock().unwrap().extend([stream, nfsd]);
            }
        });
        door
    }

    fn shut(&self) {
        self.open.store(false, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}

#[tokio::test]
async fn a_dead_server_keeps_no_pod_and_is_cleaned_up_when_it_is_back() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let volume = scratch("csi-dead");
    let driver = Driver::start(folder.path(), &[ALLOWED]);
    let mut node = driver.node().await;
    let door = Door::new();
    let options = ["nfsvers=4.1".to_owned(), format!("port={}", door.port)];
    let options = options.each_ref().map(String::as_str);
    node.node_publish_volume(publish(&volume, &target, MODE, &options)).await.unwrap();
    std::fs::write(target.join("file"), "data").unwrap();
    door.shut();
    let begun = Instant::now();
    node.node_publish_volume(publish(&volume, &target, MODE, &options)).await.unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!target.exists() && mounts_at(&target).is_empty());
    let other = folder.path().join("other");
    let refused = node.node_publish_volume(publish(&scratch("csi-late"), &other, MODE, &options)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!(scratches().len(), 1);
    driver.kill().await;
    door.open.store(true, Ordering::SeqCst);
    let _driver = Driver::start(folder.path(), &[]);
    none_left(&folder);
}

fn directories(path: &Path) -> Vec<std::path::PathBuf> {
    let below = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    below.flat_map(|path| [directories(&path), vec![path]].concat()).collect()
}

fn immutable(path: &Path, set: bool) {
    let status = std::process::Command::new("chattr").arg(if set { "+i" } else { "-i" }).arg(path).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_plugin_that_is_killed_at_any_moment_leaves_no_scratch_directory() {
    let folder = folder();
    let _place = Place::new();
    let target = folder.path().join("target");
    let volume = scratch("csi-crash");
    let mut cut_short = 0;
    // How long an undisturbed call takes tells the moments.
    let mut whole = [Duration::ZERO; 2];
    for round in 0..30 {
        let driver = Driver::start(folder.path(), &[ALLOWED]);
        let mut node = driver.node().await;
        let is_publish = round % 3 != 2;
        if !is_publish {
            node.node_publish_volume(publish(&volume, &target, MODE, &[])).await.unwrap();
            std::fs::create_dir_all(target.join("a/b")).unwrap();
        }
        let (to_publish, to_unpublish) = (publish(&volume, &target, MODE, &[]), unpublish(&volume, &target));
        let call = tokio::spawn(async move {
            if is_publish {
                node.node_publish_volume(to_publish).await.map(drop)
            } else {
                node.node_unpublish_volume(to_unpublish).await.map(drop)
            }
        });
        let whole = &mut whole[usize::from(is_publish)];
        if whole.is_zero() {
            let begun = Instant::now();
            call.await.unwrap().unwrap();
            *whole = begun.elapsed();
            driver.kill().await;
        } else {
            tokio::time::sleep(*whole * round / 40).await;
            driver.kill().await;
            cut_short += u32::from(call.await.unwrap().is_err());
        }

        let driver = Driver::start(folder.path(), &[ALLOWED]);
        let mut node = driver.node().await;
        // The pod may come up after all, or be gone.
        if round % 3 == 0 {
            node.node_publish_volume(publish(&volume, &target, MODE, &[])).await.unwrap();
            assert_eq!(scratches().len(), 1, "round {round}");
        }
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(!target.exists(), "round {round}");
        none_left(&folder);
        assert!(nfs_mounts_below(folder.path()).is_empty(), "round {round}");
        assert!(driver.stop().await.success());
    }
    assert!(cut_short > 5, "only {cut_short} calls were cut short: the moments do not fit this machine");
}
