//! What a node plugin makes sure of before it serves, and what it tells of its node.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetInfoRequest, ProbeRequest, plugin_capability,
};
use nix::mount::{MsFlags, mount};

use crate::kit::driver::{self, Driver};
use crate::kit::requests::{create, delete, publish, unpublish};
use crate::kit::server::on_server;
use crate::kit::{folder, mounts_at};

const NONE: Option<&str> = None;

/// A kubelet's directory with a pod, on a file system of its own that is mounted shared.
fn disk(path: &Path) {
    std::fs::create_dir(path).unwrap();
    mount(Some("disk"), path, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    mount(NONE, path, NONE, MsFlags::MS_SHARED, NONE).unwrap();
    std::fs::create_dir_all(path.join("pods/pod-1")).unwrap();
}

fn refuses(run: &mut Command, named: &[&str]) {
    let Output { status, stderr, .. } = run.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    for named in named {
        assert!(text.contains(named), "{named}: {text}");
    }
}

#[tokio::test]
async fn a_kubelet_directory_that_is_shared_will_do_also_through_a_link() {
    let folder = folder();
    let (kubelet, link) = (folder.path().join("disk"), folder.path().join("kubelet"));
    disk(&kubelet);
    std::os::unix::fs::symlink(&kubelet, &link).unwrap();
    for path in [&kubelet, &link] {
        let driver = Driver::start_as("node", folder.path(), &[&format!("--kubelet-dir={}", path.display())]);
        driver.identity().await.probe(ProbeRequest {}).await.unwrap();
        assert!(driver.stop().await.success());
    }
}

#[test]
fn a_kubelet_directory_that_is_missing_or_not_shared_is_refused() {
    let folder = folder();
    let endpoint = format!("--endpoint=unix://{}/csi.sock", folder.path().display());
    let kubelet = folder.path().join("kubelet");
    let flag = format!("--kubelet-dir={}", kubelet.display());
    for command in ["node", "all"] {
        let mut run = Command::new(driver::binary());
        refuses(run.args([command, "--node-id=n", &endpoint, &flag]), &[kubelet.to_str().unwrap(), "--kubelet-dir"]);
    }
    disk(&kubelet);
    for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SLAVE] {
        mount(NONE, &kubelet, NONE, propagation, NONE).unwrap();
        let mut run = Command::new(driver::binary());
        let named = [kubelet.to_str().unwrap(), "mountPropagation: Bidirectional"];
        refuses(run.args(["node", "--node-id=n", &endpoint, &flag]), &named);
    }
    assert!(!folder.path().join("csi.sock").exists());
}

#[test]
fn in_a_pod_the_kubelet_directory_is_looked_for_where_it_mostly_is() {
    let folder = folder();
    let endpoint = format!("--endpoint=unix://{}/csi.sock", folder.path().display());
    let mut run = Command::new(driver::binary());
    run.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").args(["node", "--node-id=n", &endpoint]);
    refuses(&mut run, &["/var/lib/kubelet is not there"]);
}

#[test]
fn a_node_plugin_that_may_not_mount_says_so() {
    let folder = folder();
    let endpoint = format!("--endpoint=unix://{}/csi.sock", folder.path().display());
    let mut run = Command::new("setpriv");
    run.arg("--bounding-set=-sys_admin").arg(driver::binary()).args(["node", "--node-id=n", &endpoint]);
    refuses(&mut run, &["CAP_SYS_ADMIN", "privileged: true"]);
}

#[tokio::test]
async fn a_topology_is_told_only_where_the_operator_gives_one() {
    let folder = folder();
    let constraints = Some(plugin_capability::Type::Service(plugin_capability::Service {
        r#type: plugin_capability::service::Type::VolumeAccessibilityConstraints.into(),
    }));
    for (flags, segments) in
        [(&[][..], None), (&["--topology=kubernetes.io/os=linux"], Some(("kubernetes.io/os", "linux")))]
    {
        let driver = Driver::start_as("node", folder.path(), flags);
        let info = driver.node().await.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
        let told = info.accessible_topology.map(|topology| topology.segments);
        assert_eq!(told, segments.map(|(key, value)| [(key.to_owned(), value.to_owned())].into()));
        let offered = driver.identity().await.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        let has_constraints = offered.into_inner().capabilities.iter().any(|one| one.r#type == constraints);
        assert_eq!(has_constraints, segments.is_some(), "the one must not be without the other");
        assert!(driver.stop().await.success());
    }
}

#[tokio::test]
async fn the_most_volumes_of_a_node_are_told_to_the_scheduler() {
    let folder = folder();
    for (flags, most) in [(&[][..], 0), (&["--max-volumes-per-node=110"], 110)] {
        let driver = Driver::start_as("node", folder.path(), flags);
        let info = driver.node().await.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("guest", most));
        assert!(driver.stop().await.success());
    }
}

#[tokio::test]
async fn the_command_line_of_csi_driver_nfs_starts_a_driver_that_creates_and_mounts() {
    let folder = folder();
    let mut program = Command::new(driver::binary());
    program
        .args(["--v=5", "--nodeid=guest", "--drivername=nfs2.csi.k8s.io", "--mount-permissions=511"])
        // It takes a path without its first slash.
        .arg(format!("--endpoint=unix:/{}/csi.sock", folder.path().display()))
        .arg(format!("--working-mount-dir={}", folder.path().display()))
        .args(["--default-ondelete-policy=", "--use-tar-command-in-snapshot=false"]);
    let driver = Driver::spawn(program, folder.path());
    let info = driver.identity().await.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "nfs2.csi.k8s.io");
    let (mut controller, mut node) = (driver.controller().await, driver.node().await);
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, "guest");
    let volume = controller.create_volume(create("pvc-go", &[])).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(on_server("pvc-go").metadata().unwrap().permissions().mode() & 0o7777, 0o777);
    let target = folder.path().join("target");
    node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    assert_eq!(mounts_at(&target).len(), 1);
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert!(!on_server("pvc-go").exists());
    let log = driver.log();
    let remarks = log.lines().filter(|line| line.contains("--use-tar-command-in-snapshot")).count();
    assert_eq!(remarks, 1, "{log}");
    assert!(driver.stop().await.success());
}
