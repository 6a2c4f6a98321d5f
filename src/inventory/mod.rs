//! What is on an export: volumes, snapshots, deleted volumes and archives, and what has lost its counterpart.
//!
//! It is read from the driver's records, from the directories at the share's top and beside volumes, and from the list
//! of a cluster's PersistentVolumes where there is one. Nothing is written. Other controllers may work meanwhile: the
//! records are read before the directories and their names once more after that, and what seems to be gone is asked for
//! again.

mod comparison;
mod directories;
mod entry;
pub mod persistent_volumes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use self::comparison::{Comparison, OnExport};
use self::directories::{Directories, Named, Unnamed};
pub use self::entry::{Entry, Kind, Orphan, Used, UsedBy};
use self::persistent_volumes::PersistentVolume;
use crate::export::catalog::Record;
use crate::export::contents::ReportedUsage;
use crate::export::pages::Keyed;
use crate::export::snapshots::Manifest;
use crate::export::trash::TrashName;
use crate::export::{Export, ExportError};
use crate::tree::count::Pace;
use crate::volume::record_key::RecordKey;
use crate::volume::share::Server;

/// What is to be read.
#[derive(Debug)]
pub struct Request {
    /// The cluster's PersistentVolumes; none: nothing is compared with them.
    pub volumes: Option<Vec<PersistentVolume>>,
    /// The driver whose PersistentVolumes must have a directory.
    pub driver: String,
    /// Other names of the server, as volume ids may have them.
    pub aliases: Vec<Server>,
    /// The cluster that the PersistentVolumes are of (`--cluster-id`); none: it is found out by the records.
    pub cluster: Option<String>,
    /// The pace at which trees are walked whose use nobody reported; none: they are not.
    pub pace: Option<Pace>,
    /// The time now, since 1970.
    pub now: Duration,
}

/// What is on an export.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// `server:/share`.
    pub export: String,
    /// When it was read, in seconds since 1970.
    pub taken_at: u64,
    /// All there is, by kind and name.
    pub entries: Vec<Entry>,
    /// How many PersistentVolumes of the driver are on other shares, by share.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<String, usize>,
}

/// Reads what is on an export.
///
/// # Errors
/// Where the server fails.
pub fn take(export: &Export, request: &Request) -> Result<Inventory, ExportError> {
    let keys = export.keys::<Record>()?;
    let mut records = export.read_keys::<Record>(&keys)?;
    let retained = export.retained()?;
    let on_export = OnExport::of(request, export.share());
    let mut named = Named::default();
    add_subdirs(&mut named, &records);
    let subdirs = retained.iter().map(|record| record.subdir.as_str());
    for path in subdirs.chain(on_export.directories()) {
        named.add(path);
    }
    let directories = Directories::list(export, &named)?;
    // What was made since then has its directory in the lists.
    let known: HashSet<RecordKey> = keys.into_iter().collect();
    let new: Vec<RecordKey> = export.keys::<Record>()?.into_iter().filter(|key| !known.contains(key)).collect();
    let new = export.read_keys::<Record>(&new)?;
    add_subdirs(&mut named, &new);
    records.extend(new);
    let comparison = Comparison::new(&on_export, &records, request.cluster.as_deref());
    let survey = Survey { export, request, comparison, directories, usage: export.reported_usage()? };
    let mut entries = survey.volumes(&records)?;
    entries.extend(survey.without_record()?);
    entries.extend(survey.retained(&retained, &entries)?);
    entries.extend(survey.unnamed(&named, &records)?);
    entries.extend(survey.snapshots()?);
    entries.extend(survey.trash()?);
    entries.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
    if let Some(pace) = &request.pace {
        measure(export, &mut entries, pace)?;
    }
    let (export, taken_at) = (export.share().to_string(), request.now.as_secs());
    Ok(Inventory { export, taken_at, entries, elsewhere: on_export.elsewhere.clone() })
}

fn add_subdirs(named: &mut Named, records: &[Keyed<Record>]) {
    for record in records.iter().filter_map(|(_, record)| record.as_ref().ok()) {
        named.add(record.subdir.as_str());
    }
}

/// An export that is read.
struct Survey<'a> {
    export: &'a Export,
    request: &'a Request,
    comparison: Comparison<'a>,
    directories: Directories,
    usage: Option<ReportedUsage>,
}

impl Survey<'_> {
    /// The volumes that have a record.
    fn volumes(&self, records: &[Keyed<Record>]) -> Result<Vec<Entry>, ExportError> {
        self.export.for_each(records, |(key, record)| match record {
            Ok(record) => self.volume(key, record),
            Err(error) => {
                let state = format!("its record cannot be read: {error}");
                let entry = Entry { state, ..Entry::new(Kind::Volume, key.to_string()) };
                Ok(Some(entry.with_persistent_volume(self.comparison.of_record(key))))
            }
        })
    }

    fn volume(&self, key: &RecordKey, record: &Record) -> Result<Option<Entry>, ExportError> {
        let has_directory = self.directories.has(self.export, record.subdir.as_str(), record.inode)?;
        // It may have been deleted since its record was read.
        if !has_directory && matches!(self.export.record(key), Ok(None)) {
            return Ok(None);
        }
        let volume = self.comparison.of_record(key);
        let orphan = if !has_directory {
            Some(Orphan::RecordWithoutDirectory)
        } else if volume.is_none() && self.comparison.should_have(record) {
            Some(Orphan::RecordWithoutPv)
        } else {
            None
        };
        let state = match (volume, &record.owner) {
            (Some(volume), _) if volume.phase == "Released" || volume.phase == "Failed" => volume.phase.to_lowercase(),
            (None, owner) if self.comparison.is_given() && orphan.is_none() => match owner {
                Some(owner) => format!("of cluster {owner}"),
                None => "of another cluster".into(),
            },
            _ if record.subdir.shared_tree().is_some() => "reads a snapshot".into(),
            _ => "ok".into(),
        };
        let entry = Entry { state, orphan, ..self.recorded(Kind::Volume, record) };
        Ok(Some(entry.with_persistent_volume(volume)))
    }

    /// What a record says.
    fn recorded(&self, kind: Kind, record: &Record) -> Entry {
        let used = record.project().and_then(|project| {
            let usage = self.usage.as_ref()?;
            Some(Used { at: Some(usage.at), ..Used::new(*usage.bytes.get(&project)?, UsedBy::Quota) })
        });
        Entry {
            id: record.id.clone(),
            directory: Some(record.subdir.to_string()),
            claim: record.claim.clone(),
            size_bytes: Some(record.capacity_bytes).filter(|bytes| *bytes > 0),
            used,
            created_at: Some(record.created_at),
            owner: record.owner.clone(),
            ..Entry::new(kind, record.name.clone())
        }
    }

    /// The PersistentVolumes of directories without a record.
    fn without_record(&self) -> Result<Vec<Entry>, ExportError> {
        let mut entries = Vec::new();
        for &(volume, directory) in self.comparison.without_record() {
            let entry = Entry { created_at: volume.created_at, ..Entry::new(Kind::Volume, volume.name.clone()) };
            let has_directory = match directory {
                Some("") => true,
                Some(directory) => self.directories.has(self.export, directory, None)?,
                None => false,
            };
            let is_own = volume.driver.as_ref() == Some(&self.request.driver);
            if !has_directory && !is_own {
                continue;
            }
            let state = match &volume.driver {
                _ if directory == Some("") => "the whole export".into(),
                Some(_) if is_own => "no record".into(),
                Some(driver) => format!("of {driver}"),
                None => "of no driver (nfs)".into(),
            };
            let entry = Entry {
                directory: directory.filter(|directory| !directory.is_empty()).map(str::to_owned),
                state,
                orphan: (!has_directory).then_some(Orphan::PvWithoutDirectory),
                ..entry
            };
            entries.push(entry.with_persistent_volume(Some(volume)));
        }
        Ok(entries)
    }

    /// The directories of deleted volumes that stay.
    fn retained(&self, records: &[Record], volumes: &[Entry]) -> Result<Vec<Entry>, ExportError> {
        let in_use: HashSet<&str> = volumes.iter().filter_map(|entry| entry.directory.as_deref()).collect();
        self.export.for_each(records, |record| {
            let path = record.subdir.as_str();
            if in_use.contains(path) || !self.directories.has(self.export, path, record.inode)? {
                return Ok(None);
            }
            Ok(Some(Entry { state: "deleted, retained".into(), ..self.recorded(Kind::Retained, record) }))
        })
    }

    /// The directories that no volume names. That of a record which cannot be read is known by the key of its name.
    fn unnamed(&self, named: &Named, records: &[Keyed<Record>]) -> Result<Vec<Entry>, ExportError> {
        let unreadable: HashSet<&RecordKey> =
            records.iter().filter(|(_, record)| record.is_err()).map(|(key, _)| key).collect();
        let is_unreadable = |path: &str| !unreadable.is_empty() && unreadable.contains(&RecordKey::of(path));
        let entry = |kind, path: String, state: &str| Entry {
            directory: Some(path.clone()),
            state: state.to_owned(),
            ..Entry::new(kind, path)
        };
        let unnamed = self.directories.unnamed(self.export, named)?.into_iter().map(|unnamed| match unnamed {
            Unnamed::Archive(path) => entry(Kind::Archive, path, "deleted, archived"),
            Unnamed::Snapshot(path) => entry(Kind::Snapshot, path, "archive of csi-driver-nfs"),
            Unnamed::Other(path) if is_unreadable(&path) => {
                entry(Kind::Directory, path, "of the volume whose record cannot be read")
            }
            Unnamed::Other(path) => {
                Entry { orphan: Some(Orphan::DirectoryWithoutRecord), ..entry(Kind::Directory, path, "") }
            }
        });
        Ok(unnamed.collect())
    }

    fn snapshots(&self) -> Result<Vec<Entry>, ExportError> {
        let snapshots = self.export.read_keys::<Manifest>(&self.export.keys::<Manifest>()?)?;
        let entry = |(key, manifest): (RecordKey, Result<Manifest, ExportError>)| match manifest {
            Ok(manifest) => Entry {
                size_bytes: Some(manifest.size_bytes).filter(|bytes| *bytes > 0),
                used: Some(Used::new(manifest.bytes, UsedBy::Snapshot)),
                created_at: Some(manifest.created_at / 1_000_000_000),
                owner: manifest.owner,
                state: format!("of {}", manifest.source_volume),
                ..Entry::new(Kind::Snapshot, manifest.name)
            },
            Err(error) => Entry {
                state: format!("its manifest cannot be read: {error}"),
                ..Entry::new(Kind::Snapshot, key.to_string())
            },
        };
        Ok(snapshots.into_iter().map(entry).collect())
    }

    fn trash(&self) -> Result<Vec<Entry>, ExportError> {
        let (trash, mut records) = self.export.read_trash(self.request.now)?;
        let mut entry = |name: TrashName, is_kept: bool| {
            let entry = match records.remove(&name) {
                Some(record) => Entry { directory: None, ..self.recorded(Kind::Trash, &record) },
                None => Entry::new(Kind::Trash, name.to_string()),
            };
            let deleted_at = name.deleted_at / 1_000_000_000;
            let kept_until = is_kept.then_some(name.keep_until);
            let state = if is_kept { "kept" } else { "being freed" };
            Entry { state: state.into(), deleted_at: Some(deleted_at), kept_until, ..entry }
        };
        let all =
            trash.kept.into_iter().map(|name| (name, true)).chain(trash.due.into_iter().map(|name| (name, false)));
        Ok(all.map(|(name, is_kept)| entry(name, is_kept)).collect())
    }
}

/// Walks the directories of entries whose use nobody reported, each once.
fn measure(export: &Export, entries: &mut [Entry], pace: &Pace) -> Result<(), ExportError> {
    let mut measured: HashMap<String, Option<Used>> = HashMap::new();
    let is_measured = |entry: &&mut Entry| entry.used.is_none() && entry.directory.is_some();
    for entry in entries.iter_mut().filter(is_measured) {
        let Some(path) = &entry.directory else { continue };
        if !measured.contains_key(path) {
            let usage = match export.measure(path, pace) {
                Ok(usage) => usage,
                Err(error) => {
                    let error = export.of_entry_alone(export.root(), error)?;
                    entry.state = format!("cannot be measured: {error}");
                    None
                }
            };
            measured.insert(path.clone(), usage.map(Used::walked));
        }
        entry.used = measured.get(path).cloned().flatten();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
