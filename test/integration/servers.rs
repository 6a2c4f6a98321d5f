//! Servers that are silent, refuse, or hang half-way, and exports that refuse root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{by_hand, create, delete, publish, unpublish};
use crate::kit::server::on_server;
use crate::kit::{folder, mounts_at, wait_for};

const RWX: Mode = Mode::MultiNodeMultiWriter;

/// Takes connections and gives each to `serve` on a thread of its own; its port.
pub fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Answers nothing.
pub fn silent(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Answers the NULL call of the NFS program, and nothing after it.
pub fn hanging(mut stream: TcpStream) {
    let mut call = [0; 44];
    while stream.read_exact(&mut call).is_ok() {
        let is_null = call[24..28] == [0; 4];
        if is_null {
            let mut reply = vec![0x80, 0, 0, 24];
            reply.extend_from_slice(&call[4..8]);
            reply.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let _ = stream.write_all(&reply);
        } else {
            silent(stream);
            return;
        }
    }
}

/// Stands before the NFS server, and hands on what it says with this delay.
fn slow(stream: TcpStream) {
    let nfsd = TcpStream::connect("127.0.0.1:2049").unwrap();
    let mut calls = (stream.try_clone().unwrap(), nfsd.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut calls.0, &mut calls.1));
    let (mut replies, mut client) = (nfsd, stream);
    let mut bytes = vec![0; 1 << 20];
    while let Ok(length @ 1..) = replies.read(&mut bytes) {
        std::thread::sleep(Duration::from_millis(150));
        let _ = client.write_all(&bytes[..length]);
    }
}

#[tokio::test]
async fn a_server_that_is_silent_refuses_or_is_unknown_is_told_at_once() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--ping-timeout=500ms"]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let volume = by_hand("handle", &[]);
    let silent = format!("port={}", server(silent));
    let closed = "port=1".to_owned();
    for (options, reason) in [([silent.as_str()], "500 ms"), ([closed.as_str()], "refused")] {
        let begun = Instant::now();
        let refused = node.node_publish_volume(publish(&volume, &target, RWX, &options)).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains(reason) && refused.message().contains("127.0.0.1"), "{refused}");
    }
    let unknown = by_hand("handle", &[("server", "no-such-host.invalid")]);
    let refused = node.node_publish_volume(publish(&unknown, &target, RWX, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("no-such-host.invalid"), "{refused}");
    assert!(!target.exists());

    let mut controller = driver.controller().await;
    let mut request = create("pvc-silent", &[]);
    request.volume_capabilities[0] = crate::kit::requests::capability(RWX, &[&silent]);
    let refused = controller.create_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test]
async fn a_mount_that_hangs_ends_at_its_deadline_and_the_next_one_finds_a_worker() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--mount-timeout=2s"]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let before = driver.workers();
    let hanging = format!("port={}", server(hanging));
    let volume = by_hand("handle", &[]);
    let known = folder.path().join("known");
    node.node_publish_volume(publish(&volume, &known, RWX, &[])).await.unwrap();
    let begun = Instant::now();
    let request = publish(&volume, &target, RWX, &[&hanging, "nfsvers=4.1"]);
    let refused = node.node_publish_volume(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
    // It is one to the kernel, though this address is in use with another port.
    assert!(refused.message().contains("first mount"), "{refused}");
    assert!((2..10).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    wait_for("the stuck worker to be gone", Duration::from_secs(10), || {
        driver.workers().iter().all(|pid| !before.contains(pid)).then_some(())
    });
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    for target in [&target, &known] {
        node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
        assert!(mounts_at(target).is_empty());
    }
}

#[tokio::test]
async fn what_an_unmount_that_takes_long_does_last_is_not_done_to_the_next_mount() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let port = format!("port={}", server(slow));
    let volume = by_hand("slow", &[]);
    for round in 0..2 {
        let begun = Instant::now();
        node.node_publish_volume(publish(&volume, &target, RWX, &["nfsvers=4.1", &port])).await.unwrap();
        assert!(begun.elapsed() > Duration::from_millis(150));
        // Its last call to the server takes longer than an unpublish waits for it.
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(!target.exists(), "round {round}");
    }
}

#[tokio::test]
async fn an_export_that_squashes_root_or_is_read_only_says_what_to_change() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let squashed = create("pvc-squash", &[("share", "/run/exports/squash")]);
    let refused = controller.create_volume(squashed).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("no_root_squash"), "{refused}");
    let read_only = create("pvc-ro", &[("share", "/run/exports/readonly")]);
    let refused = controller.create_volume(read_only).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("read-only"), "{refused}");
    let missing = create("pvc-missing", &[("share", "/run/not-exported")]);
    let refused = controller.create_volume(missing).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert!(refused.message().contains("127.0.0.1:/run/not-exported"), "{refused}");
}

#[tokio::test]
async fn a_squashed_root_that_may_write_provisions_and_is_told_where_it_may_not_chown() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let share = [("share", "/run/exports/squash-writable")];
    let id =
        controller.create_volume(create("pvc-nobody", &share)).await.unwrap().into_inner().volume.unwrap().volume_id;
    assert!(std::path::Path::new("/run/exports/squash-writable/pvc-nobody").is_dir());
    controller.delete_volume(delete(&id)).await.unwrap();
    let owned = create("pvc-owned", &[share[0], ("uid", "1000")]);
    let refused = controller.create_volume(owned).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("no_root_squash"), "{refused}");
    let _ = std::fs::remove_dir("/run/exports/squash-writable/pvc-owned");
    let _ = on_server("");
}
