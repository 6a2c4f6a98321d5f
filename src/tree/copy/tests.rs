//! What a copy keeps, takes up again and bounds, on a local file system. They run as root.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, FileType, OFlags, lgetxattr, lsetxattr};
use rustix::fs::{CWD, Mode, Timespec, Timestamps, XattrFlags, makedev, mkdirat, mknodat, openat, utimensat};

use super::{Links, Place, PlainLists, fill, tree};
use crate::tree::effort::Effort;
use crate::tree::{Progress, TreeError};

/// A folder with a source and a target in it.
struct Trees {
    folder: tempfile::TempDir,
    progress: Progress,
}

impl Trees {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        fs::create_dir(folder.path().join("target")).unwrap();
        Self { folder, progress: Progress::default() }
    }

    fn source(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("source").join(path)
    }

    fn target(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("target").join(path)
    }

    fn copy_with(&self, workers: usize) -> Result<(), TreeError> {
        self.with_place(|source, place| {
            tree(source, place, &PlainLists::default(), &Effort::new(workers), &self.progress)
        })
    }

    /// As a run that is killed just before its end.
    fn copy_but_for_the_end(&self) {
        self.with_place(|source, place| {
            fill(source, place, &PlainLists::default(), &Effort::new(1), &self.progress).unwrap()
        });
    }

    fn with_place<T>(&self, work: impl FnOnce(File, Place<'_>) -> T) -> T {
        let open = |path: &Path| File::open(path).unwrap();
        let place = open(self.folder.path());
        let links = Links::new(place.as_fd(), c"links");
        let directory = open(&self.target(""));
        let target = Place { directory: directory.as_fd(), is_new: false, links };
        work(open(&self.source("")), target)
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
fn links_hold_over_a_restart() {
    let trees = Trees::new();
    trees.file("a/file", "shared");
    fs::hard_link(trees.source("a/file"), trees.source("b")).unwrap();
    trees.copy_but_for_the_end();
    // Killed between the two names; and what is left of another try is in the way.
    fs::remove_file(trees.target("b")).unwrap();
    fs::write(trees.target("b"), "half").unwrap();
    trees.copy_but_for_the_end();
    let inode = |path: &str| fs::metadata(trees.target(path)).unwrap().ino();
    assert_eq!(inode("a/file"), inode("b"));
    // Killed before the first one got its second name.
    fs::remove_dir_all(trees.folder.path().join("links")).unwrap();
    fs::remove_file(trees.target("b")).unwrap();
    trees.copy();
    assert_eq!(inode("a/file"), inode("b"));
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
fn what_an_earlier_run_completed_is_taken_and_the_rest_made_anew() {
    let trees = Trees::new();
    for name in ["whole", "half", "other", "was a directory", "was a link"] {
        trees.file(&format!("d/{name}"), "content");
        set_times(&trees.source(format!("d/{name}")), 1_000_000_000, 1_100_000_000);
    }
    fs::create_dir(trees.source("d/was a file")).unwrap();
    symlink("to", trees.source("d/link")).unwrap();
    trees.copy();
    let inode = |name: &str| fs::symlink_metadata(trees.target("d").join(name)).unwrap().ino();
    let (whole, link) = (inode("whole"), inode("link"));
    // Of its size and time, it is taken for complete, whatever it holds.
    fs::write(trees.target("d/whole"), "CONTENT").unwrap();
    set_times(&trees.target("d/whole"), 1_000_000_000, 1_100_000_000);
    fs::write(trees.target("d/half"), "cont").unwrap();
    fs::write(trees.target("d/other"), "CONTENT").unwrap();
    fs::remove_file(trees.target("d/was a directory")).unwrap();
    fs::create_dir_all(trees.target("d/was a directory/deep")).unwrap();
    fs::remove_file(trees.target("d/was a link")).unwrap();
    let outside = trees.folder.path().join("outside");
    fs::write(&outside, "kept").unwrap();
    symlink(&outside, trees.target("d/was a link")).unwrap();
    fs::remove_dir(trees.target("d/was a file")).unwrap();
    fs::write(trees.target("d/was a file"), "x").unwrap();
    for path in [trees.source("d"), trees.target("d")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o500)).unwrap();
    }
    trees.copy();
    assert_eq!((inode("whole"), inode("link")), (whole, link));
    assert_eq!(fs::read(trees.target("d/whole")).unwrap(), b"CONTENT");
    for name in ["half", "other", "was a directory", "was a link"] {
        assert_eq!(fs::read(trees.target("d").join(name)).unwrap(), b"content", "{name}");
        assert!(fs::symlink_metadata(trees.target("d").join(name)).unwrap().is_file(), "{name}");
    }
    assert!(trees.target("d/was a file").is_dir());
    assert_eq!(fs::read(outside).unwrap(), b"kept");
    assert_eq!(mode(&trees.target("d")), 0o500);
}

#[test]
fn a_failure_ends_the_whole_and_tells_the_entry() {
    let trees = Trees::new();
    for number in 0..2000 {
        trees.file(&format!("d{}/file {number}", number % 50), "x");
    }
    trees.file("d7/bad/file", "x");
    // A link in the target's way that cannot be removed: the directory is another file system's.
    fs::create_dir_all(trees.target("d7")).unwrap();
    let immutable = trees.target("d7/bad");
    fs::write(&immutable, "x").unwrap();
    rustix::fs::ioctl_setflags(File::open(&immutable).unwrap(), rustix::fs::IFlags::IMMUTABLE).unwrap();
    let failed = trees.copy_with(4);
    rustix::fs::ioctl_setflags(File::open(&immutable).unwrap(), rustix::fs::IFlags::empty()).unwrap();
    let error = failed.unwrap_err();
    assert_eq!((error.path.as_path(), error.errno), (Path::new("d7/bad"), nix::errno::Errno::EPERM));
    assert_eq!(error.to_string(), "cannot remove an earlier copy of d7/bad: Operation not permitted");
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
    assert!(most.into_inner() <= 100 + 8 * 6);
}
