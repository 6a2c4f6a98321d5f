//! A node with a dead server: its volumes are all that is wrong.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{NodeGetVolumeHealthRequest, NodeGetVolumeStatsResponse, Volume, VolumeHealthErrorType};
use nix::sys::signal::Signal;
use tonic::Code;
use tonic::transport::Channel;

use crate::kit::client::{A, SERVER};
use crate::kit::driver::Driver;
use crate::kit::http::{free_address, get};
use crate::kit::mortal::{MORTAL, OTHER};
use crate::kit::requests::{by_hand, publish, stats, unpublish};
use crate::kit::server::on_server;
use crate::kit::{folder, mounts_at, wait_for, wait_until};
use crate::servers::{hanging, server};

const RWX: Mode = Mode::MultiNodeMultiWriter;
/// What a call may take for which a server is waited for; the guest is slow, and so is a busy machine.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Volumes on the server that dies, which are published.
struct Published {
    volume: Volume,
    targets: Vec<PathBuf>,
}

async fn published(node: &mut NodeClient<Channel>, folder: &Path, count: usize, options: &[&str]) -> Published {
    let volume = by_hand("mortal", &MORTAL.parameters());
    let mut targets = Vec::new();
    for number in 0..count {
        let target = folder.join(format!("target-{number}"));
        node.node_publish_volume(publish(&volume, &target, RWX, options)).await.unwrap();
        targets.push(target);
    }
    Published { volume, targets }
}

async fn told(node: &mut NodeClient<Channel>, volume: &Volume, target: &Path) -> NodeGetVolumeStatsResponse {
    let begun = Instant::now();
    let told = node.node_get_volume_stats(stats(volume, target)).await.unwrap().into_inner();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    told
}

#[tokio::test]
async fn volumes_of_a_dead_server_go_and_their_targets_with_them() {
    for options in [&["nfsvers=4.2"][..], &["nfsvers=4.0"]] {
        let folder = folder();
        let driver = Driver::start_as("node", folder.path(), &[]);
        let mut node = driver.node().await;
        let Published { volume, targets } = published(&mut node, folder.path(), 3, options).await;
        let open = std::fs::File::create(targets[1].join("open")).unwrap();
        let dead = MORTAL.die();
        // The last one is the server's last mount: the kernel takes leave of the server then, and waits for it.
        for target in &targets {
            let begun = Instant::now();
            node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
            assert!(begun.elapsed() < AT_ONCE, "{}: {:?}", target.display(), begun.elapsed());
            assert!(mounts_at(target).is_empty() && !target.exists());
        }
        drop(dead);
        drop(open);
        wait_for("the killed workers to be gone", Duration::from_secs(10), || {
            (driver.workers().len() <= 1).then_some(())
        });
    }
}

#[tokio::test]
async fn calls_for_a_dead_server_are_refused_at_once_and_others_are_served() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start_as("node", folder.path(), &[&format!("--metrics-address={address}")]);
    let mut node = driver.node().await;
    let published = published(&mut node, folder.path(), 1, &[]).await;
    let before = driver.workers().len();
    let dead = MORTAL.die();
    let target = folder.path().join("dead");
    let begun = Instant::now();
    let refused = node.node_publish_volume(publish(&published.volume, &target, RWX, &[])).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    for _ in 0..20 {
        let refused = node.node_publish_volume(publish(&published.volume, &target, RWX, &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        for part in [MORTAL.address, "no answer to RPC NULL", "it answered last at 20", "asked again in"] {
            assert!(refused.message().contains(part), "{part}: {refused}");
        }
        assert!(!target.exists());
    }
    let elsewhere = by_hand("other", &OTHER.parameters());
    let living = folder.path().join("living");
    let begun = Instant::now();
    node.node_publish_volume(publish(&elsewhere, &living, RWX, &[])).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let (_, text) = get(address, "/metrics").unwrap();
    for line in ["nfs_csi_server_refused{server=\"10.0.11.1\"} 1", "nfs_csi_server_refused{server=\"10.0.12.1\"} 0"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    node.node_unpublish_volume(unpublish(&elsewhere, &living)).await.unwrap();
    assert!(driver.workers().len() <= before + 1, "{:?}", driver.workers());
    drop(dead);
    // It closes by itself.
    let begun = Instant::now();
    while node.node_publish_volume(publish(&published.volume, &target, RWX, &[])).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(8), "{}", driver.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for target in [&target, &published.targets[0]] {
        node.node_unpublish_volume(unpublish(&published.volume, target)).await.unwrap();
    }
    assert!(driver.log().contains("server answers again"), "{}", driver.log());
}

#[tokio::test]
async fn the_use_of_a_volume_is_told_from_memory_and_its_server_s_silence_is_a_condition() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &["--volume-stats-cache=1s"]);
    let mut node = driver.node().await;
    let Published { volume, targets } = published(&mut node, folder.path(), 1, &[]).await;
    let target = &targets[0];
    assert!(!told(&mut node, &volume, target).await.volume_condition.unwrap().abnormal);
    let dead = MORTAL.die();
    // Not asked yet.
    assert!(!told(&mut node, &volume, target).await.volume_condition.unwrap().abnormal);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for _ in 0..3 {
        let told = told(&mut node, &volume, target).await;
        assert_eq!(told.usage.len(), 2, "what was known is told");
        let condition = told.volume_condition.unwrap();
        assert!(condition.abnormal);
        for part in [MORTAL.address, "s old"] {
            assert!(condition.message.contains(part), "{part}: {}", condition.message);
        }
    }
    let request = NodeGetVolumeHealthRequest {
        volume_id: volume.volume_id.clone(),
        volume_publish_path: target.to_str().unwrap().into(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let nowhere = NodeGetVolumeHealthRequest { volume_id: "another".into(), ..NodeGetVolumeHealthRequest::default() };
    assert_eq!(node.node_get_volume_health(nowhere).await.unwrap_err().code(), Code::NotFound);
    let health = node.node_get_volume_health(request).await.unwrap().into_inner().volume_health.unwrap();
    assert_eq!(health.volume_id, volume.volume_id);
    assert_eq!(health.health_statuses[0].status(), VolumeHealthErrorType::Inaccessible);
    assert_eq!(health.health_statuses[0].reason, "ServerUnreachable");
    drop(dead);
    let begun = Instant::now();
    while told(&mut node, &volume, target).await.volume_condition.unwrap().abnormal {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", driver.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_is_told_and_served_again_when_it_is_back() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = by_hand("mortal", &MORTAL.parameters());
    let target = folder.path().join("target");
    MORTAL.run("rpc.nfsd 0");
    let refused = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("refused"), "{refused}");
    MORTAL.run("rpc.nfsd -N 3 4");
    let begun = Instant::now();
    while let Err(error) = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
}

#[tokio::test]
async fn a_server_whose_first_mount_hangs_does_not_hold_up_those_of_others() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &["--first-mount-timeout=3s"]);
    let node = driver.node().await;
    let port = format!("port={}", server(hanging));
    let mut calls = Vec::new();
    for number in 0..3 {
        let (mut node, target, port) = (node.clone(), folder.path().join(format!("hangs-{number}")), port.clone());
        calls.push(tokio::spawn(async move {
            node.node_publish_volume(publish(&by_hand("hangs", &[]), &target, RWX, &["nfsvers=4.2", &port])).await
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    let (mut other, target) = (node.clone(), folder.path().join("other"));
    let elsewhere = by_hand("other", &OTHER.parameters());
    other.node_publish_volume(publish(&elsewhere, &target, RWX, &[])).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    other.node_unpublish_volume(unpublish(&elsewhere, &target)).await.unwrap();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Unavailable), "{error}");
    }
    // It answers RPC NULL, and is left alone all the same.
    let refused = other
        .node_publish_volume(publish(&by_hand("hangs", &[]), &target, RWX, &["nfsvers=4.2", &port]))
        .await
        .unwrap_err();
    assert!(refused.message().contains("left alone"), "{refused}");
}

#[tokio::test]
async fn a_name_server_that_never_answers_is_told_soon() {
    // The guest's resolver asks this one.
    let _silent = UdpSocket::bind("127.0.0.53:53").unwrap();
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = by_hand("handle", &[("server", "nfs.example.org")]);
    let target = folder.path().join("target");
    for _ in 0..2 {
        let refused = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("nfs.example.org does not resolve"), "{refused}");
    }
}

#[tokio::test]
async fn an_export_that_was_made_anew_is_told_and_mounted_anew() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &["--volume-stats-cache=0"]);
    let mut node = driver.node().await;
    let volume = by_hand("rebuilt", &[("subDir", "rebuilt")]);
    let target = folder.path().join("target");
    std::fs::create_dir(on_server("rebuilt")).unwrap();
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    std::fs::remove_dir(on_server("rebuilt")).unwrap();
    std::fs::create_dir(on_server("rebuilt")).unwrap();
    std::fs::write(on_server("rebuilt/file"), "new").unwrap();
    let condition = told(&mut node, &volume, &target).await.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("stale"), "{condition:?}");
    node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
    assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "new");
    assert_eq!(mounts_at(&target).len(), 1);
    std::fs::remove_dir_all(on_server("rebuilt")).unwrap();
    node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
    assert!(!target.exists());
}

#[tokio::test]
async fn a_target_that_is_a_file_or_below_a_dead_mount_is_an_error_and_nothing_is_touched() {
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let elsewhere = by_hand("other", &OTHER.parameters());
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    for refused in [
        node.node_publish_volume(publish(&elsewhere, &file, RWX, &[])).await.unwrap_err(),
        node.node_unpublish_volume(unpublish(&elsewhere, &file)).await.unwrap_err(),
    ] {
        assert!(refused.message().contains("not a directory") && refused.message().contains("remove it"), "{refused}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");

    let Published { volume, targets } = published(&mut node, folder.path(), 1, &[]).await;
    let below = targets[0].join("below");
    let dead = MORTAL.die();
    for _ in 0..2 {
        let begun = Instant::now();
        let refused = node.node_publish_volume(publish(&elsewhere, &below, RWX, &[])).await.unwrap_err();
        assert!(refused.message().contains(targets[0].to_str().unwrap()), "{refused}");
        let refused = node.node_unpublish_volume(unpublish(&elsewhere, &below)).await.unwrap_err();
        assert!(refused.message().contains("unmount that first"), "{refused}");
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    }
    drop(dead);
    node.node_unpublish_volume(unpublish(&volume, &targets[0])).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_is_killed_at_any_moment_knows_its_volumes_again() {
    let folder = folder();
    let volume = by_hand("volume", &[]);
    let target = folder.path().join("target");
    for round in 0..24 {
        let driver = Driver::start_as("node", folder.path(), &[]);
        let mut node = driver.node().await;
        let call = tokio::spawn({
            let (mut node, volume, target) = (node.clone(), volume.clone(), target.clone());
            async move {
                let _ = node.node_publish_volume(publish(&volume, &target, RWX, &[])).await;
                let _ = node.node_unpublish_volume(unpublish(&volume, &target)).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(2 * round)).await;
        driver.kill().await;
        let _ = call.await;
        let driver = Driver::start_as("node", folder.path(), &[]);
        node = driver.node().await;
        let mounted = mounts_at(&target).len();
        assert!(mounted <= 1, "round {round}");
        if mounted == 1 {
            assert!(!told(&mut node, &volume, &target).await.volume_condition.unwrap().abnormal, "round {round}");
        }
        node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
        assert_eq!(mounts_at(&target).len(), 1, "round {round}");
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(mounts_at(&target).is_empty() && !target.exists(), "round {round}");
        let records = std::fs::read_dir(folder.path().join("published")).unwrap().count();
        assert_eq!(records, 0, "round {round}");
        driver.kill().await;
    }
}

#[tokio::test]
async fn volumes_of_a_dead_server_that_share_nothing_all_go_at_once() {
    const VOLUMES: usize = 60;
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    // Each has a superblock of its own, as volumes have that are exports of their own.
    let Published { volume, targets } = published(&mut node, folder.path(), VOLUMES, &["nosharecache"]).await;
    let dead = MORTAL.die();
    let calls = targets.iter().map(|target| {
        let (mut node, request) = (node.clone(), unpublish(&volume, target));
        tokio::spawn(async move { node.node_unpublish_volume(request).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert!(targets.iter().all(|target| mounts_at(target).is_empty() && !target.exists()));
    drop(dead);
}

#[tokio::test]
async fn two_hundred_volumes_are_known_after_a_restart_and_all_go() {
    const VOLUMES: usize = 200;
    let folder = folder();
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let volume = by_hand("volume", &[]);
    let targets: Vec<PathBuf> = (0..VOLUMES).map(|number| folder.path().join(format!("target-{number}"))).collect();
    for target in &targets {
        node.node_publish_volume(publish(&volume, target, RWX, &[])).await.unwrap();
    }
    assert!(driver.stop().await.success());
    assert!(targets.iter().all(|target| mounts_at(target).len() == 1), "a restart unmounts nothing");
    let driver = Driver::start_as("node", folder.path(), &[]);
    let mut node = driver.node().await;
    let mut calls = Vec::new();
    for target in targets.clone() {
        let (mut node, volume) = (node.clone(), volume.clone());
        calls.push(tokio::spawn(async move {
            node.node_get_volume_stats(stats(&volume, &target)).await.unwrap();
            node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
            target
        }));
    }
    for call in calls {
        let target = call.await.unwrap();
        assert!(mounts_at(&target).is_empty() && !target.exists());
    }
    node.node_unpublish_volume(unpublish(&volume, &targets[0])).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_the_kernel_does_not_let_go_is_counted_and_holds_up_nothing_else() {
    let folder = folder();
    let address = free_address();
    let flags = ["--mount-timeout=2s", &format!("--metrics-address={address}")];
    let mut driver = Driver::start_as("node", folder.path(), &flags);
    let mut node = driver.node().await;
    let (known, unknown) = (by_hand("known", &[]), by_hand("unknown", &OTHER.parameters()));
    let [target, other, third] = ["target", "other", "third"].map(|name| folder.path().join(name));
    node.node_publish_volume(publish(&known, &target, RWX, &[])).await.unwrap();
    let stuck = || {
        let (_, text) = get(address, "/metrics").unwrap();
        text.lines().find_map(|line| line.strip_prefix("nfs_csi_worker_processes_stuck ")?.parse::<u64>().ok()).unwrap()
    };
    assert_eq!(stuck(), 0);
    let mut hung = None;
    for place in ["hung", "hung-again"] {
        // The first mounts of servers wait for each other, uninterruptibly, whatever network namespace they are in.
        hung = Some(HungMount::start(&folder.path().join(place)));
        let refused = node.node_publish_volume(publish(&unknown, &other, RWX, &[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
        wait_until("the worker to be counted", Duration::from_secs(30), || (stuck() == 1).then_some(())).await;
        assert!(driver.log().contains("does not end"), "{}", driver.log());
        node.node_get_volume_stats(stats(&known, &target)).await.unwrap();
        node.node_publish_volume(publish(&known, &third, RWX, &[])).await.unwrap();
        node.node_unpublish_volume(unpublish(&known, &third)).await.unwrap();
        if place == "hung" {
            drop(hung.take());
            wait_until("the worker to be gone", Duration::from_secs(30), || (stuck() == 0).then_some(())).await;
            publish_at_last(&mut node, &unknown, &other).await;
            node.node_unpublish_volume(unpublish(&unknown, &other)).await.unwrap();
        }
    }
    driver.signal(Signal::SIGTERM);
    assert!(driver.wait().await.success());
    let driver = Driver::start_as("node", folder.path(), &flags);
    let mut node = driver.node().await;
    node.node_unpublish_volume(unpublish(&known, &target)).await.unwrap();
    drop(hung);
    publish_at_last(&mut node, &unknown, &other).await;
    node.node_unpublish_volume(unpublish(&unknown, &other)).await.unwrap();
}

/// Publishes a volume whose server was not asked for a while.
async fn publish_at_last(node: &mut NodeClient<Channel>, volume: &Volume, target: &Path) {
    let end = Instant::now() + Duration::from_mins(1);
    while let Err(refused) = node.node_publish_volume(publish(volume, target, RWX, &[])).await {
        assert!(Instant::now() < end, "{refused}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A first mount of a server that hangs, in another network namespace.
struct HungMount(Child);

impl HungMount {
    fn start(place: &Path) -> Self {
        std::fs::create_dir(place).unwrap();
        let options = format!("vers=4.2,addr={SERVER},port={}", server(hanging));
        // Without a helper process, which tries again.
        let mount = ["mount", "-i", "-t", "nfs4", "-o", &options, &format!("{SERVER}:/"), place.to_str().unwrap()];
        let process = A.enter().args(mount).spawn().unwrap();
        let stack = format!("/proc/{}/stack", process.id());
        wait_for("the mount to hang", Duration::from_secs(30), || {
            std::fs::read_to_string(&stack)
                .is_ok_and(|stack| stack.contains("nfs4_discover_server_trunking"))
                .then_some(())
        });
        Self(process)
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn what_the_kernel_keeps_of_an_unmounted_volume_is_counted() {
    let folder = folder();
    let address = free_address();
    let driver = Driver::start_as("node", folder.path(), &[&format!("--metrics-address={address}")]);
    let mut node = driver.node().await;
    let volume = by_hand("other", &OTHER.parameters());
    let target = folder.path().join("target");
    let kept = || get(address, "/metrics").unwrap().1.contains("nfs_csi_detached_file_systems{server=\"10.0.12.1\"} 1");
    for is_elsewhere in [false, true] {
        node.node_publish_volume(publish(&volume, &target, RWX, &[])).await.unwrap();
        let file = target.join("open");
        std::fs::write(&file, "").unwrap();
        let open = if is_elsewhere { Err(Elsewhere::start(&file)) } else { Ok(std::fs::File::open(&file).unwrap()) };
        node.node_unpublish_volume(unpublish(&volume, &target)).await.unwrap();
        assert!(!target.exists());
        assert!(kept(), "{}", get(address, "/metrics").unwrap().1);
        drop(open);
        wait_for("the kernel to let go", Duration::from_secs(10), || (!kept()).then_some(()));
    }
}

/// A process that has a file open in a copy of the mounts, as a container has that mounts and unmounts are not handed on
/// to. (The copy alone goes with the target's directory, by rmdir(2).)
struct Elsewhere(Child);

impl Elsewhere {
    fn start(file: &Path) -> Self {
        let open = format!("exec sleep infinity < {}", file.display());
        let process = Command::new("unshare").args(["--mount", "sh", "-c", &open]).spawn().unwrap();
        // Its program changes when it has the file open.
        let program = format!("/proc/{}/comm", process.id());
        let is_open = || std::fs::read_to_string(&program).is_ok_and(|name| name == "sleep\n");
        wait_for("the open file", Duration::from_secs(10), || is_open().then_some(()));
        Self(process)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
