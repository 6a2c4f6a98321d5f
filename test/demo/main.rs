//! The life of a volume on a real NFS server, step by step: `make demo`.
#![allow(missing_docs, unreachable_pub, reason = "a program of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::must_use_candidate, reason = "figures for people, and no library")]

#[path = "../kit/mod.rs"]
mod kit;
mod story;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{CapacityRange, CreateVolumeRequest, GetPluginInfoRequest, NodeGetVolumeStatsResponse, Volume};

use tonic::transport::Channel;

use kit::driver::Driver;
use kit::quota::{Agent, Export, XFS};
use kit::requests::{
    MIB, create, create_from, delete, delete_snapshot, expand, of_snapshot, of_volume, publish, snapshot, stats,
    unpublish,
};
use kit::server::{names, on_server};
use kit::{folder, mounts_at, nfs_mounts_below, wait_for};
use story::Story;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let folder = folder();
    let mut story = Story::begin("The life of a volume", "driver, pods and a kernel NFS server in one virtual machine");

    story.chapter("The driver starts");
    let start = async { Driver::start(folder.path(), &[]) };
    let driver = story.act("driver", "starts, controller and node in one process", start).await;
    let (mut controller, mut node) = (driver.controller().await, driver.node().await);
    let info = driver.identity().await.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    let memory = driver.resident_bytes() as f64 / 1e6;
    story.seen("driver", format_args!("{} {}, {memory:.1} MB of memory", info.name, info.vendor_version));

    let volume = made(&mut story, &mut controller).await;
    used_by_pods(&mut story, &mut controller, &mut node, &volume, folder.path()).await;
    copied(&mut story, &mut controller, &volume).await;
    limited(&mut story, &mut controller, &mut node, &folder.path().join("pod-d")).await;

    story.chapter("It is deleted");
    story.call("DeleteVolume", "pvc-demo", controller.delete_volume(delete(&volume.volume_id))).await.unwrap();
    assert!(!on_server("pvc-demo").exists() && names(".nfs-csi/volumes").is_empty());
    story.seen("server", "gone from the share, and its record too");
    let emptied = async {
        wait_for("the trash to be emptied", Duration::from_secs(30), || {
            names(".nfs-csi/trash").is_empty().then_some(())
        });
    };
    story.act("driver", "frees what is in the trash, in the background", emptied).await;
    story.seen("server", format_args!("left on the share: {}", names("").join(" ")));

    drop((controller, node));
    let socket = driver.socket().to_owned();
    let status = story.act("driver", "gets SIGTERM and ends", driver.stop()).await;
    assert!(status.success() && !socket.exists() && nfs_mounts_below(folder.path()).is_empty());
    story.seen("driver", format_args!("{status}, socket removed, exports unmounted"));
    story.end();
}

/// A volume is created, twice.
async fn made(story: &mut Story, controller: &mut ControllerClient<Channel>) -> Volume {
    story.chapter("A claim becomes a directory on the server");
    let request = create("pvc-demo", &[("mountPermissions", "0777")]);
    let first = controller.create_volume(request.clone());
    let volume = story.call("CreateVolume", "pvc-demo, 10 MiB; the first call also mounts the export", first).await;
    let volume = volume.unwrap().into_inner().volume.unwrap();
    story.seen("id", &volume.volume_id);
    story.seen("server", describe("pvc-demo"));
    story.seen("server", format_args!("its record, .nfs-csi/volumes/{}", names(".nfs-csi/volumes").join(" ")));

    let again = controller.create_volume(request);
    let again = story.call("CreateVolume", "the same call again, as after a lost answer", again).await;
    assert_eq!(again.unwrap().into_inner().volume.unwrap(), volume);
    story.seen("driver", "the same volume; nothing is made twice");
    volume
}

/// Two pods share the volume, which grows; another one only reads.
async fn used_by_pods(
    story: &mut Story,
    controller: &mut ControllerClient<Channel>,
    node: &mut NodeClient<Channel>,
    volume: &Volume,
    folder: &Path,
) {
    story.chapter("Pods use it");
    let [pod_a, pod_b, reader] = ["pod-a", "pod-b", "reader"].map(|name| folder.join(name));
    let mount = publish(volume, &pod_a, Mode::MultiNodeMultiWriter, &["noatime"]);
    story.call("NodePublishVolume", "mounts it for pod A", node.node_publish_volume(mount)).await.unwrap();
    story.seen("node", mounted(&pod_a));
    story.act("pod A", "writes a file of 4 MiB and syncs it", async { write(&pod_a.join("hello"), 4) }).await;
    story.seen("server", describe("pvc-demo/hello"));

    let mount = publish(volume, &pod_b, Mode::MultiNodeMultiWriter, &["noatime"]);
    story.call("NodePublishVolume", "mounts it for pod B", node.node_publish_volume(mount)).await.unwrap();
    story.seen("node", mounted(&pod_b));
    let read = async { std::fs::read(pod_b.join("hello")).unwrap() };
    let read = story.act("pod B", "reads what pod A wrote", read).await;
    assert!(read.len() == 4 << 20 && read.iter().all(|byte| *byte == 7));
    story.seen("pod B", format_args!("{}, the same bytes", size(read.len() as u64)));

    let answer = node.node_get_volume_stats(stats(volume, &pod_a));
    let answer = story.call("NodeGetVolumeStats", "how full is it, and does it work?", answer).await.unwrap();
    let (usage, condition) = usage(answer.into_inner());
    story.seen("driver", usage);
    story.seen("driver", condition);

    let grow = controller.controller_expand_volume(expand(&volume.volume_id, 1024 * MIB, 0));
    let grown = story.call("ControllerExpandVolume", "to 1 GiB, while pods use it", grow).await.unwrap().into_inner();
    assert!(grown.capacity_bytes == 1024 * MIB && !grown.node_expansion_required);
    story.seen("driver", "1 GiB; there is nothing to do on the nodes");

    let mount = publish(volume, &reader, Mode::MultiNodeReaderOnly, &[]);
    story.call("NodePublishVolume", "mounts it read-only for pod C", node.node_publish_volume(mount)).await.unwrap();
    story.seen("node", mounted(&reader));
    let read = std::fs::read(reader.join("hello")).unwrap().len();
    let refused = std::fs::write(reader.join("hello"), "no").unwrap_err();
    story.seen("pod C", format_args!("reads {}; a write fails: {refused}", size(read as u64)));

    let unmount = async {
        for target in [&pod_a, &pod_b, &reader] {
            node.node_unpublish_volume(unpublish(volume, target)).await.unwrap();
        }
    };
    story.call("NodeUnpublishVolume", "unmounts it for all three", unmount).await;
    assert!([&pod_a, &pod_b, &reader].iter().all(|target| mounts_at(target).is_empty() && !target.exists()));
    story.seen("node", "nothing is mounted, the target paths are removed");
    story.seen("server", format_args!("the data is still there: {}", describe("pvc-demo/hello")));
}

/// Snapshot, restore and clone of a volume that holds something.
async fn copied(story: &mut Story, controller: &mut ControllerClient<Channel>, volume: &Volume) {
    story.chapter("Snapshots and clones share its data");
    story.act("server", "gets 256 MiB in one file, and 1,000 small files", async { fill() }).await;
    let full = used();
    story.seen("server", format_args!("{} of the disk in use", size(full)));

    let take = controller.create_snapshot(snapshot("snap-demo", &volume.volume_id, &[]));
    let taken = story.call("CreateSnapshot", "snap-demo, of pvc-demo", take).await.unwrap();
    let taken = taken.into_inner().snapshot.unwrap();
    story.seen("id", &taken.snapshot_id);
    story.seen("server", shared_since(full));
    let change = async {
        std::fs::remove_file(on_server("pvc-demo/large")).unwrap();
        std::fs::write(on_server("pvc-demo/folder-7/7"), "changed").unwrap();
    };
    story.act("server", "loses the large file; a small one is changed", change).await;

    let before = used();
    // As large as its source: no size is asked for.
    let any_size = |request| CreateVolumeRequest { capacity_range: None, ..request };
    let restore = any_size(create_from("pvc-restored", of_snapshot(&taken.snapshot_id), &[]));
    let restore = controller.create_volume(restore);
    let restored = story.call("CreateVolume", "pvc-restored, from the snapshot", restore).await.unwrap();
    let restored = restored.into_inner().volume.unwrap();
    assert_eq!(std::fs::read(on_server("pvc-restored/folder-7/7")).unwrap(), [7; 4096]);
    story.seen("server", describe("pvc-restored/large"));
    story.seen("server", shared_since(before));

    let before = used();
    let clone = any_size(create_from("pvc-clone", of_volume(&restored.volume_id), &[]));
    let clone = controller.create_volume(clone);
    let clone = story.call("CreateVolume", "pvc-clone, a clone of pvc-restored", clone).await.unwrap();
    let clone = clone.into_inner().volume.unwrap();
    assert_eq!(names("pvc-clone"), names("pvc-restored"));
    story.seen("server", shared_since(before));

    let archive = snapshot("snap-archive", &clone.volume_id, &[("snapshotFormat", "tar.zst")]);
    let archive = controller.create_snapshot(archive);
    let archived = story.call("CreateSnapshot", "snap-archive, one compressed archive", archive).await.unwrap();
    let archived = archived.into_inner().snapshot.unwrap();
    let mut files = names(".nfs-csi/snapshots").into_iter().map(|key| format!(".nfs-csi/snapshots/{key}/data.tar.zst"));
    story.seen("server", describe(&files.find(|file| on_server(file).exists()).unwrap()));

    let volumes = async {
        for volume in [&restored, &clone] {
            controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
        }
    };
    story.call("DeleteVolume", "pvc-restored and pvc-clone", volumes).await;
    let snapshots = async {
        for snapshot in [&taken, &archived] {
            controller.delete_snapshot(delete_snapshot(&snapshot.snapshot_id)).await.unwrap();
        }
    };
    story.call("DeleteSnapshot", "snap-demo and snap-archive", snapshots).await;
    assert!(names(".nfs-csi/snapshots").is_empty() && names("") == [".nfs-csi", "pvc-demo"]);
    story.seen("server", format_args!("left on the share: {}", names("").join(" ")));
}

/// A volume whose size the server enforces.
async fn limited(
    story: &mut Story,
    controller: &mut ControllerClient<Channel>,
    node: &mut NodeClient<Channel>,
    pod: &Path,
) {
    story.chapter("With a quota agent, the server enforces a volume's size");
    let export = Export::on(XFS);
    let start = async { Agent::start(&export, &[]) };
    let _agent = story.act("server", "starts `nfs-csi quota` for an XFS disk", start).await;
    let share = export.path().to_str().unwrap();
    let request = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 }),
        ..create("pvc-limited", &[("share", share), ("quota", "required")])
    };
    let create = controller.create_volume(request);
    let volume = story.call("CreateVolume", "pvc-limited, 32 MiB, quota: required", create).await.unwrap();
    let volume = volume.into_inner().volume.unwrap();
    let mount = publish(&volume, pod, Mode::MultiNodeMultiWriter, &[]);
    story.call("NodePublishVolume", "mounts it for pod D", node.node_publish_volume(mount)).await.unwrap();
    story.seen("pod D", free(pod));
    let path = pod.join("data");
    let full = async { std::fs::write(&path, vec![7; 48 << 20]).and_then(|()| std::fs::File::open(&path)?.sync_all()) };
    let full = story.act("pod D", "writes 48 MiB", full).await.unwrap_err();
    story.seen("pod D", format_args!("{full}; {}", free(pod)));
    let grow = controller.controller_expand_volume(expand(&volume.volume_id, 64 * MIB, 0));
    story.call("ControllerExpandVolume", "to 64 MiB, while the pod uses it", grow).await.unwrap();
    story.seen("pod D", free(pod));
    story.act("pod D", "writes them again", async { write(&path, 48) }).await;
    story.seen("pod D", "all is there");
    let end = async {
        node.node_unpublish_volume(unpublish(&volume, pod)).await.unwrap();
        controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
    };
    story.call("DeleteVolume", "pvc-limited, after its pod", end).await;
    wait_for("the project to be free", Duration::from_mins(1), || export.projects("applied").is_empty().then_some(()));
    story.seen("server", "nothing is charged to its project any more: the number is free");
}

/// What df shows.
fn free(path: &Path) -> String {
    let stat = nix::sys::statvfs::statvfs(path).unwrap();
    let [total, free] = [stat.blocks(), stat.blocks_free()].map(|blocks| size(blocks * stat.fragment_size()));
    format!("df: {total}, {free} free")
}

/// Usage and condition of a volume, in words.
fn usage(answer: NodeGetVolumeStatsResponse) -> (String, String) {
    let [bytes, inodes] = answer.usage.as_slice() else { panic!("bytes and inodes: {:?}", answer.usage) };
    let condition = answer.volume_condition.unwrap();
    assert!(!condition.abnormal);
    let [used, total] = [bytes.used, bytes.total].map(|bytes| size(u64::try_from(bytes).unwrap()));
    (format!("{used} of {total} used, {} of {} inodes", inodes.used, inodes.total), condition.message)
}

/// Gives the volume something to copy.
fn fill() {
    write(&on_server("pvc-demo/large"), 256);
    for directory in 0..20 {
        let directory = on_server(&format!("pvc-demo/folder-{directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..50 {
            std::fs::write(directory.join(file.to_string()), vec![file; 4096]).unwrap();
        }
    }
    nix::unistd::sync();
}

/// Bytes in use on the server's disk.
fn used() -> u64 {
    nix::unistd::sync();
    let stat = nix::sys::statvfs::statvfs(&on_server("")).unwrap();
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

fn shared_since(before: u64) -> String {
    let more = used().saturating_sub(before);
    assert!(more < 64 << 20, "256 MiB are shared, but {more} bytes more are used");
    format!("{} more of the disk in use: the data is shared (reflink)", size(more))
}

/// The NFS mount on a path, as the kernel has it.
fn mounted(target: &Path) -> String {
    let line = mounts_at(target).pop().expect("a mount");
    let (mount, superblock) = line.split_once(" - ").expect("a line of the mount table");
    let options = mount.split(' ').nth(5).expect("mount options");
    let mut fields = superblock.split(' ');
    let (kind, source) = (fields.next().expect("a type"), fields.next().expect("a source"));
    let version = superblock.split(',').find(|option| option.starts_with("vers=")).unwrap_or_default();
    format!("{source} ({kind}, {version}, {options})")
}

/// What is at a path of the share.
fn describe(path: &str) -> String {
    let about = std::fs::metadata(on_server(path)).expect("it is there");
    let kind = if about.is_dir() { "directory".into() } else { size(about.size()) };
    format!("{path}, {kind}, mode {:04o}", about.permissions().mode() & 0o7777)
}

fn write(path: &Path, mebibytes: usize) {
    let file = std::fs::File::create(path).unwrap();
    for _ in 0..mebibytes {
        std::io::Write::write_all(&mut &file, &vec![7; 1024 * 1024]).unwrap();
    }
    file.sync_all().unwrap();
}
