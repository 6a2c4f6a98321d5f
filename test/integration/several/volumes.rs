//! Volumes that several controllers create, delete and expand at the same moment, and directories that several volumes
//! name.

use std::path::PathBuf;
use std::time::Duration;

use nfs_csi::proto::CreateVolumeRequest;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::volume::record_key::RecordKey;

use crate::kit::check::is_well;
use crate::kit::client::{A, B};
use crate::kit::driver::binary;
use crate::kit::replica::Replica;
use crate::kit::requests::{MIB, capability};
use crate::kit::retried::{Call, Controller};
use crate::kit::share::Share;
use crate::kit::wait_until;

/// How many directories are in use at a time.
const DIRECTORIES: usize = 25;

/// Repeats a call until it succeeds; each final answer that is an error is a fault, and five of them are the end.
async fn insisted(call: Call, calls: &Controller, faults: &mut Vec<String>) -> Option<String> {
    for _ in 0..5 {
        match call.retried(calls).await {
            Ok(answer) => return Some(answer),
            Err(status) => faults.push(format!("{:?}: {}", status.code(), status.message())),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// How many faults there are, and the first of them.
fn some(faults: &[String]) -> String {
    format!("{}: {:#?}", faults.len(), &faults[..faults.len().min(5)])
}

/// What was seen in the directory of the volume that is to stay.
struct Seen {
    volume: String,
    directory: PathBuf,
    files: Vec<&'static str>,
}

/// One volume is deleted while another that names the same directory is created: `classes` are those of the two.
async fn deleted_beside_a_create(rounds: usize, calls: [&Controller; 2], classes: [&[&str]; 2]) {
    let share = Share::new();
    let (mut answers, mut lost, mut late, mut done) = (Vec::new(), Vec::new(), 0, 0);
    for batch in 0..rounds / DIRECTORIES {
        let [a, b] = if batch % 2 == 0 { calls } else { [calls[1], calls[0]] };
        let mut seen = Vec::new();
        for number in 0..DIRECTORIES {
            let subdir = format!("team/{number}");
            let directory = share.on_disk(&subdir);
            let create = |name: String, options| {
                Call::Create(CreateVolumeRequest {
                    volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, options)],
                    ..share.create(&name, &[("subDir", &subdir)])
                })
            };
            let old = create(format!("pvc-old-{number}"), classes[0]);
            let Some(old) = insisted(old, a, &mut answers).await else { continue };
            std::fs::write(directory.join("old"), "of the one before").unwrap();
            let mut refused = Vec::new();
            let (_, new) = tokio::join!(
                insisted(Call::Delete(old), a, &mut answers),
                insisted(create(format!("pvc-new-{number}"), classes[1]), b, &mut refused),
            );
            answers.append(&mut refused);
            let Some(new) = new else { continue };
            done += 1;
            // The pod of the new one writes at once. Whether it found files is not said.
            let is_there = std::fs::write(directory.join("new"), "of the new one").is_ok();
            late += u32::from(!is_there);
            let files = ["old", "new"].into_iter().filter(|name| directory.join(name).exists()).collect();
            seen.push(Seen { volume: new, directory, files });
        }
        let end = std::time::Instant::now() + Duration::from_secs(10);
        for Seen { volume, directory, files } in &seen {
            while !directory.is_dir() && std::time::Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if !directory.is_dir() || files.iter().any(|name| !directory.join(name).exists()) {
                lost.push(format!("batch {batch}: {volume} with {files:?}"));
            }
        }
        for (number, Seen { volume, .. }) in seen.into_iter().enumerate() {
            insisted(Call::Delete(volume), if number % 2 == 0 { a } else { b }, &mut answers).await;
        }
    }
    println!("{done} of {rounds} rounds: {late} without a directory at first, {} lost", lost.len());
    assert!(lost.is_empty() && answers.is_empty(), "{} were lost, {} errors", some(&lost), some(&answers));
    is_well(&share).await.unwrap();
    assert_eq!(share.names("team"), Vec::<String>::new());
}

#[tokio::test]
async fn a_volume_keeps_its_directory_when_another_of_the_same_is_deleted_by_another_controller() {
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    deleted_beside_a_create(500, [&a.calls, &b.calls], [&[], &[]]).await;
}

#[tokio::test]
async fn a_volume_keeps_its_directory_when_another_of_the_same_with_other_mount_options_is_deleted() {
    let a = Replica::start(A).await;
    let _far = A.move_away(1);
    deleted_beside_a_create(500, [&a.calls, &a.calls], [&["nfsvers=4.1"], &["nfsvers=4.2"]]).await;
}

#[tokio::test]
async fn a_volume_is_deleted_by_a_controller_that_had_not_found_it_before() {
    const ROUNDS: usize = 20;
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let mut left = 0;
    for round in 0..ROUNDS {
        let name = format!("pvc-{round}");
        Call::Delete(share.id(&name)).retried(&a.calls).await.unwrap();
        let id = Call::Create(share.create(&name, &[])).retried(&b.calls).await.unwrap();
        std::fs::write(share.on_disk(&name).join("file"), "data").unwrap();
        Call::Delete(id).retried(&a.calls).await.unwrap();
        left += usize::from(share.on_disk(&name).exists());
    }
    assert_eq!(left, 0, "directories are left, of {ROUNDS}");
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn a_volume_asked_of_two_controllers_at_once_is_created_once() {
    const ROUNDS: usize = 100;
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let mut wrong = Vec::new();
    for round in 0..ROUNDS {
        let subdir = format!("team/{round}");
        let more = [("subDir", subdir.as_str())];
        let name = format!("pvc-{round}");
        let call = Call::Create(share.create(&name, if round % 2 == 0 { &[] } else { &more }));
        match tokio::join!(call.retried(&a.calls), call.retried(&b.calls)) {
            (Ok(one), Ok(other)) if one == other => {}
            answers => wrong.push(format!("{answers:?}")),
        }
    }
    assert!(wrong.is_empty(), "of {ROUNDS}, {}", some(&wrong));
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_two_controllers_expand_at_once_never_shrinks() {
    const ROUNDS: i64 = 60;
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let id = Call::Create(share.create("pvc-1", &[])).retried(&a.calls).await.unwrap();
    let mut wrong = Vec::new();
    for round in 1..=ROUNDS {
        let [less, more] = [20, 21].map(|size| Call::Expand(id.clone(), (size + 2 * round) * MIB));
        let (one, other) = tokio::join!(less.retried(&a.calls), more.retried(&b.calls));
        let answered = [one, other].map(|answer| answer.map_err(|status| status.to_string()));
        // What is asked for least is answered with what there is.
        let is = Call::Expand(id.clone(), MIB).retried(&a.calls).await.unwrap().parse::<i64>().unwrap();
        let is_kept = |size: &String| size.parse::<i64>().is_ok_and(|size| size <= is);
        if !answered.iter().all(|answer| answer.as_ref().is_ok_and(is_kept)) {
            wrong.push(format!("{answered:?}, and then {is}"));
        }
    }
    assert!(wrong.is_empty(), "of {ROUNDS}, {}", some(&wrong));
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_is_deleted_while_another_controller_expands_it_is_gone() {
    const ROUNDS: usize = 60;
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let mut left = 0;
    for round in 0..ROUNDS {
        let name = format!("pvc-{round}");
        let record = share.on_disk(&format!(".nfs-csi/volumes/{}.json", RecordKey::of(&name)));
        let id = Call::Create(share.create(&name, &[])).retried(&a.calls).await.unwrap();
        let (expand, delete) = (Call::Expand(id.clone(), 20 * MIB), Call::Delete(id));
        let (_, deleted) = tokio::join!(expand.retried(&a.calls), delete.retried(&b.calls));
        deleted.unwrap();
        left += usize::from(record.exists());
    }
    assert_eq!(left, 0, "records are left, of {ROUNDS}");
    is_well(&share).await.unwrap();
}

#[tokio::test]
async fn of_two_volumes_of_one_directory_that_are_deleted_at_once_one_is_kept_in_the_trash_with_its_record() {
    const ROUNDS: usize = 60;
    let share = Share::new();
    let (a, b) = (Replica::start(A).await, Replica::start(B).await);
    let mut wrong = Vec::new();
    for round in 0..ROUNDS {
        let subdir = format!("team-{round}");
        let more = [("subDir", subdir.as_str()), ("trashRetention", "72h")];
        let create = |name| Call::Create(share.create(&format!("{name}-{round}"), &more));
        let one = create("pvc-one").retried(&a.calls).await.unwrap();
        let two = create("pvc-two").retried(&b.calls).await.unwrap();
        std::fs::write(share.on_disk(&subdir).join("file"), "data").unwrap();
        let (one, two) = (Call::Delete(one), Call::Delete(two));
        match tokio::join!(one.retried(&a.calls), two.retried(&b.calls)) {
            (Ok(_), Ok(_)) if !share.on_disk(&subdir).exists() => {}
            answers => wrong.push(format!("round {round}: {answers:?}")),
        }
    }
    // What is not kept is freed.
    let (records, directories) = wait_until("the trash to hold what is kept", Duration::from_secs(30), || {
        let is_record = |name: &String| name.strip_suffix(".json").is_some();
        let (records, directories): (Vec<_>, Vec<_>) = share.names(".nfs-csi/trash").into_iter().partition(is_record);
        (directories.len() <= ROUNDS).then_some((records, directories))
    })
    .await;
    let without = directories.iter().filter(|name| !records.contains(&format!("{name}.json"))).count();
    let kept = directories.len();
    assert!(wrong.is_empty(), "of {ROUNDS}, {}", some(&wrong));
    assert_eq!((kept, without), (ROUNDS, 0), "kept in the trash, and without a record");
    let mut restore = A.enter();
    restore.arg(binary()).args(["trash", "restore", "team-7", "--export", &share.export()]);
    assert!(restore.status().unwrap().success());
    assert_eq!(std::fs::read_to_string(share.on_disk("team-7/file")).unwrap(), "data");
}
