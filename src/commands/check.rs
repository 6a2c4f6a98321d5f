//! `nfs-csi check`: whether all that the driver keeps on an export fits together, from the command line.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's own output")]

use std::process::ExitCode;

use thiserror::Error;

use super::place::{self, PlaceError};
use crate::cli::{CheckCommand, Output};
use crate::export::invariants::{Finding, Report};
use crate::export::{Export, ExportError};

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum CheckError {
    #[error(transparent)]
    Place(#[from] PlaceError),

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error("cannot write the report: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs the command. Gives the status to exit with: 0 if all is well, or was repaired, 1 if something is wrong, 2 if it
/// could not be found out.
#[must_use]
pub fn run(command: CheckCommand) -> ExitCode {
    super::run(async move {
        let CheckCommand { place, reach, repair, retention, output } = command;
        place::at(place, &reach, move |export| {
            let mut report = export.check(retention)?;
            if repair {
                self::repair(export, &mut report)?;
            }
            let is_wrong = report.findings.iter().any(|finding| finding.problem.is_wrong());
            match output {
                Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
                Output::Text => print(export, &report, repair),
            }
            Ok::<_, CheckError>(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        })
        .await
    })
}

/// Repairs what can be; says of each what is done before it is done.
fn repair(export: &Export, report: &mut Report) -> Result<(), ExportError> {
    let (repairable, left): (Vec<Finding>, Vec<Finding>) =
        std::mem::take(&mut report.findings).into_iter().partition(|finding| finding.repair.is_some());
    report.findings = left;
    for finding in repairable {
        eprintln!("repairing {}: {}", finding.path, finding.repair.as_deref().unwrap_or_default());
        export.repair(&finding)?;
        report.repaired.push(finding);
    }
    Ok(())
}

fn print(export: &Export, report: &Report, repaired: bool) {
    let Report { volumes, snapshots, kept, due, findings, .. } = report;
    println!(
        "{}: {volumes} volumes, {snapshots} snapshots, {kept} kept in the trash, {due} about to be freed",
        export.share()
    );
    for Finding { problem, path, detail, repair, .. } in findings {
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        println!("{problem}: {path}{detail}");
        match repair {
            Some(repair) => println!("    --repair would {repair}"),
            None => println!("    {}", problem.remedy()),
        }
    }
    let wrong = findings.iter().filter(|finding| finding.problem.is_wrong()).count();
    match (wrong, repaired) {
        (0, _) => println!("nothing is wrong"),
        (_, false) => println!("{wrong} findings"),
        (_, true) => println!("{wrong} findings are left"),
    }
}
