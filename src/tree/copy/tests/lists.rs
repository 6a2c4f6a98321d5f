//! Access control lists of copies. A file system that has none is in the integration tests.

use super::*;
use crate::tree::access_list::tests::posix_list;
use crate::tree::attributes::{POSIX, POSIX_DEFAULT};
use crate::tree::attributes::{Xattr, xattrs};

/// For the owner and a user, and not for the owning group.
fn list() -> Vec<u8> {
    posix_list(&[(1, 7), (2, 7), (4, 0), (0x10, 7), (0x20, 0)]).1
}

fn give(path: &Path, name: &std::ffi::CStr) {
    lsetxattr(path, name, &list(), XattrFlags::empty()).unwrap();
}

fn kept(path: &Path) -> Vec<Xattr> {
    let mut kept = xattrs(File::open(path).unwrap()).unwrap();
    kept.sort();
    kept
}

#[test]
fn posix_lists_are_kept_and_none_is_inherited() {
    let trees = Trees::new();
    trees.file("directory/listed", "x");
    trees.file("directory/plain", "x");
    for path in ["", "directory", "directory/listed"] {
        give(&trees.source(path), POSIX);
    }
    give(&trees.source("directory"), POSIX_DEFAULT);
    for name in [POSIX, POSIX_DEFAULT] {
        give(&trees.target(""), name);
    }
    trees.copy();
    for path in ["", "directory", "directory/listed", "directory/plain"] {
        let (source, target) = (trees.source(path), trees.target(path));
        assert_eq!((kept(&target), mode(&target)), (kept(&source), mode(&source)), "{path}");
    }
    assert_eq!((kept(&trees.target("directory")).len(), trees.progress.narrowed()), (2, 0));
}

#[test]
fn a_file_of_an_earlier_attempt_has_the_list_that_its_source_has_now() {
    let trees = Trees::new();
    for name in ["loses", "gets", "keeps"] {
        set_times(&trees.file(name, "content"), 1_000_000_000, 1_100_000_000);
    }
    give(&trees.source("loses"), POSIX);
    give(&trees.source("keeps"), POSIX);
    trees.abandon();
    rustix::fs::removexattr(trees.source("loses"), POSIX).unwrap();
    fs::set_permissions(trees.source("loses"), PermissionsExt::from_mode(0o600)).unwrap();
    give(&trees.source("gets"), POSIX);
    trees.copy();
    for name in ["loses", "gets", "keeps"] {
        let (source, target) = (trees.source(name), trees.target(name));
        assert_eq!((kept(&target), mode(&target)), (kept(&source), mode(&source)), "{name}");
    }
    assert_eq!(fs::read_dir(trees.earlier("")).unwrap().count(), 0);
}

#[test]
fn a_fifo_without_its_list_has_no_wider_permissions() {
    let trees = Trees::new();
    mknodat(CWD, trees.source("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    give(&trees.source("fifo"), POSIX);
    assert_eq!(mode(&trees.source("fifo")), 0o770);
    trees.copy();
    assert_eq!((mode(&trees.target("fifo")), trees.progress.narrowed()), (0o700, 1));
}
