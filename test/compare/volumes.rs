//! Many volumes, and the delete of a volume with many files.

use std::time::{Duration, Instant};

use nfs_csi::proto::Volume;
use nfs_csi::proto::controller_client::ControllerClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::candidate::{Answer, Candidate, Process, asked};
use crate::kit::requests::{create, delete};
use crate::kit::server::{names, on_server};
use crate::kit::wait_for;
use crate::shape::TREE;
use crate::table::{Table, megabytes};

const COUNT: usize = 200;
/// How often each is measured.
pub const ROUNDS: usize = 3;

/// A candidate with its controller.
pub struct Running<'a> {
    pub candidate: &'a Candidate,
    pub process: Process,
    pub client: ControllerClient<Channel>,
}

impl<'a> Running<'a> {
    /// Starts both, and lets each have its first call, which mounts the export.
    pub async fn both(candidates: &'a [Candidate; 2]) -> [Self; 2] {
        [Self::start(&candidates[0], &[]).await, Self::start(&candidates[1], &[]).await]
    }

    pub async fn start(candidate: &'a Candidate, more: &[&str]) -> Self {
        let process = candidate.controller(more);
        let client = process.controller().await;
        let running = Self { candidate, process, client };
        let first = running.volume(&candidate.unique("first"), &[]).await.unwrap();
        running.delete(&first.volume_id).await.unwrap();
        running
    }

    /// A new volume in the directory of its name.
    pub async fn volume(&self, name: &str, parameters: &[(&str, &str)]) -> Answer<Volume> {
        let mut client = self.client.clone();
        let (_, answer) = asked(client.create_volume(create(name, parameters))).await;
        self.candidate.works(answer.map(|answer| answer.volume.unwrap()))
    }

    /// How long the delete of a volume takes; with what is done about it after the answer.
    pub async fn delete(&self, id: &str) -> Answer<[Duration; 2]> {
        let begun = Instant::now();
        let mut client = self.client.clone();
        let (time, answer) = asked(client.delete_volume(delete(id))).await;
        self.candidate.works(answer)?;
        until_freed();
        Ok([time, begun.elapsed()])
    }
}

/// Which one is first changes from round to round.
pub fn in_turn(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Waits until nothing is in the trash any more; a driver that has none does not need it.
pub fn until_freed() {
    wait_for("the trash to be emptied", Duration::from_mins(3), || names(".nfs-csi/trash").is_empty().then_some(()));
}

/// The answers to many calls, so many at once.
async fn all<R, T, F>(requests: Vec<R>, at_once: usize, call: impl Fn(R) -> F) -> Answer<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
{
    let (mut under_way, mut answers) = (JoinSet::new(), Vec::new());
    for request in requests {
        if under_way.len() == at_once
            && let Some(ended) = under_way.join_next().await
        {
            answers.push(ended);
        }
        under_way.spawn(asked(call(request)));
    }
    answers.extend(under_way.join_all().await.into_iter().map(Ok));
    answers.into_iter().map(|ended| ended.unwrap().1).collect()
}

/// Creates and deletes volumes, one after the other and several at once.
pub async fn many(table: &mut Table, candidates: &[Candidate; 2]) {
    let running = Running::both(candidates).await;
    for (at_once, how) in [(1, "one after the other"), (10, "10 at a time")] {
        let mut times = [const { [const { Vec::new() }; 2] }; 3];
        for round in 0..ROUNDS {
            for side in in_turn(round) {
                let result = created_and_deleted(&running[side], at_once).await;
                for (index, times) in times.iter_mut().enumerate() {
                    times[side].push(result.clone().map(|result| result[index]));
                }
            }
        }
        let [created, answered, freed] = times;
        table.times(&format!("create {COUNT} volumes, {how}"), created);
        table.times(&format!("delete them, {how}"), answered);
        table.times("until nothing of them is left on the server", freed);
    }
    let memory = running.each_ref().map(|running| megabytes(running.process.resident_bytes()));
    table.row("resident memory of the controller after that", memory);
}

/// How long the creation takes, the deletion, and the deletion with what is done after the answers.
async fn created_and_deleted(running: &Running<'_>, at_once: usize) -> Answer<[Duration; 3]> {
    let names: Vec<String> = (0..COUNT).map(|_| running.candidate.unique("many")).collect();
    let requests = names.iter().map(|name| create(name, &[])).collect();
    let begun = Instant::now();
    let created = all(requests, at_once, |request| {
        let mut client = running.client.clone();
        async move { client.create_volume(request).await }
    });
    let created = running.candidate.works(created.await)?;
    let creation = begun.elapsed();
    let requests = created.into_iter().map(|answer| delete(&answer.volume.unwrap().volume_id)).collect();
    let begun = Instant::now();
    let deleted = all(requests, at_once, |request| {
        let mut client = running.client.clone();
        async move { client.delete_volume(request).await }
    });
    running.candidate.works(deleted.await)?;
    let deletion = begun.elapsed();
    until_freed();
    let freed = begun.elapsed();
    let left = names.iter().filter(|name| on_server(name).exists()).count();
    if left > 0 {
        return running.candidate.works(Err(format!("{left} of {COUNT} volumes are still there")));
    }
    Ok([creation, deletion, freed])
}

/// Deletes a volume of many files.
pub async fn tree(table: &mut Table, candidates: &[Candidate; 2]) {
    let running = Running::both(candidates).await;
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for round in 0..ROUNDS {
        for side in in_turn(round) {
            let result = deleted_tree(&running[side]).await;
            for (index, times) in times.iter_mut().enumerate() {
                times[side].push(result.clone().map(|result| result[index]));
            }
        }
    }
    let [answered, freed] = times;
    table.times(&format!("delete a volume of {}", TREE.name), answered);
    table.times("until nothing of it is left on the server", freed);
}

async fn deleted_tree(running: &Running<'_>) -> Answer<[Duration; 2]> {
    let name = running.candidate.unique("tree");
    let volume = running.volume(&name, &[]).await?;
    TREE.make(&on_server(&name));
    rustix::fs::sync();
    running.delete(&volume.volume_id).await
}
