//! Access control lists in archives.

use std::os::unix::fs::PermissionsExt;

use rustix::fs::{XattrFlags, lsetxattr};

use super::*;
use crate::tree::access_list::tests::{nfs4_list, posix_list};
use crate::tree::attributes::{POSIX, POSIX_DEFAULT};

type Records<'a> = &'a [(&'a [u8], &'a [u8])];

#[test]
fn posix_lists_come_back() {
    let (tree, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(tree.path().join("directory")).unwrap();
    fs::write(tree.path().join("directory/listed"), "x").unwrap();
    fs::write(tree.path().join("directory/plain"), "x").unwrap();
    let (_, list) = posix_list(&[(1, 6), (2, 6), (4, 0), (0x10, 6), (0x20, 0)]);
    for (path, name) in [("directory/listed", POSIX), ("directory", POSIX), ("directory", POSIX_DEFAULT)] {
        lsetxattr(tree.path().join(path), name, &list, XattrFlags::empty()).unwrap();
    }
    // Nothing gets what the target would pass on.
    lsetxattr(target.path(), POSIX_DEFAULT, &list, XattrFlags::empty()).unwrap();
    let before = entries(tree.path());
    assert_eq!(before.0[Path::new("directory")].xattrs.len(), 2);
    unpack(&archive(tree.path()), target.path()).unwrap();
    assert_equal(&before, target.path());
}

#[test]
fn what_cannot_have_its_list_has_no_wider_permissions_and_is_counted() {
    let target = tempfile::tempdir().unwrap();
    let nfs4 = nfs4_list(&["A::OWNER@:rwa", "A::1234:rwa", "A:g:GROUP@:", "A::EVERYONE@:"]).1;
    let plain = nfs4_list(&["A::OWNER@:rwa", "A:g:GROUP@:rwa", "A::EVERYONE@:"]).1;
    let posix = posix_list(&[(1, 6), (2, 6), (4, 0), (0x10, 6), (0x20, 0)]).1;
    let text = b"user::rw-,user:bob:rw-,group::---,mask::rw-,other::---";
    let members: [(&str, EntryType, Records<'_>, u32); 7] = [
        ("file", EntryType::Regular, &[(b"SCHILY.xattr.system.nfs4_acl", &nfs4)], 0o600),
        ("folder/", EntryType::Directory, &[(b"SCHILY.xattr.system.nfs4_acl", &nfs4)], 0o600),
        ("plain", EntryType::Regular, &[(b"SCHILY.xattr.system.nfs4_acl", &plain)], 0o660),
        ("text", EntryType::Regular, &[(b"SCHILY.acl.access", text)], 0o600),
        ("fifo", EntryType::Fifo, &[(b"SCHILY.xattr.system.posix_acl_access", &posix)], 0o600),
        // The list is kept, and the text is passed over.
        (
            "both",
            EntryType::Regular,
            &[(b"SCHILY.acl.access", text), (b"SCHILY.xattr.system.posix_acl_access", &posix)],
            0o660,
        ),
        ("none", EntryType::Regular, &[(b"SCHILY.acl.default", text)], 0o660),
    ];
    let mut archive = Tar::default();
    for (name, kind, records, _) in members {
        let mut header = Tar::header(name.as_bytes(), kind);
        header.set_mode(0o660);
        archive = archive.pax(records).raw(&header, b"");
    }
    let progress = Progress::default();
    read(archive.end().as_slice(), directory(target.path()), ALL, &progress).unwrap();
    for (name, _, _, expected) in members {
        let mode = fs::metadata(target.path().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, expected, "{name}: {mode:o}");
    }
    assert_eq!(progress.narrowed(), 4);
}
