//! `nfs-csi trash`: what was deleted on an export, from the command line: see it, bring it back, free it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's own output")]

use std::process::ExitCode;
use std::time::Duration;

use thiserror::Error;

use super::place::{self, PlaceError};
use super::text::rough;
use crate::cli::{TrashAction, TrashCommand};
use crate::controller::recorded_id;
use crate::export::catalog::Record;
use crate::export::trash::{Kind, TrashName};
use crate::export::trash_free::Needed;
use crate::export::{Export, ExportError};
use crate::tree::Progress;

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum TrashError {
    #[error("no volume in the trash of {share} is {volume}: see `nfs-csi trash list`")]
    Unknown { volume: String, share: String },

    #[error("{volume} was deleted more than once: name one of {names} (see `nfs-csi trash list`)")]
    Ambiguous { volume: String, names: String },

    #[error(transparent)]
    Place(#[from] PlaceError),

    #[error(
        "{name} is not freed: a volume that exists has this directory, or its delete was cut short; the controller puts \
         it back, or completes the delete when it is repeated"
    )]
    Needed { name: String },

    #[error("{left} entries could not be freed: see above")]
    Left { left: usize },

    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Runs the command. Gives the status to exit with.
#[must_use]
pub fn run(command: TrashCommand) -> ExitCode {
    super::run(async move {
        let TrashCommand { action, place, reach } = command;
        place::at(place, &reach, move |export| act(export, &action)).await.map(|()| ExitCode::SUCCESS)
    })
}

fn act(export: &Export, action: &TrashAction) -> Result<(), TrashError> {
    match action {
        TrashAction::List => list(export),
        TrashAction::Restore { volume } => restore(export, volume),
        TrashAction::Purge { volume, older_than, dry_run } => {
            purge(export, &Purge { volume: volume.as_deref(), older_than: *older_than, dry_run: *dry_run })
        }
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
            Ok(Some(record)) => kept.push(Kept { name, record }),
            Ok(None) => {
                eprintln!("nfs-csi: {name} has no record: its delete was cut short, and is completed by its retry");
            }
            Err(error) => eprintln!("nfs-csi: {error}"),
        }
    }
    Ok(kept)
}

fn list(export: &Export) -> Result<(), TrashError> {
    let now = export.now();
    let ago = |name: &TrashName| format!("{} ago", rough(now.saturating_sub(Duration::from_nanos(name.deleted_at))));
    let row = |columns: [&str; 5]| {
        let [name, volume, directory, deleted, stays] = columns;
        println!("{name:<52} {volume:<44} {directory:<32} {deleted:<10} {stays}");
    };
    row(["NAME IN THE TRASH", "VOLUME", "DIRECTORY", "DELETED", "STAYS"]);
    for Kept { name, record } in kept(export)? {
        let stays = rough(Duration::from_secs(name.keep_until).saturating_sub(now));
        row([&name.to_string(), &record.name, record.subdir.as_str(), &ago(&name), &stays]);
    }
    let trash = export.trash()?.unwrap_or_default();
    for name in trash.due {
        let record = export.kept_record(&name).ok().flatten();
        let (volume, directory) = match (&record, name.kind) {
            (Some(record), _) => (record.name.as_str(), record.subdir.as_str()),
            (None, Kind::Volume) => ("(volume)", "-"),
            (None, Kind::Snapshot) => ("(snapshot)", "-"),
            (None, Kind::Staged) => ("(broken off)", "-"),
        };
        let stays = match export.failure(&name) {
            Some(failure) => format!("cannot be freed, tried {} times: {}", failure.tries, failure.reason),
            None => "is being freed".into(),
        };
        row([&name.to_string(), volume, directory, &ago(&name), &stays]);
    }
    for name in trash.unknown {
        row([&name, "-", "-", "-", "unknown to this version: it is left alone"]);
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

/// What is to be purged.
struct Purge<'a> {
    volume: Option<&'a str>,
    older_than: Option<Duration>,
    dry_run: bool,
}

fn purge(export: &Export, what: &Purge<'_>) -> Result<(), TrashError> {
    let mut trash = export.trash()?.unwrap_or_default();
    let names = if let Some(volume) = what.volume {
        vec![find(export, volume)?.name]
    } else {
        trash.kept.drain(..).chain(trash.due.drain(..)).collect()
    };
    let now = export.now();
    let is_old = |name: &TrashName| {
        let age = now.saturating_sub(Duration::from_nanos(name.deleted_at));
        what.older_than.is_none_or(|older_than| age >= older_than)
    };
    let mut left = 0;
    for name in names.iter().filter(|name| is_old(name)) {
        if what.dry_run {
            println!("would free {name}");
            continue;
        }
        match free(export, name, trash.rests.get(name).map_or(&[], Vec::as_slice)) {
            Ok(()) => println!("freed {name}"),
            Err(error) => {
                eprintln!("nfs-csi: {error}");
                left += 1;
            }
        }
    }
    if left == 0 { Ok(()) } else { Err(TrashError::Left { left }) }
}

fn free(export: &Export, name: &TrashName, rests: &[String]) -> Result<(), TrashError> {
    if export.is_needed(name)? != Needed::No {
        return Err(TrashError::Needed { name: name.to_string() });
    }
    Ok(export.free(name, rests, true, &Progress::default())?)
}
