//! kill -9 of the driver and of the agent at any moment: never a volume without its limit, never two volumes of one
//! project.

use std::collections::HashMap;
use std::time::Duration;

use super::{SIZE, assert_well, class, create, made, on_disk, record, shown, with_size};
use crate::kit::driver::Driver;
use crate::kit::quota::{Agent, DEADLINE, Export, XFS};
use crate::kit::requests::{create_from, delete, expand, of_volume};
use crate::kit::{folder, wait_for};

/// A controller that is killed while it changes a record keeps others from it for so long.
const FLAGS: [&str; 1] = ["--takeover-after=1s"];
/// Moments of each kind of work.
const ROUNDS: u64 = 20;

#[tokio::test]
async fn whatever_is_killed_when_a_retry_gives_one_volume_with_its_limit() {
    let export = Export::on(XFS);
    let folder = folder();
    let mut agent = Agent::start(&export, &[]);
    let source = {
        let driver = Driver::start(folder.path(), &FLAGS);
        let volume = made(&mut driver.controller().await, create(&export, "pvc-source", SIZE, &[])).await;
        for number in 0..20 {
            std::fs::write(on_disk(&export, &volume).join(number.to_string()), vec![7; 64 << 10]).unwrap();
        }
        volume
    };
    let mut cut_short = 0;
    let mut projects = HashMap::from([(record(&export, "pvc-source").project().unwrap(), "pvc-source".to_owned())]);
    let mut driver = Driver::start(folder.path(), &FLAGS);
    for round in 0..3 * ROUNDS {
        let name = format!("pvc-{round}");
        let mut controller = driver.controller().await;
        // The export is mounted before, so that the moment falls into the operation itself.
        made(&mut controller, create(&export, "pvc-source", SIZE, &[])).await;
        let create = match round % 3 {
            1 => with_size(create_from(&name, of_volume(&source.volume_id), &class(&export, &[])), SIZE),
            _ => create(&export, &name, SIZE, &[]),
        };
        let to_grow = if round % 3 == 2 { Some(made(&mut controller, create.clone()).await) } else { None };
        let grown = |id: &str| expand(id, i64::try_from(2 * SIZE).unwrap(), 0);
        let call = {
            let (mut controller, create, to_grow) = (controller, create.clone(), to_grow.clone());
            tokio::spawn(async move {
                match to_grow {
                    Some(volume) => controller.controller_expand_volume(grown(&volume.volume_id)).await.is_err(),
                    None => controller.create_volume(create).await.is_err(),
                }
            })
        };
        tokio::time::sleep(Duration::from_micros(round * 250)).await;
        if round % 2 == 0 {
            agent.kill();
            agent = Agent::spawn(&export, &[]);
        }
        driver.kill().await;
        cut_short += u32::from(call.await.unwrap());
        // What has its name has its limit, with no retry.
        if export.on_disk(&name).is_dir() {
            assert!(shown(&export.on_disk(&name)) <= 2 * SIZE, "round {round}");
        }

        driver = Driver::start(folder.path(), &FLAGS);
        let size = if let Some(volume) = to_grow {
            again(async || driver.controller().await.controller_expand_volume(grown(&volume.volume_id)).await).await;
            2 * SIZE
        } else {
            again(async || driver.controller().await.create_volume(create.clone()).await).await;
            SIZE
        };
        let volume = record(&export, &name);
        assert_eq!(shown(&export.on_disk(&name)), size, "round {round}");
        let project = volume.project().unwrap();
        assert_eq!(export.project_of(&export.on_disk(&name)), Some(project), "round {round}");
        if let Some(other) = projects.insert(project, name.clone()) {
            panic!("round {round}: {project} is that of {other} too");
        }
        if round % 4 == 0 {
            let id = format!("127.0.0.1#{}#{name}##", export.path().to_str().unwrap().trim_start_matches('/'));
            driver.controller().await.delete_volume(delete(&id)).await.unwrap();
            projects.remove(&project);
        }
    }
    assert!(cut_short > 10, "only {cut_short} calls were cut short: the moments do not fit this machine");
    let staged = || crate::kit::names_in(&export.on_disk(".nfs-csi/trash"));
    wait_for("the trash to be emptied", DEADLINE, || staged().is_empty().then_some(()));
    let share = format!("127.0.0.1:{}", export.path().display());
    wait_for("nothing to be left", DEADLINE, || {
        let output = super::on_export(&share, &["check", "--repair", "--staging-retention=1s"]);
        output.status.success().then_some(())
    });
    assert_well(&export);
}

/// Calls until the answer is good; an agent that was killed has to start.
async fn again<T>(mut call: impl AsyncFnMut() -> Result<T, tonic::Status>) {
    let end = std::time::Instant::now() + DEADLINE;
    while let Err(error) = call().await {
        let is_passing = matches!(error.code(), tonic::Code::Unavailable | tonic::Code::Aborted);
        assert!(is_passing && std::time::Instant::now() < end, "{error}");
    }
}
