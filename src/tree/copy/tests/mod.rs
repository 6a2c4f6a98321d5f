//! What a copy keeps and bounds, on a local file system. They run as root.

mod changes;
mod lists;
mod resuming;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{AtFlags, FileType, OFlags, lgetxattr, lsetxattr};
use rustix::fs::{CWD, Mode, Timespec, Timestamps, XattrFlags, makedev, mkdirat, mknodat, openat, utimensat};

use super::directory::Directory;
use super::{Copy, Earlier, FileSystem, FileSystems, Links, Piece, Place, Task, tree};
use crate::tree::effort::Effort;
use crate::tree::{Progress, SourceKind, TreeError};

/// A folder with a source and a target in it, and perhaps what an earlier attempt left.
struct Trees {
    folder: tempfile::TempDir,
    progress: Progress,
    own: Option<u64>,
}

impl Trees {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        fs::create_dir(folder.path().join("target")).unwrap();
        Self { folder, progress: Progress::default(), own: None }
    }

    fn source(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("source").join(path)
    }

    fn target(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("target").join(path)
    }

    fn earlier(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("earlier").join(path)
    }

    fn copy_with(&self, workers: usize) -> Result<(), TreeError> {
        self.copy_of(SourceKind::Live, workers)
    }

    fn copy_of(&self, kind: SourceKind, workers: usize) -> Result<(), TreeError> {
        let local = FileSystem::default();
        let both = FileSystems { source: &local, target: &local };
        self.with_place(|source, place| tree(source, kind, place, both, &Effort::new(workers), &self.progress))
    }

    /// Does one piece of a copy, and what comes of it: as if the source had changed since its directories were read.
    /// The folder of links stays, as when the copy is killed just before its end.
    fn copy_piece(
        &self,
        kind: SourceKind,
        first: impl FnOnce(&Arc<Directory>) -> (Arc<Directory>, Piece),
    ) -> Result<(), TreeError> {
        self.with_place(|source, place| {
            let local = FileSystem::default();
            let both = FileSystems { source: &local, target: &local };
            let copy = Copy::new(source, kind, place, both, &self.progress)?;
            let (directory, piece) = first(&copy.tree.root);
            copy.run(&Effort::new(1), Task { directory, piece }).map(drop)
        })
    }

    /// Copies all, and makes an abandoned attempt of it.
    fn abandon(&self) {
        self.copy_piece(SourceKind::Live, |root| (Arc::clone(root), Piece::Read(0))).unwrap();
        self.make_earlier();
    }

    /// What is in the target becomes the earlier attempt's, and another target is made.
    fn make_earlier(&self) {
        let path = |name: &str| self.folder.path().join(name);
        for (now, then) in [("target", "earlier"), ("links", "earlier-links")] {
            let _ = fs::remove_dir_all(path(then));
            let _ = fs::rename(path(now), path(then));
        }
        fs::create_dir(path("target")).unwrap();
    }

    fn with_place<T>(&self, work: impl FnOnce(BorrowedFd<'_>, Place<'_>) -> T) -> T {
        let open = |name: &str| File::open(self.folder.path().join(name)).ok();
        let [source, target, place] = ["source", "target", ""].map(|name| open(name).unwrap());
        let earlier = open("earlier");
        let place = Place {
            directory: target.as_fd(),
            space: target.as_fd(),
            links: Links::new(place.as_fd(), c"links"),
            earlier: earlier.as_ref().map(|earlier| Earlier { directory: earlier.as_fd() }),
            own: self.own,
        };
        work(source.as_fd(), place)
    }

    fn copy(&self) {
        self.copy_with(4).unwrap();
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.source(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

fn set_times(path: &Path, accessed: i64, modified: i64) {
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn times(path: &Path) -> (i64, i64, i64, i64) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

fn names(path: &Path) -> HashSet<std::ffi::OsString> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn files_and_directories_keep_content_owner_permissions_and_times() {
    let trees = Trees::new();
    let file = trees.file("a/b/file", "content");
    chown(&file, Some(1000), Some(2000)).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    set_times(&file, 1_000_000_000, 1_100_000_000);
    fs::set_permissions(trees.source("a"), PermissionsExt::from_mode(0o3771)).unwrap();
    chown(trees.source("a/b"), Some(7), Some(8)).unwrap();
    fs::set_permissions(trees.source("a/b"), PermissionsExt::from_mode(0o500)).unwrap();
    fs::set_permissions(trees.source(""), PermissionsExt::from_mode(0o2770)).unwrap();
    for path in ["a/b", "a", ""] {
        set_times(&trees.source(path), 1_200_000_000, 1_300_000_000);
    }
    trees.copy();
    assert_eq!(owner(&trees.target("a/b/file")), (1000, 2000));
    assert_eq!(mode(&trees.target("a/b/file")), 0o640);
    assert_eq!(times(&trees.target("a/b/file")), (1_000_000_000, 123_456_789, 1_100_000_000, 123_456_789));
    assert_eq!(mode(&trees.target("a")), 0o3771);
    assert_eq!((mode(&trees.target("a/b")), owner(&trees.target("a/b"))), (0o500, (7, 8)));
    assert_eq!(mode(&trees.target("")), 0o2770);
    for path in ["a/b", "a", ""] {
        assert_eq!(times(&trees.target(path)), (1_200_000_000, 123_456_789, 1_300_000_000, 123_456_789), "{path}");
    }
    assert_eq!(fs::read(trees.target("a/b/file")).unwrap(), b"content");
    assert_eq!((trees.progress.files(), trees.progress.bytes()), (3, 7));
}

#[test]
fn setuid_and_setgid_outlive_the_writing_and_the_change_of_owner() {
    let trees = Trees::new();
    for (name, uid) in [("own", 0), ("other", 1000)] {
        let file = trees.file(name, "program");
        chown(&file, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o6755)).unwrap();
    }
    trees.copy();
    for name in ["own", "other"] {
        assert_eq!(mode(&trees.target(name)), 0o6755, "{name}");
    }
}

#[test]
fn symbolic_links_are_copied_as_they_are_and_never_followed() {
    let trees = Trees::new();
    let outside = trees.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "x").unwrap();
    let leads_to = OsStr::from_bytes(b"../../outside/\xff\xfe");
    for (to, name) in [(outside.as_os_str(), "absolute"), (leads_to, "bytes"), (OsStr::new("file"), "inside")] {
        symlink(to, trees.source(name)).unwrap();
    }
    trees.file("file", "x");
    lchown(trees.source("bytes"), Some(1000), Some(1001)).unwrap();
    set_times(&trees.source("bytes"), 1_000_000_000, 1_100_000_000);
    trees.copy();
    assert_eq!(fs::read_link(trees.target("absolute")).unwrap(), outside);
    assert_eq!(fs::read_link(trees.target("bytes")).unwrap().as_os_str(), leads_to);
    assert_eq!(fs::read_link(trees.target("inside")).unwrap(), Path::new("file"));
    assert_eq!(owner(&trees.target("bytes")), (1000, 1001));
    assert_eq!(times(&trees.target("bytes")).2, 1_100_000_000);
    assert_eq!(names(&outside).len(), 1);
}

#[test]
fn fifos_sockets_and_devices_are_made_and_not_opened() {
    let trees = Trees::new();
    let make = |name: &str, kind, device| {
        let path = trees.source(name);
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o620), device).unwrap();
        chown(&path, Some(5), Some(6)).unwrap();
        set_times(&path, 1_000_000_000, 1_100_000_000);
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("null", FileType::CharacterDevice, makedev(1, 3));
    make("disk", FileType::BlockDevice, makedev(7, 0));
    trees.copy();
    let kind = |name: &str| fs::symlink_metadata(trees.target(name)).unwrap();
    assert!(kind("fifo").file_type().is_fifo());
    assert!(kind("socket").file_type().is_socket());
    assert!(kind("null").file_type().is_char_device() && kind("null").rdev() == makedev(1, 3));
    assert!(kind("disk").file_type().is_block_device() && kind("disk").rdev() == makedev(7, 0));
    for name in ["fifo", "socket", "null", "disk"] {
        assert_eq!(mode(&trees.target(name)), mode(&trees.source(name)), "{name}");
        assert_eq!(owner(&trees.target(name)), (5, 6), "{name}");
        assert_eq!(times(&trees.target(name)), (1_000_000_000, 123_456_789, 1_100_000_000, 123_456_789), "{name}");
    }
}

#[test]
fn extended_attributes_of_users_are_kept() {
    let trees = Trees::new();
    let file = trees.file("directory/file", "x");
    let set = |path: &Path| lsetxattr(path, "user.origin", b"\0\xff value", XattrFlags::empty()).unwrap();
    set(&file);
    set(&trees.source("directory"));
    set(&trees.source(""));
    trees.copy();
    for path in ["directory/file", "directory", ""] {
        let mut value = [0; 100];
        let length = lgetxattr(trees.target(path), "user.origin", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"\0\xff value", "{path}");
    }
}

#[test]
fn names_are_bytes() {
    let trees = Trees::new();
    let name = OsStr::from_bytes(b"\xc3\x28 \n'\"\\");
    fs::create_dir(trees.source(name)).unwrap();
    fs::write(trees.source(name).join(name), "x").unwrap();
    trees.copy();
    assert_eq!(fs::read(trees.target(name).join(name)).unwrap(), b"x");
}

#[test]
fn hard_links_stay_links_of_one_file() {
    let trees = Trees::new();
    let first = trees.file("a/0", "shared");
    symlink("nowhere", trees.source("link")).unwrap();
    fs::hard_link(trees.source("link"), trees.source("a/link")).unwrap();
    for number in 1..400 {
        let path = trees.source(format!("{}/{number}", number % 20));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::hard_link(&first, path).unwrap();
    }
    trees.file("alone", "shared");
    trees.copy_with(16).unwrap();
    let inode = |path: &str| fs::symlink_metadata(trees.target(path)).unwrap().ino();
    for number in 1..400 {
        assert_eq!(inode(&format!("{}/{number}", number % 20)), inode("a/0"));
    }
    assert_ne!(inode("alone"), inode("a/0"));
    assert_eq!(inode("link"), inode("a/link"));
    assert!(!trees.folder.path().join("links").exists());
}

#[test]
fn without_hard_links_no_folder_for_them_is_made() {
    let trees = Trees::new();
    trees.file("file", "x");
    trees.copy();
    assert!(!trees.folder.path().join("links").exists());
}

#[test]
fn holes_stay_holes() {
    const SIZE: u64 = 64 * 1024 * 1024;
    let trees = Trees::new();
    for (name, data) in [("nothing", vec![]), ("ends", vec![0, SIZE - 4096]), ("middle", vec![SIZE / 2])] {
        let file = File::create(trees.source(name)).unwrap();
        file.set_len(SIZE).unwrap();
        for at in data {
            file.write_all_at(&[7; 4096], at).unwrap();
        }
    }
    let file = File::create(trees.source("small")).unwrap();
    file.set_len(60 * 1024).unwrap();
    file.write_all_at(b"x", 30 * 1024).unwrap();
    trees.copy();
    for name in ["nothing", "ends", "middle", "small"] {
        let blocks = |path: PathBuf| fs::metadata(path).unwrap().blocks();
        assert!(blocks(trees.target(name)) <= blocks(trees.source(name)).max(8), "{name}");
        assert!(fs::read(trees.target(name)).unwrap() == fs::read(trees.source(name)).unwrap(), "{name}");
    }
    assert_eq!(trees.progress.bytes(), 3 * SIZE + 60 * 1024);
}

#[test]
fn large_files_are_copied_whole() {
    let trees = Trees::new();
    let content: Vec<u8> = (0..10_000_001_u32).flat_map(u32::to_le_bytes).collect();
    trees.file("large", &content);
    trees.copy();
    assert!(fs::read(trees.target("large")).unwrap() == content);
    assert_eq!(trees.progress.bytes(), content.len() as u64);
}

#[test]
fn a_failure_ends_the_whole_and_tells_the_entry() {
    let trees = Trees::new();
    for number in 0..2000 {
        trees.file(&format!("d{}/file {number}", number % 50), "x");
    }
    let bad = trees.source("d7/bad");
    fs::create_dir(&bad).unwrap();
    mount(Some("none"), &bad, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let failed = trees.copy_with(4);
    umount2(&bad, MntFlags::MNT_DETACH).unwrap();
    let error = failed.unwrap_err();
    assert_eq!((error.path.as_path(), error.errno), (Path::new("d7/bad"), nix::errno::Errno::EXDEV));
    assert!(error.to_string().contains("cannot copy another file system, mounted in the tree at d7/bad"), "{error}");
}

#[test]
fn files_that_vanish_or_come_meanwhile_are_no_failure() {
    let trees = Trees::new();
    for number in 0..200 {
        trees.file(&format!("{number}/stays"), "x");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for number in 0..200 {
                    let path = trees.source(format!("{number}/comes and goes"));
                    match number % 4 {
                        0 => fs::write(&path, "x").unwrap(),
                        1 => fs::create_dir_all(path.join("deep")).unwrap(),
                        2 => symlink("/", &path).unwrap(),
                        _ => fs::create_dir(&path).unwrap(),
                    }
                    let _ = fs::remove_file(&path);
                    let _ = fs::remove_dir_all(&path);
                }
            }
        });
        for _ in 0..20 {
            fs::remove_dir_all(trees.target("")).unwrap();
            fs::create_dir(trees.target("")).unwrap();
            trees.copy();
        }
        done.store(true, Ordering::Relaxed);
        churn.join().unwrap();
    });
    for number in 0..200 {
        assert!(trees.target(format!("{number}/stays")).exists());
    }
}

fn chain(at: &Path, depth: usize) {
    let mut at = OwnedFd::from(File::open(at).unwrap());
    for _ in 0..depth {
        mkdirat(&at, "directory", Mode::RWXU).unwrap();
        at = openat(&at, "directory", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(openat(&at, "end", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap());
}

#[test]
fn a_tree_far_deeper_than_a_path_may_be_long_is_copied() {
    let trees = Trees::new();
    chain(&trees.source(""), 5000);
    trees.copy();
    let mut at = OwnedFd::from(File::open(trees.target("")).unwrap());
    for _ in 0..5000 {
        at = openat(&at, "directory", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    assert_eq!(trees.progress.files(), 5001);
    openat(&at, "end", OFlags::PATH, Mode::empty()).unwrap();
    for name in ["source", "target"] {
        crate::tree::remove::tree(
            File::open(trees.folder.path()).unwrap(),
            name,
            &crate::tree::effort::Effort::default(),
        )
        .unwrap();
    }
}

#[test]
fn wide_directories_are_copied_by_few_and_by_many() {
    for workers in [1, 16] {
        let trees = Trees::new();
        for number in 0..3000 {
            trees.file(&format!("flat/{number}"), number.to_string());
            fs::create_dir(trees.source(format!("{number}"))).unwrap();
        }
        trees.copy_with(workers).unwrap();
        assert_eq!(names(&trees.target("")), names(&trees.source("")));
        assert_eq!(names(&trees.target("flat")), names(&trees.source("flat")));
        assert_eq!(fs::read(trees.target("flat/2999")).unwrap(), b"2999");
        assert_eq!(trees.progress.files(), 6001);
    }
}

#[test]
fn descriptors_are_bounded() {
    let trees = Trees::new();
    // Each level has more than one batch, so that it waits for what is below.
    let mut path = PathBuf::new();
    for _ in 0..30 {
        for number in 0..20 {
            fs::create_dir(trees.source(&path).join(number.to_string())).unwrap();
            fs::create_dir(trees.source(&path).join(number.to_string()).join("below")).unwrap();
        }
        path.push("7");
    }
    // A pair of directories each, and three with an earlier attempt's.
    for (kept, each) in [(100, 6), (150, 8)] {
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| trees.copy_with(8));
            while !copying.is_finished() {
                let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
                let own = links
                    .filter(|link| fs::read_link(link.path()).is_ok_and(|path| path.starts_with(trees.folder.path())))
                    .count();
                most.fetch_max(own, Ordering::Relaxed);
            }
            copying.join().unwrap().unwrap();
        });
        assert!(most.into_inner() <= kept + 8 * each);
        trees.make_earlier();
    }
}
