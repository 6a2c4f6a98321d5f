//! A volume's life: its directory is claimed, limited, filled, its limit changed, and its id used again.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::statvfs::statvfs;

use crate::kit::quota::{Agent, DEADLINE, EXT4, Export, XFS, wanted, write_as};
use crate::kit::wait_for;

const MIB: u64 = 1 << 20;

fn size(path: &Path) -> (u64, u64) {
    let stat = statvfs(path).unwrap();
    (stat.blocks() * stat.fragment_size(), stat.files())
}

#[test]
fn a_volume_has_the_size_and_the_files_that_were_wanted_and_no_more() {
    for disk in [XFS, EXT4] {
        let export = Export::on(disk);
        let _agent = Agent::start(&export, &[]);
        let id = export.claim("pvc-1", &wanted("pvc-1", 1, 16 * MIB, 20));
        let volume = export.over_nfs("pvc-1");
        std::os::unix::fs::chown(&volume, Some(1000), Some(1000)).unwrap();
        assert_eq!(size(&volume), (16 * MIB, 20), "{disk}");
        assert_eq!(export.kernel(id).limit.bytes, 16 * MIB);

        let (fits, text) = write_as(1000, &volume.join("fits"), 8 * 1024);
        assert!(fits, "{disk}: {text}");
        let (fits, text) = write_as(1000, &volume.join("large"), 9 * 1024);
        assert!(!fits && (text.contains("No space left") || text.contains("quota exceeded")), "{disk}: {text}");
        std::fs::remove_file(volume.join("large")).unwrap();
        // Root is limited on XFS, and exempt on ext4.
        let (fits, text) = write_as(0, &volume.join("large"), 20 * 1024);
        assert_eq!(fits, disk == EXT4, "{disk}: {text}");
        std::fs::remove_file(volume.join("large")).unwrap();
        // XFS frees what was removed in the background.
        wait_for("the space to be free", DEADLINE, || {
            let quota = export.kernel(id);
            (quota.bytes < 9 * MIB && quota.inodes == 2).then_some(())
        });

        if disk == XFS {
            let made = (0..40).take_while(|number| File::create(volume.join(number.to_string())).is_ok()).count();
            // The directory itself and the first file count.
            assert_eq!(made, 18);
        }
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(export.quota_path("agent.json")).unwrap()).unwrap();
        assert_eq!(state["limitsRoot"], disk == XFS);
        assert_eq!(state["fileSystem"], if disk == XFS { "xfs" } else { "ext4" });
    }
}

#[test]
fn a_directory_that_waits_takes_no_file_and_a_limit_is_never_less_than_was_wanted() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let ready = export.ready();
    let inside = export.quota_path(&format!("ready/{}/file", ready[0]));
    assert!(File::create(inside).is_err());
    let id = export.claim("pvc-odd", &wanted("pvc-odd", 1, 10 * MIB + 1, 0));
    assert_eq!(export.kernel(id).limit.bytes, 10 * MIB + 4096);
    assert_eq!(export.kernel(id).limit.inodes, 0);
}

#[test]
fn a_writer_at_its_limit_goes_on_when_the_limit_is_raised() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let id = export.claim("pvc-1", &wanted("pvc-1", 1, 4 * MIB, 0));
    let (written, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let path = export.over_nfs("pvc-1/file");
            while written.load(Ordering::Relaxed) < 8 * MIB {
                let mut file = File::options().create(true).append(true).open(&path).unwrap();
                let done = file.write_all(&vec![1; 64 << 10]).and_then(|()| file.sync_all());
                stopped.fetch_or(done.is_err(), Ordering::Relaxed);
                written.store(export.on_disk("pvc-1/file").metadata().unwrap().len(), Ordering::Relaxed);
            }
        });
        wait_for("the writer to be at its limit", DEADLINE, || stopped.load(Ordering::Relaxed).then_some(()));
        assert!(export.kernel(id).bytes <= 4 * MIB);
        export.want(id, &wanted("pvc-1", 2, 16 * MIB, 0));
        wait_for("the limit to be raised", DEADLINE, || (export.applied(id)?.generation == 2).then_some(()));
        assert_eq!(size(&export.over_nfs("pvc-1")).0, 16 * MIB);
        wait_for("the writer to go on", DEADLINE, || (written.load(Ordering::Relaxed) >= 8 * MIB).then_some(()));
    });
}

#[test]
fn an_id_is_free_again_when_nothing_is_charged_to_it() {
    for disk in [XFS, EXT4] {
        let export = Export::on(disk);
        let _agent = Agent::start(&export, &[]);
        let id = export.claim("pvc-1", &wanted("pvc-1", 1, MIB, 0));
        let file = File::create(export.on_disk("pvc-1/file")).unwrap();
        wait_for("the use to be written", DEADLINE, || {
            let usage = std::fs::read_to_string(export.quota_path("usage")).ok()?;
            usage.lines().any(|line| line.starts_with(&format!("{id} ")) && line.ends_with(" 2")).then_some(())
        });
        std::fs::remove_dir_all(export.over_nfs("pvc-1")).unwrap();
        // A file that is open on the server is charged until it is closed.
        assert!(export.kernel(id).inodes > 0, "{disk}");
        let other = export.claim("pvc-2", &wanted("pvc-2", 1, MIB, 0));
        wait_for("the use of the other to be written", DEADLINE, || {
            let usage = std::fs::read_to_string(export.quota_path("usage")).ok()?;
            usage.lines().any(|line| line.starts_with(&format!("{other} "))).then_some(())
        });
        assert!(export.applied(id).is_some(), "{disk}");
        drop(file);
        wait_for("the id to be free", DEADLINE, || {
            let left = ["wanted", "applied", "refused"].iter().any(|folder| export.projects(folder).contains(&id));
            (!left).then_some(())
        });
        assert!(export.kernel(id).is_unused(), "{disk}");
    }
}

#[test]
fn volumes_of_two_exports_of_one_disk_have_different_ids_and_one_agent() {
    let (one, other) = (Export::on(XFS), Export::on(XFS));
    let path = format!("--export={}", other.path().display());
    let _agent = Agent::start(&one, &[&path]);
    wait_for("both to have directories", DEADLINE, || (other.ready().len() == 8).then_some(()));
    let ids: Vec<_> = (0..6)
        .map(|number| {
            let export = if number % 2 == 0 { &one } else { &other };
            let name = format!("pvc-{number}");
            export.claim(&name, &wanted(&name, 1, MIB, 0))
        })
        .collect();
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len());
}

#[test]
fn many_claims_at_once_are_all_granted() {
    let export = Export::on(XFS);
    let _agent = Agent::start(&export, &[]);
    let mut ids: Vec<_> = std::thread::scope(|scope| {
        let claim = |worker: u32| {
            let export = &export;
            scope.spawn(move || {
                let names = (0..10).map(|number| format!("pvc-{worker}-{number}"));
                names.map(|name| export.claim(&name, &wanted(&name, 1, MIB, 0))).collect::<Vec<_>>()
            })
        };
        let workers: Vec<_> = (0..4).map(claim).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 40);
    assert!(ids.iter().all(|id| export.kernel(*id).limit.bytes == MIB));
}
