//! What people are told: who is at work on what they ask for, and what a copy has not.

use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;

use super::work::{ALL, FILES, FOLDERS, Work};
use crate::kit::client::{A, B};
use crate::kit::replica::Replica;
use crate::kit::requests::of_snapshot;
use crate::kit::retried::{Call, TIMEOUT};
use crate::kit::share::Share;

#[tokio::test]
async fn who_waits_for_another_controller_is_told_which_one_it_is_and_since_when() {
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    for work in ALL {
        let share = Share::new();
        let content = work.prepare(&share, &a.calls, FILES).await;
        let far = A.move_away(3);
        let first = work.call(&share).spawn(&a.calls);
        work.freeze_in_the_middle(&share, &a, content.len()).await;
        drop(far);
        let refused = work.call(&share).once(&b.calls, TIMEOUT).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{work:?}: {refused}");
        let text = refused.message();
        let is_told = text.contains("client-a is at work on this") && text.contains("showed a sign of life");
        assert!(is_told && text.contains(&share.export()), "{work:?}: {refused}");
        a.wake();
        first.await.unwrap().unwrap();
        // The same is there for the one who waited.
        work.call(&share).retried(&b.calls).await.unwrap();
        work.holds(&content, &share, &b.calls).await.unwrap();
        work.remove(&share, &a.calls).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_pod_deletes_while_a_snapshot_is_taken_is_counted_in_its_manifest() {
    let a = Replica::start(A).await;
    for work in [Work::SnapshotTree, Work::SnapshotArchive] {
        let share = Share::new();
        let content = work.prepare(&share, &a.calls, FILES).await;
        let far = A.move_away(3);
        let taken = work.call(&share).spawn(&a.calls);
        work.freeze_in_the_middle(&share, &a, content.len()).await;
        drop(far);
        for folder in share.names("pvc-source") {
            for file in share.names(&format!("pvc-source/{folder}")) {
                std::fs::remove_file(share.on_disk(&format!("pvc-source/{folder}/{file}"))).unwrap();
            }
        }
        a.wake();
        taken.await.unwrap().unwrap();
        let manifest = format!(".nfs-csi/snapshots/{}/manifest.json", RecordKey::of("copy"));
        let manifest = std::fs::read(share.on_disk(&manifest)).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let [files, vanished] = ["files", "vanished"].map(|field| manifest[field].as_u64().unwrap_or(0));
        // A folder that was not listed yet is empty for the copy: nothing has vanished from it.
        assert!(vanished > 0 && files < (FOLDERS * FILES) as u64, "{work:?}: {manifest}");
        assert!(a.driver.log().contains("vanished while its snapshot was taken"), "{work:?}: {}", a.driver.log());
        // And what it has is all that a copy of it needs.
        let restore = share.create_from("pvc-new", of_snapshot(&share.snapshot_id("copy", "pvc-source")), &[]);
        let restored = Call::Create(restore).retried(&a.calls).await.unwrap();
        Call::Delete(restored).retried(&a.calls).await.unwrap();
        work.remove(&share, &a.calls).await.unwrap();
    }
}
