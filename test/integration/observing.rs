//! What the driver tells over HTTP: its health, and its metrics.

use std::net::TcpListener;
use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nix::sys::signal::Signal;

use crate::kit::driver::{self, Driver};
use crate::kit::http::{free_address, get};
use crate::kit::requests::{by_hand, create_from, delete, of_volume, publish, unpublish};
use crate::kit::{folder, requests, server, wait_for};

const RWX: Mode = Mode::MultiNodeMultiWriter;

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|found| found == line)
}

#[tokio::test]
async fn calls_and_published_volumes_are_counted() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start(folder.path(), &[&format!("--metrics-address={address}")]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let volume = by_hand("handle", &[]);
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    let other = by_hand("other", &[("subDir", "other")]);
    node.node_publish_volume(publish(&other, &target, RWX, &[])).await.unwrap_err();
    node.node_publish_volume(publish(&other, &folder.path().join("other"), RWX, &[])).await.unwrap_err();
    let (status, text) = get(address, "/metrics").unwrap();
    assert_eq!(status, 200);
    for line in [
        "nfs_csi_call_duration_seconds_count{method=\"NodePublishVolume\",code=\"OK\"} 1",
        "nfs_csi_call_duration_seconds_count{method=\"NodePublishVolume\",code=\"ALREADY_EXISTS\"} 1",
        "nfs_csi_calls_running{method=\"NodePublishVolume\"} 0",
        "nfs_csi_published_volumes{server=\"127.0.0.1\"} 1",
        "nfs_csi_mount_duration_seconds_count{server=\"127.0.0.1\",version=\"4.2\"} 1",
        "nfs_csi_mount_failures_total{server=\"127.0.0.1\",cause=\"no-such-share\"} 1",
    ] {
        assert!(has(&text, line), "{line}: {text}");
    }
    let kernels = ["calls", "retransmissions", "timeouts", "round_trip_milliseconds"];
    for counter in kernels.map(|what| format!("nfs_csi_nfs_{what}_total{{server=\"127.0.0.1\"}} ")) {
        assert!(text.lines().any(|line| line.starts_with(&counter)), "{counter}: {text}");
    }
    let version =
        format!("nfs_csi_build_info{{version=\"{}\",driver=\"nfs.csi.k8s.io\"}} 1", env!("CARGO_PKG_VERSION"));
    assert!(has(&text, &version), "{text}");
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    let (_, text) = get(address, "/metrics").unwrap();
    assert!(!text.contains("published_volumes{"), "{text}");
    assert_eq!(get(address, "/other").unwrap().0, 404);
}

#[tokio::test]
async fn a_driver_that_drains_lives_and_is_not_ready() {
    let folder = folder();
    let address = free_address();
    let mut driver = Driver::start(folder.path(), &[&format!("--metrics-address={address}")]);
    wait_for("readiness", Duration::from_secs(10), || get(address, "/readyz").filter(|(status, _)| *status == 200));
    assert_eq!(get(address, "/healthz").unwrap(), (200, "ok\n".into()));
    // A call that takes a while: a clone of many files.
    let mut controller = driver.controller().await;
    let source = controller.create_volume(requests::create("pvc-drained", &[])).await.unwrap().into_inner();
    let source = source.volume.unwrap().volume_id;
    for number in 0..3000 {
        std::fs::write(server::on_server("pvc-drained").join(number.to_string()), "x").unwrap();
    }
    let request = create_from("pvc-drained-clone", of_volume(&source), &[]);
    let mut cloning = controller.clone();
    let clone = tokio::spawn(async move { cloning.create_volume(request).await });
    let running = "nfs_csi_calls_running{method=\"CreateVolume\"} 1";
    for attempt in 0.. {
        if get(address, "/metrics").is_some_and(|(_, text)| has(&text, running)) {
            break;
        }
        assert!(attempt < 500, "the clone does not begin");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    driver.signal(Signal::SIGTERM);
    wait_for("the drain", Duration::from_secs(10), || get(address, "/readyz").filter(|(status, _)| *status == 503));
    assert_eq!(get(address, "/healthz").unwrap().0, 200);
    let clone = clone.await.unwrap().unwrap().into_inner().volume.unwrap().volume_id;
    drop(controller);
    assert!(driver.wait().await.success());
    assert_eq!(get(address, "/healthz"), None);
    let driver = Driver::start(folder.path(), &[]);
    for id in [clone, source] {
        driver.controller().await.delete_volume(delete(&id)).await.unwrap();
    }
}

#[test]
fn an_address_for_metrics_that_is_taken_is_one_clear_line_and_a_status() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let flag = format!("--metrics-address={}", taken.local_addr().unwrap());
    let endpoint = format!("--endpoint=unix://{}/csi.sock", folder.path().display());
    let (status, text) = driver::run(&["controller", &endpoint, &flag]);
    assert_eq!(status.code(), Some(1), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    assert!(text.contains("--metrics-address") && text.contains("in use"), "{text}");
}
