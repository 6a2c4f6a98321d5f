//! A source that changes while it is copied, one that must not, and copies that are stopped.

use std::ffi::CString;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rustix::fs::fstat;

use super::super::directory::{Entered, Lists, State};
use super::*;
use crate::tree::attributes::Attributes;
use crate::tree::walk::Entry;

/// Entries of the root, as its directory told them once.
fn listed(entries: &[(&str, FileType)]) -> impl FnOnce(&Arc<Directory>) -> (Arc<Directory>, Piece) {
    let entry = |&(name, kind): &(&str, FileType)| Entry { name: CString::new(name).unwrap(), kind };
    let entries = entries.iter().map(entry).collect();
    |root| (Arc::clone(root), Piece::Entries(entries))
}

/// A directory, as the one above told it once.
fn directory(path: &[&str]) -> impl FnOnce(&Arc<Directory>) -> (Arc<Directory>, Piece) {
    let path: Vec<CString> = path.iter().map(|&name| CString::new(name).unwrap()).collect();
    |root| {
        let below = |above: Arc<Directory>, name| above.below(name, State::default());
        (path.into_iter().fold(Arc::clone(root), below), Piece::Enter)
    }
}

#[test]
fn an_entry_that_is_gone_is_counted_in_a_volume_and_an_error_of_a_snapshot() {
    for kind in [FileType::RegularFile, FileType::Symlink, FileType::Fifo, FileType::Unknown] {
        let trees = Trees::new();
        trees.file("stays", "content");
        let entries = [("stays", FileType::RegularFile), ("gone", kind)];
        trees.copy_piece(SourceKind::Live, listed(&entries)).unwrap();
        assert_eq!((trees.progress.vanished(), trees.progress.files()), (1, 1));
        assert_eq!(fs::read(trees.target("stays")).unwrap(), b"content");
        let trees = Trees::new();
        let error = trees.copy_piece(SourceKind::Frozen, listed(&entries[1..])).unwrap_err();
        assert_eq!((error.path.as_path(), error.errno), (Path::new("gone"), Errno::ENOENT));
        assert_eq!(error.to_string(), "cannot copy a snapshot that lacks gone: No such file or directory");
        assert_eq!(trees.progress.vanished(), 0);
    }
}

#[test]
fn a_directory_that_is_gone_is_counted_in_a_volume_and_an_error_of_a_snapshot() {
    for path in [&["gone"][..], &["gone", "below"]] {
        let trees = Trees::new();
        trees.copy_piece(SourceKind::Live, directory(path)).unwrap();
        assert_eq!(trees.progress.vanished(), 1);
        assert!(names(&trees.target("")).is_empty());
        let error = trees.copy_piece(SourceKind::Frozen, directory(path)).unwrap_err();
        assert_eq!((error.path, error.errno), (path.iter().collect(), Errno::ENOENT));
    }
}

#[test]
fn a_directory_that_was_moved_away_is_counted_in_a_volume_and_an_error_of_a_snapshot() {
    let trees = Trees::new();
    fs::create_dir_all(trees.source("d/below")).unwrap();
    fs::create_dir(trees.source("other")).unwrap();
    let moved = |root: &Arc<Directory>| {
        let directory = root.below(c"d".into(), State::default());
        let stat = fstat(File::open(trees.source("other")).unwrap()).unwrap();
        directory.data.enter(Entered::new(&stat, Attributes::of(&stat), stat, true, Lists::None));
        fs::create_dir_all(trees.target("d")).unwrap();
        (directory, Piece::Read(0))
    };
    let error = trees.copy_piece(SourceKind::Frozen, moved).unwrap_err();
    assert_eq!(error.path, Path::new("d"));
    trees.copy_piece(SourceKind::Live, moved).unwrap();
    assert_eq!(trees.progress.vanished(), 1);
    assert!(names(&trees.target("d")).is_empty());
}

#[test]
fn an_entry_that_became_another_kind_is_copied_of_a_volume_and_an_error_of_a_snapshot() {
    let trees = Trees::new();
    trees.file("file", "content");
    trees.file("d/file", "content");
    symlink("to", trees.source("link")).unwrap();
    mknodat(CWD, trees.source("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let entries = [
        ("file", FileType::Symlink),
        ("d", FileType::RegularFile),
        ("link", FileType::RegularFile),
        ("fifo", FileType::RegularFile),
    ];
    for entry in entries {
        let error = trees.copy_piece(SourceKind::Frozen, listed(&[entry])).unwrap_err();
        assert_eq!((error.path.as_path(), error.what), (Path::new(entry.0), "copy a snapshot that lacks"));
    }
    let error = trees.copy_piece(SourceKind::Frozen, directory(&["link"])).unwrap_err();
    assert_eq!(error.path, Path::new("link"));
    trees.copy_piece(SourceKind::Live, listed(&entries)).unwrap();
    assert_eq!(fs::read(trees.target("d/file")).unwrap(), b"content");
    assert_eq!(names(&trees.target("")), names(&trees.source("")));
    trees.make_earlier();
    trees.copy_piece(SourceKind::Live, directory(&["link"])).unwrap();
    assert_eq!(fs::read_link(trees.target("link")).unwrap(), Path::new("to"));
    assert_eq!(trees.progress.vanished(), 0);
}

#[test]
fn a_whole_snapshot_is_copied() {
    let trees = Trees::new();
    for number in 0..1000 {
        trees.file(&format!("{}/{number}", number % 30), "content");
    }
    symlink("to", trees.source("1/link")).unwrap();
    mknodat(CWD, trees.source("2/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    trees.copy_of(SourceKind::Frozen, 4).unwrap();
    assert_eq!((trees.progress.files(), trees.progress.vanished()), (1032, 0));
}

#[test]
fn a_source_that_is_removed_as_a_whole_is_an_error() {
    let trees = Trees::new();
    let removed = |root: &Arc<Directory>| {
        fs::remove_dir(trees.source("")).unwrap();
        listed(&[("gone", FileType::RegularFile)])(root)
    };
    let error = trees.copy_piece(SourceKind::Live, removed).unwrap_err();
    assert_eq!((error.path.as_path(), error.errno), (Path::new("."), Errno::ESTALE));
}

#[test]
fn a_name_that_is_given_twice_is_one_entry() {
    let trees = Trees::new();
    trees.file("file", "content");
    trees.file("linked", "content");
    fs::hard_link(trees.source("linked"), trees.source("too")).unwrap();
    trees.file("empty", "");
    trees.file("d/file", "content");
    symlink("to", trees.source("link")).unwrap();
    mknodat(CWD, trees.source("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::set_permissions(trees.source("d"), PermissionsExt::from_mode(0o500)).unwrap();
    let once = [
        ("file", FileType::RegularFile),
        ("linked", FileType::RegularFile),
        ("too", FileType::RegularFile),
        ("link", FileType::Symlink),
        ("fifo", FileType::Fifo),
        ("d", FileType::Unknown),
    ];
    trees.copy_piece(SourceKind::Live, listed(&[once, once].concat())).unwrap();
    assert_eq!((trees.progress.files(), trees.progress.bytes()), (7, 21));
    for path in ["file", "linked", "too", "d/file"] {
        assert_eq!(fs::read(trees.target(path)).unwrap(), b"content", "{path}");
    }
    assert_eq!(fs::metadata(trees.target("too")).unwrap().nlink(), 3);
    assert_eq!(mode(&trees.target("d")), 0o500);
}

#[test]
fn a_name_that_is_given_twice_for_two_files_leaves_the_first_one_whole() {
    let trees = Trees::new();
    for name in ["file", "directory", "link", "device"] {
        trees.file(name, "second");
    }
    fs::create_dir(trees.source("was a file")).unwrap();
    // What the first meeting left.
    fs::write(trees.target("file"), "first").unwrap();
    fs::hard_link(trees.target("file"), trees.target("other name")).unwrap();
    fs::create_dir(trees.target("directory")).unwrap();
    symlink("other name", trees.target("link")).unwrap();
    mknodat(CWD, trees.target("device"), FileType::CharacterDevice, Mode::RWXU, makedev(1, 3)).unwrap();
    fs::write(trees.target("was a file"), "first").unwrap();
    trees.copy();
    for path in ["file", "other name", "was a file"] {
        assert_eq!(fs::read(trees.target(path)).unwrap(), b"first", "{path}");
    }
    assert!(trees.target("directory").is_dir());
    assert!(fs::symlink_metadata(trees.target("device")).unwrap().file_type().is_char_device());
    assert_eq!(fs::read_link(trees.target("link")).unwrap(), Path::new("other name"));
    assert_eq!(trees.progress.files(), 0);
}

#[test]
fn the_driver_s_own_folder_on_the_target_s_share_is_left_out_and_another_is_copied() {
    let mut trees = Trees::new();
    for path in ["a/.nfs-csi/staging/copy", "b/.nfs-csi/record", "c/own/file", "own"] {
        trees.file(path, "content");
    }
    trees.own = Some(fs::metadata(trees.source("a/.nfs-csi")).unwrap().ino());
    trees.copy_of(SourceKind::Frozen, 4).unwrap();
    assert!(names(&trees.target("a")).is_empty());
    assert!(trees.target("b/.nfs-csi/record").exists());
    assert_eq!(trees.progress.vanished(), 0);
    assert_eq!(trees.progress.files(), 8);
    // The number alone is not it.
    trees.own = Some(fs::metadata(trees.source("c/own")).unwrap().ino());
    trees.make_earlier();
    trees.copy();
    assert!(trees.target("c/own/file").exists() && trees.target("a/.nfs-csi/staging/copy").exists());
}

#[test]
fn a_copy_that_is_stopped_before_it_begins_copies_nothing() {
    let trees = Trees::new();
    trees.file("file", "content");
    trees.progress.stop();
    let error = trees.copy_with(4).unwrap_err();
    assert_eq!((error.what, error.errno), ("continue copying", Errno::ECANCELED));
    assert!(names(&trees.target("")).is_empty());
}

#[test]
fn a_copy_that_is_stopped_ends_before_all_is_there() {
    let mut trees = Trees::new();
    for number in 0..3000 {
        trees.file(&format!("{}/{number}", number % 10), "content");
    }
    let end = Instant::now() + Duration::from_mins(2);
    loop {
        trees.progress = Progress::default();
        let is_over = AtomicBool::new(false);
        let copied = std::thread::scope(|scope| {
            scope.spawn(|| {
                while trees.progress.files() == 0 && !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                trees.progress.stop();
            });
            let copied = trees.copy_with(2);
            is_over.store(true, Ordering::Relaxed);
            copied
        });
        // The other thread may have come too late.
        if let Err(error) = copied {
            assert_eq!((error.what, error.errno), ("continue copying", Errno::ECANCELED));
            assert!(trees.progress.files() < 3010);
            break;
        }
        assert!(Instant::now() < end, "no copy was stopped");
        fs::remove_dir_all(trees.target("")).unwrap();
        fs::create_dir(trees.target("")).unwrap();
    }
}
