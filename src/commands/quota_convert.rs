//! `nfs-csi quota convert`: a volume gets a limit, from the command line on the NFS server.
#![allow(clippy::print_stdout, reason = "this is the command's own output")]

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;

use thiserror::Error;

use crate::cli::ConvertCommand;
use crate::controller::recorded_id;
use crate::export::catalog::Record;
use crate::export::holder::Holder;
use crate::export::{Export, ExportError};
use crate::quota::convert::{ConvertError, Converted, convert};
use crate::quota::error::QuotaError;
use crate::quota::file_system::check;
use crate::quota::quotactl::Disk;
use crate::volume::record_key::RecordKey;

/// Why the command did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum CommandError {
    #[error("no volume of {export} is {volume}: give its name, its id, or its directory (see `nfs-csi quota status`)")]
    Unknown { volume: String, export: String },

    #[error("cannot use {export}: {error}")]
    Place { export: String, error: std::io::Error },

    #[error(transparent)]
    Quota(#[from] QuotaError),

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Convert(#[from] ConvertError),
}

/// Runs the command. Gives the status to exit with.
#[must_use]
pub fn run(command: ConvertCommand) -> ExitCode {
    super::run(async move {
        let ConvertCommand { volume, export: path, mode } = command;
        let named = path.display().to_string();
        let failed = |error| CommandError::Place { export: named.clone(), error };
        check(&path)?;
        let disk = Disk::of(File::open(&path).map_err(failed)?.into());
        let holder = Arc::new(Holder::open(&std::env::temp_dir(), None));
        let export = Arc::new(Export::on_server(&path, holder).map_err(failed)?);
        let unknown = CommandError::Unknown { volume: volume.clone(), export: named.clone() };
        let work = move |export: &Export| {
            let (key, record) = find(export, &volume)?.ok_or(unknown)?;
            let converted = convert(export, &disk, &key, &record, mode)?;
            Ok::<_, CommandError>((record, converted))
        };
        let (record, converted) = export.run(work).await?;
        print(&record, converted);
        Ok::<_, CommandError>(ExitCode::SUCCESS)
    })
}

/// The record of the volume that is called so.
fn find(export: &Export, volume: &str) -> Result<Option<(RecordKey, Record)>, ExportError> {
    for key in export.keys::<Record>()? {
        let Some(record) = export.record(&key)? else { continue };
        let id = recorded_id(export.share(), &record);
        // On the server an id's first two fields are not known: those are how others reach the export.
        let is_its_id = volume.splitn(3, '#').nth(2).is_some_and(|rest| id.splitn(3, '#').nth(2) == Some(rest));
        if is_its_id || [record.name.as_str(), record.subdir.as_str()].contains(&volume) {
            return Ok(Some((key, record)));
        }
    }
    Ok(None)
}

fn print(record: &Record, converted: Converted) {
    let Converted { project, entries, left, used } = converted;
    let project = project.map(|project| project.to_string()).unwrap_or_default();
    if entries == 0 {
        println!("{} has a limit already, with project {project}", record.name);
        return;
    }
    println!(
        "{} has a limit of {} bytes now, with project {project}: {entries} entries, {used} bytes in use",
        record.name, record.capacity_bytes
    );
    if left > 0 {
        println!("{left} links, pipes or devices have several names: they stay uncounted, and cannot be renamed");
    }
}
