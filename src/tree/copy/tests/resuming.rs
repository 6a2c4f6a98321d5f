//! What is taken from an abandoned attempt of the same copy, and what is not.

use rustix::fs::{Stat, llistxattr};

use super::super::earlier::take;
use super::*;

/// A time of change that a file keeps whatever is done to it.
const LONG_AGO: i64 = 1_100_000_000;

impl Trees {
    fn old_file(&self, path: &str, content: &str) -> PathBuf {
        let path = self.file(path, content);
        set_times(&path, 1_000_000_000, LONG_AGO);
        path
    }
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn xattrs_of(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut list = vec![0; 4096];
    let length = llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let names = names.map(|name| String::from_utf8(name.to_vec()).unwrap()).filter(|name| name.starts_with("user."));
    let mut found: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 100];
            let length = lgetxattr(path, name.as_str(), &mut value[..]).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect();
    found.sort();
    found
}

#[test]
fn what_is_complete_is_moved_and_all_else_is_copied_again() {
    let trees = Trees::new();
    for name in ["whole", "half", "other", "was a directory", "was a link", "empty"] {
        trees.old_file(&format!("d/{name}"), if name == "empty" { "" } else { "content" });
    }
    fs::create_dir(trees.source("d/was a file")).unwrap();
    trees.old_file("d/was a file/in it", "content");
    symlink("to", trees.source("d/link")).unwrap();
    trees.abandon();
    let (whole, empty) = (inode(&trees.earlier("d/whole")), inode(&trees.earlier("d/empty")));
    // Of its size and time, it is taken for complete, whatever it holds.
    fs::write(trees.earlier("d/whole"), "CONTENT").unwrap();
    set_times(&trees.earlier("d/whole"), 1_000_000_000, LONG_AGO);
    fs::write(trees.earlier("d/half"), "cont").unwrap();
    set_times(&trees.earlier("d/half"), 1_000_000_000, LONG_AGO);
    fs::write(trees.earlier("d/other"), "CONTENT").unwrap();
    fs::remove_file(trees.earlier("d/was a directory")).unwrap();
    fs::create_dir_all(trees.earlier("d/was a directory/deep")).unwrap();
    fs::remove_file(trees.earlier("d/was a link")).unwrap();
    let outside = trees.folder.path().join("outside");
    fs::write(&outside, "content").unwrap();
    set_times(&outside, 1_000_000_000, LONG_AGO);
    symlink(&outside, trees.earlier("d/was a link")).unwrap();
    fs::remove_dir_all(trees.earlier("d/was a file")).unwrap();
    fs::write(trees.earlier("d/was a file"), "x").unwrap();
    for path in [trees.source("d"), trees.earlier("d")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o500)).unwrap();
    }
    let (files, bytes) = (trees.progress.files(), trees.progress.bytes());
    trees.copy();
    assert_eq!((inode(&trees.target("d/whole")), inode(&trees.target("d/empty"))), (whole, empty));
    assert_eq!(fs::read(trees.target("d/whole")).unwrap(), b"CONTENT");
    for name in ["half", "other", "was a directory", "was a link", "was a file/in it"] {
        assert_eq!(fs::read(trees.target("d").join(name)).unwrap(), b"content", "{name}");
        assert!(fs::symlink_metadata(trees.target("d").join(name)).unwrap().is_file(), "{name}");
    }
    assert_eq!(fs::read_link(trees.target("d/link")).unwrap(), Path::new("to"));
    assert_eq!(mode(&trees.target("d")), 0o500);
    assert_eq!((trees.progress.files(), trees.progress.bytes()), (2 * files, 2 * bytes));
    // Nothing else changes in the earlier tree, or behind its links.
    let left = ["half", "other", "was a directory", "was a link", "was a file", "link"].map(Into::into);
    assert_eq!(names(&trees.earlier("d")), left.into());
    assert_eq!(fs::read(outside).unwrap(), b"content");
}

#[test]
fn what_is_moved_gets_the_owner_the_permissions_and_the_attributes_that_the_source_has_now() {
    let trees = Trees::new();
    for name in ["key", "program", "tagged", "untagged"] {
        let path = trees.old_file(name, "content");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let set = |path: &Path, name: &str, value: &[u8]| lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    set(&trees.source("tagged"), "user.same", b"1");
    set(&trees.source("tagged"), "user.other", b"before");
    set(&trees.source("tagged"), "user.removed", b"x");
    set(&trees.source("untagged"), "user.removed", b"x");
    fs::set_permissions(trees.source("program"), PermissionsExt::from_mode(0o4755)).unwrap();
    trees.abandon();
    let before = ["key", "program", "tagged", "untagged"].map(|name| inode(&trees.earlier(name)));
    fs::set_permissions(trees.source("key"), PermissionsExt::from_mode(0o600)).unwrap();
    chown(trees.source("program"), Some(1000), Some(1001)).unwrap();
    fs::set_permissions(trees.source("program"), PermissionsExt::from_mode(0o6711)).unwrap();
    set(&trees.source("tagged"), "user.other", b"after");
    set(&trees.source("tagged"), "user.new", b"y");
    for name in ["tagged", "untagged"] {
        rustix::fs::lremovexattr(trees.source(name), "user.removed").unwrap();
    }
    trees.copy();
    assert_eq!(["key", "program", "tagged", "untagged"].map(|name| inode(&trees.target(name))), before);
    for name in ["key", "program", "tagged", "untagged"] {
        let (source, target) = (trees.source(name), trees.target(name));
        assert_eq!((mode(&target), owner(&target)), (mode(&source), owner(&source)), "{name}");
        assert_eq!(xattrs_of(&target), xattrs_of(&source), "{name}");
        assert_eq!(times(&target).2, LONG_AGO, "{name}");
    }
    assert_eq!((mode(&trees.target("key")), mode(&trees.target("program"))), (0o600, 0o6711));
    assert_eq!(xattrs_of(&trees.target("tagged")).len(), 3);
}

#[test]
fn names_that_the_source_lost_meanwhile_are_not_in_the_copy() {
    let trees = Trees::new();
    for path in ["pid", "queue/message 1", "queue/message 2", "gone/key", "renamed", "d/stays"] {
        trees.old_file(path, "content");
    }
    trees.abandon();
    fs::remove_file(trees.source("pid")).unwrap();
    fs::rename(trees.source("queue/message 1"), trees.source("queue/done 1")).unwrap();
    fs::remove_dir_all(trees.source("gone")).unwrap();
    fs::rename(trees.source("renamed"), trees.source("d/renamed")).unwrap();
    trees.copy();
    for directory in ["", "queue", "d"] {
        assert_eq!(names(&trees.target(directory)), names(&trees.source(directory)), "{directory}");
    }
    for path in ["pid", "queue/message 1", "gone/key", "renamed"] {
        assert!(trees.earlier(path).exists(), "{path}");
    }
}

#[test]
fn files_with_several_names_are_copied_again_and_have_no_name_in_the_earlier_tree() {
    let trees = Trees::new();
    let link = |from: &str, to: &str| fs::hard_link(trees.source(from), trees.source(to)).unwrap();
    for (first, second) in [("kept", "d/kept"), ("rewritten", "d/rewritten"), ("parted", "d/parted")] {
        trees.old_file(first, "content");
        trees.old_file("d/alone", "content");
        link(first, second);
    }
    trees.old_file("joined", "content");
    trees.abandon();
    // In place, so that the file is born when it was: its size and its time of change tell.
    fs::write(trees.source("rewritten"), "changed").unwrap();
    // As `cp --preserve` and `mv` do it.
    fs::remove_file(trees.source("d/parted")).unwrap();
    trees.old_file("d/parted", "content");
    link("joined", "d/joined");
    trees.copy_with(4).unwrap();
    let found = |path: &str| inode(&trees.target(path));
    for name in ["kept", "rewritten", "joined"] {
        assert_eq!(found(name), found(&format!("d/{name}")), "{name}");
        assert_ne!(found(name), inode(&trees.earlier(name)), "{name}");
        assert_eq!(fs::metadata(trees.target(name)).unwrap().nlink(), 2, "{name}");
    }
    assert_eq!(fs::read(trees.target("d/rewritten")).unwrap(), b"changed");
    assert_ne!(found("parted"), found("d/parted"));
    for path in ["parted", "d/parted", "kept", "d/joined"] {
        assert_eq!(fs::read(trees.target(path)).unwrap(), b"content", "{path}");
    }
    assert!(!trees.folder.path().join("links").exists());
}

#[test]
fn links_in_the_place_of_an_earlier_tree_s_directories_are_not_followed() {
    let trees = Trees::new();
    for path in ["d/file", "d/deep/file", "file"] {
        trees.old_file(path, "content");
    }
    trees.abandon();
    let outside = trees.folder.path().join("outside");
    fs::rename(trees.earlier("d"), &outside).unwrap();
    symlink(&outside, trees.earlier("d")).unwrap();
    fs::rename(trees.earlier("file"), outside.join("beside")).unwrap();
    symlink("../outside/beside", trees.earlier("file")).unwrap();
    trees.copy();
    for (path, before) in [("d/file", "file"), ("d/deep/file", "deep/file"), ("file", "beside")] {
        assert_ne!(inode(&trees.target(path)), inode(&outside.join(before)), "{path}");
        assert_eq!(fs::read(trees.target(path)).unwrap(), b"content", "{path}");
    }
    assert_eq!(names(&outside), ["file", "deep", "beside"].map(Into::into).into());
}

#[test]
fn a_file_that_changes_while_it_is_moved_is_not_taken() {
    let trees = Trees::new();
    trees.file("file", "content");
    let open = |path: PathBuf| File::open(path).unwrap();
    let (from, to) = (open(trees.source("")), open(trees.target("")));
    let looks = AtomicUsize::new(0);
    let only_at_first = |_: &Stat| looks.fetch_add(1, Ordering::Relaxed) == 0;
    assert!(take(from.as_fd(), to.as_fd(), c"file", only_at_first).unwrap().is_none());
    assert_eq!(looks.into_inner(), 2);
    assert!(names(&trees.source("")).is_empty() && names(&trees.target("")).is_empty());
    assert!(take(from.as_fd(), to.as_fd(), c"missing", |_| true).unwrap().is_none());
}

#[test]
fn a_deep_and_wide_tree_is_resumed() {
    let trees = Trees::new();
    chain(&trees.source(""), 300);
    let mut path = PathBuf::new();
    for level in 0..300 {
        if level % 10 == 0 {
            for number in 0..20 {
                let name = path.join(number.to_string()).join("file");
                trees.old_file(name.to_str().unwrap(), "content");
            }
        }
        path.push("directory");
    }
    trees.abandon();
    let files: Vec<PathBuf> = (0..300)
        .step_by(10)
        .flat_map(|level| (0..20).map(move |number| (level, number)))
        .map(|(level, number)| PathBuf::from("directory/".repeat(level)).join(number.to_string()).join("file"))
        .chain([path.join("end")])
        .collect();
    let before: Vec<u64> = files.iter().map(|path| inode(&trees.earlier(path))).collect();
    trees.copy_with(8).unwrap();
    let after: Vec<u64> = files.iter().map(|path| inode(&trees.target(path))).collect();
    assert!(before == after);
}
