//! A controller that holds exports of two servers, one of which is dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::{GetCapacityRequest, ListVolumesRequest, Volume};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::dead::{rounds, timed};
use crate::kit::driver::Driver;
use crate::kit::mortal::{MORTAL, OTHER};
use crate::kit::requests::{create, delete, parameters, snapshot};
use crate::kit::{Folder, folder, nfs_mounts_below};
use crate::report::Report;
use crate::{median, milliseconds};

/// Calls on the dead server after the first.
const CALLS: usize = 100;
/// Calls that are under way when it dies; more than are let through at once.
const UNDER_WAY: usize = 40;
/// Volumes on the living server that are made before, meanwhile and afterwards.
const LIVING: usize = 100;
/// The longest that anything is waited for.
const LONGEST: Duration = Duration::from_mins(5);

/// What is called on the dead export.
#[derive(Clone, Copy, Debug)]
enum Call {
    CreateVolume,
    DeleteVolume,
    CreateSnapshot,
    ListVolumes,
    GetCapacity,
}

struct Site {
    folder: Folder,
    driver: Driver,
    controller: ControllerClient<Channel>,
    held: Volume,
}

pub async fn controller(report: &mut Report) {
    let folder = folder();
    let driver = Driver::start_as("controller", folder.path(), &[]);
    let mut controller = driver.controller().await;
    let held = create("pvc-held", &MORTAL.parameters());
    let held = controller.create_volume(held).await.unwrap().into_inner().volume.unwrap();
    let site = Site { folder, driver, controller, held };
    for call in [Call::CreateVolume, Call::DeleteVolume, Call::CreateSnapshot, Call::ListVolumes, Call::GetCapacity] {
        let dead = MORTAL.die();
        let first = site.refused(call).await;
        report.at_most(&format!("{call:?} on a held export, dead, the first"), "ms", milliseconds(first), 3000.0);
        let mut later = Vec::new();
        for _ in 0..CALLS {
            later.push(site.refused(call).await);
        }
        let later = milliseconds(median(later));
        report.at_most(&format!("{call:?} on a held export, dead, later ones"), "ms", later, 10.0);
        drop(dead);
        let back = site.until_back().await.as_secs_f64();
        report.at_most("the dead server is back: until CreateVolume works", "s", back, 5.0);
    }
    site.under_way(report).await;
    site.beside(report).await;
    site.delete(&site.held).await;
}

impl Site {
    async fn call(&self, call: Call) -> Result<(), Status> {
        let mut controller = self.controller.clone();
        let id = &self.held.volume_id;
        match call {
            Call::CreateVolume => controller.create_volume(create("pvc-new", &MORTAL.parameters())).await.map(drop),
            Call::DeleteVolume => controller.delete_volume(delete(id)).await.map(drop),
            Call::CreateSnapshot => controller.create_snapshot(snapshot("new", id, &[])).await.map(drop),
            Call::ListVolumes => controller.list_volumes(ListVolumesRequest::default()).await.map(drop),
            Call::GetCapacity => {
                let parameters = parameters(&MORTAL.parameters());
                let request = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
                controller.get_capacity(request).await.map(drop)
            }
        }
    }

    /// How long a call on the dead server takes.
    async fn refused(&self, call: Call) -> Duration {
        let (time, ended) = timed(self.call(call)).await;
        let refused = ended.expect_err("an error of a dead server");
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains(MORTAL.address), "{refused}");
        time
    }

    /// How long calls are refused that are made again and again.
    async fn until_back(&self) -> Duration {
        let begun = Instant::now();
        while self.controller.clone().create_volume(create("pvc-held", &MORTAL.parameters())).await.is_err() {
            assert!(begun.elapsed() < LONGEST, "{}", self.driver.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        begun.elapsed()
    }

    /// Calls that have begun when the server dies.
    async fn under_way(&self, report: &mut Report) {
        let far = MORTAL.move_away(20);
        let calls: Vec<_> = (0..UNDER_WAY)
            .map(|number| {
                let mut controller = self.controller.clone();
                let request = create(&format!("pvc-{number}"), &MORTAL.parameters());
                tokio::spawn(async move {
                    let ended = controller.create_volume(request).await;
                    (Instant::now(), ended)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (died, dead) = (Instant::now(), MORTAL.die());
        let (mut slowest, mut refused) = (Duration::ZERO, 0);
        for call in calls {
            let (ended, answer) = call.await.unwrap();
            slowest = slowest.max(ended.saturating_duration_since(died));
            refused += usize::from(answer.is_err());
        }
        let what = "CreateVolume under way at the death, the slowest answer";
        report.at_most(what, "ms", milliseconds(slowest), 5000.0);
        Report::detail(&format!("{refused} of {UNDER_WAY} are refused"));
        // Its mounts go when nothing waits for it any more.
        while self.driver.waiting_threads() > 0 || !nfs_mounts_below(self.folder.path()).is_empty() {
            assert!(died.elapsed() < LONGEST, "{}", self.driver.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let what = "from the death until no thread waits in the kernel";
        report.at_most(what, "s", died.elapsed().as_secs_f64(), 30.0);
        drop(dead);
        drop(far);
        let back = self.until_back().await.as_secs_f64();
        report.at_most("the dead server is back: until CreateVolume works", "s", back, 5.0);
        for number in 0..UNDER_WAY {
            let request = create(&format!("pvc-{number}"), &MORTAL.parameters());
            let made = self.controller.clone().create_volume(request).await.unwrap().into_inner().volume.unwrap();
            self.delete(&made).await;
        }
    }

    /// What is done on the living server meanwhile.
    async fn beside(&self, report: &mut Report) {
        self.living_round().await;
        let mut alone = rounds(async || self.living_round().await).await;
        let dead = MORTAL.die();
        self.refused(Call::CreateVolume).await;
        let stop = Arc::new(AtomicBool::new(false));
        let nagging = tokio::spawn({
            let (mut controller, stop) = (self.controller.clone(), Arc::clone(&stop));
            async move {
                while !stop.load(Ordering::Relaxed) {
                    let _ = controller.create_volume(create("pvc-nag", &MORTAL.parameters())).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
        let meanwhile = median(rounds(async || self.living_round().await).await);
        stop.store(true, Ordering::Relaxed);
        nagging.await.unwrap();
        drop(dead);
        self.until_back().await;
        alone.extend(rounds(async || self.living_round().await).await);
        let what = "100 CreateVolume on the living server meanwhile";
        report.ratio(what, "with no server dead", "ms", milliseconds(meanwhile), milliseconds(median(alone)), 1.2);
    }

    /// What a hundred volumes on the living server take.
    async fn living_round(&self) -> Duration {
        let mut made = Vec::new();
        let begun = Instant::now();
        for number in 0..LIVING {
            let request = create(&format!("pvc-living-{number}"), &OTHER.parameters());
            made.push(self.controller.clone().create_volume(request).await.unwrap().into_inner().volume.unwrap());
        }
        let time = begun.elapsed();
        for volume in &made {
            self.delete(volume).await;
        }
        time
    }

    async fn delete(&self, volume: &Volume) {
        self.controller.clone().delete_volume(delete(&volume.volume_id)).await.unwrap();
    }
}
