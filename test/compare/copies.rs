//! A volume of one large file: clone, snapshot, restore.

use std::process::Command;
use std::time::Duration;

use nfs_csi::proto::volume_capability::access_mode::Mode;
use nfs_csi::proto::volume_content_source::Type;
use nfs_csi::proto::{CreateVolumeRequest, Volume};

use crate::candidate::{Answer, Candidate, asked};
use crate::kit::requests::{capability, create_from, delete_snapshot, of_snapshot, of_volume, snapshot};
use crate::kit::server::{SHARE, on_server};
use crate::shape::large_file;
use crate::table::Table;
use crate::volumes::{ROUNDS, Running, in_turn};

/// In bytes.
const LARGE: usize = 512 << 20;

/// A volume with the data of another, or of a snapshot, over NFS 4.2.
pub fn copy(name: &str, source: Type) -> CreateVolumeRequest {
    let volume_capabilities = vec![capability(Mode::MultiNodeMultiWriter, &["nfsvers=4.2"])];
    CreateVolumeRequest { volume_capabilities, ..create_from(name, source, &[]) }
}

impl Running<'_> {
    /// A volume with the data of another, or of a snapshot, and how long it takes.
    pub async fn copied(&self, name: &str, source: Type) -> Answer<(Volume, Duration)> {
        let mut client = self.client.clone();
        let (time, answer) = asked(client.create_volume(copy(name, source))).await;
        self.candidate.works(answer.map(|answer| (answer.volume.unwrap(), time)))
    }

    /// A snapshot's id, and how long it takes.
    pub async fn snapshot(&self, name: &str, volume: &str, parameters: &[(&str, &str)]) -> Answer<(String, Duration)> {
        let mut client = self.client.clone();
        let (time, answer) = asked(client.create_snapshot(snapshot(name, volume, parameters))).await;
        self.candidate.works(answer.map(|answer| (answer.snapshot.unwrap().snapshot_id, time)))
    }

    pub async fn delete_snapshot(&self, id: &str) -> Answer<()> {
        let mut client = self.client.clone();
        let (_, answer) = asked(client.delete_snapshot(delete_snapshot(id))).await;
        crate::volumes::until_freed();
        self.candidate.works(answer).map(drop)
    }
}

/// Measures with the defaults of both, and with what each can be set to.
pub async fn large(table: &mut Table, candidates: &[Candidate; 2]) {
    let peer = &candidates[0];
    let running = Running::both(candidates).await;
    let mut sources = Vec::new();
    for running in &running {
        let name = running.candidate.unique("large");
        let volume = running.volume(&name, &[]).await.unwrap();
        large_file(&on_server(&name).join("file"), LARGE);
        sources.push(volume.volume_id);
    }

    let mut clones = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        for side in in_turn(round) {
            clones[side].push(cloned(&running[side], &sources[side]).await);
        }
    }
    table.times("clone a volume of 512 MB, NFS 4.2, XFS with reflinks", clones);
    snapshots(table, "both by default", &running.each_ref().map(|running| Some((running, &[][..]))), &sources).await;
    let [of_peer, of_own] = running;
    drop(of_peer);
    let archive = &[("snapshotFormat", "tar.zst")][..];
    let (tar, plain) = ("--use-tar-command-in-snapshot=true", "--enable-snapshot-compression=false");
    let with_tar = Running::start(peer, &[tar]).await;
    let what = format!("peer with {tar}, nfs-csi with snapshotFormat: tar.zst");
    snapshots(table, &what, &[Some((&with_tar, &[][..])), Some((&of_own, archive))], &sources).await;
    drop(with_tar);
    for flags in [&[plain][..], &[tar, plain]] {
        let other = Running::start(peer, flags).await;
        let what = format!("peer with {}", flags.join(" "));
        snapshots(table, &what, &[Some((&other, &[][..])), None], &sources).await;
    }
    let of_peer = Running::start(peer, &[]).await;
    of_peer.delete(&sources[0]).await.unwrap();
    of_own.delete(&sources[1]).await.unwrap();
    trim();
}

async fn cloned(running: &Running<'_>, source: &str) -> Answer<Duration> {
    calm_down();
    let name = running.candidate.unique("clone");
    let (clone, time) = running.copied(&name, of_volume(source)).await?;
    is_complete(running.candidate, &name)?;
    running.delete(&clone.volume_id).await?;
    Ok(time)
}

type Sides<'a> = [Option<(&'a Running<'a>, &'a [(&'a str, &'a str)])>; 2];

async fn snapshots(table: &mut Table, what: &str, sides: &Sides<'_>, sources: &[String]) {
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for round in 0..ROUNDS {
        for side in in_turn(round) {
            let Some((running, parameters)) = sides[side] else { continue };
            let result = taken_and_restored(running, &sources[side], parameters).await;
            for (index, times) in times.iter_mut().enumerate() {
                times[side].push(result.clone().map(|result| result[index]));
            }
        }
    }
    let [taken, restored] = times;
    table.times(&format!("snapshot of it, {what}"), taken);
    table.times(&format!("restore of that, {what}"), restored);
}

async fn taken_and_restored(running: &Running<'_>, source: &str, parameters: &[(&str, &str)]) -> Answer<[Duration; 2]> {
    calm_down();
    let candidate = running.candidate;
    let (snapshot, taken) = running.snapshot(&candidate.unique("snapshot"), source, parameters).await?;
    calm_down();
    let name = candidate.unique("restored");
    let (volume, restored) = running.copied(&name, of_snapshot(&snapshot)).await?;
    is_complete(candidate, &name)?;
    running.delete(&volume.volume_id).await?;
    running.delete_snapshot(&snapshot).await?;
    trim();
    Ok([taken, restored])
}

fn is_complete(candidate: &Candidate, name: &str) -> Answer<()> {
    let size = std::fs::metadata(on_server(name).join("file")).map_or(0, |file| file.len());
    candidate.works(if size == LARGE as u64 { Ok(()) } else { Err(format!("of {LARGE} bytes {size} arrived")) })
}

/// What was written before is on the disk, and not a part of what is measured next.
fn calm_down() {
    rustix::fs::sync();
}

/// Releases the memory of this guest that the server's disk has no use for any more.
fn trim() {
    rustix::fs::sync();
    let status = Command::new("fstrim").arg(SHARE).status().unwrap();
    assert!(status.success(), "fstrim {SHARE}: {status}");
}
