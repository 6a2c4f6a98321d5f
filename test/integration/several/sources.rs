//! What a copy is made of is deleted by another controller meanwhile: the copy fails, or has every file.

use std::time::Duration;

use super::work::{FILES, Work, files_below};
use crate::kit::check::is_well;
use crate::kit::client::{A, B};
use crate::kit::replica::Replica;
use crate::kit::retried::Call;
use crate::kit::share::Share;
use crate::kit::wait_until;

/// How many quarters of the source's files are left when the copy is resumed, where some are.
const LEFT: [usize; 3] = [3, 2, 1];
/// What a failed copy left is not asked for again, and is swept after this time.
const SOON: [&str; 1] = ["--staging-retention=6s"];

/// What has become of the source when the copy is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// All of it is freed.
    Gone,
    /// It is in the trash, and so many quarters of its files are not freed yet.
    HalfGone(usize),
}

/// B copies and is frozen in the middle of it; A deletes the source; B wakes up.
async fn deleted_meanwhile(work: Work, source: Source, [a, b]: [&Replica; 2], share: &Share) -> Result<bool, String> {
    let content = work.prepare(share, &a.calls, FILES).await;
    let far = B.move_away(3);
    let late = work.call(share).spawn(&b.calls);
    work.freeze_in_the_middle(share, b, content.len()).await;
    drop(far);
    let far = (source != Source::Gone).then(|| A.move_away(20));
    let deleted = match work {
        Work::RestoreTree | Work::RestoreArchive => Call::DeleteSnapshot(share.snapshot_id("before", "pvc-source")),
        _ => Call::Delete(share.id("pvc-source")),
    };
    deleted.retried(&a.calls).await.map_err(|status| format!("the delete: {status}"))?;
    let trash = || files_below(&share.on_disk(".nfs-csi/trash")).len();
    wait_until("the source to be freed", Duration::from_mins(1), || match source {
        Source::Gone => share.names(".nfs-csi/trash").is_empty().then_some(()),
        Source::HalfGone(left) => (trash() * 4 < content.len() * left).then_some(()),
    })
    .await;
    if source != Source::Gone {
        a.freeze();
        assert!(trash() > 0, "{work:?}: all was freed too soon");
    }
    b.wake();
    let answer = late.await.unwrap();
    a.wake();
    drop(far);
    match answer {
        Ok(_) => work.holds(&content, share, &b.calls).await.map(|()| true),
        Err(_) if work.place(share).exists() => Err("the copy failed, and is in its place".into()),
        Err(_) => Ok(false),
    }
}

async fn all_deleted_meanwhile(rounds: &[(Work, Source)]) {
    let (a, b) = (Replica::start_with(A, &SOON).await, Replica::start_with(B, &SOON).await);
    let (mut shares, mut wrong, mut complete) = (Vec::new(), Vec::new(), 0);
    for &(work, source) in rounds {
        let share = Share::new();
        match deleted_meanwhile(work, source, [&a, &b], &share).await {
            Ok(is_complete) => complete += u32::from(is_complete),
            Err(reason) => wrong.push(format!("{work:?} of what is {source:?}: {reason}")),
        }
        shares.push(share);
    }
    let rounds = rounds.len();
    println!("of {rounds} copies {complete} were complete");
    assert!(wrong.is_empty(), "{} of {rounds}: {wrong:#?}", wrong.len());
    for share in &shares {
        is_well(share).await.unwrap();
    }
}

async fn deleted_or_half_freed(work: Work) {
    let half_freed = LEFT.map(|left| (work, Source::HalfGone(left)));
    all_deleted_meanwhile(&[half_freed, [(work, Source::Gone); 3]].concat()).await;
}

#[tokio::test]
async fn a_restore_of_a_snapshot_that_is_deleted_meanwhile_fails_or_has_every_file() {
    deleted_or_half_freed(Work::RestoreTree).await;
}

#[tokio::test]
async fn a_restore_of_an_archive_that_is_deleted_meanwhile_fails_or_has_every_file() {
    all_deleted_meanwhile(&[(Work::RestoreArchive, Source::Gone); 2]).await;
}

#[tokio::test]
async fn a_clone_of_a_volume_that_is_deleted_meanwhile_fails_or_has_every_file() {
    deleted_or_half_freed(Work::Clone).await;
}

#[tokio::test]
async fn a_snapshot_of_a_volume_that_is_deleted_meanwhile_fails_or_has_every_file() {
    deleted_or_half_freed(Work::SnapshotTree).await;
}

#[tokio::test]
async fn an_archive_of_a_volume_that_is_deleted_meanwhile_fails_or_has_every_file() {
    deleted_or_half_freed(Work::SnapshotArchive).await;
}
