//! One copy that several controllers are asked for: it becomes complete, whichever of them is frozen, late or killed
//! meanwhile, and what a pod does with it afterwards is not undone.

use std::time::Duration;

use super::work::{ALL, FILES, Work, pod_writes};
use crate::kit::client::{A, B};
use crate::kit::content::Content;
use crate::kit::replica::Replica;
use crate::kit::retried::{DEADLINE, is_final};
use crate::kit::server::is_ganesha;
use crate::kit::share::Share;
use crate::kit::wait_until;

/// How often two controllers are asked at once; fewer times on a server that takes long for each.
fn rounds() -> usize {
    if is_ganesha() { 2 } else { 10 }
}

/// Asks two controllers at once; as soon as one has answered, a pod writes.
async fn asked_of_two(work: Work, [a, b]: [&Replica; 2]) -> Result<(), String> {
    let share = Share::new();
    let source = work.prepare(&share, &b.calls, FILES / 2).await;
    let (mut one, mut other) = (work.call(&share).spawn(&a.calls), work.call(&share).spawn(&b.calls));
    let (first, second) = tokio::select! {
        first = &mut one => (first, other),
        first = &mut other => (first, one),
    };
    let id = first.unwrap().map_err(|status| format!("the first answer: {status}"))?;
    if work != Work::SnapshotArchive {
        work.holds(&source, &share, &a.calls).await?;
    }
    let left = work.pod_writes(&share);
    let late = second.await.unwrap();
    left.is_at(&work.place(&share), "after the second answer")?;
    match late {
        Ok(late) if late == id => {}
        late => return Err(format!("the second answer: {late:?} after {id}")),
    }
    if work == Work::SnapshotArchive {
        work.holds(&source, &share, &b.calls).await?;
    }
    work.remove(&share, &a.calls).await
}

async fn asked_of_two_at_once(work: Work) {
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let _far = (A.move_away(1), B.move_away(1));
    let (rounds, mut wrong) = (rounds(), Vec::new());
    for round in 0..rounds {
        if let Err(reason) = asked_of_two(work, [&a, &b]).await {
            wrong.push(format!("round {round}: {reason}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {rounds} rounds: {wrong:#?}", wrong.len());
}

#[tokio::test]
async fn a_clone_asked_of_two_controllers_at_once_is_made_once() {
    asked_of_two_at_once(Work::Clone).await;
}

#[tokio::test]
async fn a_restore_asked_of_two_controllers_at_once_is_made_once() {
    asked_of_two_at_once(Work::RestoreTree).await;
}

#[tokio::test]
async fn a_restore_of_an_archive_asked_of_two_controllers_at_once_is_made_once() {
    asked_of_two_at_once(Work::RestoreArchive).await;
}

#[tokio::test]
async fn a_snapshot_asked_of_two_controllers_at_once_is_taken_once() {
    asked_of_two_at_once(Work::SnapshotTree).await;
}

#[tokio::test]
async fn an_archive_asked_of_two_controllers_at_once_is_written_once() {
    asked_of_two_at_once(Work::SnapshotArchive).await;
}

/// When a controller wakes up whose work another completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// As soon as it is complete.
    AtOnce,
    /// When nothing is left of what it made.
    WhenFreed,
}

/// One controller is frozen in the middle, the other completes, a pod writes, and the first wakes up.
async fn frozen_and_woken(work: Work, woken: Woken) {
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let source = work.prepare(&share, &b.calls, FILES).await;
    let far = A.move_away(3);
    let late = work.call(&share).spawn(&a.calls);
    work.freeze_in_the_middle(&share, &a, source.len()).await;
    drop(far);
    let id = work.call(&share).retried(&b.calls).await.unwrap();
    work.holds(&source, &share, &b.calls).await.unwrap();
    let left = work.pod_writes(&share);
    if woken == Woken::WhenFreed {
        let is_freed = || share.names(".nfs-csi/trash").is_empty().then_some(());
        wait_until("the frozen one's tree is freed", DEADLINE, is_freed).await;
    }
    a.wake();
    // The answer comes when its work has ended.
    let late = late.await.unwrap();
    left.is_at(&work.place(&share), "after the frozen one woke").unwrap();
    assert_eq!(late.unwrap(), id);
    a.driver.kill().await;
    left.is_at(&work.place(&share), "after it ended").unwrap();
    if work == Work::SnapshotArchive {
        work.holds(&source, &share, &b.calls).await.unwrap();
    }
    work.remove(&share, &b.calls).await.unwrap();
}

#[tokio::test]
async fn a_controller_that_wakes_up_leaves_a_clone_alone_that_another_completed() {
    frozen_and_woken(Work::Clone, Woken::AtOnce).await;
}

#[tokio::test]
async fn a_controller_that_wakes_up_leaves_a_restored_volume_alone_that_another_completed() {
    frozen_and_woken(Work::RestoreTree, Woken::AtOnce).await;
}

#[tokio::test]
async fn a_controller_that_wakes_up_leaves_a_volume_restored_from_an_archive_alone_that_another_completed() {
    frozen_and_woken(Work::RestoreArchive, Woken::AtOnce).await;
}

#[tokio::test]
async fn a_controller_that_wakes_up_leaves_a_snapshot_alone_that_another_completed() {
    frozen_and_woken(Work::SnapshotTree, Woken::AtOnce).await;
}

#[tokio::test]
async fn a_controller_that_wakes_up_leaves_an_archive_alone_that_another_completed() {
    frozen_and_woken(Work::SnapshotArchive, Woken::AtOnce).await;
}

#[tokio::test]
async fn a_controller_that_wakes_up_when_its_unfinished_tree_is_freed_finds_what_another_completed() {
    for work in ALL {
        frozen_and_woken(work, Woken::WhenFreed).await;
    }
}

#[tokio::test]
async fn a_clone_asked_of_one_controller_then_of_another_then_of_the_first_keeps_what_the_pod_wrote() {
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let source = Work::Clone.prepare(&share, &b.calls, 2 * FILES).await;
    let (near, far) = (A.move_away(20), B.move_away(40));
    let call = Work::Clone.call(&share);
    for replica in [&a, &b] {
        let unfinished = call.once(&replica.calls, Duration::from_millis(500)).await.unwrap_err();
        assert!(!is_final(&unfinished), "{unfinished}");
    }
    let id = call.retried(&a.calls).await.unwrap();
    source.is_at(&share.on_disk("pvc-copy"), "the clone").unwrap();
    let left = Work::Clone.pod_writes(&share);
    drop((near, far));
    let late = call.retried(&b.calls).await;
    left.is_at(&share.on_disk("pvc-copy"), "after the other's work").unwrap();
    assert_eq!(late.unwrap(), id);
    b.driver.kill().await;
    left.is_at(&share.on_disk("pvc-copy"), "after it ended").unwrap();
    Work::Clone.remove(&share, &a.calls).await.unwrap();
}

/// A copy is cut short by a kill, the source changes, and the copy is asked for again.
async fn cut_short(work: Work, [a, b]: [&mut Replica; 2], of_the_other: bool) -> Result<(), String> {
    let share = Share::new();
    let mut source = work.prepare(&share, &b.calls, FILES).await;
    let far = A.move_away(3);
    let call = work.call(&share).spawn(&a.calls);
    work.freeze_in_the_middle(&share, a, source.len()).await;
    call.abort();
    a.restart().await;
    drop(far);
    if matches!(work, Work::Clone | Work::SnapshotTree | Work::SnapshotArchive) {
        pod_writes(&share.on_disk("pvc-source"));
        source = Content::of(&share.on_disk("pvc-source"));
    }
    let calls = if of_the_other { &b.calls } else { &a.calls };
    work.call(&share).retried(calls).await.map_err(|status| status.to_string())?;
    work.holds(&source, &share, calls).await?;
    work.remove(&share, calls).await
}

async fn all_cut_short(of_the_other: bool) {
    let (mut a, mut b) = (Replica::start(A).await, Replica::start(B).await);
    let mut wrong = Vec::new();
    for work in ALL {
        if let Err(reason) = cut_short(work, [&mut a, &mut b], of_the_other).await {
            wrong.push(format!("{work:?}: {reason}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), ALL.len());
}

#[tokio::test]
async fn a_copy_that_was_cut_short_and_is_asked_for_again_is_its_source_as_it_is_then() {
    all_cut_short(false).await;
}

#[tokio::test]
async fn a_copy_that_was_cut_short_and_is_asked_of_another_controller_is_its_source_as_it_is_then() {
    all_cut_short(true).await;
}

#[tokio::test]
async fn a_copy_that_takes_longer_than_the_staging_retention_is_completed_by_its_first_call() {
    let share = Share::new();
    let a = Replica::start_with(A, &["--staging-retention=2s"]).await;
    let source = Work::Clone.prepare(&share, &a.calls, FILES).await;
    let far = A.move_away(80);
    Work::Clone.call(&share).once(&a.calls, Duration::from_mins(2)).await.unwrap();
    drop(far);
    source.is_at(&share.on_disk("pvc-copy"), "the clone").unwrap();
    Work::Clone.remove(&share, &a.calls).await.unwrap();
}
