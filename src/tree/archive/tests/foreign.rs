//! Archives that other programs made.

use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::process::Command;

use super::*;

/// What tar archives of other programs keep: no access times, often whole seconds.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("directory/below")).unwrap();
    fs::write(tree.join("directory/file"), "content").unwrap();
    fs::write(tree.join("directory/below").join("n".repeat(200)), "far").unwrap();
    fs::create_dir(tree.join("d".repeat(90))).unwrap();
    fs::write(tree.join("d".repeat(90)).join("e".repeat(20)), "by prefix").unwrap();
    fs::write(tree.join("\u{fc}ml\u{e4}ut"), "x").unwrap();
    symlink("directory/file", tree.join("link")).unwrap();
    symlink("t".repeat(300), tree.join("long link")).unwrap();
    fs::hard_link(tree.join("directory/file"), tree.join("other name")).unwrap();
    fs::write(tree.join("suid"), "x").unwrap();
    chown(tree.join("suid"), Some(1234), Some(56_789)).unwrap();
    fs::set_permissions(tree.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    for piece in 0..60 {
        sparse.write_all_at(b"data", piece * 700_001).unwrap();
    }
    for path in entries(tree).0.into_keys() {
        set_times(&tree.join(path), (1_600_000_000, 0), (1_500_000_000, 0));
    }
}

fn assert_equal_but_access_times(tree: &Path, other: &Path) {
    for place in [tree, other] {
        for (path, entry) in entries(place).0 {
            set_times(&place.join(path), (1, 0), entry.modified);
        }
    }
    assert_equal(&entries(tree), other);
}

#[test]
fn archives_of_gnu_tar_are_read_in_all_its_formats() {
    let tree = tempfile::tempdir().unwrap();
    make_tree(tree.path());
    let formats = [
        &["--format=gnu"][..],
        &["--format=posix"],
        &["--format=gnu", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
        &["--format=gnu", "--gzip"],
    ];
    for format in formats {
        let tar = Command::new("tar").args(format).arg("-cf-").arg("-C").arg(tree.path()).arg(".").output().unwrap();
        assert!(tar.status.success(), "{format:?}: {}", String::from_utf8_lossy(&tar.stderr));
        let target = tempfile::tempdir().unwrap();
        unpack(&tar.stdout, target.path()).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        assert_equal_but_access_times(tree.path(), target.path());
    }
}

#[test]
fn archives_of_the_oldest_formats_are_read() {
    let tree = tempfile::tempdir().unwrap();
    make_tree(tree.path());
    fs::remove_file(tree.path().join("long link")).unwrap();
    fs::remove_file(tree.path().join("directory/below").join("n".repeat(200))).unwrap();
    set_times(tree.path(), (1, 0), (1_500_000_000, 0));
    set_times(&tree.path().join("directory/below"), (1, 0), (1_500_000_000, 0));
    for format in ["--format=ustar", "--format=v7", "--format=oldgnu"] {
        if format == "--format=v7" {
            fs::remove_dir_all(tree.path().join("d".repeat(90))).unwrap();
            set_times(tree.path(), (1, 0), (1_500_000_000, 0));
        }
        let tar = Command::new("tar").arg(format).arg("-cf-").arg("-C").arg(tree.path()).arg(".").output().unwrap();
        assert!(tar.status.success(), "{format}: {}", String::from_utf8_lossy(&tar.stderr));
        let target = tempfile::tempdir().unwrap();
        unpack(&tar.stdout, target.path()).unwrap_or_else(|error| panic!("{format}: {error}"));
        assert_equal_but_access_times(tree.path(), target.path());
    }
}

/// What csi-driver-nfs writes: a header of Go's `tar.FileInfoHeader` for each entry, with the name from the volume's
/// directory and no slash behind a directory's.
#[test]
fn archives_of_csi_driver_nfs_are_read() {
    let mut root = Tar::header(b".", EntryType::Directory);
    root.set_mode(0o2777);
    // A file's type in the mode, as old versions of Go write it, and names of the owner.
    let mut file = Tar::header(b"data/file", EntryType::Regular);
    file.set_mode(0o100_640);
    file.set_username("postgres").unwrap();
    file.set_groupname("postgres").unwrap();
    file.set_uid(999);
    file.set_gid(999);
    file.set_size(4);
    // Numbers and times that ustar has no room for come in a GNU header, in base 256.
    let mut large = Header::new_gnu();
    large.as_old_mut().name[..5].copy_from_slice(b"large");
    large.set_entry_type(EntryType::Regular);
    large.set_mode(0o4755);
    large.set_uid(3_000_000);
    large.set_gid(4_000_000_000);
    large.as_old_mut().mtime = [0xff; 12];
    large.set_size(0);
    let long = format!("data/{}", "\u{e9}".repeat(100));
    let archive = Tar::default()
        .raw(&root, b"")
        .directory("data")
        .raw(&file, b"data")
        .pax(&[(pax::PATH, long.as_bytes())])
        .with_content("data/eeee", EntryType::Regular, b"long")
        .symlink("link", "/somewhere/else")
        .to("fifo", EntryType::Fifo, "")
        .raw(&large, b"")
        .end();
    for archive in [gzip(&archive), archive] {
        let target = tempfile::tempdir().unwrap();
        unpack(&archive, target.path()).unwrap();
        let (found, _) = entries(target.path());
        let entry = |name: &str| found.get(Path::new(name)).unwrap();
        let of = |name: &str| (entry(name).mode & 0o7777, entry(name).owner, entry(name).modified.0);
        assert_eq!(of(""), (0o2777, (0, 0), 1_000_000_000));
        assert_eq!(of("data"), (0o755, (0, 0), 1_000_000_000));
        assert_eq!(of("data/file"), (0o640, (999, 999), 1_000_000_000));
        assert_eq!(of("large"), (0o4755, (3_000_000, 4_000_000_000), -1));
        assert_eq!(entry("data/file").content, b"data");
        assert_eq!(entry(&long).content, b"long");
        assert_eq!(entry("link").content, b"/somewhere/else");
        assert_eq!(found.len(), 7);
    }
}

#[test]
fn directories_have_the_right_times_whatever_the_order_of_the_members() {
    let mut directory = Tar::header(b"a/b", EntryType::Directory);
    directory.set_mode(0o711);
    directory.set_mtime(5);
    let archive = Tar::default()
        .file("a/b/c", "before its directory")
        .raw(&directory, b"")
        .file("x/y", "between")
        .file("a/b/d", "long after its directory")
        .directory("a")
        .file("a/b/e/f", "deeper")
        .end();
    let target = tempfile::tempdir().unwrap();
    unpack(&archive, target.path()).unwrap();
    let (found, _) = entries(target.path());
    let of = |name: &str| (found[Path::new(name)].mode & 0o7777, found[Path::new(name)].modified.0);
    assert_eq!(of("a"), (0o755, 1_000_000_000));
    assert_eq!(of("a/b"), (0o711, 5));
    assert_eq!(of("x").0, 0o755);
    assert_eq!(found.len(), 9);
}

#[test]
fn headers_for_all_that_follows_are_passed_over() {
    let archive = Tar::default()
        .with_content("g", EntryType::XGlobalHeader, b"52 comment=0123456789012345678901234567890123456789\n")
        .with_content("g", EntryType::XGlobalHeader, b"no record")
        .file("a", "x")
        .end();
    let target = tempfile::tempdir().unwrap();
    unpack(&archive, target.path()).unwrap();
    assert_eq!(fs::read(target.path().join("a")).unwrap(), b"x");
}
