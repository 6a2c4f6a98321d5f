//! How a server is reached: names and addresses, versions, and what version 3 needs for locks.

use std::net::{Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::Command;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::kit::driver::Driver;
use crate::kit::mortal::OTHER;
use crate::kit::name_server::{A, answering};
use crate::kit::requests::{by_hand, create, delete, publish, unpublish};
use crate::kit::{folder, mounts_at};
use crate::servers::{server, silent};

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
    let link_local = link_local();
    for server in ["localhost", "127.0.0.1", "::1", "[::1]", &link_local] {
        let volume = by_hand("handle", &[("server", server)]);
        node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
        let mounted = mounts_at(&target).remove(0);
        assert!(mounted.contains(":/run/export "), "{mounted}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    }
    for (name, server) in [("pvc-v6", "::1"), ("pvc-local", &link_local)] {
        let created = driver.controller().await.create_volume(create(name, &[("server", server)])).await.unwrap();
        let volume = created.into_inner().volume.unwrap();
        // Twice: the second mount finds that the kernel has the server already.
        for target in [&target, &folder.path().join("another")] {
            node.node_publish_volume(publish(&volume, target, RWX, &["nfsvers=4.2"])).await.unwrap();
        }
        for target in [&target, &folder.path().join("another")] {
            node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
        }
        driver.controller().await.delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
}

/// An address of this guest that counts on one link only, with that link's name.
fn link_local() -> String {
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap();
    let line = table.lines().find(|line| line.starts_with("fe80")).expect("a link-local address");
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = Ipv6Addr::from(u128::from_str_radix(words[0], 16).unwrap());
    format!("{address}%{}", words[5])
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

#[tokio::test]
async fn a_volume_that_asks_for_version_3_or_has_no_other_leaves_the_others_theirs() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    // What only mountd finds, version 3 alone has.
    let link = Path::new("/run/nfsroot/run/by-link");
    std::os::unix::fs::symlink("export", link).unwrap();
    let [old, oldest, usual] = [&[("share", "/run/by-link")][..], &[], &[]].map(|more| by_hand("handle", more));
    for (volume, options, version) in [
        (&oldest, "nfsvers=3,nolock", "vers=3,"),
        (&usual, "nolock", "vers=4.2,"),
        (&old, "nolock", "vers=3,"),
        (&usual, "nolock", "vers=4.2,"),
        (&usual, "nfsvers=4.0", "vers=4.0,"),
        (&usual, "", "vers=4.2,"),
    ] {
        node.node_publish_volume(publish(volume, &target, RWX, &[options])).await.unwrap();
        let mounted = mounts_at(&target).remove(0);
        assert!(mounted.contains(version), "{options}: {mounted}");
        node.node_unpublish_volume(unpublish(volume, &target)).await.unwrap();
    }
    // The same in the controller.
    let mut controller = driver.controller().await;
    let places = [&[("share", "/run/by-link"), ("subDir", "team/one")][..], &[("subDir", "team/two")]];
    for (number, more) in places.into_iter().enumerate() {
        let created = controller.create_volume(create(&format!("pvc-{number}"), more)).await.unwrap();
        let id = created.into_inner().volume.unwrap().volume_id;
        controller.delete_volume(delete(&id)).await.unwrap();
    }
    std::fs::remove_file(link).unwrap();
}

#[tokio::test]
async fn mount_options_of_the_driver_hold_where_a_volume_says_nothing_else() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &["--mount-options=nfsvers=4.1,noatime"]);
    let (mut node, mut controller) = (driver.node().await, driver.controller().await);
    let target = folder.path().join("target");
    for (options, version, atime) in [("", "vers=4.1,", "noatime"), ("nfsvers=4.2,relatime", "vers=4.2,", "relatime")] {
        node.node_publish_volume(publish(&by_hand("handle", &[]), &target, RWX, &[options])).await.unwrap();
        let mounted = mounts_at(&target).remove(0);
        assert!(mounted.contains(version) && mounted.contains(atime), "{options}: {mounted}");
        node.node_unpublish_volume(unpublish(&by_hand("handle", &[]), &target)).await.unwrap();
    }
    let created = controller.create_volume(create("pvc-defaults", &[])).await.unwrap().into_inner().volume.unwrap();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = |line: &&str| line.contains(folder.path().to_str().unwrap()) && line.contains("vers=4.1,");
    assert_eq!(table.lines().filter(ours).count(), 2, "{table}");
    assert!(table.lines().filter(ours).all(|line| line.contains(" rw,nosuid,nodev,noexec,")), "{table}");
    controller.delete_volume(delete(&created.volume_id)).await.unwrap();
}

#[tokio::test]
async fn a_share_that_is_not_there_is_told_also_where_version_3_would_be_tried() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    for more in [&[("share", "/no/such")][..], &[("server", OTHER.address), ("share", "/no/such")]] {
        let refused = node.node_publish_volume(publish(&by_hand("typo", more), &target, RWX, &["nolock"])).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert!(refused.message().contains("no directory") && refused.message().contains("/no/such"), "{refused}");
    }
}

#[tokio::test]
async fn mounts_that_wait_for_a_dead_mountd_hold_up_no_others_of_the_server() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &["--first-mount-timeout=3s", "--mount-timeout=3s"]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let mountd = format!("nfsvers=3,nolock,mountproto=tcp,mountport={}", server(silent));
    let hangs = publish(&by_hand("hangs", &[]), &target, RWX, &[&mountd]);
    let refused = node.node_publish_volume(hangs.clone()).await.unwrap_err();
    assert!(matches!(refused.code(), Code::DeadlineExceeded | Code::Unavailable), "{refused}");
    let volume = by_hand("handle", &[]);
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    // Those of its kind are refused for a while.
    let refused = node.node_publish_volume(hangs).await.unwrap_err();
    assert!(refused.message().contains("left alone"), "{refused}");
}

#[tokio::test]
async fn a_first_name_server_that_is_dead_costs_time_and_not_the_volume() {
    let resolvers = "/run/resolv.conf";
    let before = std::fs::read_to_string(resolvers).unwrap();
    std::fs::write(resolvers, "nameserver 127.0.0.53\nnameserver 127.0.0.54\nsearch one.test two.test\n").unwrap();
    let _silent = UdpSocket::bind("127.0.0.53:53").unwrap();
    answering("127.0.0.54:53", &[(A, &[127, 0, 0, 1])]);
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let target = folder.path().join("target");
    let volume = by_hand("handle", &[("server", "nfs.example.org")]);
    let published = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await;
    std::fs::write(resolvers, before).unwrap();
    published.unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
}
