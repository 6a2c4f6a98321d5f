//! Claims on directories: none stays behind where no volume is, and no directory goes that a volume has.

use std::path::{Path, PathBuf};

use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;

use crate::kit::check::is_well;
use crate::kit::client::{A, B};
use crate::kit::driver::binary;
use crate::kit::names_in;
use crate::kit::replica::Replica;
use crate::kit::requests::{of_snapshot, of_volume};
use crate::kit::retried::Call;
use crate::kit::share::Share;

/// The directory that all volumes here name.
const GIVEN: (&str, &str) = ("subDir", "team/data");
const SQUASHED: &str = "/run/exports/squash-writable";

/// Nothing is claimed on an export; and a volume with the directory is deleted with all in it. Else: what was before
/// it.
async fn nothing_is_claimed(root: &Path, next: &Call, replica: &Replica, after: &str) -> Result<(), String> {
    let claims = names_in(&root.join(".nfs-csi/subdirs"));
    let id = next.retried(&replica.calls).await.map_err(|status| format!("after {after}: {status}"))?;
    let directory = root.join(GIVEN.1);
    let found = names_in(&directory);
    std::fs::write(directory.join("file"), "data").unwrap();
    Call::Delete(id).retried(&replica.calls).await.map_err(|status| format!("after {after}: {status}"))?;
    let left = names_in(&directory);
    let _ = std::fs::remove_dir_all(root.join("team"));
    if claims.is_empty() && found.is_empty() && left.is_empty() && names_in(&root.join(".nfs-csi/subdirs")).is_empty() {
        return Ok(());
    }
    Err(format!("after {after}: claimed {claims:?}, the next volume found {found:?} and its delete left {left:?}"))
}

#[tokio::test]
async fn after_a_final_error_nothing_is_claimed_and_the_next_volume_of_the_directory_is_deleted() {
    let mut wrong = Vec::new();
    for case in ["a source that is missing", "a damaged archive", "a directory with files", "a squashed export"] {
        let share = Share::new();
        let (a, b) = (Replica::start(A).await, Replica::start(B).await);
        Call::Create(share.create("pvc-source", &[])).retried(&a.calls).await.unwrap();
        std::fs::write(share.on_disk("pvc-source/file"), "data").unwrap();
        let source = of_volume(&share.id("pvc-source"));
        let on_squashed = [GIVEN, ("share", SQUASHED)];
        let on_share = [GIVEN];
        let (source, more, root, code) = match case {
            "a source that is missing" => {
                (of_volume(&share.id("pvc-never")), &on_share[..], share.on_disk(""), Code::NotFound)
            }
            "a damaged archive" => {
                std::fs::create_dir(share.on_disk("go-1")).unwrap();
                std::fs::write(share.on_disk("go-1/pvc-old.tar"), "this is no archive").unwrap();
                let archive = of_snapshot(&share.snapshot_id("go-1", "pvc-old"));
                (archive, &on_share[..], share.on_disk(""), Code::DataLoss)
            }
            "a directory with files" => {
                std::fs::create_dir_all(share.on_disk("team/data/folder")).unwrap();
                (source, &on_share[..], share.on_disk(""), Code::FailedPrecondition)
            }
            _ => (source, &on_squashed[..], PathBuf::from(SQUASHED), Code::PermissionDenied),
        };
        let call = Call::Create(share.create_from("pvc-refused", source, more));
        let refused = call.retried(&a.calls).await.unwrap_err();
        assert_eq!(refused.code(), code, "{case}: {refused}");
        let _ = std::fs::remove_dir_all(root.join("team"));
        let next = Call::Create(share.create("pvc-next", more));
        wrong.extend(nothing_is_claimed(&root, &next, &b, case).await.err());
    }
    assert!(wrong.is_empty(), "{} of 4: {wrong:#?}", wrong.len());
}

#[tokio::test]
async fn after_a_restore_from_the_trash_that_was_refused_nothing_is_claimed() {
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let kept = Call::Create(share.create("pvc-kept", &[GIVEN, ("trashRetention", "72h")]));
    let id = kept.retried(&a.calls).await.unwrap();
    Call::Delete(id).retried(&a.calls).await.unwrap();
    std::fs::create_dir_all(share.on_disk("team/data/folder")).unwrap();
    let mut restore = A.enter();
    restore.arg(binary()).args(["trash", "restore", "pvc-kept", "--export", &share.export()]);
    assert!(!restore.status().unwrap().success());
    std::fs::remove_dir_all(share.on_disk("team")).unwrap();
    let next = Call::Create(share.create("pvc-next", &[GIVEN]));
    nothing_is_claimed(&share.on_disk(""), &next, &b, "the restore").await.unwrap();
}

/// As a driver leaves it that was killed between the rename of the directory and that of its record.
#[tokio::test]
async fn a_clone_that_is_in_its_place_and_not_recorded_is_completed_although_its_source_is_gone() {
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    Call::Create(share.create("pvc-source", &[])).retried(&a.calls).await.unwrap();
    std::fs::write(share.on_disk("pvc-source/file"), "data").unwrap();
    let clone = Call::Create(share.create_from("pvc-clone", of_volume(&share.id("pvc-source")), &[GIVEN]));
    let id = clone.retried(&a.calls).await.unwrap();
    a.driver.kill().await;
    let (key, records) = (RecordKey::of("pvc-clone"), share.on_disk(".nfs-csi/volumes"));
    std::fs::rename(records.join(format!("{key}.json")), records.join(format!(".{key}.new"))).unwrap();
    Call::Delete(share.id("pvc-source")).retried(&b.calls).await.unwrap();
    assert_eq!(clone.retried(&b.calls).await.unwrap(), id);
    assert_eq!(std::fs::read_to_string(share.on_disk("team/data/file")).unwrap(), "data");
    Call::Delete(id).retried(&b.calls).await.unwrap();
    assert!(!share.on_disk("team/data").exists());
    is_well(&share).await.unwrap();
}

/// An archive of csi-driver-nfs would be `pvc-1/<source>.tar.gz`: its id can be written down so that it is in a volume.
async fn deleted_as_a_snapshot(source: &str, files: &[&str]) {
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let id = Call::Create(share.create("pvc-1", &[])).retried(&a.calls).await.unwrap();
    for file in files {
        std::fs::write(share.on_disk("pvc-1").join(file), "a pod's").unwrap();
    }
    Call::DeleteSnapshot(share.snapshot_id("pvc-1", source)).retried(&b.calls).await.unwrap();
    assert!(share.on_disk("pvc-1").is_dir(), "the volume's directory is gone");
    assert_eq!(share.names("pvc-1"), files);
    Call::Delete(id).retried(&b.calls).await.unwrap();
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn an_empty_volume_stays_when_a_snapshot_is_deleted_whose_id_names_it() {
    deleted_as_a_snapshot("pvc-2", &[]).await;
}

#[tokio::test]
async fn a_volume_s_file_stays_when_a_snapshot_is_deleted_whose_id_names_it() {
    deleted_as_a_snapshot("file", &["file.tar.gz"]).await;
}
