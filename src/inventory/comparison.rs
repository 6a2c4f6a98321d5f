//! The PersistentVolumes of a cluster beside the records of an export.
//!
//! A PersistentVolume belongs to the record that its id names. One whose id names none, as a volume written by hand,
//! belongs to a record of its directory that has no other.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Request;
use super::persistent_volumes::{PersistentVolume, Position};
use crate::export::catalog::Record;
use crate::export::pages::Keyed;
use crate::volume::record_key::RecordKey;
use crate::volume::share::Share;

/// The PersistentVolumes that are on the export.
#[derive(Debug, Default)]
pub(super) struct OnExport<'a> {
    is_given: bool,
    here: Vec<Here<'a>>,
    /// How many of the driver's are on other shares, by share.
    pub(super) elsewhere: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Here<'a> {
    volume: &'a PersistentVolume,
    /// Its directory below the share (empty: the share's top); none: its record names it.
    directory: Option<String>,
    key: Option<RecordKey>,
}

impl<'a> OnExport<'a> {
    pub(super) fn of(request: &'a Request, share: &Share) -> Self {
        let mut found = Self { is_given: request.volumes.is_some(), ..Self::default() };
        for volume in request.volumes.iter().flatten() {
            let directory = match volume.position(share, &request.aliases) {
                Position::Directory(directory) => Some(directory),
                Position::Recorded => None,
                Position::Elsewhere(other) => {
                    if volume.driver.as_ref() == Some(&request.driver) {
                        *found.elsewhere.entry(other).or_default() += 1;
                    }
                    continue;
                }
                Position::Unknown => continue,
            };
            found.here.push(Here { volume, directory, key: volume.key_on(share, &request.aliases) });
        }
        found
    }

    /// The directories that they name.
    pub(super) fn directories(&self) -> impl Iterator<Item = &str> {
        self.here.iter().filter_map(|here| here.directory.as_deref())
    }
}

/// Which PersistentVolume belongs to which record.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    is_given: bool,
    of_record: HashMap<RecordKey, &'a PersistentVolume>,
    without_record: Vec<(&'a PersistentVolume, Option<&'a str>)>,
    /// The clusters that the PersistentVolumes are of; none: it is not known.
    clusters: Option<HashSet<Option<String>>>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(on_export: &'a OnExport<'a>, records: &[Keyed<Record>], cluster: Option<&str>) -> Self {
        let by_key: HashMap<&RecordKey, Option<&Record>> =
            records.iter().map(|(key, record)| (key, record.as_ref().ok())).collect();
        let (mut of_record, mut others) = (HashMap::new(), Vec::new());
        for here in &on_export.here {
            let is_own = |record: Option<&Record>| match (record, &here.directory) {
                // A record of the same key that names another directory is another volume's.
                (Some(record), Some(directory)) => record.subdir.as_str() == directory,
                _ => true,
            };
            match &here.key {
                Some(key) if by_key.get(key).is_some_and(|record| is_own(*record)) => {
                    of_record.insert(key.clone(), here.volume);
                }
                _ => others.push((here.volume, here.directory.as_deref())),
            }
        }
        let mut free: HashMap<&str, Vec<&RecordKey>> = HashMap::new();
        for (key, record) in records.iter().filter(|(key, _)| !of_record.contains_key(key)) {
            if let Ok(record) = record {
                free.entry(record.subdir.as_str()).or_default().push(key);
            }
        }
        let mut without_record = Vec::new();
        for (volume, directory) in others {
            match directory.and_then(|directory| free.get_mut(directory)?.pop()) {
                Some(key) => _ = of_record.insert(key.clone(), volume),
                None => without_record.push((volume, directory)),
            }
        }
        let clusters = match cluster {
            Some(cluster) => Some(HashSet::from([Some(cluster.to_owned())])),
            None if of_record.is_empty() => None,
            None => {
                let matched = by_key.iter().filter(|(key, _)| of_record.contains_key(**key));
                Some(matched.filter_map(|(_, record)| Some((*record)?.owner.clone())).collect())
            }
        };
        Self { is_given: on_export.is_given, of_record, without_record, clusters }
    }

    /// The PersistentVolume of a record.
    pub(super) fn of_record(&self, key: &RecordKey) -> Option<&'a PersistentVolume> {
        self.of_record.get(key).copied()
    }

    /// Those that no record belongs to, with their directories (empty: the share's top; none: not known).
    pub(super) fn without_record(&self) -> &[(&'a PersistentVolume, Option<&'a str>)] {
        &self.without_record
    }

    /// Whether a record should have a PersistentVolume among those that were given. One of another cluster should not:
    /// unless that cluster was named, those are meant of which some have one.
    pub(super) fn should_have(&self, record: &Record) -> bool {
        self.is_given && self.clusters.as_ref().is_none_or(|clusters| clusters.contains(&record.owner))
    }

    /// Whether there is anything to compare with.
    pub(super) fn is_given(&self) -> bool {
        self.is_given
    }
}
