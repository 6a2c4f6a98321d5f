//! The node plugin: what it takes to be there, to publish and to unpublish, and what it does when a server is dead.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nfs_csi::proto::node_client::NodeClient;
use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::{NodeGetInfoRequest, Volume};
use nix::mount::{MntFlags, umount2};
use tonic::transport::Channel;

use crate::candidate::{Answer, Candidate, Process, asked};
use crate::kit::mortal::MORTAL;
use crate::kit::mounts_at;
use crate::kit::requests::{by_hand, publish, unpublish};
use crate::kit::server::on_server;
use crate::table::{Table, megabytes};
use crate::volumes::in_turn;

const COUNT: usize = 200;
/// How often the start of a program is measured.
const STARTS: usize = 20;
const OPTIONS: &[&str] = &["nfsvers=4.2"];

/// A candidate with its node plugin.
struct Running<'a> {
    candidate: &'a Candidate,
    process: Process,
    client: NodeClient<Channel>,
}

impl<'a> Running<'a> {
    async fn both(candidates: &'a [Candidate; 2]) -> [Self; 2] {
        [Self::start(&candidates[0]).await, Self::start(&candidates[1]).await]
    }

    async fn start(candidate: &'a Candidate) -> Self {
        let process = candidate.node();
        let mut client = process.node().await;
        client.node_get_info(NodeGetInfoRequest {}).await.unwrap();
        Self { candidate, process, client }
    }

    async fn publish(&mut self, volume: &Volume, name: &str) -> (Duration, Answer<()>) {
        let target = self.candidate.target(name);
        // The kubelet creates its parent, and the driver the target.
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        let request = publish(volume, &target, Mode::MultiNodeMultiWriter, OPTIONS);
        let (time, answer) = asked(self.client.node_publish_volume(request)).await;
        (time, answer.map(drop))
    }

    async fn unpublish(&mut self, volume: &Volume, name: &str) -> (Duration, Answer<()>) {
        let request = unpublish(volume, &self.candidate.target(name));
        let (time, answer) = asked(self.client.node_unpublish_volume(request)).await;
        (time, answer.map(drop))
    }

    /// The time of a call, if the target has as many mounts as it should have after it.
    fn mounted(&self, name: &str, (time, answer): (Duration, Answer<()>), mounts: usize) -> Answer<Duration> {
        let found = mounts_at(&self.candidate.target(name)).len();
        let answer = answer.and_then(|()| {
            if found == mounts { Ok(time) } else { Err(format!("{found} mounts where {mounts} belong")) }
        });
        self.candidate.works(answer)
    }
}

/// What each takes without having done anything. And what the start of a program takes here, since that is long in this
/// guest, and one of the two starts programs to mount.
pub fn process(table: &mut Table, candidates: &[Candidate; 2]) {
    let starts = candidates.each_ref().map(|_| (0..STARTS).map(|_| Ok(start_of_a_program())).collect());
    table.times("start of a program, for comparison (`/bin/true`)", starts);
    let size = |candidate: &Candidate| megabytes(std::fs::metadata(&candidate.program).unwrap().len());
    table.row("size of the binary", candidates.each_ref().map(size));
    let idle = |start: fn(&Candidate) -> Process| {
        candidates.each_ref().map(|candidate| megabytes(start(candidate).resident_bytes()))
    };
    table.row("resident memory of the idle controller", idle(|candidate| candidate.controller(&[])));
    table.row("resident memory of the idle node plugin", idle(Candidate::node));
}

fn start_of_a_program() -> Duration {
    let begun = Instant::now();
    assert!(Command::new("/bin/true").status().unwrap().success());
    begun.elapsed()
}

/// Publishes and unpublishes on a server that is well.
pub async fn healthy(table: &mut Table, candidates: &[Candidate; 2]) {
    std::fs::create_dir(on_server("published")).unwrap();
    let volume = by_hand("published", &[("subDir", "published")]);
    let mut running = Running::both(candidates).await;
    // Pods of other volumes keep the server mounted, as on any node that is in use.
    for running in &mut running {
        let published = running.publish(&volume, "kept").await;
        running.mounted("kept", published, 1).unwrap();
    }
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for round in 0..COUNT {
        for side in in_turn(round) {
            let running = &mut running[side];
            let name = format!("pod-{round}");
            let published = running.publish(&volume, &name).await;
            times[0][side].push(running.mounted(&name, published, 1));
        }
    }
    let memory = running.each_ref().map(|running| megabytes(running.process.resident_bytes()));
    for round in 0..COUNT {
        for side in in_turn(round) {
            let running = &mut running[side];
            let name = format!("pod-{round}");
            let unpublished = running.unpublish(&volume, &name).await;
            times[1][side].push(running.mounted(&name, unpublished, 0));
        }
    }
    for running in &mut running {
        running.unpublish(&volume, "kept").await.1.unwrap();
    }
    let [published, unpublished] = times;
    table.times(&format!("publish a volume, {COUNT} times"), published);
    table.row("resident memory of the node plugin with these", memory);
    table.times(&format!("unpublish it, {COUNT} times"), unpublished);
    std::fs::remove_dir(on_server("published")).unwrap();
}

/// Publishes and unpublishes on a server that does not answer any more.
pub async fn dead(table: &mut Table, candidates: &[Candidate; 2]) {
    let volume = by_hand("mortal", &MORTAL.parameters());
    let mut cells = [const { [const { String::new() }; 2] }; 4];
    for (side, candidate) in candidates.iter().enumerate() {
        let mut running = Running::start(candidate).await;
        let published = running.publish(&volume, "doomed").await;
        running.mounted("doomed", published, 1).unwrap();
        let dead = MORTAL.die();
        for (index, name) in ["first", "second"].into_iter().enumerate() {
            let (time, answer) = running.publish(&volume, name).await;
            let Err(error) = answer else { panic!("{candidate:?} published on a dead server") };
            cells[index][side] = format!("{} after {:.3} s", kind(&error), time.as_secs_f64());
            cells[2][side] = error;
        }
        let unpublished = running.unpublish(&volume, "doomed").await;
        cells[3][side] = match running.mounted("doomed", unpublished, 0) {
            Ok(time) => format!("done after {:.3} s", time.as_secs_f64()),
            Err(error) => error,
        };
        drop(dead);
        drop(running);
        for name in ["doomed", "first", "second"] {
            detach(&candidate.target(name));
        }
    }
    let [first, second, text, unpublished] = cells;
    table.row("publish a volume of a dead server", first);
    table.row("publish another one of it", second);
    table.row("the text of that error", text);
    table.row("unpublish the last volume of a dead server", unpublished);
}

/// Of an error its code.
pub fn kind(error: &str) -> &str {
    error.split(": ").next().unwrap_or(error)
}

/// Unmounts what a driver left.
pub fn detach(target: &Path) {
    for _ in mounts_at(target) {
        umount2(target, MntFlags::MNT_DETACH).unwrap();
    }
}
