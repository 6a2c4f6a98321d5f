//! `nfs-csi list`: what is on an export, from the command line. It changes nothing.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's own output")]

use std::fs::File;
use std::io::stdin;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::place::{self, PlaceError};
use super::text::{print_table, printable, rough, size};
use crate::cli::{ListCommand, Output};
use crate::export::ExportError;
use crate::inventory::persistent_volumes::{PersistentVolume, VolumesError};
use crate::inventory::{self, Entry, Inventory, Request, Used};
use crate::tree::count::Pace;

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum ListError {
    #[error("cannot read {path}: {error}")]
    File { path: String, error: std::io::Error },

    #[error("--pvs {path}: {error}")]
    Volumes { path: String, error: VolumesError },

    #[error(transparent)]
    Place(#[from] PlaceError),

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error("cannot write the list: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs the command. Gives the status to exit with: 0, or 2 if the list cannot be made.
#[must_use]
pub fn run(command: ListCommand) -> ExitCode {
    super::run(async move {
        let ListCommand { place, reach, pvs, orphans, du_rate, driver, aliases, cluster, output } = command;
        let volumes = pvs.as_deref().map(read_volumes).transpose()?;
        let aliases = place::names(&place, &reach)?.into_iter().chain(aliases).collect();
        place::read_only(place, &reach, move |export| {
            let request = Request { volumes, driver, aliases, cluster, pace: du_rate.map(Pace::new), now: now() };
            let mut inventory = inventory::take(export, &request)?;
            if orphans {
                inventory.entries.retain(|entry| entry.orphan.is_some());
            }
            match output {
                Output::Json => println!("{}", serde_json::to_string_pretty(&inventory)?),
                Output::Text => print(&inventory),
            }
            remark_on_others(&inventory, &request.driver);
            Ok::<_, ListError>(ExitCode::SUCCESS)
        })
        .await
    })
}

fn read_volumes(path: &Path) -> Result<Vec<PersistentVolume>, ListError> {
    let shown = || path.display().to_string();
    let read = if path == Path::new("-") {
        PersistentVolume::read_list(stdin().lock())
    } else {
        PersistentVolume::read_list(File::open(path).map_err(|error| ListError::File { path: shown(), error })?)
    };
    read.map_err(|error| ListError::Volumes { path: shown(), error })
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn print(inventory: &Inventory) {
    let header = ["KIND", "NAME", "CLAIM", "SIZE", "USED", "AGE", "OWNER", "STATE"].map(str::to_owned);
    let now = now().as_secs();
    let rows = inventory.entries.iter().map(|entry| row(entry, now));
    print_table(&std::iter::once(header).chain(rows).collect::<Vec<_>>());
}

fn row(entry: &Entry, now: u64) -> [String; 8] {
    let unknown = || "-".to_owned();
    let text = |text: &Option<String>| text.as_deref().map_or_else(unknown, printable);
    let ago = |at: u64| rough(Duration::from_secs(now.saturating_sub(at)));
    [
        entry.kind.to_string(),
        printable(&entry.name),
        text(&entry.claim),
        entry.size_bytes.map_or_else(unknown, size),
        entry.used.as_ref().map_or_else(unknown, |used| shown_use(used, now)),
        entry.created_at.map_or_else(unknown, ago),
        text(&entry.owner),
        printable(&state(entry, now)),
    ]
}

/// What is used, and how long ago that was so.
fn shown_use(used: &Used, now: u64) -> String {
    let more = if used.is_partial { ">" } else { "" };
    let age = used.at.map(|at| format!(" ({} ago)", rough(Duration::from_secs(now.saturating_sub(at)))));
    format!("{more}{}{}", size(used.bytes), age.unwrap_or_default())
}

fn state(entry: &Entry, now: u64) -> String {
    let rest = entry.kept_until.map(|until| rough(Duration::from_secs(until.saturating_sub(now))));
    match (entry.orphan, entry.deleted_at) {
        (Some(orphan), _) => format!("ORPHAN: {orphan}"),
        (None, Some(at)) => {
            let ago = rough(Duration::from_secs(now.saturating_sub(at)));
            let rest = rest.map(|rest| format!(" for {rest} more")).unwrap_or_default();
            format!("{}{rest} (deleted {ago} ago)", entry.state)
        }
        (None, None) => entry.state.clone(),
    }
}

/// Where PersistentVolumes name the server in another way, all records would seem to be without one.
fn remark_on_others(inventory: &Inventory, driver: &str) {
    if inventory.elsewhere.is_empty() {
        return;
    }
    let shares: Vec<String> =
        inventory.elsewhere.iter().map(|(share, count)| format!("{} ({count})", printable(share))).collect();
    eprintln!(
        "nfs-csi: PersistentVolumes of {driver} on other shares were left out: {}. If one of these is this export, name \
         its server with --also-server",
        shares.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Kind, Orphan, UsedBy};

    #[test]
    fn a_row_shows_what_is_known_and_how_old_each_figure_is() {
        let used = Used { bytes: 5 << 20, at: Some(960), by: UsedBy::Quota, is_partial: false };
        let mut entry = Entry::new(Kind::Volume, "pvc-1".into());
        assert_eq!(row(&entry, 1000), ["volume", "pvc-1", "-", "-", "-", "-", "-", ""]);
        entry.claim = Some("team/data\n".into());
        entry.size_bytes = Some(10 << 30);
        entry.used = Some(used.clone());
        entry.created_at = Some(400);
        entry.owner = Some("west".into());
        entry.state = "ok".into();
        let cells = ["volume", "pvc-1", "team/data\u{fffd}", "10 GiB", "5 MiB (40s ago)", "10m", "west", "ok"];
        assert_eq!(row(&entry, 1000), cells);
        assert_eq!(shown_use(&Used { at: None, is_partial: true, ..used }, 1000), ">5 MiB");
        entry.orphan = Some(Orphan::RecordWithoutPv);
        assert_eq!(state(&entry, 1000), "ORPHAN: record without PV");
        let deleted = Entry {
            deleted_at: Some(990),
            kept_until: Some(8200),
            state: "kept".into(),
            ..Entry::new(Kind::Trash, "pvc-2".into())
        };
        assert_eq!(state(&deleted, 1000), "kept for 120m more (deleted 10s ago)");
    }
}
