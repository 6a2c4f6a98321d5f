//! The node plugin makes itself known to the kubelet.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nfs_csi::proto::NodeGetInfoRequest;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::pluginregistration::registration_client::RegistrationClient;
use nfs_csi::proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use nfs_csi::registration;
use nix::sys::signal::Signal;
use tonic::transport::Channel;

use crate::kit::driver::{self, Driver};
use crate::kit::http::{free_address, get};
use crate::kit::{folder, wait_for, wait_until};

fn start(folder: &Path) -> Driver {
    let registry = folder.join("plugins_registry");
    std::fs::create_dir_all(&registry).unwrap();
    Driver::start_as("node", folder, &[&format!("--registration-dir={}", registry.display())])
}

async fn kubelet(folder: &Path) -> RegistrationClient<Channel> {
    let socket = registration::socket(&folder.join("plugins_registry"), "nfs.csi.k8s.io");
    // The CSI socket is there before the driver is ready to be registered.
    wait_for("the registration socket", Duration::from_secs(30), || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    });
    RegistrationClient::new(driver::connect(&socket).await.unwrap())
}

async fn info(folder: &Path) -> PluginInfo {
    kubelet(folder).await.get_info(InfoRequest {}).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_node_plugin_registers_itself_and_serves_where_it_says() {
    let folder = folder();
    let _driver = start(folder.path());
    let told = info(folder.path()).await;
    assert_eq!((told.r#type.as_str(), told.name.as_str()), ("CSIPlugin", "nfs.csi.k8s.io"));
    assert_eq!(told.supported_versions, ["1.0.0"]);
    let mut node = NodeClient::new(driver::connect(Path::new(&told.endpoint)).await.unwrap());
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, "guest");
}

#[tokio::test]
async fn a_driver_that_the_kubelet_refuses_makes_its_socket_anew_and_is_ready_when_it_is_registered() {
    let folder = folder();
    let registry = folder.path().join("plugins_registry");
    std::fs::create_dir_all(&registry).unwrap();
    let socket = registration::socket(&registry, "nfs.csi.k8s.io");
    let inode = || std::fs::symlink_metadata(&socket).map(|stat| stat.ino()).ok();
    let address = free_address();
    let flags = [&format!("--registration-dir={}", registry.display()), &format!("--metrics-address={address}")];
    let driver = Driver::start_as("node", folder.path(), &flags.map(String::as_str));
    for _ in 0..2 {
        let mut kubelet = kubelet(folder.path()).await;
        let first = inode();
        let refused = RegistrationStatus { plugin_registered: false, error: "the API server is away".into() };
        kubelet.notify_registration_status(refused).await.unwrap();
        assert!(driver.log().contains("the API server is away"), "{}", driver.log());
        wait_until("another socket", Duration::from_secs(30), || inode().filter(|now| Some(*now) != first)).await;
        let (_, reason) = get(address, "/readyz").unwrap();
        assert!(reason.contains("the API server is away"), "{reason}");
        let (_, metrics) = get(address, "/metrics").unwrap();
        assert!(metrics.contains("nfs_csi_registered 0\n"));
    }
    let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet(folder.path()).await.notify_registration_status(registered).await.unwrap();
    let (status, reason) = get(address, "/readyz").unwrap();
    assert_eq!(status, 200, "{reason}");
    let (_, metrics) = get(address, "/metrics").unwrap();
    assert!(metrics.contains("nfs_csi_registered 1\n"));
}

#[tokio::test]
async fn a_registration_ends_with_sigterm_and_one_left_by_a_kill_is_replaced() {
    let folder = folder();
    let socket = registration::socket(&folder.path().join("plugins_registry"), "nfs.csi.k8s.io");
    let killed = start(folder.path());
    info(folder.path()).await;
    killed.kill().await;
    assert!(socket.exists());
    let mut next = start(folder.path());
    info(folder.path()).await;
    next.signal(Signal::SIGTERM);
    assert!(next.wait().await.success());
    assert!(!socket.exists());
}

#[test]
fn a_registry_that_is_missing_ends_the_start_by_its_path() {
    let folder = folder();
    let endpoint = format!("--endpoint=unix://{}", folder.path().join("csi.sock").display());
    let (status, text) = driver::run(&["node", "--node-id=n", &endpoint, "--registration-dir=/run/no-such-registry"]);
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("/run/no-such-registry"), "{text}");
}
