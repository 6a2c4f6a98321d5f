//! Access control lists: kept where the target takes them, and no wider permissions where it does not.

use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_content_source::Type;
use nfs_csi::proto::{CreateSnapshotRequest, CreateVolumeRequest, Volume};
use nix::mount::{MsFlags, mount};
use rustix::fs::{CWD, FileType, XattrFlags, lgetxattr, lsetxattr, mknodat};

use crate::cloning::{made, no_litter, removed};
use crate::kit::driver::Driver;
use crate::kit::folder;
use crate::kit::requests::{
    capability, create, create_from, delete, delete_snapshot, of_snapshot, of_volume, snapshot,
};
use crate::kit::server::on_server;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;
/// An export whose file system has no lists.
const WITHOUT_LISTS: &str = "/run/exports/without-lists";
/// Mount options of both kinds of lists: POSIX lists over NFS 3, NFS 4 lists over all others.
const VERSIONS: [&[&str]; 2] = [&["nfsvers=3", "nolock"], &["nfsvers=4.2"]];

/// A POSIX access control list as the kernel takes it: version 2; tag, permissions and id of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry =
        |&(tag, bits, id): &(u16, u16, u32)| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    std::iter::once(2_u32.to_le_bytes().to_vec()).chain(entries.iter().map(entry)).collect::<Vec<_>>().concat()
}

/// The list of a key that the owner and user 1234 may read and write, and the owning group may not.
fn of_a_key() -> Vec<u8> {
    list(&[(1, 6, NO_ID), (2, 6, 1234), (4, 0, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)])
}

/// The list of what all may read but user 1234.
fn of_all_but_one() -> Vec<u8> {
    list(&[(1, 6, NO_ID), (2, 0, 1234), (4, 4, NO_ID), (0x10, 4, NO_ID), (0x20, 4, NO_ID)])
}

/// What a directory passes on to what is created in it.
fn to_inherit() -> Vec<u8> {
    list(&[(1, 7, NO_ID), (2, 6, 1234), (4, 0, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)])
}

/// Entries with lists, and one without.
fn fill(root: &Path) {
    let make = |name: &str, bits, attribute: Option<(&str, Vec<u8>)>| {
        let path = root.join(name);
        match name {
            "fifo" => mknodat(CWD, &path, FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap(),
            "folder" => std::fs::create_dir(&path).unwrap(),
            _ => std::fs::write(&path, name).unwrap(),
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).unwrap();
        if let Some((attribute, list)) = attribute {
            lsetxattr(&path, attribute, &list, XattrFlags::empty()).unwrap();
        }
    };
    make("plain", 0o640, None);
    make("key.pem", 0o660, Some((ACCESS, of_a_key())));
    make("fifo", 0o660, Some((ACCESS, of_a_key())));
    make("all-but-one", 0o644, Some((ACCESS, of_all_but_one())));
    make("folder", 0o750, Some((DEFAULT, to_inherit())));
    std::fs::write(root.join("folder/open"), "").unwrap();
    std::fs::set_permissions(root.join("folder/open"), PermissionsExt::from_mode(0o2664)).unwrap();
    lsetxattr(root.join("folder"), ACCESS, &of_a_key(), XattrFlags::empty()).unwrap();
}

const NAMES: [&str; 6] = ["plain", "key.pem", "fifo", "all-but-one", "folder", "folder/open"];

/// An entry's permissions and its two lists.
type Lists = (u32, Option<Vec<u8>>, Option<Vec<u8>>);

fn lists_of(path: &Path) -> Lists {
    let attribute = |name: &str| {
        let mut value = Vec::with_capacity(65536);
        lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)).is_ok().then_some(value)
    };
    (std::fs::symlink_metadata(path).unwrap().mode() & 0o7777, attribute(ACCESS), attribute(DEFAULT))
}

fn lists(root: &Path) -> Vec<(&'static str, Lists)> {
    NAMES.into_iter().map(|name| (name, lists_of(&root.join(name)))).collect()
}

/// What is expected of entries with lists where they are kept. A fifo has none.
fn kept(root: &Path) -> Vec<(&'static str, Lists)> {
    let mut lists = lists(root);
    lists[2] = ("fifo", (0o600, None, None));
    lists
}

/// The permissions of entries that have lost their lists.
const NARROWED: [(&str, u32); 6] = [
    ("plain", 0o640),
    ("key.pem", 0o600),
    ("fifo", 0o600),
    ("all-but-one", 0o600),
    ("folder", 0o600),
    // Inherited: user 1234 could do what the others could not, and the group nothing.
    ("folder/open", 0o2604),
];

fn assert_narrowed(root: &Path) {
    assert_eq!(lists(root), NARROWED.map(|(name, mode)| (name, (mode, None, None))));
}

/// How many entries lost their lists, from each warning in the log.
fn narrowed(driver: &Driver) -> Vec<u64> {
    let number = |line: &str| line.split_once(" narrowed=")?.1.split(' ').next()?.parse().ok();
    driver.log().lines().filter_map(number).collect()
}

fn with(options: &[&str], request: CreateVolumeRequest) -> CreateVolumeRequest {
    let volume_capabilities = vec![capability(Mode::MultiNodeMultiWriter, options)];
    CreateVolumeRequest { volume_capabilities, ..request }
}

async fn copied(driver: &Driver, options: &[&str], name: &str, source: Type, share: Option<&Path>) -> Volume {
    let share = share.map(|share| ("share", share.to_str().unwrap()));
    made(driver, with(options, create_from(name, source, share.as_slice()))).await
}

/// The id of a snapshot.
async fn taken(driver: &Driver, options: &[&str], volume: &Volume, format: &str) -> String {
    let secrets = HashMap::from([("mountOptions".into(), options.join(","))]);
    let request = snapshot("snap", &volume.volume_id, &[("snapshotFormat", format)]);
    let request = CreateSnapshotRequest { secrets, ..request };
    let taken = driver.controller().await.create_snapshot(request).await.unwrap().into_inner();
    taken.snapshot.unwrap().snapshot_id
}

#[tokio::test]
async fn clones_keep_access_lists_where_both_sides_have_them() {
    for options in VERSIONS {
        let folder = folder();
        let driver = Driver::start(folder.path(), &[]);
        let source = made(&driver, with(options, create("pvc-source", &[]))).await;
        fill(&on_server("pvc-source"));
        let clone = copied(&driver, options, "pvc-clone", of_volume(&source.volume_id), None).await;
        assert_eq!(lists(&on_server("pvc-clone")), kept(&on_server("pvc-source")), "{options:?}");
        assert_eq!(narrowed(&driver), [1], "{}", driver.log());
        removed(&driver, &clone).await;
        removed(&driver, &source).await;
        no_litter();
    }
}

#[tokio::test]
async fn a_clone_on_an_export_without_access_lists_has_no_wider_permissions() {
    let other = Path::new(WITHOUT_LISTS);
    for options in VERSIONS {
        let folder = folder();
        let driver = Driver::start(folder.path(), &[]);
        let source = made(&driver, with(options, create("pvc-source", &[]))).await;
        fill(&on_server("pvc-source"));
        let clone = copied(&driver, options, "pvc-clone", of_volume(&source.volume_id), Some(other)).await;
        assert_narrowed(&other.join("pvc-clone"));
        assert_eq!(narrowed(&driver), [5], "{}", driver.log());
        // Back where lists are: the source has none, and so the copy.
        let back = copied(&driver, options, "pvc-back", of_volume(&clone.volume_id), None).await;
        assert_narrowed(&on_server("pvc-back"));
        for volume in [&clone, &back, &source] {
            removed(&driver, volume).await;
        }
        no_litter();
    }
}

#[tokio::test]
async fn snapshots_and_restores_keep_access_lists_or_have_no_wider_permissions() {
    let other = Path::new(WITHOUT_LISTS);
    for options in VERSIONS {
        for format in ["tree", "tar.zst"] {
            let folder = folder();
            let driver = Driver::start(folder.path(), &[]);
            let source = made(&driver, with(options, create("pvc-source", &[]))).await;
            fill(&on_server("pvc-source"));
            let taken = taken(&driver, options, &source, format).await;
            let same = copied(&driver, options, "pvc-same", of_snapshot(&taken), None).await;
            assert_eq!(lists(&on_server("pvc-same")), kept(&on_server("pvc-source")), "{options:?} {format}");
            let less = copied(&driver, options, "pvc-less", of_snapshot(&taken), Some(other)).await;
            assert_narrowed(&other.join("pvc-less"));
            // The fifo has lost its list when the snapshot was taken.
            assert_eq!(narrowed(&driver), [1, 4], "{}", driver.log());
            driver.controller().await.delete_snapshot(delete_snapshot(&taken)).await.unwrap();
            for volume in [&same, &less, &source] {
                removed(&driver, volume).await;
            }
            no_litter();
        }
    }
}

#[tokio::test]
async fn a_copy_has_no_access_list_that_only_the_export_has() {
    let folder = folder();
    let share = tempfile::Builder::new().prefix("lists-").tempdir_in(on_server("")).unwrap();
    lsetxattr(share.path(), DEFAULT, &to_inherit(), XattrFlags::empty()).unwrap();
    let options = VERSIONS[0];
    let driver = Driver::start(folder.path(), &[]);
    let source = made(&driver, with(options, create("pvc-source", &[]))).await;
    let of = |root: &Path| (lists_of(root), lists_of(&root.join("file")));
    std::fs::write(on_server("pvc-source/file"), "").unwrap();
    std::fs::set_permissions(on_server("pvc-source/file"), PermissionsExt::from_mode(0o664)).unwrap();
    let clone = copied(&driver, options, "pvc-clone", of_volume(&source.volume_id), Some(share.path())).await;
    assert_eq!(of(&share.path().join("pvc-clone")), of(&on_server("pvc-source")));
    for format in ["tree", "tar.zst"] {
        let taken = taken(&driver, options, &source, format).await;
        let restored = copied(&driver, options, "pvc-restored", of_snapshot(&taken), Some(share.path())).await;
        assert_eq!(of(&share.path().join("pvc-restored")), of(&on_server("pvc-source")), "{format}");
        driver.controller().await.delete_snapshot(delete_snapshot(&taken)).await.unwrap();
        removed(&driver, &restored).await;
    }
    removed(&driver, &clone).await;
    removed(&driver, &source).await;
    no_litter();
}

/// Mounts the disk without lists again, with these options.
fn remount(options: &str) {
    let (none, disk) = (None::<&str>, "/run/nfsroot/run/exports/without-lists");
    mount(none, disk, none, MsFlags::MS_REMOUNT, Some(options)).unwrap();
}

#[tokio::test]
async fn a_file_system_that_takes_no_users_attributes_gets_the_copy_without_them() {
    let folder = folder();
    let driver = Driver::start(folder.path(), &[]);
    let mut controller = driver.controller().await;
    let source = controller.create_volume(create("pvc-attributes", &[])).await.unwrap().into_inner().volume.unwrap();
    std::fs::write(on_server("pvc-attributes/file"), "content").unwrap();
    lsetxattr(on_server("pvc-attributes/file"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    remount("noacl,nouser_xattr");
    let request = create_from("pvc-without", of_volume(&source.volume_id), &[("share", WITHOUT_LISTS)]);
    let made = controller.create_volume(request).await;
    remount("noacl,user_xattr");
    let volume = made.unwrap().into_inner().volume.unwrap();
    let copy = Path::new(WITHOUT_LISTS).join("pvc-without/file");
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "content");
    for id in [volume.volume_id, source.volume_id] {
        controller.delete_volume(delete(&id)).await.unwrap();
    }
}
