//! `nfs-csi quota status`: the limit of each volume, and what it uses, from the command line.
#![allow(clippy::print_stdout, reason = "this is the command's own output")]

use std::process::ExitCode;

use thiserror::Error;

use crate::cli::{QuotaOutput, StatusCommand};
use crate::quota::overview::{self, Overview, OverviewError, Volume};
use crate::volume::quota_files::LARGEST;

/// Why the command did not do its work.
#[derive(Debug, Error)]
enum StatusError {
    #[error(transparent)]
    Overview(#[from] OverviewError),

    #[error("cannot write the report: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs the command. Gives the status to exit with: 0, or 2 where an export cannot be read.
#[must_use]
pub fn run(command: StatusCommand) -> ExitCode {
    super::run(async move {
        let read = command.exports.iter().map(|export| overview::read(export));
        let overviews = read.collect::<Result<Vec<_>, _>>()?;
        match command.output {
            QuotaOutput::Json => println!("{}", serde_json::to_string_pretty(&overviews)?),
            QuotaOutput::Table => overviews.iter().for_each(print),
        }
        Ok::<_, StatusError>(ExitCode::SUCCESS)
    })
}

fn print(overview: &Overview) {
    let Overview { export, agent, alive, ready, volumes } = overview;
    let agent = match (agent, alive) {
        (Some(agent), true) => format!("agent {} on {} ({})", agent.version, agent.host, agent.file_system),
        (Some(agent), false) => format!("the agent on {} IS SILENT", agent.host),
        (None, _) => "NO AGENT has written its state".into(),
    };
    println!("{export}: {agent}, {} volumes, {ready} directories ready", volumes.len());
    let header = ["PROJECT", "VOLUME", "CLAIM", "LIMIT", "USED", "INODES", "STATE"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(header).chain(volumes.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn row(volume: &Volume) -> [String; 7] {
    let unknown = || "-".to_owned();
    let name = volume.name.clone().or_else(|| volume.key.as_ref().map(ToString::to_string));
    let inodes = match (volume.used_inodes, volume.limit_inodes) {
        (Some(used), None | Some(0)) => used.to_string(),
        (Some(used), Some(limit)) => format!("{used}/{limit}"),
        (None, _) => unknown(),
    };
    [
        volume.project.to_string(),
        name.map_or_else(unknown, |name| printable(&name)),
        volume.claim.as_deref().map_or_else(unknown, printable),
        match volume.limit_bytes {
            Some(LARGEST) => "none".into(),
            limit => limit.map_or_else(unknown, size),
        },
        volume.used_bytes.map_or_else(unknown, size),
        inodes,
        printable(&volume.state.to_string()),
    ]
}

/// Without what would move the terminal's cursor: any NFS client may have written it.
fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

/// A number of bytes in the largest unit that has no more than one digit after the point.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut unit, mut tenths) = (0, u128::from(bytes) * 10);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths = tenths.div_ceil(1024);
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_short_and_never_less_than_it_is() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1.1 KiB"),
            (5 << 30, "5 GiB"),
            ((5 << 30) + (1 << 29), "5.5 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn what_a_client_wrote_does_not_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }
}
