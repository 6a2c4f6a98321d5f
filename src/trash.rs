//! `nfs-csi trash`: what was deleted on an export, from the command line: see it, bring it back, free it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's own output")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::cli::{TrashAction, TrashCommand, TrashPlace};
use crate::controller::recorded_id;
use crate::export::catalog::Record;
use crate::export::pool::Exports;
use crate::export::trash::{Kind, TrashName};
use crate::export::{Export, ExportError};
use crate::mount::workers::{Limits, Workers};
use crate::tree::effort::DEFAULT_WORKERS;

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum TrashError {
    #[error("no volume in the trash of {share} is {volume}: see `nfs-csi trash list`")]
    Unknown { volume: String, share: String },

    #[error("{volume} was deleted more than once: name one of {names} (see `nfs-csi trash list`)")]
    Ambiguous { volume: String, names: String },

    #[error("cannot use {place}: {error}")]
    Place { place: String, error: std::io::Error },

    #[error("{left} entries could not be freed: see above")]
    Left { left: usize },

    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Runs the command. Gives the status to exit with.
#[must_use]
pub fn run(command: TrashCommand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime
        .map_err(|error| TrashError::Place { place: "this process".into(), error })
        .and_then(|runtime| runtime.block_on(carry_out(command)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfs-csi: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(command: TrashCommand) -> Result<(), TrashError> {
    let TrashCommand { action, place, options } = command;
    match place {
        TrashPlace::Path(path) => {
            let failed = |error| TrashError::Place { place: path.display().to_string(), error };
            let export = Arc::new(Export::mounted_at(&path).map_err(failed)?);
            export.run(move |export| act(export, &action)).await
        }
        TrashPlace::Share(share) => {
            let failed = |error| TrashError::Place { place: std::env::temp_dir().display().to_string(), error };
            let workers = Workers::start(Limits::default()).map_err(failed)?;
            let exports = Exports::start(workers, &std::env::temp_dir(), DEFAULT_WORKERS).await.map_err(failed)?;
            let done = match exports.open(&share, &options).await {
                Ok(export) => export.run(move |export| act(export, &action)).await,
                Err(error) => Err(error.into()),
            };
            exports.close().await;
            done
        }
    }
}

fn act(export: &Export, action: &TrashAction) -> Result<(), TrashError> {
    match action {
        TrashAction::List => list(export),
        TrashAction::Restore { volume } => restore(export, volume),
        TrashAction::Purge { volume } => purge(export, volume.as_deref()),
    }
}

/// A volume that is kept in the trash.
struct Kept {
    name: TrashName,
    record: Record,
}

impl Kept {
    fn is_called(&self, volume: &str, export: &Export) -> bool {
        let Record { name, subdir, .. } = &self.record;
        [name.as_str(), subdir.as_str(), &self.name.to_string(), &recorded_id(export.share(), &self.record)]
            .contains(&volume)
    }
}

/// The volumes that are kept; what has no record that can be read is left out.
fn kept(export: &Export) -> Result<Vec<Kept>, TrashError> {
    let mut kept = Vec::new();
    for name in export.trash()?.unwrap_or_default().kept {
        match export.kept_record(&name) {
            Ok(record) => kept.push(Kept { name, record }),
            Err(error) => eprintln!("nfs-csi: {error}"),
        }
    }
    Ok(kept)
}

fn list(export: &Export) -> Result<(), TrashError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let row = |columns: [&str; 5]| {
        let [name, volume, directory, deleted, stays] = columns;
        println!("{name:<52} {volume:<44} {directory:<32} {deleted:<10} {stays}");
    };
    row(["NAME IN THE TRASH", "VOLUME", "DIRECTORY", "DELETED", "STAYS"]);
    for Kept { name, record } in kept(export)? {
        let deleted = now.saturating_sub(Duration::from_nanos(name.deleted_at));
        let stays = Duration::from_secs(name.keep_until).saturating_sub(now);
        let subdir = record.subdir.to_string();
        row([&name.to_string(), &record.name, &subdir, &format!("{} ago", rough(deleted)), &rough(stays)]);
    }
    for name in export.trash()?.unwrap_or_default().due {
        let (deleted, kind) = TrashName::parse(&name).map_or(("-".into(), ""), |name| {
            let deleted = now.saturating_sub(Duration::from_nanos(name.deleted_at));
            let kind = match name.kind {
                Kind::Volume => "(volume)",
                Kind::Snapshot => "(snapshot)",
                Kind::Staged => "(broken off)",
            };
            (format!("{} ago", rough(deleted)), kind)
        });
        row([&name, kind, "-", &deleted, "is being freed"]);
    }
    Ok(())
}

fn restore(export: &Export, volume: &str) -> Result<(), TrashError> {
    let Kept { name, record } = find(export, volume)?;
    export.bring_back(&name, &record)?;
    println!("restored {}:{} as {}", export.share(), record.subdir, recorded_id(export.share(), &record));
    println!("a PersistentVolume with this volumeHandle gives it to a claim again");
    Ok(())
}

fn find(export: &Export, volume: &str) -> Result<Kept, TrashError> {
    let mut found: Vec<Kept> = kept(export)?.into_iter().filter(|kept| kept.is_called(volume, export)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(kept), true) => Ok(kept),
        (Some(last), false) => {
            let names: Vec<String> = found.iter().chain([&last]).map(|kept| kept.name.to_string()).collect();
            Err(TrashError::Ambiguous { volume: volume.into(), names: names.join(", ") })
        }
        (None, _) => Err(TrashError::Unknown { volume: volume.into(), share: export.share().to_string() }),
    }
}

fn purge(export: &Export, volume: Option<&str>) -> Result<(), TrashError> {
    let names = if let Some(volume) = volume {
        vec![find(export, volume)?.name.to_string()]
    } else {
        let trash = export.trash()?.unwrap_or_default();
        trash.kept.iter().map(ToString::to_string).chain(trash.due).collect()
    };
    let mut left = 0;
    for name in names {
        let freed = export.let_go(&name).and_then(|due| export.free(&due));
        match freed {
            Ok(()) => println!("freed {name}"),
            Err(error) => {
                eprintln!("nfs-csi: {error}");
                left += 1;
            }
        }
    }
    if left == 0 { Ok(()) } else { Err(TrashError::Left { left }) }
}

/// A duration in the largest unit of which it has some.
fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    for (unit, size) in [("d", 86400), ("h", 3600), ("m", 60)] {
        if seconds >= 4 * size {
            return format!("{}{unit}", seconds / size);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_in_their_largest_unit() {
        for (seconds, text) in
            [(0, "0s"), (239, "239s"), (240, "4m"), (14_399, "239m"), (259_200, "72h"), (345_600, "4d")]
        {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
