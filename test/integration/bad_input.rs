//! Malformed requests: each has its own clear error with the specification's code, and touches nothing.

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_capability::{AccessType, BlockVolume};
use nfs_csi::proto::{CapacityRange, ControllerGetVolumeRequest, CreateVolumeRequest, ListVolumesRequest};
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{by_hand, capability, create, delete, expand, publish, unpublish};
use crate::kit::server::{names, on_server};

/// Everything on the export that a request could have touched.
fn seen() -> Vec<String> {
    let mut all = names("");
    for folder in ["canary", ".nfs-csi/volumes", ".nfs-csi/subdirs"] {
        all.extend(names(folder));
    }
    all
}

#[tokio::test]
async fn malformed_ids_are_refused_with_their_reason() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--export=127.0.0.1:/run/export"]);
    let mut controller = driver.controller().await;
    std::fs::create_dir(on_server("canary")).unwrap();
    std::fs::write(on_server("canary/file"), "kept").unwrap();
    controller.list_volumes(ListVolumesRequest::default()).await.unwrap();
    let before = seen();
    let long = format!("127.0.0.1#run/export#{}##", "x".repeat(4096));
    let cases = [
        ("127.0.0.1#run/export#../canary##", ".."),
        ("127.0.0.1#run/export#canary/../..##", ".."),
        ("127.0.0.1#run/../export#canary##", ".."),
        ("127.0.0.1#run/export#/canary##", "absolute"),
        ("127.0.0.1#run/export#canary//file##", "empty"),
        ("127.0.0.1#run/export#./canary##", "."),
        ("127.0.0.1#run/export#can\0ary##", "NUL"),
        ("127.0.0.1#run/export#.nfs-csi/volumes##", ".nfs-csi"),
        ("127.0.0.1#run/export#.nfs-csi##", ".nfs-csi"),
        ("127.0.0.1#run/export#canary##burn", "burn"),
        ("not a host#run/export#canary##", "not a host"),
        ("127.0.0.1/run/export/..", ".."),
        (long.as_str(), "long"),
    ];
    for (id, named) in cases {
        let deleted = controller.delete_volume(delete(id)).await.unwrap_err();
        let grown = controller.controller_expand_volume(expand(id, 1, 0)).await.unwrap_err();
        let got =
            controller.controller_get_volume(ControllerGetVolumeRequest { volume_id: id.into() }).await.unwrap_err();
        for refused in [deleted, grown, got] {
            assert_eq!(refused.code(), Code::InvalidArgument, "{id:?}: {refused}");
            assert!(refused.message().contains(named), "{named}: {refused}");
            assert!(refused.message().len() < 1000, "{refused}");
        }
    }
    let foreign = ControllerGetVolumeRequest { volume_id: "some/path".into() };
    assert_eq!(controller.controller_get_volume(foreign).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(controller.delete_volume(delete("")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(seen(), before);
    std::fs::remove_dir_all(on_server("canary")).unwrap();
}

#[tokio::test]
async fn malformed_creates_are_refused_with_their_reason() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--export=127.0.0.1:/run/export"]);
    let mut controller = driver.controller().await;
    controller.list_volumes(ListVolumesRequest::default()).await.unwrap();
    let before = seen();
    let with = |change: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut request = create("pvc-bad", &[]);
        change(&mut request);
        request
    };
    let parameter = |key: &str, value: &str| create("pvc-bad", &[(key, value)]);
    let long = "x".repeat(4096);
    let cases: Vec<(CreateVolumeRequest, Code, &str)> = vec![
        (with(&|request| request.name.clear()), Code::InvalidArgument, "name"),
        (with(&|request| request.name = "n".repeat(129)), Code::InvalidArgument, "128"),
        (with(&|request| request.name = "a\u{1}b".into()), Code::InvalidArgument, "control"),
        (with(&|request| request.volume_capabilities.clear()), Code::InvalidArgument, "volume_capabilities"),
        (
            with(&|request| request.volume_capabilities[0].access_type = Some(AccessType::Block(BlockVolume {}))),
            Code::InvalidArgument,
            "block",
        ),
        (with(&|request| request.volume_capabilities[0].access_mode = None), Code::InvalidArgument, "access_mode"),
        (
            with(&|request| request.volume_capabilities = vec![capability(Mode::Unknown, &[])]),
            Code::InvalidArgument,
            "access mode",
        ),
        (
            with(&|request| request.volume_capabilities = vec![capability(Mode::SingleNodeWriter, &["bind"])]),
            Code::InvalidArgument,
            "bind",
        ),
        (
            with(&|request| request.capacity_range = Some(CapacityRange { required_bytes: 2, limit_bytes: 1 })),
            Code::OutOfRange,
            "limit",
        ),
        (
            with(&|request| request.capacity_range = Some(CapacityRange { required_bytes: -1, limit_bytes: 0 })),
            Code::InvalidArgument,
            "-1",
        ),
        (with(&|request| drop(request.parameters.remove("server"))), Code::InvalidArgument, "server"),
        (with(&|request| drop(request.parameters.remove("share"))), Code::InvalidArgument, "share"),
        (parameter("server", "a b"), Code::InvalidArgument, "a b"),
        (parameter("share", "/a/../b"), Code::InvalidArgument, ".."),
        (parameter("SERVER", "twice"), Code::InvalidArgument, "server"),
        (parameter("sub-dir", "x"), Code::InvalidArgument, "sub-dir"),
        (parameter("subDir", "../x"), Code::InvalidArgument, ".."),
        (parameter("subDir", "a//b"), Code::InvalidArgument, "a//b"),
        (parameter("subDir", ".nfs-csi/x"), Code::InvalidArgument, ".nfs-csi"),
        (parameter("subDir", &long), Code::InvalidArgument, "long"),
        (parameter("subDir", "${node.name}"), Code::InvalidArgument, "node.name"),
        (parameter("subDir", "${pv.metadata.name"), Code::InvalidArgument, "${"),
        (parameter("onDelete", "burn"), Code::InvalidArgument, "burn"),
        (parameter("mountPermissions", "0999"), Code::InvalidArgument, "0999"),
        (parameter("mode", "77777"), Code::InvalidArgument, "77777"),
        (parameter("uid", "root"), Code::InvalidArgument, "root"),
        (parameter("gid", "-1"), Code::InvalidArgument, "-1"),
    ];
    for (request, code, named) in cases {
        let refused = controller.create_volume(request.clone()).await.expect_err(&format!("{request:?}"));
        assert_eq!(refused.code(), code, "{named}: {refused}");
        assert!(refused.message().contains(named), "{named}: {refused}");
        assert!(refused.message().len() < 1500, "{refused}");
    }
    assert_eq!(seen(), before);
}

#[tokio::test]
async fn malformed_publishes_are_refused_with_their_reason() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let volume = by_hand("handle", &[]);
    let good = publish(&volume, &target, Mode::MultiNodeMultiWriter, &[]);
    let with = |change: &dyn Fn(&mut nfs_csi::proto::NodePublishVolumeRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let attribute =
        |key: &str, value: &str| with(&|request| drop(request.volume_context.insert(key.into(), value.into())));
    let long = format!("/{}", "x/".repeat(2100));
    let cases = [
        (with(&|request| request.volume_id.clear()), "volume_id"),
        (with(&|request| request.target_path.clear()), "target_path"),
        (with(&|request| request.target_path = "relative/path".into()), "relative/path"),
        (with(&|request| request.target_path = "/run/../etc".into()), "/run/../etc"),
        (with(&|request| request.target_path = "/".into()), "\"/\""),
        (with(&|request| request.target_path = "/run/a\0b".into()), "target_path"),
        (with(&|request| request.target_path.clone_from(&long)), "target_path"),
        (with(&|request| request.volume_capability = None), "volume_capability"),
        (with(&|request| request.volume_context.clear()), "server and share"),
        (with(&|request| drop(request.volume_context.remove("share"))), "share"),
        (attribute("subDir", "../x"), ".."),
        (attribute("mountPermissions", "8"), "8"),
        (attribute("mountOptions", "nfsvers=9"), "nfsvers"),
        (attribute("csi.storage.k8s.io/ephemeral", "true"), "inline"),
        (attribute("server", "-o bind"), "-o bind"),
    ];
    for (request, named) in cases {
        let refused = node.node_publish_volume(request.clone()).await.expect_err(&format!("{request:?}"));
        assert_eq!(refused.code(), Code::InvalidArgument, "{named}: {refused}");
        assert!(refused.message().contains(named), "{named}: {refused}");
    }
    for options in [["addr=10.0.0.1"], ["remount"], ["nconnect=17"], ["sec=none-such"], ["timeo=soon"]] {
        let request = publish(&volume, &target, Mode::MultiNodeMultiWriter, &options);
        let refused = node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{options:?}: {refused}");
        assert!(refused.message().contains(options[0].split('=').next().unwrap()), "{refused}");
    }
    for path in ["", "relative", "/run/../x"] {
        let mut request = unpublish(&volume, &target);
        request.target_path = path.into();
        assert_eq!(node.node_unpublish_volume(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert!(!target.exists());
}
