//! A volume that is deleted by mistake.

use std::process::Command;

use crate::candidate::{Answer, Candidate, asked};
use crate::kit::requests::delete;
use crate::kit::server::{SERVER, SHARE, on_server};
use crate::table::Table;
use crate::volumes::Running;

/// With `onDelete: delete`, by what each driver has for it, and with `onDelete: archive`.
pub async fn by_mistake(table: &mut Table, candidates: &[Candidate; 2]) {
    let running = Running::both(candidates).await;
    let mut cells = [const { Vec::new() }; 2];
    for running in &running {
        cells[0].push(deleted(running).await.unwrap_or_else(|error| error));
        cells[1].push(archived(running).await.unwrap_or_else(|error| error));
    }
    let [deleted, archived] = cells;
    table.row("a volume deleted by mistake, onDelete: delete", deleted.try_into().unwrap());
    table.row("a volume deleted by mistake, onDelete: archive", archived.try_into().unwrap());
}

/// A volume with a file, deleted.
async fn made_and_deleted(running: &Running<'_>, name: &str, parameters: &[(&str, &str)]) -> Answer<()> {
    let volume = running.volume(name, parameters).await?;
    std::fs::write(on_server(name).join("file"), "data").unwrap();
    let (_, answer) = asked(running.client.clone().delete_volume(delete(&volume.volume_id))).await;
    running.candidate.works(answer).map(drop)
}

async fn deleted(running: &Running<'_>) -> Answer<String> {
    let name = running.candidate.unique("mistake");
    if !running.candidate.is_own() {
        made_and_deleted(running, &name, &[]).await?;
        let is_there = on_server(&name).join("file").exists();
        return Ok(if is_there { "still there" } else { "its data are lost" }.into());
    }
    made_and_deleted(running, &name, &[("trashRetention", "72h")]).await?;
    trash(running.candidate, "restore", &name);
    let data = std::fs::read(on_server(&name).join("file")).unwrap();
    assert_eq!(data, b"data", "nfs-csi brought back other data");
    Ok("with trashRetention, `nfs-csi trash restore` brings it back".into())
}

fn trash(candidate: &Candidate, action: &str, name: &str) {
    let export = format!("--export={SERVER}:{SHARE}");
    let status = Command::new(&candidate.program).args(["trash", action, name, &export]).status().unwrap();
    assert!(status.success(), "nfs-csi trash {action}: {status}");
}

async fn archived(running: &Running<'_>) -> Answer<String> {
    let name = running.candidate.unique("archived");
    made_and_deleted(running, &name, &[("onDelete", "archive")]).await?;
    let archive = on_server(&format!("archived-{name}"));
    let is_there = archive.join("file").exists();
    running.candidate.works(if is_there { Ok(()) } else { Err("the archive has no data".into()) })?;
    std::fs::remove_dir_all(&archive).unwrap();
    Ok("its data are in `archived-<subDir>`".into())
}
