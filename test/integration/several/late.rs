//! Controllers that sleep, or die, between two calls to the server while they make or change a record.

use std::time::Duration;

use nfs_csi::volume::record_key::RecordKey;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::kit::check::is_well;
use crate::kit::client::{A, B};
use crate::kit::replica::Replica;
use crate::kit::requests::MIB;
use crate::kit::retried::Call;
use crate::kit::share::Share;
use crate::kit::wait_until;

const ROUNDS: usize = 12;
/// What a controller that died left in staging is looked at soon.
const FLAGS: [&str; 2] = ["--staging-retention=2s", "--unrecorded-retention=0s"];
const SHARED: &[(&str, &str)] = &[("subDir", "shared")];

/// Asks once, beside what the test does.
fn asked_once(call: &Call, replica: &Replica) -> JoinHandle<Result<String, Status>> {
    let (call, calls) = (call.clone(), replica.calls.clone());
    tokio::spawn(async move { call.once(&calls, Duration::from_mins(1)).await })
}

/// Freezes a controller as soon as something with such a name is in staging, or soon after the call has ended.
async fn freeze_at(prefix: &str, share: &Share, replica: &Replica, call: &JoinHandle<impl Sized>) {
    wait_until("something in staging", Duration::from_secs(30), || {
        let is_there = share.names(".nfs-csi/staging").iter().any(|name| name.starts_with(prefix));
        (is_there || call.is_finished()).then_some(())
    })
    .await;
    replica.freeze();
}

/// Kills a controller as soon as a volume has its record, or the call has ended, and starts it again.
async fn kill_at_record(volume: &str, share: &Share, replica: &mut Replica, call: &JoinHandle<impl Sized>) {
    let record = share.on_disk(&format!(".nfs-csi/volumes/{}.json", RecordKey::of(volume)));
    // Without a pause: what is to be hit is between two calls to the server.
    while !record.exists() && !call.is_finished() {
        tokio::task::yield_now().await;
    }
    replica.restart().await;
}

#[tokio::test]
async fn a_size_that_is_recorded_late_brings_no_deleted_volume_back() {
    let share = Share::new();
    let (a, b) = (Replica::start_with(A, &FLAGS).await, Replica::start_with(B, &FLAGS).await);
    Call::Create(share.create("pvc-stays", SHARED)).retried(&a.calls).await.unwrap();
    for round in 0..ROUNDS {
        // One that shares its directory, and one that has its own.
        let more = if round % 2 == 0 { SHARED } else { &[] };
        let id = Call::Create(share.create(&format!("pvc-{round}"), more)).retried(&a.calls).await.unwrap();
        let expand = Call::Expand(id.clone(), 20 * MIB);
        let late = asked_once(&expand, &b);
        freeze_at("x2.", &share, &b, &late).await;
        Call::Delete(id).retried(&a.calls).await.unwrap();
        b.wake();
        let _ = late.await.unwrap();
        let records = share.names(".nfs-csi/volumes");
        assert_eq!(records.len(), 1, "round {round}: a record is back: {records:?}");
    }
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn a_volume_whose_maker_died_before_it_saw_its_directory_go_is_made_again() {
    let share = Share::new();
    let (a, mut b) = (Replica::start_with(A, &FLAGS).await, Replica::start_with(B, &FLAGS).await);
    for round in 0..ROUNDS {
        let other = Call::Create(share.create(&format!("pvc-other-{round}"), SHARED)).retried(&a.calls).await.unwrap();
        let name = format!("pvc-{round}");
        let create = Call::Create(share.create(&name, SHARED));
        let late = asked_once(&create, &b);
        freeze_at("r2.", &share, &b, &late).await;
        Call::Delete(other).retried(&a.calls).await.unwrap();
        b.wake();
        kill_at_record(&name, &share, &mut b, &late).await;
        let _ = late.await.unwrap();
        let id = create.retried(&a.calls).await.unwrap();
        assert!(share.on_disk("shared").is_dir(), "round {round}: the volume has no directory");
        Call::Delete(id).retried(&a.calls).await.unwrap();
    }
    is_well(&share).await.unwrap();
    assert_eq!(share.names(""), [".nfs-csi"]);
}

#[tokio::test]
async fn a_volume_that_is_made_late_when_it_was_deleted_already_is_whole_or_goes_again() {
    let share = Share::new();
    let (a, mut b) = (Replica::start_with(A, &FLAGS).await, Replica::start_with(B, &FLAGS).await);
    for round in 0..ROUNDS {
        let more = if round % 2 == 0 { SHARED } else { &[] };
        let name = format!("pvc-{round}");
        let create = Call::Create(share.create(&name, more));
        let late = asked_once(&create, &b);
        freeze_at("r2.", &share, &b, &late).await;
        let id = create.retried(&a.calls).await.unwrap();
        Call::Delete(id).retried(&a.calls).await.unwrap();
        b.wake();
        kill_at_record(&name, &share, &mut b, &late).await;
        let _ = late.await.unwrap();
    }
    is_well(&share).await.unwrap();
}
