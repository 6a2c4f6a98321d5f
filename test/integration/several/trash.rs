//! What is in the trash: freed in time, by whichever controller and clock, and not before.

use std::path::Path;
use std::time::Duration;

use nfs_csi::volume::record_key::RecordKey;

use super::work::{FILES, FOLDERS, Work, files_below};
use crate::kit::check::is_well;
use crate::kit::client::{A, B};
use crate::kit::clock::Clock;
use crate::kit::content::{Content, fill};
use crate::kit::driver::{Driver, binary};
use crate::kit::replica::Replica;
use crate::kit::retried::{Call, Controller};
use crate::kit::share::Share;
use crate::kit::{folder, wait_until};

/// The driver as the tests are built with it: dynamically linked, so that it can have a clock of its own.
const DYNAMIC: &str = env!("CARGO_BIN_EXE_nfs-csi");
const DAY: i64 = 86_400;
const LIMIT: Duration = Duration::from_secs(30);

/// Creates a volume with a file, and deletes it; it is kept so long.
async fn thrown_away(share: &Share, name: &str, kept: &str, calls: &Controller) {
    let id = Call::Create(share.create(name, &[("trashRetention", kept)])).retried(calls).await.unwrap();
    std::fs::write(share.on_disk(name).join("file"), "data").unwrap();
    Call::Delete(id).retried(calls).await.unwrap();
}

async fn trash_is_empty(share: &Share) {
    let is_empty = || share.names(".nfs-csi/trash").is_empty().then_some(());
    wait_until("the trash to be emptied without a call", LIMIT, is_empty).await;
}

#[tokio::test]
async fn what_is_due_on_a_given_export_is_freed_without_a_call() {
    let share = Share::new();
    let a = Replica::start(A).await;
    thrown_away(&share, "pvc-1", "4s", &a.calls).await;
    a.driver.kill().await;
    assert_eq!(share.names(".nfs-csi/trash").len(), 2);
    let _b = Replica::start_with(B, &["--export", &share.export()]).await;
    trash_is_empty(&share).await;
}

#[tokio::test]
async fn what_is_due_on_an_export_that_was_used_before_a_kill_is_freed_without_a_call() {
    let share = Share::new();
    let mut a = Replica::start(A).await;
    thrown_away(&share, "pvc-1", "4s", &a.calls).await;
    a.restart().await;
    trash_is_empty(&share).await;
}

#[tokio::test]
async fn what_is_due_on_an_export_that_was_used_before_a_stop_is_freed_without_a_call() {
    let (share, folder) = (Share::new(), folder());
    let driver = Driver::start_in(A, folder.path(), &[]);
    thrown_away(&share, "pvc-1", "4s", &driver.controller().await).await;
    assert!(driver.stop().await.success());
    let _driver = Driver::start_in(A, folder.path(), &[]);
    trash_is_empty(&share).await;
}

/// Puts much into the trash that is due: a controller that frees it has looked through all that is there.
fn put_what_is_due(share: &Share) {
    for number in 0..20 {
        let name = format!("s.{}.{number:x}.0", RecordKey::of(&format!("snap-{number}")));
        std::fs::create_dir(share.on_disk(".nfs-csi/trash").join(name)).unwrap();
    }
}

/// What is kept is still there, when all else is freed; and can be brought back.
async fn is_kept(share: &Share) {
    wait_until("what is due to be freed", LIMIT, || (share.names(".nfs-csi/trash").len() <= 2).then_some(())).await;
    let mut restore = B.enter();
    restore.arg(binary()).args(["trash", "restore", "pvc-kept", "--export", &share.export()]);
    assert!(restore.status().unwrap().success(), "{:?}", share.names(".nfs-csi/trash"));
    assert_eq!(std::fs::read_to_string(share.on_disk("pvc-kept/file")).unwrap(), "data");
}

fn by_clock(clock: &Clock, folder: &Path) -> Driver {
    Driver::start_by(clock.enter(A, DYNAMIC), "controller", folder, &[])
}

#[tokio::test]
async fn what_is_kept_is_not_freed_by_a_controller_whose_clock_is_ahead() {
    let (share, folder) = (Share::new(), folder());
    let b = Replica::start(B).await;
    thrown_away(&share, "pvc-kept", "1h", &b.calls).await;
    b.driver.kill().await;
    put_what_is_due(&share);
    let ahead = by_clock(&Clock::ahead(DAY, folder.path()), folder.path());
    Call::Create(share.create("pvc-1", &[])).retried(&ahead.controller().await).await.unwrap();
    wait_until("what is due to be freed", LIMIT, || (share.names(".nfs-csi/trash").len() <= 2).then_some(())).await;
    assert!(ahead.stop().await.success());
    is_kept(&share).await;
}

#[tokio::test]
async fn what_a_controller_whose_clock_is_behind_deleted_is_kept_its_time() {
    let (share, folder) = (Share::new(), folder());
    let behind = by_clock(&Clock::ahead(-DAY, folder.path()), folder.path());
    thrown_away(&share, "pvc-kept", "1h", &behind.controller().await).await;
    behind.kill().await;
    put_what_is_due(&share);
    let b = Replica::start(B).await;
    Call::Create(share.create("pvc-1", &[])).retried(&b.calls).await.unwrap();
    is_kept(&share).await;
}

#[tokio::test]
async fn a_copy_that_is_being_made_is_not_swept_by_a_controller_whose_clock_is_ahead() {
    let (share, folder) = (Share::new(), folder());
    let b = Replica::start(B).await;
    let source = Work::Clone.prepare(&share, &b.calls, FILES).await;
    let far = B.move_away(3);
    let copy = Work::Clone.call(&share).spawn(&b.calls);
    Work::Clone.freeze_in_the_middle(&share, &b, source.len()).await;
    let staged = share.names(".nfs-csi/staging");
    put_what_is_due(&share);
    let ahead = by_clock(&Clock::ahead(2 * DAY, folder.path()), folder.path());
    Call::Create(share.create("pvc-1", &[])).retried(&ahead.controller().await).await.unwrap();
    trash_is_empty(&share).await;
    assert!(ahead.stop().await.success());
    // What B had sent to the server before it was frozen may have been made since.
    let left = share.names(".nfs-csi/staging");
    assert!(staged.iter().all(|name| left.contains(name)), "{left:?} of {staged:?}");
    drop(far);
    b.wake();
    copy.await.unwrap().unwrap();
    source.is_at(&share.on_disk("pvc-copy"), "the clone").unwrap();
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn what_is_being_freed_is_not_brought_back() {
    let (share, folder) = (Share::new(), folder());
    let b = Replica::start(B).await;
    let id = Call::Create(share.create("pvc-1", &[("trashRetention", "2s")])).retried(&b.calls).await.unwrap();
    fill(&share.on_disk("pvc-1"), FOLDERS, FILES);
    let content = Content::of(&share.on_disk("pvc-1"));
    let total = content.len();
    let far = B.move_away(20);
    Call::Delete(id).retried(&b.calls).await.unwrap();
    let left = || files_below(&share.on_disk(".nfs-csi/trash")).len();
    wait_until("some of it to be freed", LIMIT, || (left() < total * 3 / 4).then_some(())).await;
    b.freeze();
    assert!(left() > 0, "it was freed too soon");
    // The operator's host has a clock that is ten minutes behind.
    let mut restore = Clock::ahead(-600, folder.path()).enter(A, DYNAMIC);
    restore.args(["trash", "restore", "pvc-1", "--export", &share.export()]);
    let is_restored = restore.status().unwrap().success();
    drop(far);
    b.wake();
    trash_is_empty(&share).await;
    if is_restored {
        content.is_at(&share.on_disk("pvc-1"), "what was brought back").unwrap();
    } else {
        assert!(!share.on_disk("pvc-1").exists());
    }
    is_well(&share).await.unwrap();
}
