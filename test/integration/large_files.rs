//! Large files, by every version of NFS: what their copies hold, and who reads and writes them.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cloning::{made, no_litter, removed};
use crate::kit::client::A;
use crate::kit::content::bytes;
use crate::kit::driver::Driver;
use crate::kit::requests::{create, create_from, of_volume};
use crate::kit::server::on_server;
use crate::kit::share::Share;
use crate::kit::{Folder, folder, wait_until};

const MIB: usize = 1 << 20;
/// An export whose file system has no reflinks.
const OTHER: &str = "/run/exports/other";

/// A file of so many bytes, of which no block is like another.
fn write(path: &Path, length: usize) -> Vec<u8> {
    let mut content: Vec<u8> = (0..=length / 4096).flat_map(bytes).collect();
    content.truncate(length);
    std::fs::write(path, &content).unwrap();
    content
}

/// How often the mounts below a folder asked for an operation, and how many bytes the answers had.
fn operations(folder: &Folder, name: &str) -> (u64, u64) {
    let statistics = std::fs::read_to_string("/proc/self/mountstats").unwrap();
    let below = format!(" mounted on {}/", folder.path().display());
    let of_mounts = statistics.split("device ").filter(|mount| mount.contains(&below));
    let line = |mount: &str| -> Option<(u64, u64)> {
        let is_of = |line: &str| Some(line.trim().strip_prefix(name)?.strip_prefix(':')?.to_owned());
        // Of each, `operations transmissions timeouts bytes-sent bytes-received …`.
        let figures: Vec<u64> = mount.lines().find_map(is_of)?.split_whitespace().flat_map(str::parse).collect();
        Some((*figures.first()?, *figures.get(4)?))
    };
    of_mounts.filter_map(line).fold((0, 0), |sum, figures| (sum.0 + figures.0, sum.1 + figures.1))
}

fn driver_with(version: &str) -> (Folder, Driver) {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[&format!("--mount-options=nfsvers={version}")]);
    (folder, driver)
}

#[tokio::test]
async fn content_size_and_holes_are_kept_by_every_version_of_nfs() {
    for version in ["3", "4.0", "4.1", "4.2"] {
        let (_folder, driver) = driver_with(version);
        for share in [None, Some(OTHER)] {
            let source = made(&driver, create("pvc-source", &[])).await;
            let root = on_server("pvc-source");
            for (name, length) in [("small", 5000), ("medium", 100_000), ("large", 5 * MIB + 77)] {
                write(&root.join(name), length);
            }
            let sparse = File::create(root.join("sparse")).unwrap();
            for at in [0, 3 * MIB, 20 * MIB] {
                sparse.write_all_at(&bytes(at), at as u64).unwrap();
            }
            sparse.set_len(24 * MIB as u64 + 5).unwrap();
            File::create(root.join("hole")).unwrap().set_len(4 * MIB as u64).unwrap();
            let more: Vec<_> = share.map(|share| ("share", share)).into_iter().collect();
            let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &more)).await;
            let copy = share.map_or_else(|| on_server("pvc-clone"), |share| Path::new(share).join("pvc-clone"));
            for name in ["small", "medium", "large", "sparse", "hole"] {
                let same = std::fs::read(root.join(name)).unwrap() == std::fs::read(copy.join(name)).unwrap();
                assert!(same, "{name} by NFS {version} to {share:?}");
            }
            for name in ["sparse", "hole"] {
                let bytes = copy.join(name).metadata().unwrap().blocks() * 512;
                assert!(bytes < 2 * MIB as u64, "{name} by NFS {version} to {share:?} takes {bytes} bytes");
            }
            removed(&driver, &clone).await;
            removed(&driver, &source).await;
            no_litter();
        }
    }
}

#[tokio::test]
async fn where_no_server_copies_a_file_much_of_it_is_read_at_once() {
    for version in ["3", "4.0", "4.1"] {
        let (folder, driver) = driver_with(version);
        let source = made(&driver, create("pvc-source", &[])).await;
        write(&on_server("pvc-source/file"), 16 * MIB);
        let clone = made(&driver, create_from("pvc-clone", of_volume(&source.volume_id), &[])).await;
        let (reads, read) = operations(&folder, "READ");
        assert!(read >= 16 * MIB as u64 && read / reads > 128 * 1024, "NFS {version}: {read} bytes by {reads} calls");
        let (writes, _) = operations(&folder, "WRITE");
        assert!((1..=128).contains(&writes), "NFS {version}: {writes} calls to write 16 MiB");
        removed(&driver, &clone).await;
        removed(&driver, &source).await;
        no_litter();
    }
}

/// The path of a file that is being copied, once some of it is there.
async fn staged(share: &Share, name: &str) -> PathBuf {
    wait_until("a file to be copied in part", Duration::from_mins(2), || {
        let attempts = share.names(".nfs-csi/staging").into_iter();
        let mut paths = attempts.map(|attempt| share.on_disk(&format!(".nfs-csi/staging/{attempt}/{name}")));
        paths.find(|path| path.metadata().is_ok_and(|file| file.len() > 0))
    })
    .await
}

#[tokio::test]
async fn a_file_that_is_cut_or_grows_meanwhile_is_copied_as_it_is_found() {
    const SIZE: usize = 96 * MIB;
    const CUT: u64 = 2 * MIB as u64 + 7;
    for version in ["3", "4.1"] {
        for is_cut in [true, false] {
            let (folder, share) = (folder(), Share::new());
            let driver = Driver::start_in(A, folder.path(), &[&format!("--mount-options=nfsvers={version}")]);
            let mut controller = driver.controller().await;
            let request = share.create("pvc-source", &[]);
            let source = controller.create_volume(request).await.unwrap().into_inner().volume.unwrap();
            let path = share.on_disk("pvc-source/file");
            let content = write(&path, SIZE);
            let request = share.create_from("pvc-clone", of_volume(&source.volume_id), &[]);
            let far = A.move_away(30);
            let copying = tokio::spawn(async move { controller.create_volume(request).await });
            let copy = staged(&share, "file").await;
            let file = File::options().write(true).open(&path).unwrap();
            if is_cut {
                file.set_len(CUT).unwrap();
            } else {
                file.write_all_at(b"more", SIZE as u64).unwrap();
            }
            let so_far = copy.metadata().unwrap().len();
            assert!(so_far < SIZE as u64, "all of it was copied before it changed");
            copying.await.unwrap().unwrap();
            drop(far);
            let copied = std::fs::read(share.on_disk("pvc-clone/file")).unwrap();
            let length = if is_cut { usize::try_from(CUT).unwrap() } else { SIZE };
            assert_eq!(copied.len(), length, "NFS {version}, {so_far} bytes were copied before");
            assert!(copied == content[..length], "NFS {version}, cut: {is_cut}");
        }
    }
}

/// An export with a file of random bytes that, as its file system says, has one block only: what a file system that
/// compresses says of other files. It is gone when this is.
struct Compressed(Vec<u8>);

impl Compressed {
    const SHARE: &str = "/run/exports/compressed";

    fn export() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pvc-source")).unwrap();
        let content = write(&folder.path().join("pvc-source/file"), 8 * MIB);
        let (share, from) = (Self::SHARE, folder.path().display());
        Self::run(&format!(
            "mkdir -p {share} /run/nfsroot{share}
            truncate -s 64M /run/compressed.img
            mkfs.ext4 -q -F -O ^has_journal -d {from} /run/compressed.img
            debugfs -w -R 'set_inode_field /pvc-source/file blocks 8' /run/compressed.img
            mount -o loop /run/compressed.img /run/nfsroot{share}
            mount --bind /run/nfsroot{share} {share}
            exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=99 '*:{share}'"
        ));
        Self(content)
    }

    fn run(script: &str) {
        assert!(Command::new("sh").args(["-euc", script]).status().unwrap().success(), "{script}");
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        let share = Self::SHARE;
        Self::run(&format!(
            "exportfs -u '*:{share}'; exportfs -f; umount {share}; umount -l /run/nfsroot{share}; rm /run/compressed.img"
        ));
    }
}

#[tokio::test]
async fn a_file_of_few_blocks_and_without_holes_is_copied_by_the_server() {
    let compressed = Compressed::export();
    let file = Path::new(Compressed::SHARE).join("pvc-source/file").metadata().unwrap();
    assert!(file.blocks() * 512 < file.len(), "{} blocks", file.blocks());
    let (folder, driver) = driver_with("4.2");
    let id = format!("127.0.0.1#{}#pvc-source##", Compressed::SHARE.trim_start_matches('/'));
    let request = create_from("pvc-clone", of_volume(&id), &[("share", Compressed::SHARE)]);
    let clone = made(&driver, request).await;
    let content = std::fs::read(Path::new(Compressed::SHARE).join("pvc-clone/file")).unwrap();
    assert!(content == compressed.0);
    let [(copies, _), (_, read)] = ["COPY", "READ"].map(|name| operations(&folder, name));
    assert!(copies > 0 && read < MIB as u64, "{copies} COPY, and {read} bytes were read");
    removed(&driver, &clone).await;
    assert!(driver.stop().await.success());
}
