//! Calls that are made several times, as the sidecars do after a lost answer or a restart.

use std::path::Path;
use std::time::{Duration, Instant};

use nfs_csi::proto::CreateVolumeRequest;
use tokio::task::JoinSet;

use crate::candidate::{Answer, Candidate, DEADLINE, asked};
use crate::copies::copy;
use crate::kit::content::Content;
use crate::kit::requests::{of_snapshot, of_volume, snapshot};
use crate::kit::server::{names, on_server};
use crate::nodes::kind;
use crate::shape::SMALL_TREE;
use crate::table::Table;
use crate::volumes::{Running, until_freed};

const AT_ONCE: usize = 5;
/// How many calls the server has of a driver when it is killed; a copy of the tree needs several times as many.
const CALLS: u64 = 3000;
const FILE: &str = "directory-0/file-0";

/// Several equal calls at once, and one that is repeated after it was answered.
pub async fn calls(table: &mut Table, candidates: &[Candidate; 2]) {
    let running = Running::both(candidates).await;
    let mut cells = [const { Vec::new() }; 3];
    for running in &running {
        let name = running.candidate.unique("source");
        let source = running.volume(&name, &[]).await.unwrap().volume_id;
        SMALL_TREE.make(&on_server(&name));
        rustix::fs::sync();
        cells[0].push(at_once(running, &source).await);
        cells[1].push(clone_again(running, &source).await.unwrap_or_else(|error| error));
        cells[2].push(snapshot_again(running, &name, &source).await.unwrap_or_else(|error| error));
        running.delete(&source).await.unwrap();
    }
    let what = [
        format!("the same clone is asked for {AT_ONCE} times at once"),
        "a clone is asked for again after a pod has written to it".into(),
        "a snapshot is asked for again after its volume has changed".into(),
    ];
    for (what, cells) in what.iter().zip(cells) {
        table.row(what, cells.try_into().unwrap());
    }
}

async fn at_once(running: &Running<'_>, source: &str) -> String {
    let name = running.candidate.unique("at-once");
    let mut under_way = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (mut client, request) = (running.client.clone(), copy(&name, of_volume(source)));
        under_way.spawn(async move { asked(client.create_volume(request)).await.1 });
    }
    let answers = under_way.join_all().await;
    let answered: Vec<_> = answers.iter().flatten().collect();
    let mut refused: Vec<&str> = answers.iter().filter_map(|answer| answer.as_ref().err()).map(|e| kind(e)).collect();
    refused.sort_unstable();
    refused.dedup();
    if let Some(answer) = answered.first() {
        let id = answer.volume.clone().unwrap().volume_id;
        running.delete(&id).await.unwrap();
    }
    let others = answers.len() - answered.len();
    match others {
        0 => format!("{} get the volume", answered.len()),
        _ => format!("{} gets the volume, {others} get {}", answered.len(), refused.join(", ")),
    }
}

/// What a pod wrote to a clone, when the answer was lost and the call is repeated.
async fn clone_again(running: &Running<'_>, source: &str) -> Answer<String> {
    let name = running.candidate.unique("again");
    let (first, _) = running.copied(&name, of_volume(source)).await?;
    std::fs::write(on_server(&name).join(FILE), "a pod's").unwrap();
    running.copied(&name, of_volume(source)).await?;
    let is_kept = std::fs::read(on_server(&name).join(FILE)).unwrap() == b"a pod's";
    running.delete(&first.volume_id).await?;
    let outcome = if is_kept { Ok(()) } else { Err("what the pod wrote is overwritten".into()) };
    Ok(running.candidate.works(outcome).map_or_else(|error| error, |()| "what the pod wrote is kept".into()))
}

/// What a snapshot holds, when the call is repeated later.
async fn snapshot_again(running: &Running<'_>, volume: &str, source: &str) -> Answer<String> {
    let name = running.candidate.unique("snapshot");
    let file = on_server(volume).join(FILE);
    std::fs::write(&file, "first").unwrap();
    let (id, _) = running.snapshot(&name, source, &[]).await?;
    std::fs::write(&file, "second").unwrap();
    running.snapshot(&name, source, &[]).await?;
    let restored = running.candidate.unique("restored");
    let (copy, _) = running.copied(&restored, of_snapshot(&id)).await?;
    let is_first = std::fs::read(on_server(&restored).join(FILE)).unwrap() == b"first";
    running.delete(&copy.volume_id).await?;
    running.delete_snapshot(&id).await?;
    let outcome = if is_first { Ok(()) } else { Err("it has what was written after the first answer".into()) };
    Ok(running.candidate.works(outcome).map_or_else(|error| error, |()| "it is as at the first answer".into()))
}

/// The call during which a controller is killed.
#[derive(Clone, Copy)]
enum Killed {
    Clone,
    Snapshot,
    Restore,
}

/// A controller is killed while it copies, another one is started, and the call is repeated until it is answered.
pub async fn killed(table: &mut Table, candidates: &[Candidate; 2]) {
    for (what, call) in [("clone", Killed::Clone), ("snapshot", Killed::Snapshot), ("restore", Killed::Restore)] {
        let mut cells = Vec::new();
        for candidate in candidates {
            cells.push(killed_in(candidate, call).await.unwrap_or_else(|error| error));
        }
        table.row(&format!("killed during a {what}, started again, asked again"), cells.try_into().unwrap());
    }
}

async fn killed_in(candidate: &Candidate, call: Killed) -> Answer<String> {
    let running = Running::start(candidate, &[]).await;
    let before = on_export();
    let (name, snap) = (candidate.unique("killed"), candidate.unique("snapshot"));
    let source_name = candidate.unique("source");
    let source = running.volume(&source_name, &[]).await?.volume_id;
    SMALL_TREE.make(&on_server(&source_name));
    rustix::fs::sync();
    let content = Content::of(&on_server(&source_name));
    let taken = match call {
        Killed::Restore => Some(running.snapshot(&snap, &source, &[]).await?.0),
        Killed::Clone | Killed::Snapshot => None,
    };
    let request = copy(&name, taken.as_deref().map_or_else(|| of_volume(&source), of_snapshot));
    let calls = calls_of_nfsd();
    let mut client = running.client.clone();
    let under_way = {
        let (request, snapshot) = (request.clone(), snapshot(&snap, &source, &[]));
        tokio::spawn(async move {
            match call {
                Killed::Snapshot => asked(client.create_snapshot(snapshot)).await.1.map(drop),
                Killed::Clone | Killed::Restore => asked(client.create_volume(request)).await.1.map(drop),
            }
        })
    };
    while calls_of_nfsd() < calls + CALLS && !under_way.is_finished() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let is_too_late = under_way.is_finished();
    drop(running);
    let _ = under_way.await;
    if is_too_late {
        return candidate.works(Err("it was done before it could be killed".into()));
    }

    let again = Running::start(candidate, &[]).await;
    let begun = Instant::now();
    let (id, taken) = match call {
        Killed::Snapshot => {
            let taken =
                until_answered(async || again.client.clone().create_snapshot(snapshot(&snap, &source, &[])).await)
                    .await;
            let taken = candidate.works(taken)?.snapshot.unwrap().snapshot_id;
            (created(&again, &copy(&name, of_snapshot(&taken))).await?, Some(taken))
        }
        Killed::Clone | Killed::Restore => (created(&again, &request).await?, taken),
    };
    let took = begun.elapsed();
    let same = has_all(&content, &Content::of(&on_server(&name)));
    again.delete(&id).await?;
    again.delete(&source).await?;
    if let Some(taken) = taken {
        again.delete_snapshot(&taken).await?;
    }
    until_freed();
    let left: Vec<String> = on_export().into_iter().filter(|name| !before.contains(name)).collect();
    candidate.works(same)?;
    let left = if left.is_empty() { "nothing left over".into() } else { format!("left over: {}", left.join(" ")) };
    Ok(format!("complete after {:.1} s, {left}", took.as_secs_f64()))
}

/// Whether the same files have the same bytes; other attributes have rows of their own.
fn has_all(source: &Content, copy: &Content) -> Answer<()> {
    let Some(found) = source.differences(copy) else { return Ok(()) };
    let counts = [found.missing.len(), found.too_many.len(), found.other_bytes.len()];
    match counts {
        [0, 0, 0] => Ok(()),
        [missing, others, bytes] => Err(format!("{missing} files are missing, {others} too many, {bytes} differ")),
    }
}

async fn created(running: &Running<'_>, request: &CreateVolumeRequest) -> Answer<String> {
    let answer = until_answered(async || running.client.clone().create_volume(request.clone()).await).await;
    running.candidate.works(answer.map(|answer| answer.volume.unwrap().volume_id))
}

/// Repeats a call, as a sidecar does.
async fn until_answered<T>(call: impl AsyncFn() -> Result<tonic::Response<T>, tonic::Status>) -> Answer<T> {
    let begun = Instant::now();
    loop {
        let (_, answer) = asked(call()).await;
        match answer {
            Err(error) if begun.elapsed() > DEADLINE => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            Ok(answer) => return Ok(answer),
        }
    }
}

/// What is on the export, and what unfinished work there is.
fn on_export() -> Vec<String> {
    let mut found = names("");
    for folder in [".nfs-csi/staging", ".nfs-csi/trash", ".nfs-csi/volumes", ".nfs-csi/snapshots"] {
        found.extend(names(folder).into_iter().map(|name| Path::new(folder).join(name).display().to_string()));
    }
    found
}

/// How many calls this guest's own NFS server has had.
fn calls_of_nfsd() -> u64 {
    let statistics = std::fs::read_to_string("/proc/net/rpc/nfsd").unwrap();
    let calls = statistics.lines().find_map(|line| line.strip_prefix("rpc ")).unwrap();
    calls.split(' ').next().unwrap().parse().unwrap()
}
