//! Clients of the field that send the whole target as `:authority`, as `csc` does over a unix socket and over TCP.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nfs_csi::authority::Mended;
use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::identity_client::IdentityClient;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{
    GetCapacityRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeGetInfoRequest, ProbeRequest, ValidateVolumeCapabilitiesRequest,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tonic::transport::Channel;

use crate::kit::driver::{self, Driver};
use crate::kit::requests::{capability, delete, publish, stats, unpublish};
use crate::kit::share::Share;
use crate::kit::{folder, wait_for};

/// A socket for clients whose `:authority` is replaced on the way to the driver.
fn old_client<D>(folder: &Path, authority: &'static str, driver: impl Fn() -> D + Send + 'static) -> PathBuf
where
    D: Future<Output = Box<dyn Stream>> + Send,
{
    let socket = folder.join("client.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (from_client, mut to_client) = tokio::io::split(client);
            let (mut from_driver, mut to_driver) = tokio::io::split(driver().await);
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut Mended::with_authority(from_client, authority), &mut to_driver).await;
                let _ = to_driver.shutdown().await;
            });
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_driver, &mut to_client).await;
            });
        }
    });
    socket
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// All that such a client asks one after the other.
async fn walk(channel: Channel, folder: &Path) {
    let mut identity = IdentityClient::new(channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "nfs.csi.k8s.io");
    identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    identity.probe(ProbeRequest {}).await.unwrap();
    let (share, mut controller) = (Share::new(), ControllerClient::new(channel.clone()));
    let volume = controller.create_volume(share.create("pvc-1", &[])).await.unwrap().into_inner().volume.unwrap();
    let capabilities = vec![capability(Mode::MultiNodeMultiWriter, &[])];
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id.clone(),
        volume_context: volume.volume_context.clone(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    assert!(controller.validate_volume_capabilities(validate).await.unwrap().into_inner().confirmed.is_some());
    let listed = controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.entries.len(), 1);
    let parameters = share.create("pvc-1", &[]).parameters;
    let capacity = GetCapacityRequest { parameters, ..Default::default() };
    assert!(controller.get_capacity(capacity).await.unwrap().into_inner().available_capacity > 0);
    controller.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    let mut node = NodeClient::new(channel);
    assert_eq!(node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id, "guest");
    let target = folder.join("target");
    node.node_publish_volume(publish(&volume, &target, Mode::MultiNodeMultiWriter, &[])).await.unwrap();
    assert!(!node.node_get_volume_stats(stats(&volume, &target)).await.unwrap().into_inner().usage.is_empty());
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert_eq!(share.names(""), [".nfs-csi"]);
}

#[tokio::test]
async fn a_client_that_sends_the_socket_s_path_as_authority_is_served() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let socket = driver.socket().to_owned();
    for (number, authority) in ["/csi/csi.sock", "unix:///csi/csi.sock"].into_iter().enumerate() {
        let place = folder.path().join(number.to_string());
        std::fs::create_dir(&place).unwrap();
        let to_driver = socket.clone();
        let client = old_client(&place, authority, move || {
            let socket = to_driver.clone();
            async move { Box::new(UnixStream::connect(socket).await.unwrap()) as Box<dyn Stream> }
        });
        walk(driver::connect(&client).await.unwrap(), &place).await;
    }
}

#[tokio::test]
async fn a_client_that_sends_the_endpoint_as_authority_over_tcp_is_served() {
    let folder = folder();
    let (place, address) = (format!("--working-mount-dir={}", folder.path().display()), "127.0.0.1:10000");
    let mut process = Command::new(driver::binary())
        .args(["all", "--endpoint=unix:///no/such/folder", "--node-id=guest", &place])
        // Of a flag that is given twice the last holds.
        .arg(format!("--endpoint=tcp://{address}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the driver to listen", Duration::from_secs(30), || std::net::TcpStream::connect(address).ok());
    let client = old_client(folder.path(), "tcp://127.0.0.1:10000", move || async move {
        Box::new(TcpStream::connect(address).await.unwrap()) as Box<dyn Stream>
    });
    walk(driver::connect(&client).await.unwrap(), folder.path()).await;
    process.kill().unwrap();
    process.wait().unwrap();
}
