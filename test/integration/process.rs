//! The program itself: its command line, its socket, its end, and what a killed one leaves.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nfs_csi::proto::plugin_capability::Type;
use nfs_csi::proto::plugin_capability::service::Type as Service;
use nfs_csi::proto::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest,
    controller_service_capability,
};
use nix::sys::signal::Signal;

use crate::kit::driver::{self, Driver};
use crate::kit::requests::{create, delete};
use crate::kit::{folder, nfs_mounts_below};

#[tokio::test]
async fn identity_tells_name_version_and_capabilities() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--driver-name=example.org"]);
    let mut identity = driver.identity().await;
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("example.org", env!("CARGO_PKG_VERSION")));
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    let capabilities = identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    let services: Vec<i32> = capabilities
        .capabilities
        .into_iter()
        .filter_map(|capability| match capability.r#type {
            Some(Type::Service(service)) => Some(service.r#type),
            _ => None,
        })
        .collect();
    assert_eq!(services, [i32::from(Service::ControllerService)]);
}

#[tokio::test]
async fn volumes_are_never_attached() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let request = ControllerGetCapabilitiesRequest {};
    let told = driver.controller().await.controller_get_capabilities(request).await.unwrap().into_inner();
    let attach = controller_service_capability::rpc::Type::PublishUnpublishVolume;
    let offered = told.capabilities.iter().filter_map(|capability| capability.r#type.as_ref()).any(
        |offered| matches!(offered, controller_service_capability::Type::Rpc(rpc) if rpc.r#type == i32::from(attach)),
    );
    assert!(!offered);
}

#[tokio::test]
async fn a_controller_serves_no_node_and_a_node_no_controller() {
    let folder = folder();
    let controller = Driver::start_as("controller", folder.path(), &[]);
    let refused = controller.node().await.node_get_info(nfs_csi::proto::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(controller.stop().await.success());
    let node = Driver::start_as("node", folder.path(), &[]);
    let capabilities = node.identity().await.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    let is_controller =
        |capability: &nfs_csi::proto::PluginCapability| matches!(capability.r#type, Some(Type::Service(_)));
    assert!(!capabilities.into_inner().capabilities.iter().any(is_controller));
}

#[test]
fn a_wrong_command_line_is_one_clear_line_and_a_status() {
    for (arguments, named) in [
        (&["controller", "--bogus"][..], "--bogus"),
        (&["node"], "--node-id"),
        (&["all", "--node-id=n", "--endpoint=http://x"], "http://x"),
        (&["all", "--node-id=n", "--export=nothing"], "nothing"),
    ] {
        let (status, text) = driver::run(arguments);
        assert_eq!(status.code(), Some(2), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn an_endpoint_that_cannot_be_used_is_one_clear_line_and_a_status() {
    let folder = folder();
    let missing = format!("--endpoint=unix://{}/no/folder/csi.sock", folder.path().display());
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let taken = format!("--endpoint=unix://{}", file.display());
    for endpoint in [missing.as_str(), taken.as_str(), "--endpoint=tcp://203.0.113.1:1"] {
        let (status, text) = driver::run(&["all", "--node-id=n", endpoint]);
        assert_eq!(status.code(), Some(1), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(text.contains(endpoint.trim_start_matches("--endpoint=").trim_start_matches("unix://")), "{text}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_left_alone() {
    let folder = folder();
    drop(UnixListener::bind(folder.path().join("csi.sock")).unwrap());
    let first = Driver::start(folder.path(), &[]);
    let endpoint = format!("--endpoint=unix://{}", first.socket().display());
    let (status, text) = driver::run(&["all", "--node-id=n", &endpoint]);
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("in use"), "{text}");
    assert!(first.identity().await.probe(ProbeRequest {}).await.is_ok());
}

#[tokio::test]
async fn sigterm_lets_running_calls_finish_and_leaves_nothing() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let controller = driver.controller().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let mut controller = controller.clone();
        calls.spawn(async move { controller.create_volume(create(&format!("pvc-drain-{number}"), &[])).await });
    }
    // The first answer shows that the calls are under way.
    let mut ids = vec![calls.join_next().await.unwrap().unwrap().unwrap().into_inner().volume.unwrap().volume_id];
    driver.signal(Signal::SIGTERM);
    while let Some(call) = calls.join_next().await {
        // A call that came after the signal is refused as a whole; one that was begun is answered.
        if let Ok(created) = call.unwrap() {
            ids.push(created.into_inner().volume.unwrap().volume_id);
        }
    }
    drop(controller);
    let socket = driver.socket().to_owned();
    let status = {
        let mut driver = driver;
        driver.wait().await
    };
    assert_eq!(status.code(), Some(0));
    assert!(!socket.exists());
    assert!(nfs_mounts_below(folder.path()).is_empty());
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    for number in 0..20 {
        controller.delete_volume(delete(&format!("127.0.0.1#run/export#pvc-drain-{number}##"))).await.unwrap();
    }
    assert!(ids.len() > 1);
}

#[tokio::test]
async fn what_a_killed_driver_left_mounted_is_tidied_up_by_the_next() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let created = driver.controller().await.create_volume(create("pvc-killed", &[])).await.unwrap().into_inner();
    driver.kill().await;
    let left = nfs_mounts_below(folder.path());
    assert_eq!(left.len(), 2);
    let driver = Driver::start(folder.path(), &[]);
    driver.identity().await.probe(ProbeRequest {}).await.unwrap();
    // It mounts the export that the killed one used for itself, to free what that one left there.
    assert!(!nfs_mounts_below(folder.path()).iter().any(|mounted| left.contains(mounted)));
    driver.controller().await.delete_volume(delete(&created.volume.unwrap().volume_id)).await.unwrap();
    assert_eq!(nfs_mounts_below(folder.path()).len(), 2);
    assert!(driver.stop().await.success());
    assert!(nfs_mounts_below(folder.path()).is_empty());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("nfs-csi-exports-")), "{left:?}");
}

#[tokio::test]
async fn workers_end_with_their_driver() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    // It listens before it is ready.
    driver.identity().await.probe(ProbeRequest {}).await.unwrap();
    let workers = driver.workers();
    assert!(!workers.is_empty());
    driver.kill().await;
    let end = Instant::now() + Duration::from_secs(10);
    while workers.iter().any(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()) {
        assert!(Instant::now() < end, "a worker outlived its driver");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_call_is_one_line_in_the_log_and_secrets_are_in_none() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--log-format=json", "--log-level=trace"]);
    let mut request = create("pvc-log", &[]);
    request.secrets.insert("mountOptions".into(), "nfsvers=4.1,clientaddr=192.0.2.77".into());
    let id = driver.controller().await.create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id;
    let mut request = create("pvc-log-2", &[]);
    request.secrets.insert("mountOptions".into(), "hard,timeo=192.0.2.77".into());
    driver.controller().await.create_volume(request).await.unwrap_err();
    driver.controller().await.delete_volume(delete(&id)).await.unwrap();
    let log = driver.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"method\":\"CreateVolume\"")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("\"volume\":\"pvc-log\"") && lines[0].contains("\"code\":\"OK\""), "{}", lines[0]);
    assert!(!log.contains("192.0.2.77"), "{log}");
}
