//! `nfs-csi quota status`: the limit of each volume, and what it uses, from the command line.
#![allow(clippy::print_stdout, reason = "this is the command's own output")]

use std::process::ExitCode;

use thiserror::Error;

use super::text::{print_table, printable, size};
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
    print_table(&rows);
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
