//! Readers of snapshots that come and go while the snapshot does, by controllers that know nothing of each other.

use std::path::PathBuf;
use std::time::Duration;

use nfs_csi::volume::record_key::RecordKey;
use tonic::Code;

use crate::kit::check::faults;
use crate::kit::client::{A, B};
use crate::kit::replica::Replica;
use crate::kit::requests::{of_snapshot, read_from};
use crate::kit::retried::Call;
use crate::kit::share::Share;
use crate::kit::wait_for;

const ROUNDS: usize = 40;
const READERS: usize = 4;
const FILES: usize = 40;
const SHARED: &str = ".nfs-csi/shared";

/// The tree of a volume, by its record.
fn tree(share: &Share, volume: &str) -> PathBuf {
    let record = share.on_disk(&format!(".nfs-csi/volumes/{}.json", RecordKey::of(volume)));
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    share.on_disk(record["subdir"].as_str().unwrap())
}

/// What is not there of the source's files.
fn lacks(tree: &std::path::Path) -> usize {
    let is_whole = |file: &usize| std::fs::read_to_string(tree.join(file.to_string())).is_ok_and(|text| text == "kept");
    FILES - (0..FILES).filter(is_whole).count()
}

#[tokio::test]
async fn every_reader_has_the_whole_snapshot_until_it_is_deleted_and_the_last_leaves_nothing() {
    let share = Share::new();
    let (one, other) = (Replica::start(A).await, Replica::start(B).await);
    let calls = [&one.calls, &other.calls];
    let source = Call::Create(share.create("pvc-source", &[])).retried(calls[0]).await.unwrap();
    for file in 0..FILES {
        std::fs::write(share.on_disk(&format!("pvc-source/{file}")), "kept").unwrap();
    }
    let snapshot = share.snapshot_id("snap", "pvc-source");
    let (mut made, mut refused, mut wrong) = (0, 0, Vec::new());
    for round in 0..ROUNDS {
        let (here, there) = (calls[round % 2], calls[(round + 1) % 2]);
        Call::Snapshot(share.snapshot("snap", "pvc-source", "tree")).retried(here).await.unwrap();
        let read = |reader: usize| {
            let class = share.create("", &[]).parameters;
            let class: Vec<_> = class.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            Call::Create(read_from(&format!("pvc-{reader}"), of_snapshot(&snapshot), &class))
        };
        // In some rounds there is a reader before. The others come while the snapshot goes, a little before or after.
        let before = if round % 3 == 0 { vec![read(0).retried(there).await.unwrap()] } else { Vec::new() };
        // The one that deletes the snapshot refuses that while it makes readers of it: so the other one makes them.
        let read_all = || (1..READERS).map(|reader| (reader, read(reader).spawn(there))).collect::<Vec<_>>();
        let delete = || Call::DeleteSnapshot(snapshot.clone()).spawn(here);
        let pause = Duration::from_millis(u64::try_from(round / 2).unwrap());
        let (deleted, comers) = if round % 2 == 0 {
            let comers = read_all();
            tokio::time::sleep(pause).await;
            (delete(), comers)
        } else {
            let deleted = delete();
            tokio::time::sleep(pause).await;
            (deleted, read_all())
        };
        // A reader goes meanwhile too.
        for id in before {
            Call::Delete(id).retried(there).await.unwrap();
        }
        let mut readers = Vec::new();
        for (reader, comer) in comers {
            match comer.await.unwrap() {
                Ok(id) => readers.push((reader, id)),
                Err(status) if status.code() == Code::NotFound => refused += 1,
                Err(status) => wrong.push(format!("round {round}: {status}")),
            }
        }
        deleted.await.unwrap().unwrap();
        made += readers.len();
        for (reader, id) in &readers {
            let missing = lacks(&tree(&share, &format!("pvc-{reader}")));
            if missing > 0 {
                wrong.push(format!("round {round}: {id} lacks {missing} of {FILES} files"));
            }
        }
        // All but one at once; the last one has all of it.
        let last = readers.pop();
        let gone: Vec<_> =
            readers.into_iter().map(|(reader, id)| Call::Delete(id).spawn(calls[(reader + 1) % 2])).collect();
        for call in gone {
            call.await.unwrap().unwrap();
        }
        if let Some((reader, id)) = last {
            let missing = lacks(&tree(&share, &format!("pvc-{reader}")));
            if missing > 0 {
                wrong.push(format!("round {round}: the last, {id}, lacks {missing} of {FILES} files"));
            }
            Call::Delete(id).retried(calls[reader % 2]).await.unwrap();
        }
        wait_for("the tree to be freed", Duration::from_mins(2), || share.names(SHARED).is_empty().then_some(()));
    }
    println!("readers made beside the snapshot's delete: {made}, refused: {refused}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(made > 0 && refused > 0, "made {made}, refused {refused}: the moments do not fit this machine");
    Call::Delete(source).retried(calls[0]).await.unwrap();
    wait_for("the trash to be emptied", Duration::from_mins(2), || {
        share.names(".nfs-csi/trash").is_empty().then_some(())
    });
    for folder in [".nfs-csi/subdirs", ".nfs-csi/snapshots", ".nfs-csi/volumes"] {
        assert_eq!(share.names(folder), Vec::<String>::new(), "{folder}");
    }
    assert_eq!(faults(&share), Vec::<String>::new());
}
