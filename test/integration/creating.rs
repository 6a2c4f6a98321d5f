//! CreateVolume and ControllerExpandVolume.

use std::os::unix::fs::{MetadataExt, symlink};

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{CapacityRange, ValidateVolumeCapabilitiesRequest};
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::requests::{MIB, capability, create, delete, expand, parameters};
use crate::kit::server::{names, on_server};
use crate::kit::{folder, requests};

#[tokio::test]
async fn a_volume_is_a_directory_named_after_it_and_its_id_is_the_go_driver_s() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let volume = controller.create_volume(create("pvc-plain", &[])).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(volume.volume_id, "127.0.0.1#run/export#pvc-plain##");
    assert_eq!(volume.capacity_bytes, 10 * MIB);
    let mut context = parameters(&[]);
    context.insert("subDir".into(), "pvc-plain".into());
    assert_eq!(volume.volume_context, context);
    let directory = std::fs::metadata(on_server("pvc-plain")).unwrap();
    assert!(directory.is_dir());
    assert_eq!((directory.mode() & 0o7777, directory.uid(), directory.gid()), (0o755, 0, 0));
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
}

#[tokio::test]
async fn owner_and_permissions_are_what_the_class_asks_for() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--mount-permissions=0750"]);
    let controller = driver.controller().await;
    let made = |name: &'static str, more: &'static [(&'static str, &'static str)]| {
        let mut controller = controller.clone();
        async move {
            let volume = controller.create_volume(create(name, more)).await.unwrap().into_inner().volume.unwrap();
            let directory = std::fs::metadata(on_server(name)).unwrap();
            controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
            (directory.mode() & 0o7777, directory.uid(), directory.gid())
        }
    };
    assert_eq!(made("pvc-flag", &[]).await, (0o750, 0, 0));
    assert_eq!(made("pvc-class", &[("mountPermissions", "0777")]).await, (0o777, 0, 0));
    assert_eq!(made("pvc-mode", &[("mode", "2770"), ("uid", "1000"), ("gid", "2000")]).await, (0o2770, 1000, 2000));
    assert_eq!(made("pvc-sticky", &[("mode", "1777"), ("GID", "7")]).await, (0o1777, 0, 7));
}

#[tokio::test]
async fn a_retry_gives_the_same_volume_and_another_request_of_the_same_name_is_refused() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let first = controller.create_volume(create("pvc-twice", &[])).await.unwrap().into_inner();
    std::fs::write(on_server("pvc-twice/file"), "kept").unwrap();
    let again = controller.create_volume(create("pvc-twice", &[])).await.unwrap().into_inner();
    assert_eq!(first, again);
    assert_eq!(std::fs::read_to_string(on_server("pvc-twice/file")).unwrap(), "kept");

    let mut larger = create("pvc-twice", &[]);
    larger.capacity_range = Some(CapacityRange { required_bytes: 20 * MIB, limit_bytes: 0 });
    let refused = controller.create_volume(larger).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert!(refused.message().contains("pvc-twice") && refused.message().contains("10485760"), "{refused}");
    for other in [[("subDir", "elsewhere")], [("onDelete", "retain")]] {
        let refused = controller.create_volume(create("pvc-twice", &other)).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    }
    assert!(!on_server("elsewhere").exists());
    // A range that the volume's size fits is the same volume.
    let mut fitting = create("pvc-twice", &[]);
    fitting.capacity_range = Some(CapacityRange { required_bytes: 5 * MIB, limit_bytes: 10 * MIB });
    let fitted = controller.create_volume(fitting).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(fitted.capacity_bytes, 10 * MIB);
    controller.delete_volume(delete(&fitted.volume_id)).await.unwrap();
}

#[tokio::test]
async fn a_template_names_the_directory_after_the_claim() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let more = [
        ("subDir", "/tenants/${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}/"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "team"),
        ("csi.storage.k8s.io/pv/name", "pvc-t"),
    ];
    let volume = controller.create_volume(create("pvc-t", &more)).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(volume.volume_id, "127.0.0.1#run/export#tenants/team/data-pvc-t#pvc-t#");
    assert_eq!(volume.volume_context["subDir"], "tenants/team/data-pvc-t");
    assert!(on_server("tenants/team/data-pvc-t").is_dir());
    controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert!(!on_server("tenants/team/data-pvc-t").exists());

    let refused = controller.create_volume(create("pvc-u", &[("subDir", "a-${pvc.metadata.name}")])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("pvc.metadata.name"), "{refused}");
}

#[tokio::test]
async fn a_long_or_odd_name_gets_an_id_of_at_most_128_bytes_that_deletes_it() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    for name in ["n".repeat(128), "a#b".into(), "a/b c".into(), "..".into(), "näme €".into()] {
        let volume = controller.create_volume(create(&name, &[])).await.unwrap().into_inner().volume.unwrap();
        assert!(volume.volume_id.len() <= 128, "{}", volume.volume_id);
        let subdir = &volume.volume_context["subDir"];
        assert!(on_server(subdir).is_dir(), "{subdir}");
        assert!(!subdir.contains('/'), "{subdir}");
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
        assert!(!on_server(subdir).exists(), "{subdir}");
    }
}

#[tokio::test]
async fn a_link_on_the_way_or_in_the_volume_s_place_is_refused_and_not_followed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    std::fs::create_dir_all(on_server("victim")).unwrap();
    symlink("victim", on_server("link")).unwrap();
    for subdir in ["link", "link/inside"] {
        let refused = controller.create_volume(create("pvc-link", &[("subDir", subdir)])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("link"), "{refused}");
    }
    assert!(names("victim").is_empty());
    assert_eq!(names(".nfs-csi/subdirs"), Vec::<String>::new());
    std::fs::remove_file(on_server("link")).unwrap();
    std::fs::remove_dir(on_server("victim")).unwrap();
}

#[tokio::test]
async fn expansion_is_recorded_survives_a_restart_and_never_shrinks() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let id = controller.create_volume(create("pvc-grow", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    let grown = controller.controller_expand_volume(expand(&id, 30 * MIB, 0)).await.unwrap().into_inner();
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (30 * MIB, false));
    driver.kill().await;

    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let smaller = controller.controller_expand_volume(expand(&id, 20 * MIB, 0)).await.unwrap().into_inner();
    assert_eq!(smaller.capacity_bytes, 30 * MIB);
    let refused = controller.controller_expand_volume(expand(&id, 10 * MIB, 20 * MIB)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    let missing = controller.controller_expand_volume(expand("127.0.0.1#run/export#pvc-none##", MIB, 0)).await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);
    controller.delete_volume(delete(&id)).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_the_go_driver_made_is_grown_and_deleted() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    for id in ["127.0.0.1#run/export#pvc-go##", "127.0.0.1/run/export/pvc-go", "127.0.0.1#run/export#pvc-go#"] {
        std::fs::create_dir(on_server("pvc-go")).unwrap();
        std::fs::write(on_server("pvc-go/file"), "data").unwrap();
        let grown = controller.controller_expand_volume(expand(id, 5 * MIB, 0)).await.unwrap().into_inner();
        assert_eq!(grown.capacity_bytes, 5 * MIB);
        assert_eq!(std::fs::read_to_string(on_server("pvc-go/file")).unwrap(), "data");
        controller.delete_volume(delete(id)).await.unwrap();
        assert!(!on_server("pvc-go").exists(), "{id}");
    }
}

#[tokio::test]
async fn a_hundred_creates_and_deletes_at_once_all_succeed() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let controller = driver.controller().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..100 {
        let mut controller = controller.clone();
        calls.spawn(async move {
            let created = controller.create_volume(create(&format!("pvc-many-{number}"), &[])).await?;
            Ok::<_, tonic::Status>(created.into_inner().volume.unwrap().volume_id)
        });
    }
    let ids: Vec<String> = calls.join_all().await.into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(names("").iter().filter(|name| name.starts_with("pvc-many-")).count(), 100);
    let mut calls = tokio::task::JoinSet::new();
    for id in ids {
        let mut controller = controller.clone();
        calls.spawn(async move { controller.delete_volume(delete(&id)).await });
    }
    for deleted in calls.join_all().await {
        deleted.unwrap();
    }
    assert_eq!(names("").iter().filter(|name| name.starts_with("pvc-many-")).count(), 0);
}

#[tokio::test]
async fn the_same_volume_asked_for_many_times_at_once_is_made_once() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let controller = driver.controller().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut controller = controller.clone();
        calls.spawn(async move { controller.create_volume(create("pvc-same", &[])).await });
    }
    let ids: Vec<String> = calls
        .join_all()
        .await
        .into_iter()
        .map(|created| created.unwrap().into_inner().volume.unwrap().volume_id)
        .collect();
    assert!(ids.iter().all(|id| id == &ids[0]));
    let mut controller = controller;
    controller.delete_volume(delete(&ids[0])).await.unwrap();
}

#[tokio::test]
async fn capabilities_are_validated_for_volumes_that_exist() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let id = controller.create_volume(create("pvc-valid", &[])).await.unwrap().into_inner().volume.unwrap().volume_id;
    let validate = |id: &str, capabilities| ValidateVolumeCapabilitiesRequest {
        volume_id: id.into(),
        volume_capabilities: capabilities,
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let mount = vec![requests::capability(Mode::SingleNodeSingleWriter, &["nfsvers=4.1"])];
    let confirmed = controller.validate_volume_capabilities(validate(&id, mount.clone())).await.unwrap().into_inner();
    assert_eq!(confirmed.confirmed.unwrap().volume_capabilities, mount);
    let wrong = vec![capability(Mode::SingleNodeWriter, &["nfsvers=5"])];
    let refused = controller.validate_volume_capabilities(validate(&id, wrong)).await.unwrap().into_inner();
    assert!(refused.confirmed.is_none() && refused.message.contains("nfsvers"), "{refused:?}");
    let missing = controller.validate_volume_capabilities(validate("127.0.0.1#run/export#none##", mount)).await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);
    controller.delete_volume(delete(&id)).await.unwrap();
}

#[tokio::test]
async fn another_mode_owner_or_retention_under_the_same_name_is_another_volume() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let has = [("mode", "2770"), ("uid", "1000"), ("gid", "2000")];
    let created = controller.create_volume(create("pvc-attributes", &has)).await.unwrap().into_inner().volume.unwrap();
    for (key, other) in [("mode", "0700"), ("uid", "1001"), ("gid", "2001"), ("trashRetention", "2h")] {
        let kept = has.into_iter().filter(|(name, _)| *name != key);
        let wanted: Vec<_> = kept.chain([(key, other)]).collect();
        let refused = controller.create_volume(create("pvc-attributes", &wanted)).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{key}: {refused}");
        assert!(refused.message().contains(key) && refused.message().contains("pvc-attributes"), "{refused}");
    }
    controller.create_volume(create("pvc-attributes", &has)).await.unwrap();
    controller.delete_volume(delete(&created.volume_id)).await.unwrap();
}

#[tokio::test]
async fn a_claim_s_own_words_lead_into_no_directory_that_another_volume_has_by_its_name() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let own = controller.create_volume(create("pvc-victim", &[])).await.unwrap().into_inner().volume.unwrap();
    let provisioned = "pvc-4bcbf944-0a0e-4a3c-9d3c-2f1a6f2b3c4d";
    std::fs::create_dir(on_server(provisioned)).unwrap();
    let namespace = "${pvc.metadata.namespace}/${pvc.metadata.name}";
    for (template, claim, of_namespace) in [
        ("${pvc.metadata.name}", "pvc-victim", "default"),
        (namespace, "data", "pvc-victim"),
        ("${pvc.metadata.name}", provisioned, "default"),
    ] {
        let more = [
            ("subDir", template),
            ("csi.storage.k8s.io/pvc/name", claim),
            ("csi.storage.k8s.io/pvc/namespace", of_namespace),
        ];
        let refused = controller.create_volume(create("pvc-attacker", &more)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("another volume's"), "{refused}");
    }
    assert!(crate::kit::server::names(".nfs-csi/subdirs").is_empty());
    std::fs::remove_dir(on_server(provisioned)).unwrap();
    controller.delete_volume(delete(&own.volume_id)).await.unwrap();
}
