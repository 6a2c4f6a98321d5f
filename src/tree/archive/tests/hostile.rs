//! Archives that are out for harm: whatever they hold, nothing outside the target changes.

use std::os::unix::fs::symlink;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use proptest::prelude::*;

use super::*;

/// A folder with the place to unpack to, and beside it what must stay as it is.
struct Places {
    folder: tempfile::TempDir,
    target: PathBuf,
}

impl Places {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/file"), "mine").unwrap();
        Self { folder, target }
    }

    fn unpack(&self, archive: &[u8]) -> Result<(), ArchiveError> {
        let result = unpack(archive, &self.target);
        let (outside, _) = entries(&self.folder.path().join("outside"));
        assert_eq!(outside.len(), 2);
        let file = &outside[Path::new("file")];
        assert_eq!((file.content.as_slice(), file.mode & 0o7777), (&b"mine"[..], 0o644));
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), 2);
        result
    }
}

fn refused(archive: Tar) -> String {
    match Places::new().unpack(&archive.end()) {
        Err(error @ ArchiveError::Hostile { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_that_lead_out_are_refused_wherever_they_stand() {
    for name in ["/etc/file", "../outside/file", "a/../../outside/file", "a//b", "..", "/"] {
        assert!(refused(Tar::default().file(name, "x")).contains(name));
        refused(Tar::default().directory(name));
        refused(Tar::default().symlink(name, "x"));
        refused(Tar::default().file("a", "x").link("b", name));
        refused(Tar::default().pax(&[(pax::PATH, name.as_bytes())]).file("good", "x"));
        refused(
            Tar::default().with_content("././@LongLink", EntryType::GNULongName, name.as_bytes()).file("good", "x"),
        );
        let sparse = Tar::default().pax(&[(pax::SPARSE_NAME, name.as_bytes()), (pax::PATH, b"good")]);
        refused(sparse.file("good", "x"));
        let link = Tar::default().file("a", "x").pax(&[(pax::LINK, name.as_bytes())]);
        refused(link.link("b", "a"));
    }
    refused(Tar::default().pax(&[(pax::PATH, b"a\0b")]).file("good", "x"));
    refused(Tar::default().pax(&[(pax::LINK, b"a\0b")]).symlink("good", "x"));
    refused(Tar::default().pax(&[(pax::PATH, "a/".repeat(20_000).as_bytes())]).directory("good"));
    refused(Tar::default().file("", "x"));
    refused(Tar::default().symlink("./", "/etc"));
    refused(Tar::default().file("a/", "x"));
}

#[test]
fn a_long_name_is_not_shown_as_a_whole() {
    let name = [b"../", vec![b'n'; 1 << 20].as_slice()].concat();
    let text = refused(Tar::default().pax(&[(pax::PATH, &name)]).file("good", "x"));
    assert!(text.len() < 1000);
}

#[test]
fn nothing_goes_through_a_link_that_an_earlier_member_made() {
    for to in ["../outside", "/tmp", "real", "."] {
        let link = || Tar::default().directory("real").symlink("a", to);
        assert!(refused(link().file("a/file", "x")).contains("a/file"));
        refused(link().file("a/b/file", "x"));
        refused(link().directory("a/file"));
        refused(link().symlink("a/file", "x"));
        refused(link().to("a/file", EntryType::Fifo, ""));
        refused(link().link("b", "a/file"));
        refused(link().link("h", "a").file("h/file", "x"));
        refused(link().file("real/x", "").symlink("real/y", "../a").file("real/y/file", "x"));
    }
    refused(Tar::default().file("a", "x").file("a/b", "x"));
    refused(Tar::default().file("a", "x").link("a", "a"));
    refused(Tar::default().link("a", "./"));
    refused(Tar::default().directory("d").link("a", "d"));
    refused(Tar::default().link("a", "missing"));
    refused(Tar::default().link("a", "missing/b"));
    refused(Tar::default().symlink("a", ""));
}

#[test]
fn a_link_is_replaced_and_never_written_through() {
    let places = Places::new();
    let archive = Tar::default()
        .symlink("a", "../outside/file")
        .file("a", "a file")
        .symlink("b", "../outside")
        .directory("b")
        .file("b/file", "in a directory")
        .file("c", "first")
        .link("d", "c")
        .file("d", "second")
        .symlink("e", "../outside/file")
        .link("f", "e")
        .file("f", "no link any more")
        .file("g", "x")
        .directory("g")
        .file("g/file", "x");
    places.unpack(&archive.end()).unwrap();
    let content = |name: &str| fs::read_to_string(places.target.join(name)).unwrap();
    assert_eq!([content("a"), content("b/file")], ["a file", "in a directory"]);
    assert_eq!([content("c"), content("d"), content("f")], ["first", "second", "no link any more"]);
    assert!(fs::symlink_metadata(places.target.join("e")).unwrap().is_symlink());
}

#[test]
fn links_that_were_there_before_are_not_followed() {
    let places = Places::new();
    symlink("../outside", places.target.join("a")).unwrap();
    let error = places.unpack(&Tar::default().file("a/file", "x").end()).unwrap_err();
    assert!(matches!(error, ArchiveError::Hostile { .. }));
    places.unpack(&Tar::default().directory("a").file("a/file", "x").end()).unwrap();
    assert_eq!(fs::read(places.target.join("a/file")).unwrap(), b"x");
}

#[test]
fn a_directory_with_something_in_it_is_replaced_and_no_link_in_it_is_followed() {
    let replaced = |with: fn(Tar) -> Tar| {
        let places = Places::new();
        let full = Tar::default().file("a/b/c", "x").symlink("a/link", "../../outside").file("a/d", "x");
        places.unpack(&with(full).end()).unwrap();
        places
    };
    let content = |places: &Places| fs::read_to_string(places.target.join("a")).unwrap();
    assert_eq!(content(&replaced(|full| full.file("a", "y"))), "y");
    assert_eq!(content(&replaced(|full| full.symlink("a", "b").file("other", "z").link("a", "other"))), "z");
    let places = replaced(|full| full.to("a", EntryType::Fifo, "").directory("a"));
    assert_eq!(fs::read_dir(places.target.join("a")).unwrap().count(), 0);
}

#[test]
fn sizes_that_lie_are_refused_before_anything_is_written() {
    let places = Places::new();
    let mut header = Tar::header(b"a", EntryType::Regular);
    header.set_size(1 << 60);
    match places.unpack(&Tar::default().raw(&header, b"x").end()) {
        Err(ArchiveError::TooBig { needed, free }) => assert!(needed == 1 << 60 && free < needed),
        other => panic!("{other:?}"),
    }
    assert!(!places.target.join("a").exists());
    for size in [b"-1".as_slice(), b"18446744073709551615", b"18446744073709551616", b"0x10", b""] {
        let archive = Tar::default().pax(&[(pax::SIZE, size)]).file("a", "x");
        assert!(matches!(places.unpack(&archive.end()), Err(ArchiveError::Damaged { .. })));
    }
    header.as_old_mut().size = [0xff; 12];
    assert!(matches!(places.unpack(&Tar::default().raw(&header, b"").end()), Err(ArchiveError::Damaged { .. })));
    // A size that is too large by what follows takes the end away.
    header.set_size(4096);
    assert!(matches!(places.unpack(&Tar::default().raw(&header, b"x").end()), Err(ArchiveError::Truncated)));
}

#[test]
fn headers_of_gigabytes_are_not_read() {
    for kind in [EntryType::XHeader, EntryType::XGlobalHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        let mut header = Tar::header(b"a", kind);
        header.set_size(1 << 33);
        let archive = Tar::default().raw(&header, b"").end();
        let endless = archive.as_slice().chain(std::io::repeat(b'a'));
        let target = tempfile::tempdir().unwrap();
        let error = read(endless, directory(target.path()), ALL, &Progress::default()).unwrap_err();
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{error:?}");
    }
    let endless = Tar::default().end();
    let endless = endless.as_slice().chain(std::io::repeat(0));
    let target = tempfile::tempdir().unwrap();
    let error = read(endless, directory(target.path()), ALL, &Progress::default()).unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error:?}");
}

#[test]
fn access_lists_of_directories_within_each_other_are_restored_whatever_they_take() {
    let list = vec![b'x'; 60_000];
    let mut archive = Tar::default();
    for depth in 1..=300 {
        let name = "d/".repeat(depth);
        let records: [(&[u8], &[u8]); 2] = [(b"SCHILY.xattr.system.nfs4_acl", &list), (pax::PATH, name.as_bytes())];
        archive = archive.pax(&records).directory("d/");
    }
    Places::new().unpack(&archive.end()).unwrap();
}

#[test]
fn members_that_alternate_between_deep_directories_end_the_restore() {
    let alternating = |depth: usize, members: usize| {
        let ways = ["d/".repeat(depth), "e/".repeat(depth)];
        let names = (0..members).map(|member| format!("{}{member}", ways[member % 2]));
        names.fold(Tar::default(), |archive, name| archive.pax(&[(pax::PATH, name.as_bytes())]).file("file", ""))
    };
    assert!(refused(alternating(400, 250)).contains("once too often"));
    Places::new().unpack(&alternating(40, 2500).end()).unwrap();
}

#[test]
fn a_window_of_gigabytes_is_not_held() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&Tar::default().end()).unwrap();
    let error = Places::new().unpack(&encoder.finish().unwrap()).unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }), "{error:?}");
}

#[test]
fn devices_need_leave() {
    let target = tempfile::tempdir().unwrap();
    for kind in [EntryType::Char, EntryType::Block] {
        let archive = Tar::default().to("a", kind, "").end();
        let read = |limits| read(archive.as_slice(), directory(target.path()), limits, &Progress::default());
        assert!(matches!(read(Limits::default()), Err(ArchiveError::Unsupported { .. })));
        assert!(!target.path().join("a").exists());
    }
}

#[test]
fn what_no_volume_holds_is_named() {
    for kind in [b'V', b'M', b'D', b'Z', b'9'] {
        let archive = Tar::default().to("member", EntryType::new(kind), "");
        let error = Places::new().unpack(&archive.end()).unwrap_err();
        assert!(matches!(error, ArchiveError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("member"));
    }
}

#[test]
fn an_owner_that_means_nobody_and_records_that_are_none_are_damage() {
    let damaged = |archive: Tar| {
        let error = Places::new().unpack(&archive.file("a", "x").end()).unwrap_err();
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{error:?}");
    };
    damaged(Tar::default().pax(&[(pax::UID, b"4294967295")]));
    damaged(Tar::default().pax(&[(pax::GID, b"-1")]));
    damaged(Tar::default().pax(&[(pax::MODIFIED, b"yesterday")]));
    damaged(Tar::default().pax(&[(pax::PATH, b"a")]).pax(&[(pax::PATH, b"b")]));
    for text in ["6 path=", "99 path=a\n", "9999999999999999999999 path=a\n", "x", "9 path a\n"] {
        damaged(Tar::default().with_content("x", EntryType::XHeader, text.as_bytes()));
    }
    let error = Places::new().unpack(&Tar::default().pax(&[(pax::PATH, b"a")]).end()).unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }));
    let error = Places::new().unpack(&[b'x'; 4096]).unwrap_err();
    assert!(matches!(error, ArchiveError::Damaged { .. }));
}

/// A small file system of its own, until it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        mount(Some("none"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn an_archive_that_unpacks_into_more_than_is_free_ends_in_time() {
    let small = Small::new("size=4m,nr_inodes=200");
    let one = "x".repeat(3 << 20);
    let result = unpack(&Tar::default().file("a", &one).file("b", &one).end(), small.0.path());
    match result {
        Err(ArchiveError::TooBig { needed, free }) => assert!(needed == 3 << 20 && free < 1 << 20),
        other => panic!("{other:?}"),
    }
    assert!(!small.0.path().join("b").exists());
    fs::remove_file(small.0.path().join("a")).unwrap();
    let mut many = Tar::default();
    for number in 0..500 {
        many = many.file(&format!("{number}"), "");
    }
    let error = unpack(&many.end(), small.0.path()).unwrap_err();
    assert!(matches!(error, ArchiveError::TooMany), "{error:?}");
    assert!(fs::read_dir(small.0.path()).unwrap().count() < 200);
    for entry in fs::read_dir(small.0.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    // Zeroes become holes, which take nothing.
    let zeroes = "\0".repeat(3 << 20);
    unpack(&Tar::default().file("0", &zeroes).file("1", &zeroes).file("2", &zeroes).end(), small.0.path()).unwrap();
}

/// Right checksums everywhere, so that what was changed is looked at.
fn with_checksums(mut archive: Vec<u8>) -> Vec<u8> {
    for block in archive.chunks_exact_mut(BLOCK) {
        if &block[257..262] == b"ustar" {
            let mut header = Header::new_old();
            header.as_mut_bytes().copy_from_slice(block);
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    archive
}

fn member() -> impl Strategy<Value = (u8, String, String)> {
    let name = "(\\.\\./|/|\\./)?(a|b|c|outside)(/(a|b|file|\\.\\.|))?(/(a|b))?";
    (prop::sample::select(b"0012255567".to_vec()), name, name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn members_in_any_order_change_nothing_outside(members in proptest::collection::vec(member(), 1..30)) {
        let mut archives = vec![Tar::default()];
        for (kind, name, target) in &members {
            let kind = EntryType::new(*kind);
            let next = |archive: &Tar| match kind {
                EntryType::Regular => archive.clone().file(name, "x"),
                _ => archive.clone().to(name, kind, target),
            };
            archives = archives.iter().map(next).collect();
            // What is refused ends an archive, so a new one goes on from there.
            if archives.len() < 4 {
                archives.push(Tar::default());
            }
        }
        let places = Places::new();
        for archive in archives {
            let _ = places.unpack(&archive.end());
        }
    }

    #[test]
    fn an_archive_with_changed_bytes_never_panics_and_changes_nothing_outside(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let archive = Tar::default()
            .directory("d")
            .symlink("d/l", "../../outside")
            .pax(&[(pax::PATH, b"d/file"), (pax::SIZE, b"4"), (pax::MODIFIED, b"1.5")])
            .file("f", "data")
            .link("h", "d/file")
            .pax(&[(pax::SPARSE_MAJOR, b"1"), (pax::SPARSE_MINOR, b"0"), (pax::SPARSE_REAL_SIZE, b"4096")])
            .file("s", &format!("1\n0\n512\n{}{}", "\0".repeat(502), "y".repeat(512)))
            .with_content("././@LongLink", EntryType::GNULongName, b"d/e/f")
            .file("short", "data");
        let mut archive = archive.end();
        for (place, byte) in changes {
            let place = place.index(archive.len());
            archive[place] = byte;
        }
        let archive = with_checksums(archive);
        let places = Places::new();
        let _ = places.unpack(&archive);
        let _ = places.unpack(&archive[..cut.index(archive.len())]);
    }

    #[test]
    fn random_bytes_are_no_archive(bytes in proptest::collection::vec(any::<u8>(), 0..3000), magic in 0_usize..3) {
        let magic: &[u8] = [&b""[..], &[0x28, 0xb5, 0x2f, 0xfd], &[0x1f, 0x8b, 8, 0]][magic];
        prop_assert!(Places::new().unpack(&[magic, &bytes].concat()).is_err());
    }
}
