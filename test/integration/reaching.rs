//! How a server is reached: names and addresses, versions, and what version 3 needs for locks.

use std::process::Command;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{by_hand, create, delete, publish, unpublish};
use crate::kit::{folder, mounts_at};

const RWX: Mode = Mode::MultiNodeMultiWriter;

/// Starts or stops this guest's rpc.statd.
fn statd(running: bool) {
    let pid = std::fs::read_to_string("/run/rpc.statd.pid").unwrap_or_default();
    if running {
        assert!(Command::new("rpc.statd").arg("--no-notify").status().unwrap().success());
    } else if let Ok(pid) = pid.trim().parse() {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        crate::kit::wait_for("rpc.statd to end", std::time::Duration::from_secs(10), || {
            (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
        });
    }
}

#[tokio::test]
async fn servers_are_reached_by_name_and_by_both_kinds_of_address() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    for server in ["localhost", "127.0.0.1", "::1", "[::1]"] {
        let volume = by_hand("handle", &[("server", server)]);
        node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
        let mounted = mounts_at(&target).remove(0);
        assert!(mounted.contains(":/run/export "), "{mounted}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    let created = driver.controller().await.create_volume(create("pvc-v6", &[("server", "::1")])).await.unwrap();
    let volume = created.into_inner().volume.unwrap();
    driver.controller().await.delete_volume(delete(&volume.volume_id)).await.unwrap();
}

#[tokio::test]
async fn version_3_without_statd_is_refused_unless_locks_stay_local() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let volume = by_hand("handle", &[]);
    statd(false);
    let refused = node.node_publish_volume(publish(&volume, &target, RWX, &["vers=3"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for word in ["rpc.statd", "nolock", "version 4"] {
        assert!(refused.message().contains(word), "{refused}");
    }
    for options in [["vers=3,nolock"], ["nfsvers=3,local_lock=all"]] {
        node.node_publish_volume(publish(&volume, &target, RWX, &options)).await.unwrap();
        assert!(mounts_at(&target)[0].contains("vers=3"));
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    statd(true);
    node.node_publish_volume(publish(&volume, &target, RWX, &["v3"])).await.unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    statd(false);
}

#[tokio::test]
async fn the_controller_takes_the_version_that_the_class_asks_for() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    for version in ["3", "4.0", "4.1", "4.2"] {
        let mut request = create(&format!("pvc-controller-{version}"), &[]);
        let option = format!("nfsvers={version}");
        request.volume_capabilities[0] = crate::kit::requests::capability(RWX, &[&option, "hard", "ro"]);
        let id = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id;
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours =
            |line: &&str| line.contains(folder.path().to_str().unwrap()) && line.contains(&format!("vers={version},"));
        assert!(table.lines().any(|line| ours(&line) && line.contains(",soft,")), "{version}: {table}");
        controller.delete_volume(delete(&id)).await.unwrap();
    }
}
