//! What goes into our own archive comes out of it.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::fs::{FileType, Mode, XattrFlags, fsetxattr, mkdirat, mknodat};

use super::*;
use crate::beneath;

/// A folder with a tree in it, and an empty place to unpack to.
fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (tree, target) = (folder.path().join("tree"), folder.path().join("target"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&target).unwrap();
    (folder, tree, target)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn node(path: &Path, kind: FileType, device: (u32, u32)) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), rustix::fs::makedev(device.0, device.1)).unwrap();
}

/// A tree with everything that can be in one.
fn make_all_kinds(tree: &Path) {
    fs::create_dir_all(tree.join("a/b/empty")).unwrap();
    fs::write(tree.join("a/file"), "content").unwrap();
    fs::write(tree.join("a/b/none"), "").unwrap();
    fs::write(tree.join("a/b/suid"), "#!").unwrap();
    chown(tree.join("a/b/suid"), Some(3_000_000), Some(4_294_967_294)).unwrap();
    set_mode(&tree.join("a/b/suid"), 0o6711);
    set_mode(&tree.join("a/b"), 0o3770);
    set_mode(&tree.join("a/b/empty"), 0o000);
    set_mode(&tree.join("a/file"), 0o400);
    symlink("../file", tree.join("a/b/link")).unwrap();
    symlink("/".repeat(300), tree.join("long link")).unwrap();
    lchown(tree.join("long link"), Some(7), Some(8)).unwrap();
    fs::hard_link(tree.join("a/file"), tree.join("z")).unwrap();
    fs::hard_link(tree.join("a/file"), tree.join("a/b/again")).unwrap();
    fs::hard_link(tree.join("long link"), tree.join("a/long link too")).unwrap();
    node(&tree.join("fifo"), FileType::Fifo, (0, 0));
    node(&tree.join("socket"), FileType::Socket, (0, 0));
    node(&tree.join("null"), FileType::CharacterDevice, (1, 3));
    node(&tree.join("disk"), FileType::BlockDevice, (4095, 1_048_575));
    fs::hard_link(tree.join("fifo"), tree.join("fifo too")).unwrap();
    let long = tree.join("l".repeat(150)).join("n".repeat(150));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("o".repeat(255)), "far").unwrap();
    fs::hard_link(long.join("o".repeat(255)), tree.join("near")).unwrap();
    fs::create_dir(long.join("p".repeat(255))).unwrap();
    for name in [&b"\xff\xfe"[..], b"new\nline", b"back\\slash", "\u{fc}ml\u{e4}ut".as_bytes(), b" ", b"-", b"100=a"] {
        fs::write(tree.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(tree.join("h".repeat(100)), "as long as the field").unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(100 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 50 << 20).unwrap();
    sparse.write_all_at(b"later", (70 << 20) + 1000).unwrap();
    File::create(tree.join("hole")).unwrap().set_len((10 << 20) + 1).unwrap();
    fs::write(tree.join("zeroes"), [vec![1; 5000], vec![0; 300_000], vec![2; 5000]].concat()).unwrap();
    fs::write(tree.join("large"), (0..700_001_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    for path in ["a/file", "a/b", ""] {
        let entry = File::open(tree.join(path)).unwrap();
        fsetxattr(entry.as_fd(), "user.binary", b"\0\n=\xff", XattrFlags::empty()).unwrap();
        fsetxattr(entry.as_fd(), "user.empty", b"", XattrFlags::empty()).unwrap();
        fsetxattr(entry.as_fd(), "user.a=b%25c%", b"=", XattrFlags::empty()).unwrap();
    }
    chown(tree, Some(1000), Some(1001)).unwrap();
    set_mode(tree, 0o2751);
    for (index, path) in (1..).zip(entries(tree).0.into_keys().rev()) {
        set_times(&tree.join(path), (1_600_000_000 + index, 987_654_321), (1_500_000_000 + index, 123_456_789 + index));
    }
    set_times(&tree.join("zeroes"), (-5, 999_999_999), (-1, 1));
    set_times(&tree.join("near"), (0, 0), (1 << 33, 500_000_000));
}

#[test]
fn a_tree_with_all_kinds_of_entries_comes_back_as_it_was() {
    let (_folder, tree, target) = places();
    make_all_kinds(&tree);
    let before = entries(&tree);
    let archive = archive(&tree);
    unpack(&archive, &target).unwrap();
    assert_equal(&before, &target);
}

#[test]
fn names_that_are_more_than_a_file_may_have_lead_to_further_copies_of_it() {
    // More than ext4 allows, twice; other file systems allow more.
    const NAMES: usize = 130_100;
    let (_folder, _, target) = places();
    let mut tar = Tar::default().file("first", "data");
    for name in 0..NAMES {
        tar = tar.link(&format!("{name}"), "first");
    }
    unpack(&tar.end(), &target).unwrap();
    let first = fs::metadata(target.join("first")).unwrap();
    let mut inodes = BTreeMap::new();
    for name in 0..NAMES {
        let path = target.join(name.to_string());
        let stat = fs::metadata(&path).unwrap();
        inodes.entry(stat.ino()).or_insert((path, stat));
    }
    for (path, stat) in inodes.values() {
        assert_eq!(fs::read(path).unwrap(), b"data");
        assert_eq!((stat.mode(), stat.mtime()), (first.mode(), first.mtime()));
    }
    assert!(inodes.len() <= 3, "{} inodes", inodes.len());
}

#[test]
fn a_second_run_begins_in_a_directory_of_its_own() {
    let (folder, tree, target) = places();
    make_all_kinds(&tree);
    let before = entries(&tree);
    let archive = archive(&tree);
    let plain = zstd::decode_all(archive.as_slice()).unwrap();
    for part in 1..8 {
        let killed = folder.path().join(format!("killed {part}"));
        fs::create_dir(&killed).unwrap();
        unpack(&plain[..plain.len() / 8 * part], &killed).unwrap_err();
    }
    unpack(&archive, &target).unwrap();
    assert_equal(&before, &target);
}

#[test]
fn a_later_member_takes_the_place_of_an_earlier_one_of_its_name() {
    let (folder, tree, target) = places();
    make_all_kinds(&tree);
    let end = 2 * BLOCK;
    let plain = |tree: &Path| zstd::decode_all(archive(tree).as_slice()).unwrap();
    // Other entries under some of the names, that would lead the later ones astray.
    let outside = folder.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    let other = folder.path().join("other");
    fs::create_dir_all(other.join("a/b")).unwrap();
    fs::create_dir(other.join("hole")).unwrap();
    symlink(&outside, other.join("large")).unwrap();
    symlink(folder.path(), other.join("a/b/empty")).unwrap();
    fs::write(other.join("zeroes"), "other").unwrap();
    fs::hard_link(other.join("zeroes"), other.join("sparse")).unwrap();
    let before = entries(&tree);
    let (first, whole) = (plain(&other), plain(&tree));
    let archive = [&first[..first.len() - end], &whole[..whole.len() - end], &whole[..]].concat();
    unpack(&archive, &target).unwrap();
    assert_equal(&before, &target);
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
}

#[test]
fn an_archive_without_its_end_is_never_a_success() {
    let (_folder, tree, _) = places();
    fs::create_dir(tree.join("directory")).unwrap();
    fs::write(tree.join("directory").join("n".repeat(200)), "content").unwrap();
    fs::write(tree.join("other"), (0..999_u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
    File::create(tree.join("hole")).unwrap().set_len(100_000).unwrap();
    symlink("other", tree.join("link")).unwrap();
    node(&tree.join("fifo"), FileType::Fifo, (0, 0));
    let archive = archive(&tree);
    let plain = zstd::decode_all(archive.as_slice()).unwrap();
    let fails = |archive: &[u8]| {
        let target = tempfile::tempdir().unwrap();
        unpack(archive, target.path()).unwrap_err()
    };
    let target = tempfile::tempdir().unwrap();
    unpack(&plain, target.path()).unwrap();
    for length in (0..plain.len()).step_by(BLOCK) {
        let error = fails(&plain[..length]);
        assert!(matches!(error, ArchiveError::Truncated), "{length} of {}: {error}", plain.len());
    }
    for compressed in [archive, gzip(&plain)] {
        for length in 0..compressed.len() {
            let error = fails(&compressed[..length]);
            assert!(matches!(error, ArchiveError::Truncated), "{length} of {}: {error}", compressed.len());
        }
    }
}

#[test]
fn an_archive_that_was_changed_is_noticed() {
    let (_folder, tree, target) = places();
    fs::write(tree.join("file"), (0..50_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let archive = archive(&tree);
    let plain = zstd::decode_all(archive.as_slice()).unwrap();
    for mut changed in [archive, gzip(&plain)] {
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        unpack(&changed, &target).unwrap_err();
    }
    let followed = [&plain[..], b"more"].concat();
    assert!(matches!(unpack(&followed, &target), Err(ArchiveError::Damaged { .. })));
}

#[test]
fn a_tree_far_deeper_than_a_path_may_be_long_comes_back() {
    const DEPTH: usize = 3000;
    let (folder, tree, target) = places();
    let mut at = directory(&tree);
    for level in 0..DEPTH {
        mkdirat(&at, "directory", Mode::from_raw_mode(0o700)).unwrap();
        // Names on both sides of the directory, so that each is read on after the work comes back to it.
        for name in ["a", "z"] {
            mkdirat(&at, format!("{name}{level}").as_str(), Mode::from_raw_mode(0o700)).unwrap();
        }
        at = beneath::open_dir(&at, "directory").unwrap();
        let time = Timespec { tv_sec: i64::try_from(level).unwrap(), tv_nsec: 5 };
        utimensat(&at, ".", &Timestamps { last_access: time, last_modification: time }, AtFlags::empty()).unwrap();
    }
    let archive = archive(&tree);
    unpack(&archive, &target).unwrap();
    let (mut at, mut original) = (directory(&target), directory(&tree));
    for level in 0..DEPTH {
        let mut names = beneath::names(&at).unwrap();
        names.sort();
        assert_eq!(names, [format!("a{level}"), "directory".into(), format!("z{level}")].map(std::ffi::OsString::from));
        at = beneath::open_dir(&at, "directory").unwrap();
        original = beneath::open_dir(&original, "directory").unwrap();
        let (stat, wanted) = (rustix::fs::fstat(&at).unwrap(), rustix::fs::fstat(&original).unwrap());
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (wanted.st_mtime, wanted.st_mtime_nsec));
    }
    assert!(beneath::names(&at).unwrap().is_empty());
    // A path this long is nothing that std could remove.
    for place in ["tree", "target"] {
        crate::tree::remove::tree(directory(folder.path()), place, &crate::tree::effort::Effort::default()).unwrap();
    }
}

#[test]
fn a_file_below_more_directories_than_an_archive_may_have_is_refused() {
    let (_folder, tree, _) = places();
    let mut at = directory(&tree);
    for _ in 0..DEEPEST {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = beneath::open_dir(&at, "d").unwrap();
    }
    rustix::fs::symlinkat("x", &at, "one more").unwrap();
    let written = write(directory(&tree), None, std::io::sink(), &Progress::default());
    assert!(matches!(written, Err(ArchiveError::Unsupported { .. })), "{written:?}");
    let folder = tree.parent().unwrap();
    crate::tree::remove::tree(directory(folder), "tree", &crate::tree::effort::Effort::default()).unwrap();
}

#[test]
fn a_directory_with_many_names_comes_back() {
    let (_folder, tree, target) = places();
    for number in 0..20_000 {
        File::create(tree.join(format!("file-{number}"))).unwrap();
    }
    let archive = archive(&tree);
    let progress = Progress::default();
    read(archive.as_slice(), directory(&target), Limits::default(), &progress).unwrap();
    assert_eq!(progress.files(), 20_001);
    assert_eq!(entries(&tree).0.into_keys().collect::<Vec<_>>(), entries(&target).0.into_keys().collect::<Vec<_>>());
}

#[test]
fn what_changes_and_vanishes_meanwhile_leaves_an_archive_that_can_be_read() {
    let (_folder, tree, target) = places();
    for number in 0..100 {
        fs::write(tree.join(format!("stays-{number}")), "content").unwrap();
    }
    let done = AtomicBool::new(false);
    let archive = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_usize.. {
                let path = tree.join(format!("comes-{}", round % 5));
                match round % 4 {
                    0 => drop(fs::create_dir(&path)),
                    1 => drop(fs::remove_dir(&path)),
                    2 => drop(fs::write(&path, vec![7; round % 100_000])),
                    _ => drop(fs::remove_file(&path)),
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let archives: Vec<_> = (0..20).map(|_| archive(&tree)).collect();
        done.store(true, Ordering::Relaxed);
        archives
    });
    for archive in archive {
        unpack(&archive, &target).unwrap();
        for number in 0..100 {
            assert_eq!(fs::read(target.join(format!("stays-{number}"))).unwrap(), b"content");
        }
        fs::remove_dir_all(&target).unwrap();
        fs::create_dir(&target).unwrap();
    }
}

/// Takes what is written, and changes a file in the middle of it.
struct Changing<'a>(Vec<u8>, usize, Box<dyn Fn() + 'a>);

impl Write for Changing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        if self.0.len() > self.1 {
            (self.2)();
            self.1 = usize::MAX;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_is_archived_with_the_size_that_it_had_at_first() {
    let (_folder, tree, target) = places();
    let path = tree.join("file");
    noise(&path, 0, 60 << 20);
    let noise = fs::read(&path).unwrap();
    let size = noise.len() as u64;
    for new_size in [5 << 20, size + (5 << 20)] {
        fs::write(&path, &noise).unwrap();
        let change = || File::options().write(true).open(&path).unwrap().set_len(new_size).unwrap();
        let mut output = Changing(Vec::new(), 1 << 20, Box::new(change));
        write(directory(&tree), None, &mut output, &Progress::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), new_size);
        unpack(&output.0, &target).unwrap();
        let read = fs::read(target.join("file")).unwrap();
        assert_eq!(read.len(), noise.len());
        let kept = read.iter().zip(&noise).take_while(|(read, written)| read == written).count();
        assert!(kept >= 5 << 20 && read[kept..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn an_output_that_is_full_is_an_error() {
    let (_folder, tree, _) = places();
    fs::write(tree.join("file"), "content").unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    match write(directory(&tree), None, full, &Progress::default()) {
        Err(ArchiveError::Tree(error)) => assert_eq!(error.errno, nix::errno::Errno::ENOSPC),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_file_of_any_pattern_of_data_and_zeroes_comes_back(
        parts in proptest::collection::vec((any::<bool>(), any::<bool>(), 0_usize..20_000), 0..20),
    ) {
        let (_folder, tree, target) = places();
        let file = File::create(tree.join("file")).unwrap();
        let mut end = 0;
        for (is_data, is_hole, length) in parts {
            if is_data || !is_hole {
                file.write_all_at(&vec![u8::from(is_data); length], end).unwrap();
            }
            end += length as u64;
        }
        file.set_len(end).unwrap();
        let before = entries(&tree);
        let archive = archive(&tree);
        unpack(&archive, &target).unwrap();
        assert_equal(&before, &target);
    }
}

/// Fills a file with what does not compress, and is another for each seed.
fn noise(path: &Path, seed: u64, bytes: usize) {
    let next = |state: &u64| Some((state ^ (state >> 29)).wrapping_mul(0x5851_f42d_4c95_7f2d) + 1);
    let states = std::iter::successors(Some(seed + 1), next);
    fs::write(path, states.take(bytes / 8).flat_map(u64::to_be_bytes).collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_directory_that_vanishes_midway_is_left_out_and_counted() {
    let (_folder, tree, target) = places();
    fs::create_dir(tree.join("d")).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    for number in 0..12 {
        noise(&tree.join(format!("d/{number}")), number, 2 << 20);
    }
    let mut output = Changing(Vec::new(), 1 << 20, Box::new(|| fs::remove_dir_all(tree.join("d")).unwrap()));
    let progress = Progress::default();
    write(directory(&tree), None, &mut output, &progress).unwrap();
    let archived = progress.files();
    assert!(progress.vanished() > 0 && archived + progress.vanished() >= 15);
    let unpacked = Progress::default();
    read(output.0.as_slice(), directory(&target), ALL, &unpacked).unwrap();
    assert_eq!(unpacked.files(), archived);
    assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
}

#[test]
fn a_file_that_gets_the_number_of_one_that_is_gone_is_archived_with_its_own_content() {
    let (_folder, tree, target) = places();
    let directories = 0..24_u64;
    for number in directories.clone() {
        let directory = tree.join(format!("d-{number}"));
        fs::create_dir(&directory).unwrap();
        noise(&directory.join("noise"), number, 512 << 10);
        for file in 0..20 {
            fs::write(directory.join(format!("old-{file}")), format!("old {number} {file}")).unwrap();
            fs::hard_link(directory.join(format!("old-{file}")), tree.join(format!("z-{number}-{file}"))).unwrap();
        }
    }
    // The names of the root are read already; those of most directories are not.
    let change = || {
        for number in directories.clone() {
            let directory = tree.join(format!("d-{number}"));
            for file in 0..20 {
                fs::remove_file(directory.join(format!("old-{file}"))).unwrap();
                fs::remove_file(tree.join(format!("z-{number}-{file}"))).unwrap();
                let new = directory.join(format!("new-{file}"));
                fs::write(&new, format!("new {number} {file}")).unwrap();
                fs::hard_link(&new, tree.join(format!("z-{number}-{file}"))).unwrap();
            }
        }
    };
    let mut output = Changing(Vec::new(), 1 << 20, Box::new(change));
    write(directory(&tree), None, &mut output, &Progress::default()).unwrap();
    unpack(&output.0, &target).unwrap();
    let mut found = 0;
    for (path, entry) in entries(&target).0 {
        if let Some(name) = path.to_str().and_then(|path| path.rsplit_once("new-")) {
            let number = name.0.trim_matches(|c: char| !c.is_ascii_digit());
            assert_eq!(String::from_utf8_lossy(&entry.content), format!("new {number} {}", name.1), "{path:?}");
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn a_tree_that_vanishes_as_a_whole_is_an_error() {
    let (_folder, tree, _) = places();
    for number in 0..12 {
        noise(&tree.join(number.to_string()), number, 2 << 20);
    }
    let mut output = Changing(Vec::new(), 1 << 20, Box::new(|| fs::remove_dir_all(&tree).unwrap()));
    match write(directory(&tree), None, &mut output, &Progress::default()) {
        Err(ArchiveError::Tree(error)) => {
            assert!(matches!(error.errno, nix::errno::Errno::ESTALE | nix::errno::Errno::ENOENT), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_driver_s_own_folder_is_left_out_and_another_is_archived() {
    let (_folder, tree, target) = places();
    for path in ["a/.nfs-csi/staging", "b/.nfs-csi"] {
        fs::create_dir_all(tree.join(path)).unwrap();
    }
    let own = fs::metadata(tree.join("a/.nfs-csi")).unwrap().ino();
    let progress = Progress::default();
    let mut archive = Vec::new();
    write(directory(&tree), Some(own), &mut archive, &progress).unwrap();
    unpack(&archive, &target).unwrap();
    assert!(target.join("a").exists() && !target.join("a/.nfs-csi").exists());
    assert!(target.join("b/.nfs-csi").exists());
    assert_eq!((progress.files(), progress.vanished()), (4, 0));
}

fn assert_stopped(result: Result<impl std::fmt::Debug, ArchiveError>) {
    match result {
        Err(ArchiveError::Tree(error)) => assert_eq!(error.errno, nix::errno::Errno::ECANCELED),
        other => panic!("{other:?}"),
    }
}

/// Stops the work when something is read of an archive.
struct Stopping<'a>(&'a [u8], &'a Progress);

impl Read for Stopping<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.1.stop();
        self.0.read(bytes)
    }
}

#[test]
fn archiving_and_unpacking_are_stopped_in_the_middle_of_a_file_and_between_files() {
    for (files, bytes) in [(1, 24 << 20), (120, 200 << 10)] {
        let (_folder, tree, target) = places();
        for number in 0..files {
            noise(&tree.join(number.to_string()), number, bytes);
        }
        let progress = Progress::default();
        let mut output = Changing(Vec::new(), 1 << 20, Box::new(|| progress.stop()));
        assert_stopped(write(directory(&tree), None, &mut output, &progress));
        assert!(progress.files() < 1 + files && output.0.len() < 20 << 20);
        let archive = archive(&tree);
        let progress = Progress::default();
        assert_stopped(read(Stopping(&archive, &progress), directory(&target), ALL, &progress));
        let unpacked: u64 = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(unpacked < 10 << 20);
    }
}
