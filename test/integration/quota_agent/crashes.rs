//! An agent that is killed at any moment, again and again, while volumes come and go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nfs_csi::volume::quota_files::ProjectId;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::kit::names_in;
use crate::kit::quota::{Agent, DEADLINE, Export, XFS, wanted};
use crate::kit::wait_for;

const ROUNDS: u64 = 60;
const MIB: u64 = 1 << 20;

/// What is wrong with an export while nobody works on it.
fn faults(export: &Export) -> Vec<String> {
    let mut faults = Vec::new();
    let mut directories: BTreeMap<ProjectId, Vec<PathBuf>> = BTreeMap::new();
    let own = export.on_disk(".nfs-csi/quota");
    let folders = [own.join("ready"), export.path().to_owned()];
    let all = folders.iter().flat_map(|folder| names_in(folder).into_iter().map(|name| folder.join(name)));
    for path in all.filter(|path| !path.ends_with(".nfs-csi")) {
        let Some(id) = export.project_of(&path) else {
            // One that was not finished has no project's name.
            if !path.ends_with(".new") {
                faults.push(format!("{} has no project", path.display()));
            }
            continue;
        };
        directories.entry(id).or_default().push(path);
    }
    for (id, paths) in &directories {
        if paths.len() > 1 {
            faults.push(format!("{id} has several directories: {paths:?}"));
        }
        let quota = export.kernel(*id);
        for path in paths {
            let is_ready = path.starts_with(own.join("ready"));
            // A directory in ready/ may have its volume's limit already; it is never without one.
            let applied = export.applied(*id).filter(|_| !is_ready);
            let least = applied.map_or(1, |applied| applied.bytes.min(MIB));
            if quota.limit.bytes < least || (is_ready && quota.inodes != 1) {
                faults.push(format!("{} has {quota:?}", path.display()));
            }
        }
    }
    faults
}

/// Makes and deletes volumes until it is told to stop; stands still while `pause` is locked for writing.
fn work(export: &Export, worker: u32, stop: &AtomicBool, pause: &RwLock<()>) {
    for number in 0.. {
        let name = format!("pvc-{worker}-{number}");
        let reached = |what: &str, mut done: Box<dyn FnMut() -> bool + '_>| {
            let ended = || stop.load(Ordering::Relaxed);
            wait_for(what, DEADLINE, || {
                let _working = pause.read().unwrap();
                (done() || ended()).then_some(())
            });
            !ended()
        };
        let mut claimed = None;
        let first = wanted(&name, 1, MIB, 0);
        if !reached(
            "a directory",
            Box::new(|| {
                claimed = export.try_claim(&first);
                claimed.is_some()
            }),
        ) {
            return;
        }
        let Some(id) = claimed else { return };
        let volume = export.over_nfs(&name);
        if !reached("its limit", Box::new(|| export.try_take(id, MIB, &name))) {
            return;
        }
        // Never without its limit.
        assert!(export.kernel(id).limit.bytes == MIB, "{:?}", export.kernel(id));
        export.want(id, &wanted(&name, 2, 2 * MIB, 0));
        if !reached("its new limit", Box::new(|| export.applied(id).is_some_and(|applied| applied.generation == 2))) {
            return;
        }
        assert!(export.kernel(id).limit.bytes == 2 * MIB, "{:?}", export.kernel(id));
        let _working = pause.read().unwrap();
        std::fs::remove_dir_all(volume).unwrap();
    }
}

#[test]
fn an_agent_that_is_killed_leaves_no_volume_without_its_limit_and_no_id_twice() {
    let export = Export::on(XFS);
    let (stop, pause) = (AtomicBool::new(false), RwLock::new(()));
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (export, stop, pause) = (&export, &stop, &pause);
            scope.spawn(move || work(export, worker, stop, pause));
        }
        let mut found = Vec::new();
        for round in 0..ROUNDS {
            let agent = Agent::spawn(&export, &[]);
            // Every third lives until it has made something.
            if round % 3 == 0 {
                let before = export.projects("applied");
                wait_for("the agent to work", DEADLINE, || (export.projects("applied") != before).then_some(()));
            }
            std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 150_000)));
            agent.kill();
            let _paused = pause.write().unwrap();
            found = faults(&export);
            if !found.is_empty() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(found.is_empty(), "{found:#?}");
    });
    // What is left is completed, or freed, by the next.
    let _agent = Agent::start(&export, &[]);
    for volume in names_in(export.path()).into_iter().filter(|name| name.starts_with("pvc-")) {
        std::fs::remove_dir_all(export.on_disk(&volume)).unwrap();
    }
    wait_for("all ids to be free but for those that nobody took", DEADLINE, || {
        (export.projects("applied") == export.unclaimed() && export.ready().len() == 8).then_some(())
    });
    let known = export.projects("ready");
    for at in 0..300 {
        let id = export.id(at);
        assert!(known.contains(&id) || export.kernel(id).is_unused(), "{id} was lost: {:?}", export.kernel(id));
    }
}
