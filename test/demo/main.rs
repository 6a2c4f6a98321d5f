//! The life of a volume on a real NFS server, step by step: `make demo`.
#![allow(missing_docs, unreachable_pub, reason = "a program of its own")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::must_use_candidate, reason = "figures for people, and no library")]

#[path = "../kit/mod.rs"]
mod kit;

use std::fmt::Display;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_usage::Unit;
use nfs_csi::proto::{CreateVolumeRequest, GetPluginInfoRequest, Volume};

use tonic::transport::Channel;

use kit::driver::Driver;
use kit::requests::{
    MIB, create, create_from, delete, delete_snapshot, expand, of_snapshot, of_volume, publish, snapshot, stats,
    unpublish,
};
use kit::server::{SERVER, SHARE, names, on_server};
use kit::{folder, mounts_at, wait_for};

/// The steps so far.
struct Story {
    step: u32,
}

impl Story {
    /// Begins a step; what `work` gives is shown with the time it took.
    async fn step<T>(&mut self, title: &str, work: impl Future<Output = T>) -> T {
        self.step += 1;
        let begun = Instant::now();
        let result = work.await;
        let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
        println!("\n {:>2}  {title:<78} {milliseconds:>8.1} ms", self.step);
        result
    }
}

/// A line below a step: who saw what.
fn seen(who: &str, what: impl Display) {
    println!("       {who:<8} {what}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let folder = folder();
    let [pod_a, pod_b, reader] = ["pod-a", "pod-b", "reader"].map(|name| folder.path().join(name));
    let mut story = Story { step: 0 };
    println!("\n     nfs-csi: the life of a volume");
    println!("     server {SERVER}:{SHARE}, a kernel NFS server on XFS with reflinks, in a machine of its own");

    let driver =
        story.step("start controller and node in one process", async { Driver::start(folder.path(), &[]) }).await;
    let (mut identity, mut controller, mut node) =
        (driver.identity().await, driver.controller().await, driver.node().await);
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    seen(
        "driver",
        format_args!("{} {}, listening on unix://{}", info.name, info.vendor_version, driver.socket().display()),
    );
    seen("memory", format_args!("{:.1} MB with its worker process", driver.resident_bytes() as f64 / 1e6));

    let request = create("pvc-demo", &[("mountPermissions", "0777")]);
    let volume = story.step("CreateVolume pvc-demo, 10 MiB", controller.create_volume(request)).await;
    let volume = volume.unwrap().into_inner().volume.unwrap();
    seen("id", &volume.volume_id);
    seen("server", describe(&on_server("pvc-demo")));
    seen("record", format_args!(".nfs-csi/volumes/{}", names(".nfs-csi/volumes").join(" ")));

    let again = story.step("CreateVolume again, as after a lost answer", async {
        controller.create_volume(create("pvc-demo", &[("mountPermissions", "0777")])).await
    });
    assert_eq!(again.await.unwrap().into_inner().volume.unwrap(), volume);
    seen("driver", "the same volume, nothing made twice");

    let mount = publish(&volume, &pod_a, Mode::MultiNodeMultiWriter, &["noatime"]);
    story.step("NodePublishVolume for pod A", node.node_publish_volume(mount)).await.unwrap();
    seen("node", mounted(&pod_a));

    story.step("pod A writes a file of 4 MiB and syncs it", async { write(&pod_a.join("hello"), 4) }).await;
    seen("server", describe(&on_server("pvc-demo/hello")));

    let mount = publish(&volume, &pod_b, Mode::MultiNodeMultiWriter, &["noatime"]);
    story.step("NodePublishVolume for pod B, on another path", node.node_publish_volume(mount)).await.unwrap();
    seen("node", mounted(&pod_b));
    let read = story.step("pod B reads what pod A wrote", async { std::fs::read(pod_b.join("hello")) }).await.unwrap();
    assert_eq!(i64::try_from(read.len()), Ok(4 * MIB));
    seen("pod B", format_args!("{} bytes, the same", read.len()));

    let told = story.step("NodeGetVolumeStats", node.node_get_volume_stats(stats(&volume, &pod_a))).await.unwrap();
    let told = told.into_inner();
    for usage in &told.usage {
        let unit = if usage.unit == i32::from(Unit::Bytes) { "bytes" } else { "inodes" };
        seen(unit, format_args!("{} of {} used, {} available", usage.used, usage.total, usage.available));
    }
    let condition = told.volume_condition.unwrap();
    assert!(!condition.abnormal);
    seen("health", condition.message);

    let grown = story.step(
        "ControllerExpandVolume to 1 GiB, while pods use it",
        controller.controller_expand_volume(expand(&volume.volume_id, 1024 * MIB, 0)),
    );
    let grown = grown.await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes, 1024 * MIB);
    seen("record", format_args!("{} bytes; no work for the node", grown.capacity_bytes));

    let mount = publish(&volume, &reader, Mode::MultiNodeReaderOnly, &[]);
    story.step("NodePublishVolume read-only, for a reader", node.node_publish_volume(mount)).await.unwrap();
    seen("node", mounted(&reader));
    let refused = std::fs::write(reader.join("hello"), "no").unwrap_err();
    seen(
        "reader",
        format_args!("reads {} bytes; a write gives: {refused}", std::fs::read(reader.join("hello")).unwrap().len()),
    );

    story
        .step("NodeUnpublishVolume for all three", async {
            for target in [&pod_a, &pod_b, &reader] {
                node.node_unpublish_volume(unpublish(&volume, target)).await.unwrap();
                assert!(mounts_at(target).is_empty() && !target.exists());
            }
        })
        .await;
    seen("node", "nothing mounted, target paths removed");
    seen("server", format_args!("the data is still there: {}", describe(&on_server("pvc-demo/hello"))));

    copies(&mut story, &mut controller, &volume).await;

    story.step("DeleteVolume", controller.delete_volume(delete(&volume.volume_id))).await.unwrap();
    assert!(!on_server("pvc-demo").exists());
    seen("server", "pvc-demo is gone from the share, and so is its record");
    story
        .step("the reaper frees the trash", async {
            wait_for("the trash to be emptied", Duration::from_secs(30), || {
                names(".nfs-csi/trash").is_empty().then_some(())
            });
        })
        .await;
    seen("server", format_args!("left on the share: {}", left(&volume)));

    drop((identity, controller, node));
    let status = story.step("SIGTERM", driver.stop()).await;
    assert!(status.success());
    seen("driver", format_args!("ended with {status}, socket removed, exports unmounted"));
    println!("\n     done: {} steps, none failed\n", story.step);
}

/// Snapshot, restore, clone and delete of a volume that holds something.
async fn copies(story: &mut Story, controller: &mut ControllerClient<Channel>, volume: &Volume) {
    story
        .step("the volume is filled: 256 MiB in one file, 1,000 small ones in 20 folders", async {
            write(&on_server("pvc-demo/large"), 256);
            for directory in 0..20 {
                let directory = on_server(&format!("pvc-demo/folder-{directory}"));
                std::fs::create_dir(&directory).unwrap();
                for file in 0..50 {
                    std::fs::write(directory.join(file.to_string()), vec![file; 4096]).unwrap();
                }
            }
            nix::unistd::sync();
        })
        .await;
    let full = used();
    seen("server", format_args!("{:.0} MiB of the disk are used", mebibytes(full)));

    let take = snapshot("snap-demo", &volume.volume_id, &[]);
    let taken = story.step("CreateSnapshot", controller.create_snapshot(take)).await.unwrap();
    let taken = taken.into_inner().snapshot.unwrap();
    seen("id", &taken.snapshot_id);
    seen("server", shared_since(full));

    story
        .step("the volume is changed: the large file goes, a small one is rewritten", async {
            std::fs::remove_file(on_server("pvc-demo/large")).unwrap();
            std::fs::write(on_server("pvc-demo/folder-7/7"), "changed").unwrap();
        })
        .await;

    let before = used();
    // As large as its source: no size is asked for.
    let any_size = |request| CreateVolumeRequest { capacity_range: None, ..request };
    let restore = any_size(create_from("pvc-restored", of_snapshot(&taken.snapshot_id), &[]));
    let restored = story.step("CreateVolume from the snapshot", controller.create_volume(restore)).await.unwrap();
    let restored = restored.into_inner().volume.unwrap();
    assert_eq!(std::fs::read(on_server("pvc-restored/folder-7/7")).unwrap(), [7; 4096]);
    seen("server", describe(&on_server("pvc-restored/large")));
    seen("server", shared_since(before));

    let before = used();
    let clone = any_size(create_from("pvc-clone", of_volume(&restored.volume_id), &[]));
    let clone = story.step("CreateVolume as a clone of that", controller.create_volume(clone)).await.unwrap();
    let clone = clone.into_inner().volume.unwrap();
    seen("server", format_args!("{} entries at the top, as in its source", names("pvc-clone").len()));
    seen("server", shared_since(before));

    let archive = snapshot("snap-archive", &clone.volume_id, &[("snapshotFormat", "tar.zst")]);
    let archived =
        story.step("CreateSnapshot as one compressed archive", controller.create_snapshot(archive)).await.unwrap();
    let archived = archived.into_inner().snapshot.unwrap();
    let key = names(".nfs-csi/snapshots")
        .into_iter()
        .find(|key| on_server(&format!(".nfs-csi/snapshots/{key}/data.tar.zst")).exists())
        .unwrap();
    seen("server", describe(&on_server(&format!(".nfs-csi/snapshots/{key}/data.tar.zst"))));

    story
        .step("DeleteVolume for restored and clone, DeleteSnapshot for both: all answered", async {
            for volume in [&restored, &clone] {
                controller.delete_volume(delete(&volume.volume_id)).await.unwrap();
            }
            for snapshot in [&taken, &archived] {
                controller.delete_snapshot(delete_snapshot(&snapshot.snapshot_id)).await.unwrap();
            }
        })
        .await;
    assert!(names(".nfs-csi/snapshots").is_empty() && !on_server("pvc-clone").exists());
    seen("server", "gone from the share, and being freed in the trash");
}

/// Bytes in use on the server's disk.
fn used() -> u64 {
    nix::unistd::sync();
    let stat = nix::sys::statvfs::statvfs(&on_server("")).unwrap();
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn shared_since(before: u64) -> String {
    format!(
        "{:.1} MiB more of the disk are used: the data is shared by reflink",
        mebibytes(used().saturating_sub(before))
    )
}

/// The NFS mount on a path, as the kernel has it.
fn mounted(target: &Path) -> String {
    let line = mounts_at(target).pop().expect("a mount");
    let (mount, superblock) = line.split_once(" - ").expect("a line of the mount table");
    let options = mount.split(' ').nth(5).expect("mount options");
    let mut fields = superblock.split(' ');
    let (kind, source) = (fields.next().expect("a type"), fields.next().expect("a source"));
    let version = superblock.split(',').find(|option| option.starts_with("vers=")).unwrap_or_default();
    format!("{source} on {} ({kind}, {version}, {options})", target.file_name().expect("a name").display())
}

fn describe(path: &Path) -> String {
    let about = std::fs::metadata(path).expect("it is there");
    let kind = if about.is_dir() { "directory" } else { "file" };
    let mode = about.permissions().mode() & 0o7777;
    format!("{kind} {} mode {mode:04o} owner {}:{} size {}", path.display(), about.uid(), about.gid(), about.size())
}

fn write(path: &Path, mebibytes: usize) {
    let file = std::fs::File::create(path).unwrap();
    for _ in 0..mebibytes {
        std::io::Write::write_all(&mut &file, &vec![7; 1024 * 1024]).unwrap();
    }
    file.sync_all().unwrap();
}

fn left(volume: &Volume) -> String {
    let names = names("");
    assert!(!names.contains(&volume.volume_context["subDir"]));
    names.join(" ")
}
